"""One resource, many who want it: who gets in, in which order, and what waiting costs."""

from __future__ import annotations

import pytest

from tests.guarantees.stage import LEASE_S, Stage

THING = {"resource": "thing"}


def work_off(stage: Stage, *workers) -> list[str]:
    """Run everything there is, a job at a time for each worker; the order of the starts. Never two at once."""
    order: list[str] = []
    while True:
        runs = [(worker, run) for worker in workers for run in worker.claim(5)]
        if not runs:
            return order
        assert len(runs) == 1
        order.append(runs[0][1].job_id)
        assert runs[0][0].done(runs[0][1]) == "OK"


def test_waiters_are_served_in_the_order_of_priority_and_then_of_arrival(stage: Stage):
    """A step of priority is worth a minute of waiting; equals in the order they came."""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(**THING)
    holder = a.take()
    plain = [stage.job(**THING) for _ in range(3)]
    urgent = [stage.job(priority=2, **THING) for _ in range(2)]
    assert b.claim(10) == []
    assert stage.line("thing") == [*urgent, *plain]
    assert a.done(holder) == "OK"
    assert work_off(stage, a, b) == [*urgent, *plain]


def test_the_order_holds_across_two_queues(stage: Stage):
    """The line belongs to the resource, not to a queue."""
    left, right = stage.worker("left", "left"), stage.worker("right", "right")
    stage.job(queue="left", **THING)
    holder = left.take()
    ids = [stage.job(queue=queue, **THING) for queue in ("right", "left", "right", "left")]
    assert left.claim(10) == right.claim(10) == []
    assert stage.line("thing") == ids
    left.done(holder)
    assert work_off(stage, left, right) == ids


def test_waiting_costs_no_attempt_and_no_place_in_the_queue(stage: Stage):
    """T39: a blocked job is parked once; the next of the queue runs meanwhile."""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(**THING)
    holder = a.take()
    blocked, free = stage.job(**THING), stage.job()
    assert b.take().job_id == free
    for _ in range(5):
        before = stage.matter()
        assert b.claim(5) == []
        assert stage.matter() == before
    assert stage.stats()["parked:mail"] == 1
    a.done(holder)
    run = b.take()
    assert (run.job_id, run.attempt) == (blocked, 1)


def test_a_hot_resource_is_handed_from_one_to_the_next_without_a_gap_or_a_spin(stage: Stage):
    """T39, S6: 200 jobs, 8 workers: no overlap, the order kept, at most two scripts a job once all are parked."""
    workers = [stage.worker(f"w{n}") for n in range(8)]
    ids = [stage.job(**THING) for _ in range(200)]
    [run] = workers[0].claim(1)
    assert all(worker.claim(100) == [] for worker in workers)
    assert len(stage.line("thing")) == 199
    order, calls = [run.job_id], 0
    for n in range(1, 200):
        served = workers[n % 8].serve(5, (stage.outcome(run.key, "DONE"),))
        calls += 1
        [run] = served.jobs
        order.append(run.job_id)
        assert stage.holders("thing") == [run.nonce]
    assert order == ids
    assert calls == 199
    assert stage.stats()["parked:mail"] == 199
    assert workers[0].done(run) == "OK"


@pytest.mark.parametrize("limit", [2, 5])
def test_a_limit_lets_that_many_in_and_no_more(stage: Stage, limit: int):
    a = stage.worker("a")
    ids = [stage.job(limit=limit, **THING) for _ in range(3 * limit)]
    runs, started = a.claim(20), []
    while runs:
        assert len(stage.holders("thing")) == len(runs) <= limit
        started.append(runs[0].job_id)
        assert a.done(runs.pop(0)) == "OK"
        runs += a.claim(20)
    assert started == ids


def test_skip_ends_the_job_as_cancelled_because_it_was_busy(stage: Stage):
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(**THING)
    a.take()
    job_id = stage.job(on_busy="skip", **THING)
    assert b.claim() == []
    record = stage.record(job_id)
    assert (record.state, record.reason, record.attempts) == ("cancelled", "busy", 0)
    assert stage.events("cancelled", job_id) == 1


def test_fail_ends_the_job_as_failed_because_it_was_busy(stage: Stage):
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(**THING)
    a.take()
    job_id = stage.job(on_busy="fail", **THING)
    assert b.claim() == []
    record = stage.record(job_id)
    assert (record.state, record.reason, record.attempts) == ("failed", "busy", 0)
    assert "thing" in record.error
    assert list(stage.look().dead) == [job_id]


def test_later_puts_the_job_off_and_charges_nothing(stage: Stage):
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(**THING)
    holder = a.take()
    job_id = stage.job(on_busy="later:1500", **THING)
    assert b.claim() == []
    assert stage.state(job_id) == "scheduled"
    stage.pass_time(1.4)
    assert a.renew(holder) == "OK"
    assert b.claim() == []
    stage.pass_time(0.2)
    a.done(holder)
    run = b.take()
    assert (run.job_id, run.attempt, stage.record(job_id).releases) == (job_id, 1, 1)


@pytest.mark.parametrize("delay_s", [0, 1.5], ids=["at once", "later"])
@pytest.mark.parametrize("how", ["retry", "release"])
def test_an_ordered_job_that_comes_back_goes_before_those_that_wait(stage: Stage, how: str, delay_s: float):
    """The place stays reserved for it: what depends on it does not overtake it."""
    a, b = stage.worker("a"), stage.worker("b")
    first = stage.job(ordered=True, **THING)
    run = a.take()
    second = stage.job(ordered=True, **THING)
    assert b.claim() == []
    assert getattr(a, how)(run, delay_s) == "OK"
    if delay_s:
        assert b.claim() == []
        stage.pass_time(delay_s + 0.1)
    assert stage.holders("thing") == [f"={first}"]
    assert work_off(stage, b, a) == [first, second]


def test_a_job_without_order_that_is_retried_goes_behind_those_that_wait(stage: Stage):
    a, b = stage.worker("a"), stage.worker("b")
    first = stage.job(**THING)
    run = a.take()
    second = stage.job(**THING)
    assert b.claim() == []
    a.retry(run)
    assert work_off(stage, b, a) == [second, first]


def test_the_job_of_a_dead_holder_enters_its_own_line_first(stage: Stage):
    """S6b: not locked out by its own lock; the waiters follow in order."""
    a, b = stage.worker("a"), stage.worker("b")
    first = stage.job(**THING)
    a.take()
    waiters = [stage.job(**THING) for _ in range(3)]
    assert b.claim(10) == []
    stage.outlive_lease()
    assert stage.holders("thing") == [f"={first}"]
    assert work_off(stage, b) == [first, *waiters]


def test_work_that_is_longer_than_a_lease_keeps_the_resource_as_long_as_it_is_renewed(stage: Stage):
    """S6c: the place goes on with the lease. report: coleifer/huey#663"""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(**THING)
    holder = a.take()
    stage.job(**THING)
    for _ in range(6):
        assert b.claim(5) == []
        stage.pass_time(LEASE_S * 0.7)
        assert a.renew(holder) == "OK"
    assert stage.holders("thing") == [holder.nonce]
    a.done(holder)
    assert len(b.claim(5)) == 1


def test_the_next_run_gets_the_resource_of_a_killed_one_within_its_lease(stage: Stage):
    """A lock named at run time, its holder killed; nothing to flush by hand. report: coleifer/huey#663"""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(resource="report:monthly:42", max_crashes=0)
    a.take()
    follower = stage.job(resource="report:monthly:42")
    assert b.claim() == []
    stage.outlive_lease()
    assert b.take().job_id == follower


def test_a_waiter_that_is_cancelled_leaves_the_line(stage: Stage):
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(**THING)
    holder = a.take()
    ids = [stage.job(**THING) for _ in range(3)]
    assert b.claim(5) == []
    assert stage.cancel(ids[0]) == ("CANCELLED", "waiting")
    assert stage.line("thing") == ids[1:]
    a.done(holder)
    assert work_off(stage, b) == ids[1:]


@pytest.mark.parametrize("how", ["cancelled", "purged by hand"])
def test_a_place_that_was_reserved_for_a_job_which_is_gone_goes_to_the_next(stage: Stage, how: str):
    """No lost wake-up: a reservation ends with its job, at the latest after its own time."""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(**THING)
    holder = a.take()
    ids = [stage.job(**THING) for _ in range(2)]
    assert b.claim(5) == []
    a.done(holder)
    assert stage.holders("thing") == [f"={ids[0]}"]
    if how == "cancelled":
        stage.cancel(ids[0])
    else:
        stage.redis.zrem(stage.keys.line("thing"), ids[0])
        stage.redis.zrem(stage.keys.ready("default"), ids[0])
        stage.redis.hset(stage.keys.job(ids[0]), "state", "waiting")
        stage.redis.zadd(stage.keys.line("thing"), {ids[0]: 0})
        stage.pass_time(31.0)
    assert b.claim(1) != []


def test_a_reserved_place_that_nobody_comes_for_is_handed_on(stage: Stage):
    """L3: the queue of the first waiter has no worker; the others do not wait for it for ever."""
    a = stage.worker("a")
    stage.job(**THING)
    holder = a.take()
    absent, here = stage.job(queue="nobody", **THING), stage.job(**THING)
    assert stage.worker("once", "nobody").claim() == []
    assert a.claim() == []
    a.done(holder)
    assert stage.holders("thing") == [f"={absent}"]
    stage.pass_time(29.0)
    assert a.claim() == []
    stage.pass_time(1.5)
    assert a.take().job_id == here
    assert stage.state(absent) == "queued"


def test_a_job_that_ended_badly_frees_its_place_as_well(stage: Stage):
    a, b = stage.worker("a"), stage.worker("b")
    ids = [stage.job(**THING) for _ in range(4)]
    order = []
    for end in (a.bury, a.retry, lambda run: a.end(run, "CANCEL"), a.done):
        run = a.take()
        assert b.claim(5) == []
        order.append(run.job_id)
        assert end(run) == "OK"
    assert order == ids
    assert work_off(stage, b) == [ids[1]]
