"""Workers that are killed: S1, S1b, S5b, S6b and S7 of the ten failures."""

from __future__ import annotations

import pytest

from tests.chaos import guard
from tests.chaos.harness import LEASE_S, SWEEP_S, Stage
from tests.chaos.truth import now_s
from tests.support import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]
SLACK_S = 1.0  # for a busy machine


def test_s1_jobs_of_a_killed_worker_run_again_on_the_survivor_of_an_idle_queue(stage: Stage):
    """Two ran in the dead worker and four waited. The others are not touched by its death.

    report: celery/celery#1628
    """
    victim, _ = stage.start(2)
    jobs = [stage.kinds.work.enqueue_sync(f"job{n}", gate="go") for n in range(6)]
    wait_until(lambda: len(stage.truth.inside()) == 4)
    victims = {run.key: run for run in stage.kill(victim)}
    stage.open("go")
    stage.done(jobs)

    assert len(victims) == 2
    for job, key in zip(jobs, [f"job{n}" for n in range(6)], strict=True):
        record, runs = job.status_sync(), stage.truth.runs(key)
        if key in victims:
            first, second = runs
            assert second.began_at - stage.dead[victim.pid] < LEASE_S + SWEEP_S + SLACK_S
            assert second.token > first.token
            assert (record.attempts, record.crashes) == (1, 1)
            assert stage.truth.overlaps(key, stage.dead) == []
        else:
            assert (len(runs), record.attempts, record.crashes) == (1, 1, 0)
    assert stage.alive()


def test_s1b_a_worker_killed_between_effect_and_ack_means_a_second_run_but_no_second_effect(stage: Stage):
    stage.start(2, concurrency=1)
    job = stage.kinds.charge.enqueue_sync("order7", gate="never")
    wait_until(lambda: stage.truth.of("effect"))
    stage.kill(stage.holder("order7"))
    stage.done([job])

    assert [line["answer"] for line in stage.truth.of("effect")] == ["done", "before"]
    assert len(stage.truth.runs("order7")) == 2
    (effect,) = guard.effects(stage.shop)
    assert effect[1] == stage.truth.runs("order7")[0].token
    assert job.result_sync() == "before"


def test_s5b_the_dedup_key_lives_exactly_as_long_as_the_job_is_not_settled(stage: Stage):
    unique = stage.kinds.unique
    stage.start(2, concurrency=1)
    job = unique.enqueue_sync("nightly", gate="go")
    stage.kill(stage.holder("nightly"))
    assert unique.enqueue_sync("nightly", gate="go").id == job.id  # its holder is dead, and it is still to be done
    wait_until(lambda: len(stage.truth.runs("nightly")) == 2, 10)
    assert unique.enqueue_sync("nightly", gate="go").id == job.id
    stage.open("go")
    stage.done([job])
    after = unique.enqueue_sync("nightly")
    assert (after.id != job.id, after.duplicate) == (True, False)
    stage.done([after])


def test_s6b_a_killed_holder_enters_its_own_lock_again_and_the_waiters_follow_in_order(stage: Stage):
    stage.start(3, concurrency=1)
    jobs = [stage.kinds.book.enqueue_sync("a", 0, gate="go")]
    victim = stage.holder("stock:a")
    jobs += [stage.kinds.book.enqueue_sync("a", n) for n in range(1, 6)]
    wait_until(lambda: [job.status_sync().state for job in jobs[1:]].count("waiting") >= 2)
    stage.kill(victim)
    stage.open("go")
    stage.done(jobs)

    assert [line["n"] for line in stage.truth.of("booked")] == [0, 0, 1, 2, 3, 4, 5]
    assert stage.truth.overlaps("stock:a", stage.dead) == []
    again = stage.truth.runs("stock:a")[1]
    assert again.began_at - stage.dead[victim.pid] < LEASE_S + SWEEP_S + SLACK_S
    assert [job.status_sync().attempts for job in jobs] == [1] * 6


def test_s7_a_job_that_kills_its_worker_each_time_is_buried_and_good_jobs_beside_it_are_done(stage: Stage):
    stage.start(2, concurrency=1, lease_s=1.0)
    killer = stage.kinds.kill_my_worker.enqueue_sync("killer")
    good, deaths = [], 0

    def over() -> bool:
        nonlocal deaths
        for process in list(stage.workers):
            if process.poll() is not None and process.pid not in stage.dead:
                deaths += 1
                stage.dead[process.pid] = now_s()
                good.append(stage.kinds.work.enqueue_sync(f"good{deaths}", ms=50))
                stage.start(1, concurrency=1, lease_s=1.0)
        state: str = killer.status_sync().state
        return state == "failed"

    wait_until(over, 40)
    stage.done(good)
    record = killer.status_sync()
    assert (record.reason, record.crashes, deaths) == ("poison", 4, 4)
    assert len(stage.truth.runs("killer")) == 4  # the first, and as many again as the cap of 3 allows
    assert "the lease ran out 4 times" in (record.error or "")
    assert len(good) == 4
    assert stage.alive()


def test_s7_the_innocent_in_flight_in_the_worker_that_a_job_kills_are_done_all_the_same(stage: Stage):
    stage.start(1, concurrency=4, lease_s=1.0)
    jobs = [stage.kinds.work.enqueue_sync(f"innocent{n}", ms=400) for n in range(3)]
    killer = stage.kinds.kill_my_worker.enqueue_sync("killer")
    jobs += [stage.kinds.work.enqueue_sync(f"innocent{n}", ms=400) for n in range(3, 9)]

    def over() -> bool:
        for process in list(stage.workers):
            if process.poll() is not None and process.pid not in stage.dead:
                stage.dead[process.pid] = now_s()
                stage.start(1, concurrency=4, lease_s=1.0)
        state: str = killer.status_sync().state
        return state == "failed"

    wait_until(over, 40)
    stage.done(jobs, 40)
    assert (killer.status_sync().reason, len(stage.dead)) == ("poison", 4)
    taken_along = [job.status_sync().crashes for job in jobs]
    assert max(taken_along) > 0, "void: nobody was in flight beside the killer"
    assert max(taken_along) <= 3
