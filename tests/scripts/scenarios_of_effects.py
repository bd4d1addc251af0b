"""The scenarios of what stands behind effects and the ledger; see scenarios.py."""

from __future__ import annotations

from typing import Any

from fencepost.driver import Call
from fencepost.store import RunKey
from tests.scripts.scenarios import SCENARIOS, scenario, spec
from tests.support.partition import Partition

__all__ = ["SCENARIOS", "scenario"]

NOBODY = RunKey("nobody", "5", "n.1")
NOTES = (("effect", "mail:sent"), ("effect_found", "mail:charged"))


def above(run: RunKey, by: int = 1_000_000_000) -> int:
    return int(run.token) + by


# -- bump -------------------------------------------------------------------------------------------------


@scenario("bump", "OK", "install")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing")
    return p.store.bump(run, "w1", above(run), "install")


@scenario("bump", "OK", "verify, of a stand-alone lease")
def _(p: Partition) -> Call[Any]:
    _, token, _ = p.acquire("thing", "me")
    me = RunKey("@me", token, "me")
    return p.store.bump(me, "w1", above(me), "verify")


@scenario("bump", "OK", "the same floor as the own token")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing")
    return p.store.bump(run, "w1", int(run.token), "verify")


@scenario("bump", "OK", "above the floor already")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing")
    p.bump(run, above(run))
    return p.store.bump(run, "w1", above(run, -5), "install")


@scenario("bump", "STALE", recounted=True)
def _(p: Partition) -> Call[Any]:
    run = p.put("done")
    return p.store.bump(run, "w1", above(run), "install")


@scenario("bump", "STALE", "a stand-alone lease of another token", recounted=True)
def _(p: Partition) -> Call[Any]:
    _, token, _ = p.acquire("thing", "me")
    return p.store.bump(RunKey("@me", str(int(token) - 1), "me"), "w1", int(token), "verify")


@scenario("bump", "EXPIRED", recounted=True)
def _(p: Partition) -> Call[Any]:
    run = p.put("processing")
    p.bump(run, above(run))
    p.lapse(run)
    return p.store.bump(run, "w1", above(run), "verify")


@scenario("bump", "GONE", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.store.bump(NOBODY, "w1", 5, "install")


# -- notes about effects ----------------------------------------------------------------------------------


def noting(word: str, *values: Any) -> None:
    @scenario("finish", "OK", f"{word} with notes", again="REPLAY")
    def _(p: Partition) -> Call[Any]:
        run = p.put("processing", resource="thing")
        return p.finishing(run, word, *values, notes=NOTES)


for outcome in ("DONE", "RETRY", "BURY", "RELEASE", "CANCEL"):
    noting(outcome)


@scenario("finish", "OK", "DONE of a plain job with notes", again="REPLAY")
def _(p: Partition) -> Call[Any]:
    p.job()
    [claimed] = p.claim()
    return p.finishing(claimed.key, "DONE", notes=NOTES)


@scenario("finish", "OK", "a late note with which a job was claimed: it is known by that, and not told again")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing")
    p.take_back(run)
    p.job()
    return p.finishing(run, "NOTE", wanted=1)


@scenario("finish", "OK", "a note of a run that was taken back", recounted=True)
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing")
    p.take_back(run)
    return p.finishing(run, "NOTE")


@scenario("finish", "OK", "a note of a run whose lease ran out just now", recounted=True)
def _(p: Partition) -> Call[Any]:
    run = p.put("processing")
    p.lapse(run)
    return p.finishing(run, "NOTE")


@scenario("finish", "OK", "a note of a job that is gone", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.finishing(NOBODY, "NOTE")


@scenario("finish", "REPLAY", "a note of a run that ended")
def _(p: Partition) -> Call[Any]:
    return p.finishing(p.put("failed"), "NOTE")


# -- what a run keeps -------------------------------------------------------------------------------------


def keeping(field: str, event: str, note: str = "") -> None:
    @scenario("checkpoint", "OK", note or event)
    def _(p: Partition) -> Call[Any]:
        run = p.put("processing", resource="thing")
        return p.store.checkpoint(run, "w1", field, b'{"a":1}', event, "made up")


keeping("step:load", "step")
keeping("outside:mail", "intent")
keeping("outside:mail", "outcome")
keeping("step:load", "", "a step without an event")


@scenario("enqueue", "QUEUED", "a durable job of a later generation")
def _(p: Partition) -> Call[Any]:
    return p.store.enqueue([spec(p, durable=True, generation=3), spec(p, durable=True)])


# -- the ledger -------------------------------------------------------------------------------------------


@scenario("archived", "OK")
def _(p: Partition) -> Call[Any]:
    p.put("done")
    return p.store.archived(2, 7, 500_000)


@scenario("archived", "AHEAD")
def _(p: Partition) -> Call[Any]:
    p.put("done")
    return p.store.archived(4_000_000, 7)


def concluding(state: str, to: str) -> None:
    @scenario("conclude", "CONCLUDED", f"{state} to {to}", again="ILLEGAL")
    def _(p: Partition) -> Call[Any]:
        run = p.put(state, resource="thing", dedup="a")
        other = p.job(resource="thing")
        p.claim()
        return p.store.conclude(
            [(run.job_id, 1, to, "", b"[1]"), (run.job_id, 1, to, "", b""), (other, 1, to, "x", b"")]
        )


for case in (("scheduled", "done"), ("queued", "failed"), ("waiting", "cancelled"), ("processing", "done")):
    concluding(*case)


@scenario("conclude", "CONCLUDED", "a reserved place goes to the next", again="ILLEGAL")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing", ordered=True)
    p.job(resource="thing")
    p.claim()
    p.finish(run, "RETRY")
    return p.store.conclude([(run.job_id, 1, "cancelled", "withdrawn", b"")])


@scenario("conclude", "ILLEGAL")
def _(p: Partition) -> Call[Any]:
    return p.store.conclude([(p.put("failed").job_id, 1, "done", "", b"")])


@scenario("conclude", "NEWER")
def _(p: Partition) -> Call[Any]:
    run = p.put("failed")
    p.requeue(run.job_id)
    return p.store.conclude([(run.job_id, 1, "done", "", b"")])


@scenario("conclude", "GONE")
def _(p: Partition) -> Call[Any]:
    return p.store.conclude([("nobody", 1, "done", "", b"")])
