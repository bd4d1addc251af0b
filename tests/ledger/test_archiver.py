"""The archiver copies every event once and keeps a row for each job."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from fencepost.errors import LedgerUnavailable
from fencepost.job import JobSpec
from fencepost.ledger import Archiver, Copied, Ledger
from fencepost.ledger.verify import verify
from fencepost.sql.upgrade import upgrade
from tests.ledger.copies import copied_lines, cursor_of, told_lines


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


def test_an_entry_larger_than_a_step_is_copied_whole(partition, ledger, archiver):
    partition.enqueue(*(JobSpec(id=f"j{number}", kind="mail") for number in range(300)))
    partition.job()
    assert archiver.copy_some(10) == Copied(events=300, more=True)
    assert archiver.copy_some(10) == Copied(events=1)


def test_a_job_that_is_accepted_in_the_very_moment_its_event_is_copied_is_there_once(partition, postgres_url):
    """PostgreSQL only: SQLite lets nobody in between."""
    upgrade(postgres_url)
    ledger, caller = (Ledger(postgres_url, partition.namespace) for _ in range(2))
    late = JobSpec(id="late", kind="mail", durable=True)
    partition.enqueue(late)
    partition.job()
    accepted: list[frozenset[str]] = []

    def accept(*told: Any) -> None:
        if "LATERAL" in told[2] and not accepted:
            accepted.append(caller.accept([late]))

    event.listen(ledger.engine, "after_cursor_execute", accept)
    assert Archiver(ledger, partition.store, partition.driver).copy_some().events == 2
    assert accepted == [{"late"}]
    assert copied_lines(ledger) == told_lines(partition)
    row = ledger.job("late")
    assert row is not None
    assert (row.state, row.durable, row.spec) == ("queued", True, late)
    ledger.close()
    caller.close()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_while_the_database_is_away_jobs_go_on_and_afterwards_all_of_it_is_copied(partition, new_postgres):
    server = new_postgres(fsync="on")
    url = server.new_database()
    upgrade(url)
    ledger = Ledger(url, partition.namespace)
    archiver = Archiver(ledger, partition.store, partition.driver)
    partition.put("done")
    archiver.copy_all()
    server.kill()
    with pytest.raises(LedgerUnavailable):
        archiver.copy_some()
    for state in ("done", "failed", "processing"):
        partition.put(state)
    server.start()
    archiver.copy_all()
    assert copied_lines(ledger) == told_lines(partition)
    assert cursor_of(ledger).lost == 0
    assert verify(ledger).ok
    ledger.close()
