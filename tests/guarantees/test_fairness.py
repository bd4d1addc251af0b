"""Nobody starves, nobody is trampled, and a lost wake-up costs time but never a job."""

from __future__ import annotations

import pytest

from fencepost.job import JobSpec
from tests.guarantees.stage import Stage

MINUTE = 60.0


@pytest.mark.parametrize("priority", [1, 5, 9])
def test_a_low_job_waits_at_most_a_minute_a_step_longer_than_one_of_high_priority(stage: Stage, priority: int):
    """T40: with an endless stream of urgent jobs each plain one starts within a stated time.
    report: taskforcesh/bullmq#2387"""
    a = stage.worker("a")
    low = stage.job()
    waited = 0.0
    while True:
        stage.job(priority=priority)
        run = a.take()
        a.done(run)
        if run.job_id == low:
            break
        stage.jump(10.0)
        waited += 10.0
    assert priority * MINUTE - 10 <= waited <= priority * MINUTE + 10


def test_an_urgent_job_passes_what_came_shortly_before_it(stage: Stage):
    a = stage.worker("a")
    plain = [stage.job() for _ in range(5)]
    urgent = stage.job(priority=1)
    assert [run.job_id for run in a.claim(10)] == [urgent, *plain]


def test_slots_that_are_kept_for_a_queue_are_free_when_its_job_comes(stage: Stage):
    """100 low jobs hold 8 of 10 slots at most. report: hibiken/asynq#314"""
    for _ in range(100):
        stage.job(queue="low")
    request = stage.request(10, queues=("low",), most=8)
    assert len(stage.run(stage.store.claim(request)).jobs) == 8
    critical = [stage.job(queue="critical") for _ in range(2)]
    served = stage.claim(2, queues=("critical", "low"))
    assert [run.job_id for run in served] == critical


def test_a_holder_of_low_priority_is_not_interrupted_and_the_urgent_waiter_is_next(stage: Stage):
    """T40: no preemption; it costs the rest of one run."""
    a = stage.worker("a")
    stage.job(resource="thing")
    holder = a.take()
    others = [stage.job(resource="thing") for _ in range(5)]
    urgent = stage.job(resource="thing", priority=9)
    assert a.claim(10) == []
    assert a.renew(holder) == "OK"
    a.done(holder)
    assert a.take().job_id == urgent
    assert stage.line("thing") == others


def test_an_old_waiter_is_not_passed_for_ever(stage: Stage):
    """T40 in a line: urgent waiters pass it for at most their minutes."""
    a = stage.worker("a", lease_s=60.0)
    stage.job(resource="thing")
    run = a.take()
    low = stage.job(resource="thing")
    passed = 0
    while run.job_id != low:
        stage.job(resource="thing", priority=1)
        assert a.claim(10) == []
        a.done(run)
        run = a.take()
        stage.jump(20.0)
        a.renew(run)
        passed += 1
    assert passed <= 5


def test_a_job_is_found_by_polling_if_every_bell_is_lost(stage: Stage):
    """T42: wake-ups are hints. report: taskforcesh/bullmq#648, #3088"""
    a = stage.worker("a")
    _, token, _ = stage.acquire("thing", "me")
    for way in ("enqueued", "due", "handed over"):
        stage.job(delay_ms=500 if way == "due" else 0, resource="thing" if way == "handed over" else None)
        if way == "due":
            stage.pass_time(0.6)
        elif way == "handed over":
            assert a.claim() == []
            stage.release("me", token)
        stage.redis.delete(stage.keys.bell("default"))
        assert a.done(a.take()) == "OK"


@pytest.mark.parametrize("way", ["enqueued", "due", "handed over", "retried", "taken back", "requeued", "released"])
def test_every_way_into_a_queue_rings_its_bell(stage: Stage, way: str):
    """T42: an idle worker does not have to wait for its next poll."""
    a = stage.worker("a")
    job_id = stage.job(resource="thing", delay_ms=1_000 if way == "due" else 0)
    if way == "due":
        stage.clock.advance(1.1)
        a.sweep()
    elif way == "handed over":
        _, token, _ = stage.acquire("thing", "me")
        assert a.claim() == []
        stage.redis.delete(stage.keys.bell("default"))
        stage.release("me", token)
    elif way != "enqueued":
        run = a.take()
        stage.redis.delete(stage.keys.bell("default"))
        {
            "retried": lambda: a.retry(run),
            "released": lambda: a.release(run),
            "taken back": stage.outlive_lease,
            "requeued": lambda: (a.bury(run), stage.requeue(job_id)),
        }[way]()
    assert stage.state(job_id) == "queued"
    assert stage.look().bell["default"] != []


def test_thousands_of_due_jobs_come_up_in_bounded_steps_and_ring_a_bounded_bell(stage: Stage):
    """T41: a restart with a full past does not become one long call, nor wake everybody a thousand times."""
    for n in range(8):
        stage.enqueue(*(JobSpec(id=f"d{n}-{m}", kind="mail", delay_ms=1_000) for m in range(250)))
    stage.jump(2.0)
    a, steps = stage.worker("a"), 0
    while stage.redis.zcard(stage.keys.later):
        a.sweep()
        steps += 1
        assert stage.redis.llen(stage.keys.bell("default")) <= 8
    assert steps == 10
    assert stage.redis.zcard(stage.keys.ready("default")) == 2_000
    assert len(a.claim(1_000)) == 1_000


def test_after_an_outage_the_dead_come_back_in_bounded_steps(stage: Stage):
    """T41, T5: the grace first, then a batch a sweep."""
    dead, a = stage.worker("dead"), stage.worker("a")
    for _ in range(500):
        stage.job()
    assert len(dead.claim(500)) == 500
    stage.jump(60.0)
    a.sweep()
    assert stage.redis.zcard(stage.keys.leases) == 500
    stage.clock.advance(2.1)
    left = []
    while stage.redis.zcard(stage.keys.leases):
        a.sweep()
        left.append(stage.redis.zcard(stage.keys.leases))
    assert left == [300, 100, 0]
