"""Python's table of transitions and the scripts agree: each arrow is walked, and without one no script moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.job import JobSpec
from fencepost.states import TRANSITIONS, State, Verb, legal
from fencepost.store import RunKey
from tests.support.partition import STATES, Partition

Walk = Callable[[Partition], str]
"""Brings a job into the first state, calls the script, and returns the job's id."""
WALKS: dict[tuple[str | None, str, str | None], Walk] = {}


def walk(source: str | None, verb: str, to: str | None) -> Callable[[Walk], Walk]:
    def register(function: Walk) -> Walk:
        WALKS[(source, verb, to)] = function
        return function

    return register


@walk(None, "enqueue", "queued")
def _(p: Partition) -> str:
    return p.job()


@walk(None, "enqueue", "scheduled")
def _(p: Partition) -> str:
    return p.job(delay_ms=1000)


@walk("queued", "claim", "processing")
def _(p: Partition) -> str:
    job_id = p.job()
    assert [one.job_id for one in p.claim()] == [job_id]
    return job_id


def claimed_while_busy(on_busy: str, to: str) -> None:
    @walk("queued", "claim", to)
    def _(p: Partition) -> str:
        p.acquire("thing", "holder")
        job_id = p.job(resource="thing", on_busy=on_busy)
        assert p.claim() == []
        return job_id


for policy, end in (("wait", "waiting"), ("skip", "cancelled"), ("later:5000", "scheduled"), ("fail", "failed")):
    claimed_while_busy(policy, end)


def settled(word: str, verb: str, to: str, *values: object, asked: bool = False) -> None:
    @walk("processing", verb, to)
    def _(p: Partition) -> str:
        run = p.put("processing", resource="thing")
        if asked:
            assert p.cancel(run.job_id).word == "ASKED"
        assert p.finish(run, word, *values).word == "OK"
        return run.job_id


settled("DONE", "finish", "done")
settled("BURY", "bury", "failed")
settled("RETRY", "retry", "queued")
settled("RETRY", "retry", "scheduled", 5000, "Oops", "it broke")
settled("RETRY", "retry", "cancelled", asked=True)
settled("RELEASE", "release", "queued")
settled("RELEASE", "release", "scheduled", 5000, "snooze")
settled("RELEASE", "release", "cancelled", asked=True)


@walk("processing", "release", "failed")
def _(p: Partition) -> str:
    run = p.put("processing")
    p.redis.hset(p.keys.job(run.job_id), "unknown_since", 1)  # nobody knew its kind since 1970
    assert p.finish(run, "RELEASE", 5000, "unknown_kind").word == "OK"
    return run.job_id


def taken_back(to: str, max_crashes: int, *, asked: bool) -> None:
    @walk("processing", "reclaim", to)
    def _(p: Partition) -> str:
        run = p.put("processing", resource="thing", max_crashes=max_crashes)
        if asked:
            p.cancel(run.job_id)
        p.take_back(run)
        return run.job_id


taken_back("queued", 3, asked=False)
taken_back("failed", 0, asked=False)
taken_back("cancelled", 3, asked=True)


@walk("scheduled", "promote", "queued")
def _(p: Partition) -> str:
    job_id = p.job(delay_ms=60_000)
    p.redis.zadd(p.keys.later, {job_id: 1}, xx=True)
    p.sweep()
    return job_id


@walk("waiting", "promote", "queued")
def _(p: Partition) -> str:
    _, token, _ = p.acquire("thing", "holder")
    job_id = p.job(resource="thing")
    p.claim()
    assert p.state(job_id) == "waiting"
    assert p.release("holder", token).word == "OK"
    return job_id


def cancelled(state: str, to: str, *, hard: bool) -> None:
    @walk(state, "cancel", to)
    def _(p: Partition) -> str:
        run = p.put(state)
        p.cancel(run.job_id, hard=hard)
        return run.job_id


for live in ("scheduled", "queued", "waiting"):
    cancelled(live, "cancelled", hard=False)
cancelled("processing", "processing", hard=False)
cancelled("processing", "cancelled", hard=True)


def ended(state: str) -> None:
    @walk(state, "requeue", "queued")
    def _(p: Partition) -> str:
        run = p.put(state)
        p.requeue(run.job_id)
        return run.job_id

    @walk(state, "purge", None)
    def _(p: Partition) -> str:
        run = p.put(state)
        p.purge(run.job_id)
        return run.job_id


for final in ("failed", "cancelled"):
    ended(final)


def concluded(state: str, to: str) -> None:
    @walk(state, "conclude", to)
    def _(p: Partition) -> str:
        run = p.put(state, resource="thing")
        assert p.conclude(run.job_id, to) == ("CONCLUDED", state)
        return run.job_id


for live in ("scheduled", "queued", "waiting", "processing"):
    for final in ("done", "failed", "cancelled"):
        concluded(live, final)


@walk("done", "purge", None)
def _(p: Partition) -> str:
    run = p.put("done")
    p.purge(run.job_id)
    return run.job_id


def test_every_arrow_of_the_table_is_walked_by_a_script_and_no_other():
    arrows = {(source, verb, to) for (source, verb), ends in TRANSITIONS.items() for to in ends}
    assert set(WALKS) == arrows


@pytest.mark.parametrize("arrow", WALKS, ids=lambda arrow: "-".join(map(str, arrow)))
def test_an_arrow_of_the_table_leads_where_it_says(partition, arrow):
    assert partition.state(WALKS[arrow](partition)) == arrow[2]


def attempt(p: Partition, verb: Verb, run: RunKey, queue: str) -> None:
    """Do with a job, whatever its state, what the verb does with one that may."""
    words = {Verb.FINISH: "DONE", Verb.RETRY: "RETRY", Verb.BURY: "BURY", Verb.RELEASE: "RELEASE"}
    if verb in words:
        p.finish(run, words[verb])
    elif verb is Verb.ENQUEUE:
        p.enqueue(JobSpec(id=run.job_id, kind="mail"))
    elif verb is Verb.CLAIM:
        p.claim(5, queues=(queue,))
    elif verb is Verb.RECLAIM:
        p.take_back(run)
    elif verb is Verb.PROMOTE:
        p.redis.zadd(p.keys.later, {run.job_id: 1}, xx=True)
        p.sweep()
    elif verb is Verb.CANCEL:
        p.cancel(run.job_id, hard=True)
    elif verb is Verb.REQUEUE:
        p.requeue(run.job_id)
    elif verb is Verb.CONCLUDE:
        p.conclude(run.job_id)
    else:
        p.purge(run.job_id)


NOT_IN_TABLE = [(state, verb) for state in STATES for verb in Verb if (State(state), verb) not in TRANSITIONS]


@pytest.mark.parametrize(("state", "verb"), NOT_IN_TABLE)
def test_where_the_table_has_no_arrow_the_script_moves_nothing(partition, state, verb):
    run = partition.put(state)
    queue = partition.record(run.job_id).queue
    before = partition.matter()
    attempt(partition, verb, run, queue)
    assert partition.matter() == before
    assert not legal(state, verb, "queued")
