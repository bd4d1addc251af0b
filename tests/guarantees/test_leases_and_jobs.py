"""Stand-alone leases and jobs want the same things: one set of places, one line, one counter of tokens."""

from __future__ import annotations

import pytest

from fencepost.store import RunKey
from tests.guarantees.stage import LEASE_S, Stage

WAIT = 60_000


def test_a_lease_and_a_job_never_hold_a_resource_together(stage: Stage):
    """Whoever comes second waits; the one who leaves hands over, in both directions."""
    a = stage.worker("a")
    word, token, _ = stage.acquire("thing", "me")
    job_id = stage.job(resource="thing")
    assert a.claim() == []
    assert stage.holders("thing") == ["@me"]
    assert stage.release("me", token).word == "OK"
    run = a.take()
    assert (run.job_id, int(run.token) > int(token)) == (job_id, True)
    assert stage.acquire("thing", "you")[0] == "BUSY"
    assert stage.acquire("thing", "you", wait_ms=WAIT)[0] == "WAIT"
    assert a.done(run) == "OK"
    word, later, _ = stage.acquire("thing", "you", wait_ms=WAIT)
    assert (word, int(later) > int(run.token)) == ("HELD", True)


def test_jobs_and_leases_stand_in_one_line(stage: Stage):
    a = stage.worker("a")
    stage.job(resource="thing")
    run = a.take()
    first = stage.job(resource="thing")
    assert a.claim() == []
    assert stage.acquire("thing", "me", wait_ms=WAIT)[:2] == ("WAIT", "1")
    last = stage.job(resource="thing")
    assert a.claim() == []
    assert stage.line("thing") == [first, "@me", last]
    a.done(run)
    run = a.take()
    assert run.job_id == first
    a.done(run)
    assert stage.holders("thing") == ["@me"]
    _, token, _ = stage.acquire("thing", "me", wait_ms=WAIT)
    stage.release("me", token)
    assert a.take().job_id == last


def test_a_waiter_that_died_is_passed_over(stage: Stage):
    """It has not shown itself for five seconds; the next one does not wait for it."""
    a = stage.worker("a", lease_s=20.0)
    stage.job(resource="thing")
    run = a.take()
    assert stage.acquire("thing", "dead", wait_ms=WAIT)[0] == "WAIT"
    job_id = stage.job(resource="thing")
    assert a.claim() == []
    stage.pass_time(5.5)
    assert stage.line("thing") == ["@dead", job_id]
    assert a.done(run) == "OK"
    assert stage.holders("thing") == [f"={job_id}"]
    assert a.take().job_id == job_id
    assert stage.stats()["orphan:line"] == 1


def test_a_waiter_that_was_silent_for_a_while_and_comes_back_keeps_its_place(stage: Stage):
    """Paused for longer than a waiter may be silent, but back before its turn."""
    _, token, _ = stage.acquire("thing", "holder", ttl_ms=60_000)
    stage.acquire("thing", "first", wait_ms=WAIT)
    stage.acquire("thing", "second", wait_ms=WAIT)
    stage.jump(6.0)
    for nonce in ("second", "first"):
        assert stage.acquire("thing", nonce, wait_ms=WAIT)[0] == "WAIT"
    assert stage.release("holder", token).word == "OK"
    assert stage.holders("thing") == ["@first"]
    assert stage.acquire("thing", "first", wait_ms=WAIT)[0] == "HELD"


def test_a_lease_that_nobody_renews_goes_to_the_next_in_line(stage: Stage):
    _, token, _ = stage.acquire("thing", "me", ttl_ms=1_500)
    job_id = stage.job(resource="thing")
    a = stage.worker("a")
    assert a.claim() == []
    stage.pass_time(1.6)
    assert a.take().job_id == job_id
    assert stage.renew(RunKey("@me", token, "me"))[0].word == "GONE"
    assert stage.release("me", token).word == "GONE"
    assert stage.holders("thing") != []


def test_who_does_not_hold_a_lease_cannot_give_it_away(stage: Stage):
    """S6c: a late release lets no third one in. report: ionelmc/python-redis-lock#85"""
    _, token, _ = stage.acquire("thing", "me", ttl_ms=1_500)
    stage.pass_time(1.6)
    _, newer, _ = stage.acquire("thing", "you", ttl_ms=30_000)
    assert stage.release("me", token).word == "GONE"
    assert stage.release("you", token) == ("STALE", newer)
    assert stage.holders("thing") == ["@you"]
    assert stage.acquire("thing", "third")[0] == "BUSY"
    assert stage.stats()["refused:release"] == 1


def test_a_late_renewal_does_not_take_a_lease_back(stage: Stage):
    """T28. report: sibson/redbeat#127"""
    _, token, _ = stage.acquire("thing", "me", ttl_ms=1_500)
    stage.pass_time(1.6)
    stage.acquire("thing", "you")
    assert stage.renew(RunKey("@me", token, "me"))[0].word == "GONE"
    assert stage.holders("thing") == ["@you"]


def test_a_lease_lives_on_while_it_is_renewed(stage: Stage):
    _, token, _ = stage.acquire("thing", "me", ttl_ms=1_500)
    for _ in range(4):
        stage.pass_time(1.0)
        assert stage.renew(RunKey("@me", token, "me"))[0].word == "OK"
        assert stage.acquire("thing", "you")[0] == "BUSY"


def test_a_limit_counts_jobs_and_leases_together(stage: Stage):
    a = stage.worker("a")
    assert stage.acquire("thing", "me", limit=2)[0] == "HELD"
    ids = [stage.job(resource="thing", limit=2) for _ in range(2)]
    [run] = a.claim(5)
    assert run.job_id == ids[0]
    assert stage.acquire("thing", "you", limit=2)[0] == "BUSY"
    assert len(stage.holders("thing")) == 2


@pytest.mark.parametrize("before", [True, False], ids=["in line", "after it was served"])
def test_who_leaves_the_line_leaves_nothing_behind(stage: Stage, before: bool):
    _, token, _ = stage.acquire("thing", "me")
    stage.acquire("thing", "you", wait_ms=WAIT)
    if not before:
        stage.release("me", token)
    word, mine, _ = stage.acquire("thing", "you", wait_ms=-1)
    if before:
        assert (word, stage.line("thing"), stage.holders("thing")) == ("LEFT", [], ["@me"])
        stage.release("me", token)
    else:
        assert (word, stage.release("you", mine).word) == ("HELD", "OK")
    assert stage.holders("thing") == []
    assert stage.look().lease == {}


def test_after_an_outage_a_living_holder_keeps_its_lease(stage: Stage):
    """T5 for leases without a job."""
    _, token, _ = stage.acquire("thing", "me", ttl_ms=1_500)
    stage.jump(20.0)
    assert stage.acquire("thing", "you")[0] == "BUSY"
    assert stage.renew(RunKey("@me", token, "me"))[0].word == "OK"
    stage.pass_time(1.4)
    assert stage.acquire("thing", "you")[0] == "BUSY"


def test_no_key_of_a_lock_outlives_its_holder(stage: Stage):
    """report: coleifer/huey#663: a lock key without expiry, left by a killed worker, blocked for days."""
    for n in range(20):
        stage.acquire(f"thing:{n}", f"killed{n}", ttl_ms=1_500)
        stage.acquire(f"thing:{n}", f"waiting{n}", ttl_ms=1_500, wait_ms=WAIT)
    stage.pass_time(12.0)
    shot = stage.look()
    assert (shot.lease, shot.slots, shot.leases) == ({}, {}, {})
    assert shot.line == {}
    assert LEASE_S


def test_a_waiter_gets_in_by_its_own_limit_not_by_that_of_whoever_asks(stage: Stage):
    """Two leases of limit 1 must not meet because a third asks with limit 2."""
    _, token, _ = stage.acquire("thing", "me")
    assert stage.acquire("thing", "you", wait_ms=WAIT)[0] == "WAIT"
    assert stage.acquire("thing", "third", limit=2)[0] == "BUSY"
    assert stage.holders("thing") == ["@me"]
    assert stage.release("me", token).word == "OK"
    _, token, _ = stage.acquire("thing", "you", wait_ms=WAIT)
    assert stage.holders("thing") == ["@you"]
    stage.release("you", token)


def test_a_job_that_must_be_alone_waits_until_all_others_have_left(stage: Stage):
    """A deploy lowered the limit from 2 to 1: the jobs of before are still at work."""
    a = stage.worker("a")
    before = [stage.job(resource="thing", limit=2) for _ in range(2)]
    first, second = a.claim(2)
    alone = stage.job(resource="thing", limit=1)
    assert a.claim() == []
    assert a.done(first) == "OK"
    assert (stage.line("thing"), a.claim()) == ([alone], [])
    assert a.done(second) == "OK"
    run = a.take()
    assert (run.job_id, stage.holders("thing"), len(before)) == (alone, [run.nonce], 2)
    a.done(run)
