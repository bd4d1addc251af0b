"""What failed is kept with all that explains it, and starts again only when somebody says so, once."""

from __future__ import annotations

import threading

import pytest

from fencepost.driver import SyncDriver
from fencepost.store import Answer
from tests.guarantees.stage import Stage


def poisoned(stage: Stage) -> str:
    job_id = stage.job(max_crashes=1)
    for _ in range(2):
        stage.worker("a").take()
        stage.outlive_lease()
    return job_id


def buried(stage: Stage, reason: str) -> str:
    job_id, a = stage.job(), stage.worker("a")
    assert a.bury(a.take(), reason) == "OK"
    return job_id


@pytest.mark.parametrize("reason", ["exhausted", "permanent", "decode_error", "unknown_kind", "poison"])
def test_each_bad_end_gives_one_dead_letter_with_all_that_explains_it(stage: Stage, reason: str):
    """report: boringnode/queue#30, taskiq-python/taskiq#322"""
    job_id = poisoned(stage) if reason == "poison" else buried(stage, reason)
    shot, record = stage.look(), stage.record(job_id)
    assert list(shot.dead) == [job_id]
    assert (record.state, record.reason, record.worker, record.payload) == ("failed", reason, "a", b'{"to":"a"}')
    assert record.token > 0
    assert record.error
    assert record.attempts + record.crashes >= 1
    assert stage.events("failed", job_id) == stage.stats()["failed:mail"] == 1


def test_a_dead_job_that_is_started_again_has_a_fresh_budget(stage: Stage):
    """report: taskforcesh/bullmq#3555: it died again within a second, by its old counters"""
    job_id, a = poisoned(stage), stage.worker("a")
    assert stage.requeue(job_id) == [("REQUEUED", "2")]
    record = stage.record(job_id)
    assert (record.state, record.attempts, record.crashes, record.releases, record.generation) == ("queued", 0, 0, 0, 2)
    run = a.take()
    assert (run.attempt, run.crashes) == (1, 0)
    stage.outlive_lease()
    run = a.take()
    assert run.crashes == 1
    assert a.done(run) == "OK"
    assert [stage.events(name, job_id) for name in ("failed", "requeued", "done")] == [1, 1, 1]
    assert stage.look().dead == {}


def test_a_job_that_is_started_again_begins_without_what_its_last_life_left(stage: Stage):
    """Neither the first run nor a later one is handed a checkpoint of the generation before."""
    job_id, a = stage.job(), stage.worker("a")
    run = a.take()
    a.checkpoint(run, b'{"page":7}')
    a.bury(run)
    stage.requeue(job_id)
    first = a.take()
    a.retry(first)
    second = a.take()
    assert (first.checkpoint, second.checkpoint) == (b"", b"")


def test_a_run_of_the_life_before_cannot_touch_the_new_one(stage: Stage):
    a, b = stage.worker("a"), stage.worker("b")
    stage.job(max_crashes=0)
    old = a.take()
    stage.outlive_lease()
    stage.requeue(old.job_id)
    new = b.take()
    assert int(new.token) > int(old.token)
    assert [a.done(old), a.bury(old), a.renew(old)] == ["STALE"] * 3
    assert b.done(new) == "OK"


def test_a_dead_job_started_again_from_two_sessions_at_once_starts_once(stage: Stage):
    """A double click too. report: laravel/horizon#310"""
    job_id, a = buried(stage, "permanent"), stage.worker("a")
    answers: list[Answer] = []
    barrier = threading.Barrier(2)

    def session(request: str) -> None:
        driver = SyncDriver(stage.connections())
        barrier.wait()
        answers.extend([*driver.run(stage.store.requeue([job_id, job_id], request))])
        driver.close()

    threads = [threading.Thread(target=session, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [("ILLEGAL", "queued")] * 2 + [("REQUEUED", "2")] * 2
    [run] = a.claim(10)
    a.bury(run)
    assert stage.requeue(*stage.look().dead) == [("REQUEUED", "3")]
    assert len(a.claim(10)) == 1
    assert stage.events("requeued", job_id) == 2


def test_a_request_to_start_again_that_is_repeated_starts_nothing_twice(stage: Stage):
    job_id, a = buried(stage, "permanent"), stage.worker("a")
    assert stage.requeue(job_id, request="click") == [("REQUEUED", "2")]
    a.bury(a.take())
    assert stage.requeue(job_id, request="click") == [("REQUEUED", "2")]
    assert a.claim() == []


def test_starting_all_again_goes_on_behind_those_whose_record_is_gone(stage: Stage):
    """Reported and dropped from the index. report: rq/rq#1963"""
    a = stage.worker("a")
    for _ in range(200):
        stage.job()
    for run in a.claim(200):
        a.bury(run)
    dead = list(stage.look().dead)
    missing = dead[::20]
    stage.redis.delete(*map(stage.keys.job, missing))
    answers = dict(zip(dead, stage.requeue(*dead), strict=True))
    assert {job_id for job_id, answer in answers.items() if answer == ("GONE", "")} == set(missing)
    assert sum(answer == ("REQUEUED", "2") for answer in answers.values()) == 190
    assert stage.look().dead == {}
    assert len(a.claim(500)) == 190


def test_purging_a_job_twice_in_one_call_counts_it_once(stage: Stage):
    job_id = buried(stage, "permanent")
    assert stage.purge(job_id, job_id) == [("PURGED", "failed"), ("GONE", "")]
    assert stage.stats()["purged:mail"] == 1
    assert stage.events("purged", job_id) == 1
