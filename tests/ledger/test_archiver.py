"""The archiver copies every event once and keeps a row for each job."""

from __future__ import annotations

from fencepost.ledger import Copied


def test_a_job_s_events_arrive_in_order_and_its_row_says_how_it_ended(partition, ledger, archiver):
    job_id = partition.job(resource="thing")
    [run] = partition.claim()
    partition.finish(run.key, "DONE")
    assert archiver.copy_some() == Copied(events=3)
    assert [(one.name, one.seq) for one in ledger.history(job_id)] == [("enqueued", 1), ("acquired", 2), ("done", 3)]
    row = ledger.job(job_id)
    assert (row.state, row.attempts, row.token, row.nonce, row.kind) == ("done", 1, int(run.token), run.nonce, "mail")
    assert row.finished_at_ms == partition.record(job_id).finished_at
    assert row.resource == "thing"
    assert archiver.copy_some() == Copied()


def test_the_partition_is_told_how_far_the_ledger_is(partition, archiver):
    partition.job()
    partition.job()
    archiver.copy_some()
    assert partition.redis.hget(partition.keys.meta, "archived") == b"2"
