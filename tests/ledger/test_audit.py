"""The ledger keeps who did what by hand, and why; of what is no job it makes no row, and the checker accepts that."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from fencepost import Fencepost
from fencepost.ledger import Archiver, Ledger
from fencepost.ledger.fold import fold
from fencepost.ledger.prune import prune
from fencepost.ledger.stream import Event
from fencepost.ledger.verify import verify
from fencepost.operate import DeadFilter, Operator
from fencepost.sql.tables import events, jobs
from tests.support.partition import Partition

DAY_MS = 86_400_000


@pytest.fixture
def operator(url: str, namespace: str) -> Operator:
    """An operator with a name."""
    return Operator(Fencepost(url, namespace=namespace), actor="ann (k3j4)")


def rows(ledger: Ledger, *names: str) -> list[tuple[str, str, str, str]]:
    """(event, id, who, why) of the events with these names, in order."""
    c = events.c
    with ledger.reading("test") as connection:
        found = connection.execute(
            select(c.name, c.job_id, c.worker, c.reason).where(c.name.in_(names)).order_by(c.seq)
        )
        return [tuple(row) for row in found]


def test_each_action_of_an_operator_is_a_row_with_who_did_it_and_why(
    partition: Partition, ledger: Ledger, archiver: Archiver, operator: Operator
):
    queued, failed, done, asked = (partition.put(state).job_id for state in ("queued", "failed", "done", "processing"))
    bulk = partition.put("failed", kind="sms").job_id
    run = partition.put("processing")
    _, token, _ = partition.acquire("thing", "me")
    for plan in (
        operator.pause("mails", reason="too many"),
        operator.resume("mails", reason="fewer"),
        operator.cancel([queued, asked], reason="not wanted"),
        operator.requeue([failed], reason="it is back"),
        operator.requeue_all(DeadFilter(kind="sms"), reason="this too"),
        operator.purge([done], reason="tidy"),
        operator.revoke(run.job_id, run.token, reason="it hangs"),
        operator.revoke("@me", token, reason="so does this"),
    ):
        operator.run_sync(plan)
    archiver.copy_all()
    who = "ann (k3j4)"
    names = ("queue_paused", "queue_resumed", "cancelled", "cancel_asked", "requeued", "purged", "lost")
    assert rows(ledger, *names) == [
        ("queue_paused", "/mails", who, "too many"),
        ("queue_resumed", "/mails", who, "fewer"),
        ("cancelled", queued, who, "not wanted"),
        ("cancel_asked", asked, who, "not wanted"),
        ("requeued", failed, who, "generation 2: it is back"),
        ("requeued", bulk, who, "generation 2: this too"),
        ("purged", done, who, "tidy"),
        ("lost", run.job_id, who, "revoked from w1: it hangs"),
        ("lost", "@me", who, "revoked from somebody: so does this"),
    ]
    verdict = verify(ledger)
    assert (verdict.findings, verdict.notes) == ([], [])
    with ledger.reading("test") as connection:
        known = {row.job_id: row for row in connection.execute(select(jobs))}
    assert not [job_id for job_id in known if job_id[0] in "/@%"]
    assert known[failed].generation == 2
    after = known[run.job_id]
    assert (after.state, after.attempts, after.token, after.nonce) == ("queued", 0, int(run.token), "")


def test_the_history_of_a_queue_can_be_read_by_its_id(partition: Partition, ledger: Ledger, archiver: Archiver):
    partition.pause("mails", "too many", "ann")
    archiver.copy_all()
    [told] = ledger.history("/mails")
    assert (told.name, told.worker, told.reason) == ("queue_paused", "ann", "too many")


def test_an_event_of_a_queue_that_no_release_knows_is_a_finding(
    partition: Partition, ledger: Ledger, archiver: Archiver
):
    partition.pause("mails")
    archiver.copy_all()
    assert verify(ledger).ok
    with ledger.begin("test") as connection:
        connection.execute(update(events).values(name="queue_eaten"))
    assert [(one.what, one.job_id) for one in verify(ledger).findings] == [("unknown_event", "/mails")]


def test_old_rows_about_queues_go_with_a_prune_and_young_ones_stay(
    partition: Partition, ledger: Ledger, archiver: Archiver
):
    partition.pause("old")
    archiver.copy_all()
    with ledger.begin("test") as connection:
        connection.execute(update(events).values(at_ms=events.c.at_ms - 60 * DAY_MS))
    partition.pause("young")
    archiver.copy_all()
    assert prune(ledger, 30 * DAY_MS).events == 1
    assert [job_id for _, job_id, _, _ in rows(ledger, "queue_paused")] == ["/young"]
    assert verify(ledger).ok


@pytest.mark.parametrize(
    ("reason", "generation"),
    [
        ("generation 3", 3),
        ("generation 3: generation 9", 3),
        ("generation 3: the provider: is back", 3),
        ("generation 3:", 3),
        ("generation 3 more", 1),
        ("generation", 1),
        ("generation 3\n", 1),
        ("generation ٣", 1),
        ("generation 99999999999999999999", 1),
        ("why generation 3", 1),
        ("", 1),
    ],
)
def test_the_generation_is_read_whatever_reason_stands_behind_it(reason: str, generation: int):
    def event(seq: int, name: str, why: str = "") -> Event:
        return Event(seq, seq, name, "job", "mail", "", "", None, None, "", why)

    row: Any = None
    for one in (event(1, "enqueued"), event(2, "failed"), event(3, "requeued", reason)):
        row = fold(row, 1, one)
    assert row.generation == generation
    assert row.state == ("queued" if generation > 1 else "failed")
