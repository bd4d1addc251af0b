"""The page of Redis keys is what its generator makes, lists all that the scripts write, and its commands answer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py

from fencepost import scripts
from fencepost.keys import ALL, Keys
from fencepost.store import RunKey
from tests.support import keys_of
from tests.support.partition import Partition
from tests.surface.pages import blocks, commands
from tools import keys_page


@pytest.fixture
def partition(redis: redis_py.Redis, url: str, namespace: str) -> Iterator[Partition]:
    one = Partition(redis, url, namespace)
    yield one
    one.close()


@pytest.fixture
def lived(partition: Partition) -> tuple[Partition, dict[str, str]]:
    """A partition in which every verb ran, and what the capital words of the page stand for in it."""
    p = partition
    verbs: set[str] = set()
    send = p.driver.run

    def noting(call: Any, *rest: Any) -> Any:
        verbs.add(call.verb)
        return send(call, *rest)

    p.driver.run = noting  # type: ignore[method-assign, assignment]
    for state in ("scheduled", "queued", "processing", "done", "failed", "cancelled"):
        p.put(state)
    p.put("waiting", resource="busy")
    p.job(queue="more", dedup="mail:42", idem=":key", fingerprint="print", priority=3)
    _snoozed(p)
    _unknown(p)
    running = _running(p)
    _asked_to_cancel(p)
    again, gone = p.put("failed"), p.put("done")
    p.requeue(again.job_id)
    p.purge(gone.job_id)
    p.heal(running.job_id)
    p.take_back(p.put("processing"))
    p.conclude(p.put("processing").job_id)
    p.archived(3)
    p.pause("more")
    p.pause("less")
    p.resume("less")
    revoked = p.put("processing")
    p.revoke(revoked.job_id, revoked.token)
    _, token, _ = p.acquire("revoked", "revoked")
    p.revoke("@revoked", token)
    p.credential("make", "gone")
    p.credential("revoke", "gone")
    p.credential("make", "kept", '{"name":"ann"}')
    _, token, _ = p.acquire("answer::order-7", "asker")
    p.begin_answer(":order-7")
    p.run(p.keeping(":order-7", "asker", token))
    alone = _alone(p)
    writing = {name for name in scripts.names() if "no-writes" not in scripts.source(name).split("\n", 1)[0]}
    assert verbs >= writing
    return p, {
        "ID": running.job_id,
        "NONCE": alone,
        "RESOURCE": "alone",
        "QUEUE": "more",
        "KIND:KEY": "mail:42",
        "CLIENT:KEY": ":key",
        "SCOPE:KEY": ":order-7",
        "NOW_MS": "+inf",
        "WORKER": "w1",
    }


def _snoozed(p: Partition) -> None:
    p.job(queue="snooze")
    [claimed] = p.claim(queues=("snooze",))
    p.finish(claimed.key, "RELEASE", 60_000, "snooze")


def _unknown(p: Partition) -> None:
    p.job(queue="unknown")
    [claimed] = p.claim(queues=("unknown",))
    p.finish(claimed.key, "RELEASE", 60_000, "unknown_kind")


def _running(p: Partition) -> Any:
    run = p.put("processing", resource="order:1")
    p.serve(0, upkeep="{}")
    p.renew(run)
    p.checkpoint(run)
    p.checkpoint(run, field="progress")
    p.checkpoint(run, b"1", "step:load", "step", "load")
    p.checkpoint(run, b'{"state":"unknown"}', "outside:mail", "intent", "mail begins")
    p.bump(run, int(run.token))
    return run


def _asked_to_cancel(p: Partition) -> None:
    p.cancel(p.put("processing").job_id)
    p.cancel(p.put("processing").job_id, hard=True)


def _alone(p: Partition) -> str:
    """A stand-alone lease that was handed over, with another one in the line behind it. Returns its nonce."""
    _, token, _ = p.acquire("alone", "first")
    for nonce in ("second", "third"):
        p.acquire("alone", nonce, wait_ms=5_000)
    p.release("first", token)
    word, token, _ = p.acquire("alone", "second", wait_ms=5_000)
    assert word == "HELD"
    p.bump(RunKey("@second", token, "second"), int(token))
    return "second"


def test_the_page_is_what_the_generator_makes():
    assert keys_page.PAGE.read_text(encoding="utf-8") == keys_page.page(), "run `python tools/keys_page.py --write`"


def test_every_key_that_the_verbs_leave_is_listed_and_every_listed_key_occurs(lived):
    partition, _ = lived
    keys = Keys(partition.namespace)
    found = {key.decode(): keys.which(key.decode()) for key in keys_of(partition.redis, partition.namespace)}
    assert [key for key, spec in found.items() if spec is None] == []
    assert {spec.name for spec in found.values() if spec} == {spec.name for spec in ALL}


def test_every_field_of_the_hashes_is_listed(lived):
    partition, _ = lived
    seen: dict[str, set[str]] = {name: set() for name in keys_page.FIELDS}
    for key, stored in partition.dump().items():
        name = key.partition(":")[0]
        if name in seen:
            seen[name] |= stored.value.keys()
    seen["worker"] = {"lane0" if name.isdecimal() else name for name in seen["worker"]}  # the tests' lanes are numbers
    names = ("step", "outside")  # a handler names its steps and effects
    seen["job"] = {f"{one.partition(':')[0]}:<name>" if one.startswith(names) else one for one in seen["job"]}
    for name, fields in seen.items():
        assert fields <= keys_page.field_names(name), name
    assert keys_page.field_names("job") == seen["job"]


def test_the_commands_of_the_page_answer(lived):
    partition, words = lived
    shown = [command for block in blocks(keys_page.PAGE) for command, _ in commands(block)]
    assert len(shown) == len(keys_page.QUESTIONS)
    for command in shown:
        program, *arguments = shlex.split(command)
        assert program == "redis-cli"
        answer = partition.redis.execute_command(*(_filled(one, words, partition.namespace) for one in arguments))
        assert answer, f"{command}: nothing"


def test_events_are_numbered_without_a_gap(lived):
    """As the page of events says: the number of an entry is that of its last event."""
    partition, _ = lived
    number = 0
    for entry, fields in partition.redis.xrange(Keys(partition.namespace).events):
        assert fields.keys() == {b"t", b"w", b"e"}
        number += len(fields[b"e"].split(b"\n"))
        assert entry == b"%d-0" % number
    assert number == len(partition.told()) > 40


def test_what_a_worker_tells_about_itself_is_json(redis, url, namespace):
    from fencepost import Fencepost, Worker

    with_app = Fencepost(url, namespace=namespace)
    assert json.loads(Worker(with_app).about).keys() == {"host", "pid", "queues"}


def _filled(word: str, words: dict[str, str], namespace: str) -> str:
    word = word.replace("{shop:0}", f"{{{namespace}:0}}")
    for name, value in words.items():
        if word == name or word.endswith(f":{name}"):
            return word[: -len(name)] + value
    return word
