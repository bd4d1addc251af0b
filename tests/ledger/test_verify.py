"""The checker passes what the scripts tell, and finds each damage that is done to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, and_, delete, insert, select, update

from fencepost.job import JobSpec
from fencepost.ledger import Ledger
from fencepost.ledger.verify import verify
from fencepost.sql.tables import cursors, events, jobs, marks
from tests.ledger.stories import everything

Damage = Callable[[Connection, "Place"], None]


class Place(NamedTuple):
    """Where a damage may be done: jobs of the story, by what became of them."""

    namespace: str
    jobs: dict[str, str]

    def event(self, name: str, of: str = "done") -> Any:
        """The condition that names one event of a job."""
        c = events.c
        return and_(c.namespace == self.namespace, c.job_id == self.jobs[of], c.name == name)

    def row(self, of: str = "done") -> Any:
        return and_(jobs.c.namespace == self.namespace, jobs.c.job_id == self.jobs[of])


@pytest.fixture
def place(partition, ledger, archiver, namespace) -> Place:
    told = everything(partition)
    archiver.copy_all()
    return Place(namespace, told)


def words(ledger: Ledger) -> set[str]:
    verdict = verify(ledger)
    assert verdict.ok == (not verdict.findings)
    return {one.what for one in verdict.findings}


def test_every_way_a_job_can_go_is_found_to_be_in_order(place, ledger, partition):
    verdict = verify(ledger)
    assert verdict.findings == []
    assert verdict.notes == []
    assert verdict.gaps == []
    assert verdict.ok
    told = partition.told()
    assert verdict.counts["events"] == len(told)
    assert verdict.counts["jobs"] == len({one.job_id for one in told if one.name == "enqueued"})
    assert verdict.counts["effects"] == sum(one.name == "effect" for one in told) > 0
    assert verdict.counts["resources"] > 1


def test_an_empty_ledger_is_in_order(ledger):
    assert verify(ledger).ok


def test_a_job_that_was_accepted_and_is_not_told_of_yet_is_in_order(place, ledger):
    ledger.accept([JobSpec(id="accepted", kind="mail")])
    verdict = verify(ledger)
    assert verdict.ok
    assert verdict.counts["accepted"] == 1


# -- damages --------------------------------------------------------------------------------------------------


def _copy(connection: Connection, which: Any, **changed: Any) -> None:
    row = dict(connection.execute(select(events).where(which).limit(1)).one()._mapping)
    connection.execute(insert(events).values({**row, **changed}))


def _append(connection: Connection, place: Place, which: Any, **changed: Any) -> None:
    """Tell an event once more, at the end, with all the counting right: only its meaning is wrong."""
    mine = cursors.c.namespace == place.namespace
    seq = connection.execute(select(cursors.c.seq).where(mine)).scalar_one() + 1
    _copy(connection, which, seq=seq, **changed)
    connection.execute(update(cursors).where(mine).values(seq=seq, high=seq, copied=cursors.c.copied + 1))


def an_event_in_the_middle_is_gone(connection: Connection, place: Place) -> None:
    connection.execute(delete(events).where(place.event("acquired")))
    connection.execute(update(cursors).values(copied=cursors.c.copied - 1))


def the_last_events_are_gone(connection: Connection, place: Place) -> None:
    last = connection.execute(select(cursors.c.seq)).scalar_one()
    connection.execute(delete(events).where(events.c.seq > last - 2))


def an_event_is_there_twice(connection: Connection, place: Place) -> None:
    _copy(connection, place.event("done"), at_ms=1)


def a_job_is_done_twice(connection: Connection, place: Place) -> None:
    _append(connection, place, place.event("done"))


def a_job_runs_after_it_was_done(connection: Connection, place: Place) -> None:
    _append(connection, place, place.event("acquired"), token=1 << 52)


def a_run_began_without_an_enqueue(connection: Connection, place: Place) -> None:
    connection.execute(update(events).where(place.event("enqueued")).values(name="duplicate"))


def a_token_fell(connection: Connection, place: Place) -> None:
    connection.execute(update(events).where(place.event("acquired", "second on the resource")).values(token=5))


def a_token_is_there_twice(connection: Connection, place: Place) -> None:
    first = connection.execute(select(events.c.token).where(place.event("acquired", "first on the resource"))).scalar()
    connection.execute(update(events).where(place.event("acquired", "second on the resource")).values(token=first))


def an_effect_was_committed_twice(connection: Connection, place: Place) -> None:
    _append(connection, place, place.event("effect", "guarded"))


def a_stranger_finished_a_run(connection: Connection, place: Place) -> None:
    connection.execute(update(events).where(place.event("done")).values(nonce="somebody.1"))


def an_older_token_finished_a_run(connection: Connection, place: Place) -> None:
    connection.execute(update(events).where(place.event("done")).values(token=events.c.token - 1))


def a_row_says_otherwise(connection: Connection, place: Place) -> None:
    connection.execute(update(jobs).where(place.row("failed")).values(state="done"))


def a_row_was_moved_back(connection: Connection, place: Place) -> None:
    connection.execute(update(jobs).where(place.row()).values(state="processing", finished_at_ms=None))


def a_row_has_other_attempts(connection: Connection, place: Place) -> None:
    connection.execute(update(jobs).where(place.row("retried")).values(attempts=7))


def a_row_is_gone(connection: Connection, place: Place) -> None:
    connection.execute(delete(jobs).where(place.row()))


def a_row_was_invented(connection: Connection, place: Place) -> None:
    row = dict(connection.execute(select(jobs).where(place.row())).one()._mapping)
    connection.execute(insert(jobs).values({**row, "job_id": "invented"}))


def an_event_is_called_otherwise(connection: Connection, place: Place) -> None:
    connection.execute(update(events).where(place.event("done")).values(name="finished"))


def a_failure_became_a_success(connection: Connection, place: Place) -> None:
    connection.execute(update(events).where(place.event("failed", "failed")).values(name="done"))


def a_generation_came_again(connection: Connection, place: Place) -> None:
    connection.execute(update(events).where(place.event("requeued", "requeued")).values(reason="generation 1"))


def the_counter_was_changed(connection: Connection, place: Place) -> None:
    connection.execute(update(cursors).values(copied=cursors.c.copied + 1))


def an_event_was_added_behind_the_cursor(connection: Connection, place: Place) -> None:
    last = connection.execute(select(cursors.c.seq)).scalar_one()
    _copy(connection, place.event("done"), seq=last + 1)
    connection.execute(update(cursors).values(copied=cursors.c.copied + 1))


def a_waiting_job_ran(connection: Connection, place: Place) -> None:
    connection.execute(update(events).where(place.event("handed_over", "waited")).values(name="duplicate"))


DAMAGES: dict[Damage, set[str]] = {
    an_event_in_the_middle_is_gone: {"events_missing", "illegal_path"},
    the_last_events_are_gone: {"events_missing", "count_differs"},
    an_event_is_there_twice: {"number_twice", "count_differs", "done_twice"},
    a_job_is_done_twice: {"done_twice"},
    a_job_runs_after_it_was_done: {"illegal_path"},
    a_run_began_without_an_enqueue: {"illegal_path"},
    a_token_fell: {"token_fell"},
    a_token_is_there_twice: {"token_fell"},
    an_effect_was_committed_twice: {"effect_twice"},
    a_stranger_finished_a_run: {"wrong_hand"},
    an_older_token_finished_a_run: {"wrong_hand"},
    a_row_says_otherwise: {"row_differs"},
    a_row_was_moved_back: {"row_differs"},
    a_row_has_other_attempts: {"row_differs"},
    a_row_is_gone: {"row_missing"},
    a_row_was_invented: {"row_without_events"},
    an_event_is_called_otherwise: {"unknown_event"},
    a_failure_became_a_success: {"row_differs"},
    a_generation_came_again: {"generation_fell"},
    the_counter_was_changed: {"count_differs"},
    an_event_was_added_behind_the_cursor: {"behind_the_cursor"},
    a_waiting_job_ran: {"illegal_path"},
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damage_is_found(damage: Damage, place, ledger):
    assert words(ledger) == set()
    with ledger.begin("damage") as connection:
        damage(connection, place)
    found = words(ledger)
    assert DAMAGES[damage] <= found


def test_a_gap_is_named_and_the_paths_across_it_are_checked_as_far_as_they_can_be(place, ledger, namespace):
    """Of the lost events nobody can say what they were; the ones behind them still have to be legal."""
    c = events.c
    with ledger.begin("gap") as connection:
        [seq, epoch] = connection.execute(select(c.seq, c.epoch).where(place.event("acquired"))).one()
        connection.execute(delete(events).where(place.event("acquired")))
        row = {"namespace": namespace, "part": 0, "epoch": epoch, "why": "lost", "first_seq": seq, "last_seq": seq}
        connection.execute(insert(marks).values(**row, at_ms=1))
        connection.execute(update(cursors).values(copied=cursors.c.copied - 1, lost=1))
    verdict = verify(ledger)
    assert [(one.first_seq, one.last_seq, one.why) for one in verdict.gaps] == [(seq, seq, "lost")]
    assert verdict.counts["lost"] == 1
    assert {one.what for one in verdict.findings} <= {"row_differs"}  # of the job whose claim is lost
    with ledger.begin("damage") as connection:
        a_job_is_done_twice(connection, place)
    assert "done_twice" in words(ledger)


def test_two_namespaces_in_one_database_are_apart(place, ledger, ledger_url):
    other = Ledger(ledger_url, "somebody-else")
    verdict = verify(other)
    assert verdict.ok
    assert verdict.counts["events"] == 0
    other.close()
