"""Copies the events of a partition into the ledger, each exactly once, whatever Redis loses and whoever is killed.

The stream is read first, without any lock in SQL. Then one transaction locks the cursor, sees that nobody moved it
meanwhile, writes the events, moves the rows of the jobs and the cursor. Only after its commit Redis is told, and may
trim what lies behind the cursor. An archiver that dies anywhere leaves nothing half done; two at once take turns.

A cursor is a number and the fingerprint of the entry that has it. If another entry has the number now, or none has
although there are older ones, Redis was rewound: a new epoch begins, and everything that is there is read again.

Two Redis servers that feed one ledger under the same namespace look like a server that is rewound again and again.
The mark of a rewind keeps the incarnation that it ended, so that going back and forth between two of them is seen.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from sqlalchemy import Connection, and_, func, select, update
from sqlalchemy.exc import IntegrityError

from fencepost.driver import Call
from fencepost.errors import ConfigurationError
from fencepost.job import JobSpec
from fencepost.ledger.book import Ledger
from fencepost.ledger.fold import COLUMNS, JobRow, fold
from fencepost.ledger.paths import OF_NO_JOB
from fencepost.ledger.stream import Entry, Event, View, view
from fencepost.ledger.writing import copy_rows, insert_ignoring, insert_rows, rows_by_id, upsert_rows
from fencepost.log import emit
from fencepost.sql.engines import now_ms
from fencepost.sql.tables import cursors, events, jobs, marks
from fencepost.store import Store

__all__ = ["Archiver", "Copied", "Cursor"]

T = TypeVar("T")
_Known: TypeAlias = dict[tuple[Any, ...], int]
_log = logging.getLogger("fencepost.ledger")
_BATCH: Final = 4_000
_FEWEST_ENTRIES: Final = 50
_MOST_ENTRIES: Final = 4_000
_IDS: Final = 2_000
_SHARED_MS: Final = 600_000
_SHARED_AGAIN_MS: Final = 60_000
_EVENT: Final = ("namespace", "part", "epoch", *Event._fields)
_JOB: Final = ("namespace", "part", "spec", *COLUMNS)
_READ: Final = (*(jobs.c[name] for name in COLUMNS), jobs.c.spec)
_CHANGED: Final = tuple(
    name for name in COLUMNS if name not in ("job_id", "durable")
)  # what a caller accepted stays as it is


class Runs(Protocol):
    """What runs calls: SyncDriver."""

    def run(self, call: Call[T], give_up_s: float | None = None) -> T: ...


class Copied(NamedTuple):
    """What one step did. events: copied now; lost: found missing now; rewound: a new epoch began; more: another step
    would find something at once; busy: another archiver is at work, nothing was done."""

    events: int = 0
    lost: int = 0
    rewound: bool = False
    more: bool = False
    busy: bool = False
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the ledger is with a partition. seq 0: nothing of this epoch is copied yet."""

    incarnation: str = ""
    seq: int = 0
    high: int = 0
    fingerprint: str = ""
    epoch: int = 1
    copied: int = 0
    lost: int = 0
    rewinds: int = 0


_CURSOR: Final = tuple(cursors.c[name] for name in Cursor.__dataclass_fields__)


class Archiver:
    """One partition's way into the ledger. driver: a SyncDriver. event_cap: how many events Redis keeps at most for a
    ledger that is away; what goes beyond is dropped there, counted as `events_dropped`, and found as lost here."""

    def __init__(self, ledger: Ledger, store: Store, driver: Runs, *, event_cap: int = 1_000_000) -> None:
        self.ledger, self._store, self._driver, self._event_cap = ledger, store, driver, event_cap
        self._entries, self._untold, self._refused = _FEWEST_ENTRIES, 0, ""
        namespace, part = ledger.namespace, ledger.part
        self._mine = and_(cursors.c.namespace == namespace, cursors.c.part == part)

    def copy_some(self, limit: int = _BATCH) -> Copied:
        """One step: about limit events, or the beginning of a new epoch. Nothing to do costs one read of each side.

        Raises RedisUnavailable, LedgerUnavailable; the same step may be done again at any time. ConfigurationError
        where another Redis feeds the ledger under the same namespace: nothing was copied.
        """
        before = self._cursor()
        seen = self._driver.run(view(self._store.keys, before.seq, min(self._entries, _MOST_ENTRIES)))
        if _was_rewound(before, seen):
            return self._begin_epoch(before, seen)
        entries = seen.entries
        if before.seq and entries and entries[0].seq == before.seq:
            entries = entries[1:]
        lines = 0
        for number, entry in enumerate(entries, 1):
            lines += len(entry.lines)
            if lines >= limit:
                entries = entries[:number]
                break
        if entries:  # the next step asks for as many entries as hold so many events
            self._entries = max(_FEWEST_ENTRIES, limit * len(entries) // max(lines, 1) + 1)
        try:
            return self._copy(before, seen, entries)
        except IntegrityError:
            # A row was there already: a caller accepted that very job meanwhile. With care it is only looked at.
            return self._copy(before, seen, entries, careful=True)

    def copy_all(self) -> Copied:
        """Step until the end of the stream, as it is by then. Returns the sum; busy where another one is at work."""
        total, lost, rewound = 0, 0, False
        while True:
            step = self.copy_some()
            total, lost, rewound = total + step.events, lost + step.lost, rewound or step.rewound
            if step.busy or not step.more:
                return Copied(total, lost, rewound, step.more, step.busy, step.epoch)

    # -- the cursor ---------------------------------------------------------------------------------------

    def _cursor(self) -> Cursor:
        with self.ledger.begin("read the cursor") as connection:
            row = connection.execute(select(*_CURSOR).where(self._mine)).first()
            if row is None:
                first = {"namespace": self.ledger.namespace, "part": self.ledger.part, "updated_at_ms": now_ms()}
                fields = {name: getattr(Cursor(), name) for name in Cursor.__dataclass_fields__}
                connection.execute(insert_ignoring(connection, cursors), [fields | first])
                return Cursor()
        return Cursor(*row)

    def _locked(self, connection: Connection, before: Cursor) -> bool:
        """Whether the cursor is ours and where it was. PostgreSQL: the row is locked; SQLite: the database is."""
        statement = select(*_CURSOR).where(self._mine).with_for_update(skip_locked=True)
        row = connection.execute(statement).first()
        return row is not None and Cursor(*row) == before

    def _move(self, connection: Connection, **values: Any) -> None:
        connection.execute(update(cursors).where(self._mine).values(updated_at_ms=now_ms(), **values))

    # -- a step -------------------------------------------------------------------------------------------

    def _begin_epoch(self, before: Cursor, seen: View) -> Copied:
        epoch = before.epoch + 1
        with self.ledger.begin("begin an epoch") as connection:
            if not self._locked(connection, before):
                return Copied(busy=True, more=True, epoch=before.epoch)
            shared = self._shared(connection, before, seen)
            if not shared:
                self._move(
                    connection, epoch=epoch, seq=0, fingerprint="", rewinds=before.rewinds + 1,
                    incarnation=seen.incarnation,
                )  # fmt: skip
                superseded = before.incarnation if before.incarnation != seen.incarnation else ""
                self._mark(connection, epoch, "rewind", _number(superseded), 0)
        if shared:
            self._refuse(before, seen)
        self._refused = ""
        emit(
            _log, logging.WARNING, "redis_rewound", namespace=self.ledger.namespace, epoch=epoch,
            copied_to=before.seq, stands_at=seen.tip, new_incarnation=seen.incarnation != before.incarnation,
        )  # fmt: skip
        return Copied(rewound=True, more=True, epoch=epoch)

    def _shared(self, connection: Connection, before: Cursor, seen: View) -> bool:
        """Whether two servers take turns: each of the two incarnations was superseded and came back, lately.

        An older copy that is put back comes back once, and is then followed by none that was there before it. While the
        cursor's server goes on telling, the other one stays refused; ten minutes after its last word it is let in.
        """
        here, there = _number(seen.incarnation), _number(before.incarnation)
        if not here or not there or here == there:
            return False
        c, now = marks.c, now_ms()
        mine = and_(c.namespace == self.ledger.namespace, c.part == self.ledger.part, c.why == "rewind")
        query = select(c.first_seq, func.max(c.at_ms)).where(mine, c.first_seq.in_([here, there])).group_by(c.first_seq)
        superseded = {int(first): int(at_ms) for first, at_ms in connection.execute(query)}
        if len(superseded) < 2 or superseded[here] < now - _SHARED_MS:
            return False
        told_at_ms = connection.execute(select(cursors.c.updated_at_ms).where(self._mine)).scalar() or 0
        if superseded[here] < now - _SHARED_AGAIN_MS and told_at_ms > now - _SHARED_MS:
            connection.execute(update(marks).where(mine, c.first_seq == here).values(at_ms=now))
        return True

    def _refuse(self, before: Cursor, seen: View) -> None:
        """Tell that another server feeds the ledger, once a server, and do nothing from this side."""
        if self._refused != seen.incarnation:
            self._refused = seen.incarnation
            emit(
                _log, logging.ERROR, "ledger_shared", namespace=self.ledger.namespace, ledger=self.ledger.where,
                incarnation=seen.incarnation, other=before.incarnation,
            )  # fmt: skip
        raise ConfigurationError(
            "ledger",
            f"two Redis servers feed {self.ledger.where} under the namespace {self.ledger.namespace}: this one, "
            f"incarnation {seen.incarnation}, and one of incarnation {before.incarnation}; nothing of this one is "
            f"copied or reconciled",
            "Give one of them another namespace, or a ledger of its own. Where the other one is gone for good, this "
            "one is let in ten to twenty minutes after the ledger last heard of it.",
        )

    def _copy(self, before: Cursor, seen: View, entries: list[Entry], *, careful: bool = False) -> Copied:
        more = bool(entries) and entries[-1].seq < seen.tip
        gone = not entries and seen.first is None and seen.tip > before.seq  # the whole stream was trimmed away
        adopt = seen.incarnation != before.incarnation
        if not entries and not gone and not adopt:
            self._tell(before, seen)
            return Copied(epoch=before.epoch)
        with self.ledger.begin("copy events") as connection:
            if not self._locked(connection, before):
                return Copied(busy=True, more=True, epoch=before.epoch)
            rows = [event for entry in entries for event in entry.events()]
            known = self._known(connection, before, rows)
            fresh = [event for event in rows if _identity(event) not in known] if known else rows
            holes = _holes(before, entries, seen, known)
            lost = sum(last - first + 1 for first, last, why in holes if why == "lost")
            for first, last, why in holes:
                self._mark(connection, before.epoch, why, first, last)
            if shared := [(event.seq, known[_identity(event)]) for event in rows if _identity(event) in known]:
                self._note_shared(connection, before.epoch, *max(shared))
            self._write(connection, before.epoch, fresh, careful)
            last_seq = entries[-1].seq if entries else seen.tip if gone else before.seq
            print_ = entries[-1].fingerprint if entries else "" if gone else before.fingerprint
            after = Cursor(
                seen.incarnation, last_seq, max(before.high, last_seq), print_, before.epoch,
                before.copied + len(fresh), before.lost + lost, before.rewinds,
            )  # fmt: skip
            self._move(connection, **{name: getattr(after, name) for name in Cursor.__dataclass_fields__})
        if lost:
            self._untold += lost
            emit(
                _log, logging.ERROR, "events_lost", namespace=self.ledger.namespace, lost=lost,
                numbers=", ".join(f"{first}-{last}" for first, last, why in holes if why == "lost")[:200],
            )  # fmt: skip
        self._tell(after, seen)
        return Copied(len(fresh), lost, more=more, epoch=before.epoch)

    def _tell(self, cursor: Cursor, seen: View) -> None:
        """Let the partition trim what is copied. Told again by a later step if it is not heard."""
        if cursor.seq and cursor.seq != seen.archived:
            answer = self._driver.run(self._store.archived(cursor.seq, self._untold, self._event_cap))
            if answer.word == "OK":  # AHEAD: it was rewound a moment ago; the next step sees that
                self._untold = 0

    # -- what is written ----------------------------------------------------------------------------------

    def _known(self, connection: Connection, before: Cursor, rows: Sequence[Event]) -> _Known:
        """Which of the events were copied before, and in which epoch. Numbers above all copied ones need no look."""
        if before.epoch == 1 or not rows or rows[0].seq > before.high:
            return {}
        c = events.c
        found = connection.execute(
            select(c.seq, c.at_ms, c.job_id, c.nonce, c.epoch).where(
                c.namespace == self.ledger.namespace, c.part == self.ledger.part,
                c.seq.between(rows[0].seq, rows[-1].seq), c.epoch < before.epoch,
            )
        )  # fmt: skip
        return {(seq, at_ms, job_id, nonce): epoch for seq, at_ms, job_id, nonce, epoch in found}

    def _write(self, connection: Connection, epoch: int, fresh: list[Event], careful: bool) -> None:
        head = (self.ledger.namespace, self.ledger.part, epoch)
        insert = insert_rows if careful else copy_rows
        insert(connection, events, _EVENT, [(*head, *event) for event in fresh])
        touched: dict[str, JobRow | None] = {
            event.job_id: None for event in fresh if event.job_id and event.job_id[0] not in OF_NO_JOB
        }
        there = job_rows(connection, self.ledger.namespace, list(touched), lock=True)
        touched.update(there)
        for event in fresh:
            if event.job_id in touched:
                touched[event.job_id] = fold(touched[event.job_id], epoch, event)
        new: list[tuple[Any, ...]] = []
        old: list[tuple[Any, ...]] = []
        for row in sorted((row for row in touched.values() if row is not None), key=lambda row: row.job_id):
            known = careful or row.job_id in there
            (old if known else new).append((*head[:2], None, *row.values()))
        copy_rows(connection, jobs, _JOB, new)
        upsert_rows(connection, jobs, _JOB, old, _CHANGED)

    def _mark(self, connection: Connection, epoch: int, why: str, first: int, last: int) -> None:
        row = {"namespace": self.ledger.namespace, "part": self.ledger.part, "epoch": epoch, "why": why}
        row |= {"first_seq": first, "last_seq": last, "at_ms": now_ms()}
        connection.execute(insert_ignoring(connection, marks), [row])

    def _note_shared(self, connection: Connection, epoch: int, seq: int, parent: int) -> None:
        """Remember how far this epoch tells the same story as an older one: a copy of Redis may be of any of them."""
        c = marks.c
        which = and_(c.namespace == self.ledger.namespace, c.part == self.ledger.part, c.epoch == epoch)
        shorter = and_(which, c.why == "rewind", c.last_seq < seq)
        connection.execute(update(marks).where(shorter).values(last_seq=seq, parent=parent))


def job_rows(
    connection: Connection, namespace: str, job_ids: Sequence[str], *, lock: bool = False
) -> dict[str, JobRow]:
    """The rows of some jobs, ready to be folded. lock: nobody else changes them until the end of the transaction."""
    out: dict[str, JobRow] = {}
    for at in range(0, len(job_ids), _IDS):
        found = rows_by_id(connection, namespace, job_ids[at : at + _IDS], _READ, lock=lock)
        for one in found:
            row = JobRow(**{name: one._mapping[name] for name in COLUMNS})
            if one.spec is not None:
                kept = msgspec.json.decode(one.spec, type=JobSpec)
                row.retention_ms, row.failed_retention_ms = kept.retention_ms, kept.failed_retention_ms
            out[row.job_id] = row
    return out


def _identity(event: Event) -> tuple[Any, ...]:
    return (event.seq, event.at_ms, event.job_id, event.nonce)


def _number(incarnation: str) -> int:
    """An incarnation as it is kept in a mark; 0 for none."""
    return int(incarnation) if incarnation.isdecimal() and len(incarnation) < 19 else 0


def _was_rewound(cursor: Cursor, seen: View) -> bool:
    if not cursor.seq:
        # Nothing of this epoch is copied: whatever is there belongs to it, but for what another server has.
        return bool(cursor.incarnation and seen.incarnation) and seen.incarnation != cursor.incarnation
    if cursor.incarnation and seen.incarnation != cursor.incarnation:
        return True
    if seen.tip < cursor.seq:
        return True
    if seen.first is None or seen.first > cursor.seq:
        return False  # trimmed behind the cursor, or beyond it: a gap
    entry = seen.entries[0] if seen.entries else None
    return entry is None or entry.seq != cursor.seq or entry.fingerprint != cursor.fingerprint


def _holes(cursor: Cursor, entries: list[Entry], seen: View, known: _Known) -> list[tuple[int, int, str]]:
    """Numbers that are missing: (first, last, why). before: what went before the ledger was there; lost: the rest.

    A hole in front of an entry that was copied in an earlier epoch was counted there.
    """
    if cursor.seq:
        copied = cursor.seq
    elif cursor.epoch == 1:
        copied = 0
    else:
        copied = seen.archived or 0  # of this story the partition remembers that so much was copied
    why = "lost" if cursor.seq or cursor.epoch > 1 else "before"
    if not entries:
        return [(copied + 1, seen.tip, why)] if seen.tip > copied else []
    out: list[tuple[int, int, str]] = []
    for entry in entries:
        if entry.first > copied + 1 and next(map(_identity, entry.events()), None) not in known:
            out.append((copied + 1, entry.first - 1, why))
        copied, why = max(copied, entry.seq), "lost"
    return out
