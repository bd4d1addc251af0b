"""From events to the row of a job: only forward, and what has ended stays ended."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fencepost.ledger.fold import MOVES, JobRow, fold
from fencepost.ledger.paths import ANYWHERE, AUDIT_EVENTS, KNOWN_EVENTS, NOWHERE, after
from fencepost.ledger.stream import Event
from fencepost.states import LIVE, TERMINAL, State
from tests.ledger.stories import everything

DAY_MS = 86_400_000


def told(name: str, seq: int, **more: Any) -> Event:
    fields = {"kind": "k", "resource": "", "worker": "w", "attempt": None, "token": None, "nonce": "", "reason": ""}
    return Event(seq=seq, at_ms=1_000 + seq, name=name, job_id="j", **{**fields, **more})


def row_after(*events: tuple[int, Event], row: JobRow | None = None) -> JobRow:
    for epoch, event in events:
        row = fold(row, epoch, event)
    assert row is not None
    return row


def test_a_run_is_seen_with_its_attempt_token_and_nonce():
    row = row_after((1, told("enqueued", 1)), (1, told("acquired", 2, attempt=1, token=9, nonce="n.1", resource="r")))
    assert (row.state, row.attempts, row.token, row.nonce, row.worker, row.resource) == (
        "processing", 1, 9, "n.1", "w", "r",
    )  # fmt: skip
    assert row.created_at_ms == 1_001


@pytest.mark.parametrize(("name", "attempts"), [("retry_scheduled", 2), ("released", 1), ("lost", 1)])
def test_only_a_failed_run_is_charged(name, attempts):
    run = row_after((1, told("acquired", 2, attempt=2, token=9, nonce="n.1")))
    row = row_after((1, told(name, 3, attempt=2, token=9, nonce="n.1")), row=run)
    assert (row.attempts, row.nonce, row.state in LIVE) == (attempts, "", True)


def test_an_older_event_moves_nothing():
    row = row_after((1, told("enqueued", 5)), (1, told("acquired", 6, token=9)))
    for epoch, seq in ((1, 6), (1, 2)):
        assert row_after((epoch, told("parked", seq)), row=row).state == "processing"


@pytest.mark.parametrize("name", ["duplicate", "refused_stale", "cancel_asked", "effect", "step", "purged"])
def test_events_that_move_no_job_make_no_row_and_change_none(name):
    assert fold(None, 1, told(name, 1)) is None
    row = row_after((1, told("enqueued", 1)))
    before = row.values()
    assert row_after((1, told(name, 2, token=5, attempt=9)), row=row).values() == before


@pytest.mark.parametrize(("end", "name"), list(itertools.product(sorted(TERMINAL), sorted(MOVES))))
def test_what_has_ended_stays_ended_within_an_epoch_but_for_a_requeue_and_a_new_job_under_its_id(end, name):
    row = row_after((1, told("enqueued", 1)), (1, told(end, 2)))
    before = row.values()
    row = row_after(
        (1, told(name, 3, token=7, attempt=5, reason="generation 2" if name == "requeued" else "")), row=row
    )
    if name == "enqueued" or (name == "requeued" and end != "done"):
        assert (row.state, row.finished_at_ms, row.generation) == ("queued", None, 2 if name == "requeued" else 1)
    else:
        assert row.values() == before


@pytest.mark.parametrize(("end", "name"), list(itertools.product(sorted(TERMINAL), sorted(TERMINAL))))
def test_after_a_rewind_a_later_end_counts_unless_it_was_done(end, name):
    row = row_after((1, told("enqueued", 1)), (1, told(end, 2)), (2, told("acquired", 2, token=9)), (2, told(name, 3)))
    assert row.state == ("done" if end == "done" else name)


def test_a_rewound_redis_that_is_told_of_the_end_changes_nothing_but_where_it_was_last_seen():
    row = row_after(
        (1, told("enqueued", 1)), (1, told("failed", 2, reason="exhausted")), (2, told("concluded", 5, reason="failed"))
    )
    assert (row.state, row.reason, row.finished_at_ms, row.epoch) == ("failed", "exhausted", 1_002, 2)


@pytest.mark.parametrize(("later_ms", "state"), [(DAY_MS - 10, "done"), (DAY_MS + 10, "queued")])
def test_in_a_rewound_redis_the_id_of_a_durable_job_is_new_only_after_its_retention(later_ms, state):
    row = row_after((1, told("enqueued", 1)), (1, told("done", 2)))
    row.durable = True
    again = told("enqueued", 1)._replace(at_ms=1_002 + later_ms)
    assert row_after((2, again), row=row).state == state


def test_every_event_the_scripts_know_is_told_by_the_stories(partition):
    """So that the checker and the fold have met each of them."""
    everything(partition)
    assert {one.name for one in partition.told()} == KNOWN_EVENTS | AUDIT_EVENTS


def test_the_row_agrees_with_redis_after_every_way_a_job_can_go(partition, ledger, archiver):
    everything(partition)
    archiver.copy_all()
    for key in partition.redis.scan_iter(match=partition.keys.job("*")):
        record = partition.record(key.decode().removeprefix(partition.keys.job("")))
        row = ledger.job(record.id)
        # A delay does not show in the events: a job that waits for its time may be called queued.
        assert row.state == record.state or {row.state, record.state} <= {"queued", "scheduled"}
        assert (row.generation, row.attempts) == (record.generation, record.attempts), record
        assert row.finished_at_ms == record.finished_at
        if record.state == "processing":
            assert (row.token, row.nonce, row.worker) == (record.token, record.nonce, record.worker)


@pytest.mark.parametrize("name", sorted(KNOWN_EVENTS))
def test_no_event_leads_from_an_end_back_into_life_except_by_requeue(name):
    for end in TERMINAL:
        reached = after({end}, name, "done")
        assert name == "requeued" or not reached & LIVE


def test_a_path_begins_with_an_enqueue():
    begins = {name for name in MOVES if after(NOWHERE, name)}
    assert begins == {"enqueued"}
    assert after(ANYWHERE, "acquired") == {State.PROCESSING}
