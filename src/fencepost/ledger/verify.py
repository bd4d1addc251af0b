"""An offline checker: proves from the tables of the ledger alone that the promises were kept. Reads; changes nothing.

It reads the events three times, each time sorted as one question needs it, so that its memory does not grow with the
ledger: by number (is the ledger whole?), by resource (do tokens rise?), by job (legal paths, one end, the row).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, exists, func, select

from fencepost.ledger.book import ACCEPTED, Ledger
from fencepost.ledger.history import Breaks, History, check_job
from fencepost.ledger.paths import AUDIT_EVENTS, KNOWN_EVENTS, OF_NO_JOB
from fencepost.ledger.writing import rows_by_id
from fencepost.sql.tables import cursors, events, jobs, marks

__all__ = ["Finding", "Gap", "Verdict", "verify"]

_MOST_FINDINGS: Final = 1_000
_ROWS: Final = 5_000
_GROUPS: Final = 500


class Finding(msgspec.Struct, frozen=True):
    """One broken promise, or one damage of the ledger. what: a word of a closed set, see the reference page."""

    what: str
    job_id: str
    text: str


class Gap(msgspec.Struct, frozen=True):
    """Numbers of events that never came into the ledger. why: lost (gone before they were copied) or before (older
    than the ledger)."""

    epoch: int
    first_seq: int
    last_seq: int
    why: str


class Verdict(msgspec.Struct):
    """ok: nothing broken was found. counts: what was looked at. findings: at most 1,000, `counts["findings"]` is the
    number of all. notes: what is as a rewind or a hand leaves it, and no promise: listed, not counted against. gaps:
    where the ledger cannot know; paths that cross one are checked as far as they can be."""

    ok: bool = True
    counts: dict[str, int] = {}
    findings: list[Finding] = []
    notes: list[Finding] = []
    gaps: list[Gap] = []


class _Report:
    def __init__(self) -> None:
        self.verdict, self.counts = Verdict(), Counter[str]()

    def find(self, what: str, job_id: str, text: str) -> None:
        self.counts["findings"] += 1
        if len(self.verdict.findings) < _MOST_FINDINGS:
            self.verdict.findings.append(Finding(what, job_id, text))

    def note(self, what: str, job_id: str, text: str) -> None:
        self.counts["notes"] += 1
        if len(self.verdict.notes) < _MOST_FINDINGS:
            self.verdict.notes.append(Finding(what, job_id, text))


def verify(ledger: Ledger) -> Verdict:
    """Check the ledger of one namespace, all partitions. One consistent view; nobody is held up."""
    report = _Report()
    with ledger.reading("verify") as connection:
        breaks = _breaks(connection, ledger.namespace, report)
        _by_number(connection, ledger.namespace, breaks, report)
        _by_resource(connection, ledger.namespace, report)
        _by_effect(connection, ledger.namespace, report)
        _by_job(connection, ledger.namespace, breaks, report)
        _rows_alone(connection, ledger.namespace, report)
    verdict = report.verdict
    verdict.ok = report.counts["findings"] == 0
    for name in ("events", "jobs", "accepted", "resources", "effects", "epochs", "lost", "findings", "notes"):
        verdict.counts[name] = report.counts[name]
    return verdict


def _stream(connection: Connection, statement: Any) -> Iterator[Row[Any]]:
    yield from connection.execution_options(yield_per=_ROWS).execute(statement)


# -- by number: is the ledger whole? --------------------------------------------------------------------------


def _breaks(connection: Connection, namespace: str, report: _Report) -> Breaks:
    """Where numbers may be missing, as the archiver and prune noted it."""
    breaks = Breaks()
    for row in connection.execute(select(marks).where(marks.c.namespace == namespace).order_by(marks.c.first_seq)):
        breaks.add(row.part, row.epoch, row.why, row.first_seq, row.last_seq, row.parent or 0)
        if row.why in ("lost", "before"):
            report.verdict.gaps.append(Gap(row.epoch, row.first_seq, row.last_seq, row.why))
        if row.why == "lost":
            report.counts["lost"] += row.last_seq - row.first_seq + 1
    return breaks


def _by_number(connection: Connection, namespace: str, breaks: Breaks, report: _Report) -> None:
    c = events.c
    statement = select(c.part, c.epoch, c.seq, c.job_id, c.name)
    found = _stream(connection, statement.where(c.namespace == namespace).order_by(c.part, c.epoch, c.seq))
    seen: Counter[int] = Counter()
    reached: dict[tuple[int, int], int] = {}
    for (part, epoch), rows in groupby(found, key=lambda row: (row.part, row.epoch)):
        report.counts["epochs"] += 1
        last = breaks.start_of(part, epoch)
        for row in rows:
            seen[part] += 1
            if row.seq <= last:
                report.find("number_twice", row.job_id, f"two events have the number {row.seq} of epoch {epoch}")
            elif row.seq > last + 1 and (missing := breaks.unexplained(part, epoch, last + 1, row.seq - 1)):
                report.find("events_missing", "", f"the events {missing} of epoch {epoch} are not there")
            last = max(last, row.seq)
        reached[part, epoch] = last
    report.counts["events"] += seen.total()
    for cursor in connection.execute(select(cursors).where(cursors.c.namespace == namespace)):
        end = reached.get((cursor.part, cursor.epoch), breaks.start_of(cursor.part, cursor.epoch))
        if cursor.seq > end and (missing := breaks.unexplained(cursor.part, cursor.epoch, end + 1, cursor.seq)):
            report.find("events_missing", "", f"the events {missing} of epoch {cursor.epoch} are not there")
        if end > cursor.seq and cursor.seq:
            report.find("behind_the_cursor", "", f"event {end} is there, and the cursor stands at {cursor.seq}")
        if seen[cursor.part] + cursor.pruned != cursor.copied:
            there = f"{seen[cursor.part]} events are there and {cursor.pruned} were pruned"
            report.find("count_differs", "", f"{cursor.copied} events were copied, but {there}")


# -- by resource, by effect -----------------------------------------------------------------------------------


def _by_resource(connection: Connection, namespace: str, report: _Report) -> None:
    """Of one resource each holder has a higher token than the one before; an epoch starts anew."""
    c = events.c
    statement = select(c.resource, c.part, c.epoch, c.seq, c.job_id, c.token).where(
        c.namespace == namespace, c.resource != "", c.token.is_not(None), c.name.in_(("acquired", "handed_over"))
    )
    ordered = statement.order_by(c.resource, c.part, c.epoch, c.seq)
    for (resource, _), rows in groupby(_stream(connection, ordered), key=lambda row: (row.resource, row.part)):
        report.counts["resources"] += 1
        epoch, newest, highest = 0, 0, 0
        for row in rows:
            if row.epoch != epoch:
                epoch, newest = row.epoch, 0
            if row.token <= newest:
                text = f"event {row.seq}: resource {resource} was given under token {row.token} after {newest}"
                report.find("token_fell", row.job_id, text)
            elif row.token <= highest:
                text = f"event {row.seq}: in epoch {epoch} resource {resource} was given under token {row.token}"
                report.note("token_fell_in_a_rewind", row.job_id, f"{text}, having had {highest}")
            newest, highest = max(newest, row.token), max(highest, row.token)


def _by_effect(connection: Connection, namespace: str, report: _Report) -> None:
    """`effect` says that a guarded effect was committed for the first time: once a key, whatever Redis lost."""
    c = events.c
    mine = (c.namespace == namespace, c.name == "effect")
    report.counts["effects"] += connection.execute(select(func.count()).select_from(events).where(*mine)).scalar() or 0
    twice = select(c.reason, func.min(c.job_id).label("job_id"), func.count().label("times"))
    for row in connection.execute(twice.where(*mine).group_by(c.reason).having(func.count() > 1)):
        report.find("effect_twice", row.job_id, f"effect {row.reason} was committed {row.times} times")


# -- by job ---------------------------------------------------------------------------------------------------


def _by_job(connection: Connection, namespace: str, breaks: Breaks, report: _Report) -> None:
    c = events.c
    found = _stream(connection, select(events).where(c.namespace == namespace).order_by(c.job_id, c.epoch, c.seq))
    batch: list[History] = []
    for job_id, rows in groupby(found, key=lambda row: row.job_id):
        if job_id.startswith(OF_NO_JOB):  # of a lease the tokens were looked at by resource
            for row in rows:
                if row.name not in KNOWN_EVENTS | AUDIT_EVENTS:
                    report.find("unknown_event", job_id, f"event {row.seq} is called {row.name!r}")
            continue
        batch.append(History(job_id, list(rows)))
        if len(batch) >= _GROUPS:
            _check(connection, namespace, batch, breaks, report)
            batch = []
    _check(connection, namespace, batch, breaks, report)


def _check(connection: Connection, namespace: str, batch: list[History], breaks: Breaks, report: _Report) -> None:
    known = {row.job_id: row for row in rows_by_id(connection, namespace, [one.job_id for one in batch], tuple(jobs.c))}
    for history in batch:
        for finding, what, text in check_job(history, known.get(history.job_id), breaks):
            (report.find if finding else report.note)(what, history.job_id, text)


def _rows_alone(connection: Connection, namespace: str, report: _Report) -> None:
    """Rows of jobs that no event tells of."""
    c = jobs.c
    told = exists().where(events.c.namespace == c.namespace, events.c.job_id == c.job_id)
    of_mine = select(func.count()).select_from(jobs).where(c.namespace == namespace)
    report.counts["jobs"] += connection.execute(of_mine).scalar() or 0
    report.counts["accepted"] += connection.execute(of_mine.where(c.state == ACCEPTED)).scalar() or 0
    statement = select(c.job_id, c.state, c.durable).where(c.namespace == namespace, ~told)
    for row in _stream(connection, statement.order_by(c.job_id)):
        if row.state == ACCEPTED and row.durable:
            continue
        if row.durable and row.state == "cancelled":
            report.note("never_ran", row.job_id, "it was accepted, and ended before Redis ever told of it")
        else:
            report.find("row_without_events", row.job_id, f"it is {row.state}, and no event tells of it")
