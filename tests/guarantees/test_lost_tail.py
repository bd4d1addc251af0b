"""S4b, T9, T11: Redis loses the end of its file, what it had acknowledged included. Tokens rise all the same."""

from __future__ import annotations

from pathlib import Path

from fencepost.driver import Connections, SyncDriver
from fencepost.job import JobSpec
from fencepost.keys import Keys
from fencepost.store import Outcome, Request, Store


def aof(folder: Path) -> Path:
    """The file that takes the writes."""
    [path] = folder.rglob("*.incr.aof")
    return path


def request(nonce: str, wanted: int = 1) -> Request:
    return Request("w1", "lane0", nonce, wanted, 30_000, "", (("default", 10),))


def test_after_a_rewind_the_next_token_is_above_every_one_that_was_seen(new_server, namespace):
    server = new_server()
    store, driver = Store(Keys(namespace)), SyncDriver(Connections(server.url))
    driver.run(store.enqueue([JobSpec(id="job-1", kind="mail")]))
    kept = aof(server.path).stat().st_size
    seen = 0
    for nonce in ("first", "second", "third"):
        [lost] = driver.run(store.claim(request(nonce))).jobs
        assert int(lost.token) > seen
        seen = int(lost.token)

        server.kill()
        file = aof(server.path)
        assert file.stat().st_size > kept, "void: nothing was written that could be lost"
        with file.open("r+b") as handle:
            handle.truncate(kept)
        server.restart()
        record = driver.run(store.job("job-1"))
        assert record is not None
        assert record.state == "queued", "void: the claim was not lost"

        # The holder of the lost claim is nobody now, whatever the server remembers.
        outcome = Outcome(lost.job_id, lost.token, lost.nonce, "DONE", ("",))
        assert driver.run(store.finish([outcome], request("sweep", 0))).replies[0][0] != "OK"
    driver.close()
