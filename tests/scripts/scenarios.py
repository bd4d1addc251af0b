"""For each word a script can answer: how things stand, and the call that is answered so.

One table serves many tests, because a call is a value: it can be sent twice, sent through a faulty network, sent
without the script being cached, or sent to a partition in which a key has been spoilt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fencepost.driver import Call
from fencepost.job import JobSpec
from fencepost.store import RunKey, Served
from tests.support.partition import Partition

Prepare = Callable[[Partition], Call[Any]]
SCENARIOS: list[Scenario] = []


@dataclass(frozen=True)
class Scenario:
    """script, word: what is called and what it answers. again: the word when the same call is sent once more.
    recounted: a repetition counts and tells again, as for a refusal; it changes nothing else."""

    script: str
    word: str
    prepare: Prepare
    again: str
    recounted: bool
    note: str

    def __str__(self) -> str:
        return f"{self.script} {self.word}" + (f" ({self.note})" if self.note else "")


def scenario(script: str, word: str, note: str = "", *, again: str = "", recounted: bool = False) -> Any:
    def register(prepare: Prepare) -> Prepare:
        SCENARIOS.append(Scenario(script, word, prepare, again or word, recounted, note))
        return prepare

    return register


def word_of(call: Call[Any], answer: Any) -> str:
    """The first word of any script's parsed answer; of finish the word for its first outcome."""
    if isinstance(answer, Served):
        return answer.replies[0][0] if call.verb == "finish" else "OK"
    first = answer[0]
    return str(first if isinstance(first, str) else first[0])


def ready(script: str) -> Prepare:
    """The plainest successful scenario of a script."""
    return next(one.prepare for one in SCENARIOS if one.script == script)


# -- enqueue ----------------------------------------------------------------------------------------------


def spec(partition: Partition, **options: Any) -> JobSpec:
    return JobSpec(**{"id": partition.name("job-"), "kind": "mail", "payload": b'{"to":"b"}', **options})


@scenario("enqueue", "QUEUED")
def _(p: Partition) -> Call[Any]:
    options = {"resource": "thing", "dedup": "mail:b", "idem": "c:1", "fingerprint": "f", "priority": 3}
    return p.store.enqueue([spec(p, **options), spec(p)])


@scenario("enqueue", "SCHEDULED")
def _(p: Partition) -> Call[Any]:
    return p.store.enqueue([spec(p, delay_ms=60_000, dedup="mail:b")])


@scenario("enqueue", "DUPLICATE", recounted=True)
def _(p: Partition) -> Call[Any]:
    p.job(dedup="mail:b")
    return p.store.enqueue([spec(p, dedup="mail:b")])


@scenario("enqueue", "REPLAYED")
def _(p: Partition) -> Call[Any]:
    p.job(idem="c:1", fingerprint="f")
    return p.store.enqueue([spec(p, idem="c:1", fingerprint="f")])


@scenario("enqueue", "CONFLICT")
def _(p: Partition) -> Call[Any]:
    p.job(idem="c:1", fingerprint="f")
    return p.store.enqueue([spec(p, idem="c:1", fingerprint="another")])


@scenario("enqueue", "FULL")
def _(p: Partition) -> Call[Any]:
    p.job()
    return p.store.enqueue([spec(p, dedup="mail:b")], 1)


# -- claim and finish -------------------------------------------------------------------------------------


@scenario("claim", "OK")
def _(p: Partition) -> Call[Any]:
    p.job()
    due = p.job(resource="thing", delay_ms=60_000)
    p.redis.zadd(p.keys.later, {due: 1}, xx=True)
    return p.store.claim(p.request(5, upkeep="{}"))


@scenario("claim", "OK", "a lapsed run and a busy resource")
def _(p: Partition) -> Call[Any]:
    held, lapsed = p.put("processing", resource="thing", dedup="a"), p.put("processing", resource="other")
    p.lapse(lapsed)
    p.job(resource="thing")
    queues = ("default", p.record(held.job_id).queue, p.record(lapsed.job_id).queue)
    return p.store.claim(p.request(5, queues=queues))


def finishing(word: str, *values: Any, note: str = "") -> None:
    @scenario("finish", "OK", note or word, again="REPLAY")
    def _(p: Partition) -> Call[Any]:
        run = p.put("processing", resource="thing", dedup="a")
        p.job(queue="second", resource="thing")
        p.claim(queues=("second",))  # finds the resource busy and waits
        p.job(queue="third")
        return p.finishing(run, word, *values, wanted=1, queues=("third",))


for outcome in ("DONE", "RETRY", "BURY", "RELEASE", "CANCEL"):
    finishing(outcome)
finishing("RETRY", 60_000, "Oops", "it broke", note="RETRY later")


@scenario("finish", "OK", "RETRY of a run that was asked to cancel", again="REPLAY")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing", dedup="a")
    p.cancel(run.job_id)
    return p.finishing(run, "RETRY")


@scenario("finish", "REPLAY")
def _(p: Partition) -> Call[Any]:
    return p.finishing(p.put("done"), "DONE")


@scenario("finish", "STALE", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.finishing(p.put("done"), "BURY")


@scenario("finish", "EXPIRED", recounted=True)
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing")
    p.take_back(run)
    return p.finishing(run, "DONE")


@scenario("finish", "GONE", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.finishing(RunKey("nobody", "5", "n.1"), "DONE")


# -- renew and checkpoint ---------------------------------------------------------------------------------


@scenario("renew", "OK")
def _(p: Partition) -> Call[Any]:
    return p.store.renew(30_000, "w1", [p.put("processing", resource="thing"), p.put("processing")])


@scenario("renew", "OK", "a stand-alone lease")
def _(p: Partition) -> Call[Any]:
    _, token, _ = p.acquire("thing", "me")
    return p.store.renew(30_000, "w1", [RunKey("@me", token, "me")])


@scenario("renew", "CANCEL")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing")
    p.cancel(run.job_id)
    return p.store.renew(30_000, "w1", [run])


@scenario("renew", "STALE", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.store.renew(30_000, "w1", [p.put("done")])


@scenario("renew", "EXPIRED", recounted=True)
def _(p: Partition) -> Call[Any]:
    run = p.put("processing")
    p.lapse(run)
    return p.store.renew(30_000, "w1", [run])


@scenario("renew", "GONE", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.store.renew(30_000, "w1", [RunKey("nobody", "5", "n.1")])


@scenario("checkpoint", "OK")
def _(p: Partition) -> Call[Any]:
    return p.store.checkpoint(p.put("processing"), "w1", "checkpoint", b'{"page":3}')


@scenario("checkpoint", "STALE", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.store.checkpoint(p.put("done"), "w1", "progress", b"0.5")


@scenario("checkpoint", "EXPIRED", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.store.checkpoint(p.put("queued"), "w1", "progress", b"0.5")


@scenario("checkpoint", "GONE", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.store.checkpoint(RunKey("nobody", "5", "n.1"), "w1", "progress", b"0.5")
