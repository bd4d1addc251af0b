"""Half states that only a partial restore or a hand can make are found, named and mended."""

from __future__ import annotations

import pytest

from fencepost.operate import HalfState


def healed(operator, **options):
    return operator.run_sync(operator.heal(**{"dry_run": False, **options}))


def test_a_sound_partition_has_nothing_to_heal(partition, operator):
    for state in ("scheduled", "queued", "waiting", "processing", "done", "failed", "cancelled"):
        partition.put(state)
    before = partition.dump()
    report = healed(operator)
    assert (report.stranded, report.orphans, report.cursor) == ([], [], None)
    assert report.scanned == 7
    assert partition.dump() == before


def test_a_run_whose_lease_entry_was_lost_is_taken_back_by_the_next_sweep(partition, operator):
    """report: hibiken/asynq#1144"""
    run = partition.put("processing")
    partition.redis.zrem(partition.keys.leases, run.job_id)
    partition.sweep()
    assert partition.state(run.job_id) == "processing", "the sweep alone cannot see it"
    assert healed(operator, dry_run=True).stranded == [HalfState(run.job_id, "run without a lease")]
    assert partition.redis.zcard(partition.keys.leases) == 0, "a dry run changes nothing"
    assert healed(operator).stranded == [HalfState(run.job_id, "run without a lease")]
    partition.sweep()
    assert partition.state(run.job_id) == "queued"
    assert partition.record(run.job_id).crashes == 1
    assert healed(operator).stranded == []


def test_a_lease_entry_without_a_job_is_named_and_goes_with_the_sweep(partition, operator):
    """report: hibiken/asynq#1144"""
    run = partition.put("processing")
    partition.redis.delete(partition.keys.job(run.job_id))
    assert healed(operator, dry_run=True).orphans == [HalfState(run.job_id, "lease without a job")]
    partition.redis.zadd(partition.keys.leases, {run.job_id: 1})
    partition.sweep()
    assert healed(operator, dry_run=True).orphans == []
    assert partition.redis.zcard(partition.keys.leases) == 0


@pytest.mark.parametrize(
    ("state", "index", "what"),
    [
        ("queued", "ready", "queued, but in no queue"),
        ("scheduled", "later", "scheduled, but not in later"),
        ("waiting", "line", "waiting, but in no line"),
    ],
)
def test_a_live_job_in_no_list_is_put_back_into_its_own(partition, operator, state, index, what):
    job_id = partition.put(state).job_id
    record, keys = partition.record(job_id), partition.keys
    key = {"ready": keys.ready(record.queue), "later": keys.later, "line": keys.line(record.resource or "")}[index]
    partition.redis.zrem(key, job_id)
    assert healed(operator).stranded == [HalfState(job_id, what)]
    assert partition.redis.zscore(key, job_id) is not None
    assert healed(operator).stranded == []


def test_a_waiter_whose_resource_is_free_comes_back_to_its_queue(partition, operator):
    job_id = partition.put("waiting", resource="r1").job_id
    partition.redis.delete(partition.keys.slots("r1"))
    assert healed(operator).stranded == [HalfState(job_id, "waiting for a free resource")]
    assert partition.state(job_id) == "queued"


def test_a_dead_letter_without_a_record_is_dropped_from_the_index(partition, operator):
    run = partition.put("failed")
    partition.redis.delete(partition.keys.job(run.job_id))
    assert healed(operator, dry_run=True).orphans == [HalfState(run.job_id, "dead letter without a job")]
    healed(operator)
    assert partition.redis.zcard(partition.keys.dead) == 0


@pytest.mark.parametrize("state", ["queued", "waiting"])
def test_a_record_that_lost_its_fields_does_not_hide_the_others(partition, operator, state):
    """A hash that says only "waiting" cannot be healed; the job beside it is."""
    broken, run = partition.job(), partition.put("processing")
    partition.redis.zrem(partition.keys.ready("default"), broken)
    partition.redis.delete(partition.keys.job(broken))
    partition.redis.hset(partition.keys.job(broken), "state", state)
    partition.redis.zrem(partition.keys.leases, run.job_id)
    report = healed(operator)
    assert report.stranded == [HalfState(run.job_id, "run without a lease")]
    assert [one.id for one in report.broken] == [broken]


async def test_a_worker_heals_in_small_steps_until_the_walk_is_through(partition, operator, app):
    jobs = [partition.job() for _ in range(450)]
    partition.redis.delete(partition.keys.ready("default"))
    cursor, steps = await operator.heal_some(), 1
    while cursor:
        cursor, steps = await operator.heal_some(cursor), steps + 1
    assert steps >= 2
    assert partition.redis.zcard(partition.keys.ready("default")) == len(jobs)
    await app.close()


def test_a_long_walk_is_done_in_parts(partition, operator):
    jobs = [partition.job() for _ in range(2_500)]
    partition.redis.delete(partition.keys.ready("default"))
    first = healed(operator, steps=1)
    assert first.cursor is not None
    assert 0 < len(first.stranded) < len(jobs)
    rest = healed(operator, steps=100, cursor=first.cursor)
    assert rest.cursor is None
    assert len(first.stranded) + len(rest.stranded) == len(jobs)
