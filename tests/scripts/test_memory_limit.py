"""A server whose memory is full takes no new work, says so, and lets the queue drain."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost.embedded import EmbeddedServer
from fencepost.errors import RedisUnavailable
from fencepost.job import JobSpec
from tests.support import raw_client
from tests.support.partition import Partition
from tests.support.state import leaks


@pytest.fixture
def full(new_server: Callable[..., EmbeddedServer]) -> Iterator[Partition]:
    """A partition on a server of its own, with jobs in every state; `fill_up` lets its memory be full."""
    server = new_server(config={"maxmemory-policy": "noeviction"})
    client: Any = raw_client(server.url)
    partition = Partition(client, server.url, f"t{secrets.token_hex(4)}")
    partition.driver.give_up_s = 0.0
    yield partition
    assert leaks(client, partition.namespace) == []
    partition.close()
    client.close()


def fill_up(p: Partition) -> None:
    p.redis.config_set("maxmemory", "1mb")
    with pytest.raises(Exception, match="used memory"):
        p.redis.set(p.keys.idem("probe"), "x", ex=60)


def test_a_full_server_refuses_new_work_without_storing_half_of_it(full):
    full.job(dedup="k")
    failed = full.put("failed").job_id
    fill_up(full)
    before, stats, told = full.matter(), full.stats(), full.told()
    calls = [
        full.store.enqueue([JobSpec(id="a", kind="mail", dedup="x", idem="i", fingerprint="f", resource="r")] * 3),
        full.store.requeue([failed], "ask"),
        full.store.acquire("thing", "me", "somebody", 30_000),
    ]
    for call in calls:
        with pytest.raises(RedisUnavailable) as caught:
            full.run(call)
        assert caught.value.executed is False
        assert caught.value.what == call.verb
        assert "Nothing was changed" in str(caught.value)
    assert (full.matter(), full.stats(), full.told()) == (before, stats, told)


def test_a_full_server_lets_the_queue_drain_to_nothing(full):
    """Claim, checkpoint, renew, bump, every outcome, cancel, release, heal, purge, pause, resume, revoke and the
    ledger's calls go on."""
    jobs = [full.job(resource="thing" if n % 4 == 0 else None, dedup=f"k{n}") for n in range(40)]
    due = full.job(delay_ms=60_000)
    full.redis.zadd(full.keys.later, {due: 1}, xx=True)
    lapsed = full.put("processing")
    full.lapse(lapsed)
    hung = full.put("processing")
    queue, other = full.record(lapsed.job_id).queue, full.record(hung.job_id).queue
    _, token, _ = full.acquire("alone", "me")
    fill_up(full)
    assert full.release("me", token) == ("OK", "")
    assert full.pause("default").word == "PAUSED"
    assert full.claim(5) == []
    assert full.resume("default").word == "RESUMED"
    assert full.revoke(hung.job_id, hung.token) == ("REVOKED", "queued")
    assert full.cancel(jobs.pop()).word == "CANCELLED"
    assert full.conclude(jobs.pop()) == ("CONCLUDED", "queued")
    assert full.archived(3).word == "OK"
    assert full.heal(*jobs)[0] == ("SOUND", "queued")
    words, ended = ["DONE", "RETRY", "BURY", "RELEASE", "CANCEL"], 0
    while runs := full.claim(5, queues=("default", queue, other), upkeep="{}"):
        for run in runs:
            assert full.renew(run.key) == [("OK", "")]
            assert full.checkpoint(run.key) == ("OK", "")
            assert full.checkpoint(run.key, b"1", "step:load", "step", "load") == ("OK", "")
            assert full.bump(run.key, int(run.token)).word == "OK"
            word = words[ended % 5] if run.attempt == 1 and run.crashes == 0 else "DONE"
            assert full.finish(run.key, word).word == "OK"
            ended += 1
    live = [key for key, one in full.dump().items() if key.startswith("job:") and not one.has_ttl]
    assert live == []
    assert not full.redis.exists(full.keys.leases, full.keys.later, full.keys.ready("default"), full.keys.line("thing"))
    assert {word for word, _ in full.purge(*jobs, due, lapsed.job_id, hung.job_id)} == {"PURGED"}
    full.redis.config_set("maxmemory", 0)
    assert full.job()
