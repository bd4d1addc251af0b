"""Ends and new beginnings, as the ledger tells of them: one row a job, one end a generation."""

from __future__ import annotations

import pytest
import redis as redis_py

from fencepost.ledger import Archiver, Ledger
from fencepost.ledger.reconcile import Reconciler
from tests.support.partition import Partition


def names(ledger: Ledger, job_id: str) -> list[str]:
    return [event.name for event in ledger.history(job_id)]


@pytest.mark.parametrize(
    ("word", "values", "reason"),
    [
        ("BURY", ("exhausted", "Oops", "five times"), "exhausted"),
        ("BURY", ("permanent", "OrderGone", "no such order"), "permanent"),
        ("BURY", ("decode_error", "PayloadUndecodable", "JSON is malformed"), "decode_error"),
    ],
)
def test_each_way_to_fail_is_one_dead_letter_and_one_row_with_its_reason(
    partition: Partition, ledger: Ledger, archiver: Archiver, redis: redis_py.Redis, word: str, values: tuple[str, ...],
    reason: str,
):  # fmt: skip
    """report: boringnode/queue#30"""
    job_id = partition.job(payload=b'{"to":"b"}')
    [claimed] = partition.claim()
    assert partition.finish(claimed.key, word, *values).word == "OK"
    assert partition.finish(claimed.key, word, *values).word == "REPLAY"
    archiver.copy_all()
    job = ledger.job(job_id)
    assert job is not None
    assert (job.state, job.reason, job.attempts, job.token) == ("failed", reason, 1, int(claimed.token))
    assert job.worker == "w1"
    assert names(ledger, job_id).count("failed") == 1
    assert redis.zrange(partition.keys.dead, 0, -1) == [job_id.encode()]
    record = partition.record(job_id)
    assert (record.payload, record.reason, record.error) == (b'{"to":"b"}', reason, values[2])


def test_a_job_that_kills_its_workers_is_one_dead_letter_and_one_row(
    partition: Partition, ledger: Ledger, archiver: Archiver, redis: redis_py.Redis
):
    """report: boringnode/queue#30"""
    job_id = partition.job(max_crashes=2)
    while claimed := partition.claim():
        partition.take_back(claimed[0].key)
    archiver.copy_all()
    job = ledger.job(job_id)
    assert job is not None
    assert (job.state, job.reason) == ("failed", "poison")
    assert names(ledger, job_id).count("failed") == 1
    assert redis.zcard(partition.keys.dead) == 1


def test_two_who_replay_one_dead_job_make_one_live_job_in_a_new_generation(
    partition: Partition, ledger: Ledger, archiver: Archiver, redis: redis_py.Redis
):
    """report: laravel/horizon#310"""
    run = partition.put("failed")
    first, second = partition.requeue(run.job_id, request="one"), partition.requeue(run.job_id, request="two")
    assert [first[0].word, second[0].word] == ["REQUEUED", "ILLEGAL"]
    archiver.copy_all()
    job = ledger.job(run.job_id)
    assert job is not None
    assert (job.state, job.generation, job.finished_at_ms) == ("queued", 2, None)
    [claimed] = partition.claim(queues=(partition.record(run.job_id).queue,))
    partition.finish(claimed.key, "BURY")
    partition.requeue(run.job_id, request="three")
    archiver.copy_all()
    job = ledger.job(run.job_id)
    assert job is not None
    assert (job.state, job.generation) == ("queued", 3)
    assert names(ledger, run.job_id).count("requeued") == 2
    redis.flushall()
    assert Reconciler(ledger, partition.store, partition.driver, quiet_s=0).run(everything=True).counts == {}
