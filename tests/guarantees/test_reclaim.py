"""Work of the dead comes back, once, to one worker; work that kills comes back a bounded number of times."""

from __future__ import annotations

import threading

import pytest

from fencepost.clock import worker_identity
from fencepost.driver import SyncDriver
from fencepost.store import RunKey
from tests.guarantees.stage import LEASE_S, Stage


def test_of_many_sweepers_one_takes_a_lapsed_job_back(stage: Stage):
    """T29: one requeue, one crash, one bump of the token, however many look at once."""
    stage.job()
    stage.worker("dead").take()
    stage.pass_time(LEASE_S - 0.1)
    stage.clock.advance(0.2)
    barrier, calls = threading.Barrier(8), [stage.store.claim(stage.request(worker=f"w{n}")) for n in range(8)]

    def sweep(call) -> None:
        driver = SyncDriver(stage.connections())
        barrier.wait()
        driver.run(call)
        driver.close()

    threads = [threading.Thread(target=sweep, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stage.events("lost") == stage.stats()["crashed:mail"] == 1
    assert len(stage.worker("b").claim(10)) == 1


@pytest.mark.parametrize("most", [3, 0])
def test_a_job_that_kills_its_worker_ends_as_poison_and_the_innocent_beside_it_finish(stage: Stage, most: int):
    """T30, S7: counted when it is taken back, without any help of the dead. report: boringnode/queue#30"""
    a = stage.worker("a")
    killer = stage.job(kind="killer", max_crashes=most)
    innocent = [stage.job() for _ in range(3)]
    deaths, finished = 0, 0
    while runs := a.claim(10):
        for run in runs:
            if run.kind == "killer":
                deaths += 1
            else:
                finished += a.done(run) == "OK"
        stage.outlive_lease()
    assert (deaths, finished) == (most + 1, 3)
    record = stage.record(killer)
    assert (record.state, record.reason, record.crashes, record.attempts) == ("failed", "poison", most + 1, 0)
    assert "lease ran out" in record.error
    assert list(stage.look().dead) == [killer]
    assert {stage.state(job_id) for job_id in innocent} == {"done"}


@pytest.mark.parametrize("most", [3, 2, 1])
def test_the_innocent_that_run_in_the_worker_a_job_kills_are_not_taken_along_until_they_are_poison(
    stage: Stage, most: int
):
    """All runs of a dead worker crash. From the second crash on a worker has one such job at a time."""
    killer = stage.job(kind="killer", max_crashes=most)
    innocent = [stage.job(max_crashes=most) for _ in range(6)]
    deaths = 0
    for n in range(60):
        worker = stage.worker(f"w{n}")  # the last one is dead, or went away
        runs = worker.claim(4)
        if any(run.kind == "killer" for run in runs):
            deaths += 1
            stage.outlive_lease()
            continue
        for run in runs:
            assert worker.done(run) == "OK"
        stage.pass_time(1.0)  # those that were put off come back
    assert deaths == most + 1
    assert (stage.record(killer).state, stage.record(killer).reason) == ("failed", "poison")
    assert [(record.state, record.crashes <= most) for record in map(stage.record, innocent)] == [("done", True)] * 6


@pytest.mark.parametrize("first", ["retry", "sweep"])
def test_a_run_that_fails_just_as_its_lease_ends_comes_back_once(stage: Stage, first: str):
    """Time limit = lease, retry without a delay: never two runs of the job, one more attempt or one more crash, not
    both. report: chrisguidry/docket#245"""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    for round_ in range(20):
        run = a.take()
        stage.pass_time(LEASE_S - 0.05)
        if first == "retry":
            assert a.retry(run) == "OK"
            stage.pass_time(0.1)
        else:
            stage.pass_time(0.1)
            assert a.retry(run) == "EXPIRED"
        runs = a.claim(5) + b.claim(5)
        assert len(runs) == 1
        assert stage.redis.zcard(stage.keys.leases) == 1
        counted = stage.record(run.job_id)
        assert (counted.attempts, counted.crashes) == ((2, 0) if first == "retry" else (1, 1))
        assert b.done(runs[0]) == "OK"
        if round_ < 19:
            stage.job()


def test_promotion_by_two_at_once_moves_each_job_once(stage: Stage):
    """Each id is in one list at any instant; cut off at any point, nothing is in two. report: Bogdanp/dramatiq#461"""
    ids = {stage.job(delay_ms=1_000 + n) for n in range(100)}
    barrier = threading.Barrier(2)
    stage.clock.advance(1.2)

    def promote(name: str) -> None:
        driver = SyncDriver(stage.connections())
        barrier.wait()
        for n in range(10):
            driver.run(stage.store.claim(stage.request(worker=f"{name}{n}")))
        driver.close()

    threads = [threading.Thread(target=promote, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shot = stage.look()
    assert (set(shot.ready["default"]), shot.later, shot.leases) == (ids, {}, {})
    starts = [run.job_id for name in "cd" for run in stage.worker(name).claim(100)]
    assert sorted(starts) == sorted(ids)


def test_a_restarted_worker_on_the_same_host_does_not_keep_its_forerunners_jobs_alive(stage: Stage):
    """The identity has a random part per start. report: oban-bg/oban#862"""
    before, after = worker_identity(), worker_identity()
    assert before != after
    assert before.rsplit("-", 1)[0] == after.rsplit("-", 1)[0]
    old, new = stage.worker(before), stage.worker(after)
    stage.job()
    orphan = old.take()
    stage.job()
    own = new.take()
    for _ in range(3):
        stage.pass_time(0.8)
        assert new.renew(own) == "OK"
    back = new.take()
    assert (back.job_id, back.crashes) == (orphan.job_id, 1)


def test_a_run_without_a_lease_entry_is_found_and_comes_back(stage: Stage):
    """Half a state, as a partial restore leaves it; and the other half. report: hibiken/asynq#1144"""
    a = stage.worker("a")
    stage.job(), stage.job()
    one, other = a.claim(2)
    stage.redis.zrem(stage.keys.leases, one.job_id)
    stage.redis.delete(stage.keys.job(other.job_id))
    stage.outlive_lease()
    assert stage.state(one.job_id) == "processing"
    assert other.job_id not in stage.look().leases
    assert stage.stats()["orphan:lease"] == 1
    assert stage.heal(one.job_id, other.job_id, dry_run=True) == [("HEALED", "run without a lease"), ("GONE", "")]
    assert stage.state(one.job_id) == "processing"
    assert stage.heal(one.job_id)[0].word == "HEALED"
    stage.pass_time(0.1)
    assert a.take().job_id == one.job_id


def test_the_jobs_of_a_dead_worker_run_again_within_a_lease_and_a_sweep(stage: Stage):
    """L1, S1: on an idle queue too; a healthy job beside them is not touched."""
    dead, a = stage.worker("dead"), stage.worker("a")
    for _ in range(6):
        stage.job()
    lost, healthy = dead.claim(5), a.take()
    stage.pass_time(LEASE_S / 2)
    assert a.renew(healthy) == "OK"
    assert a.claim(10) == []
    stage.pass_time(LEASE_S / 2 + 0.1)
    back = a.claim(10)
    assert sorted(run.job_id for run in back) == sorted(run.job_id for run in lost)
    assert {(run.attempt, run.crashes) for run in back} == {(1, 1)}
    assert min(int(run.token) for run in back) > max(int(run.token) for run in lost)
    assert {dead.end(RunKey(*run.key), "DONE") for run in lost} == {"STALE"}


def test_nothing_waits_for_redis_to_expire_a_key(stage: Stage):
    """T8: with active expiry off and no notifications, what lapsed comes back at the next sweep, on time."""
    assert stage.redis.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}
    stage.redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    try:
        stage.job()
        stage.worker("dead").take()
        stage.acquire("thing", "dead", ttl_ms=2_000)
        due = stage.job(delay_ms=2_000)
        stage.pass_time(LEASE_S - 0.1)
        assert stage.worker("a").claim(5) == []
        stage.pass_time(0.2)
        assert due in {run.job_id for run in stage.worker("a").claim(5)}
        assert stage.acquire("thing", "me")[0] == "HELD"
        assert stage.stats()["crashed:mail"] == 1
    finally:
        stage.redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "1")


@pytest.mark.parametrize("delay_s", [0, 1.0], ids=["at once", "later"])
def test_a_job_that_is_handed_back_is_charged_no_attempt(stage: Stage, delay_s: float):
    """S9. report: python-arq/arq#190"""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    for n in range(1, 8):
        run = a.take()
        assert (run.attempt, run.crashes) == (1, 0)
        assert a.release(run, delay_s) == "OK"
        assert stage.record(run.job_id).releases == n
        if delay_s:
            assert b.claim() == []
            stage.pass_time(delay_s)
    assert b.done(b.take()) == "OK"
    assert stage.look().dead == {}
