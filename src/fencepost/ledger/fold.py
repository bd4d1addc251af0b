"""From events to one row a job: moved only forward, by epoch and number.

What the ledger knows as ended stays ended. A live state comes back only by `requeued` (a new generation), or where
Redis has forgotten the job after its retention and somebody enqueued the same id anew. After a rewind of Redis a job
may end once more: `done` wins for ever, else the later end counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from fencepost.ledger.stream import Event
from fencepost.states import LIVE, TERMINAL, State

__all__ = ["COLUMNS", "MOVES", "JobRow", "fold"]

_DAY_MS: Final = 86_400_000
_GENERATION: Final = re.compile(r"generation ([0-9]{1,9})(?::|\Z)")

# Where an event takes a job that lives. A delay does not show in an event: `released` may also mean scheduled.
MOVES: Final[dict[str, State]] = {
    "enqueued": State.QUEUED,
    "acquired": State.PROCESSING,
    "parked": State.WAITING,
    "handed_over": State.QUEUED,
    "released": State.QUEUED,
    "retry_scheduled": State.SCHEDULED,
    "lost": State.QUEUED,
    "requeued": State.QUEUED,
    "done": State.DONE,
    "failed": State.FAILED,
    "cancelled": State.CANCELLED,
}
_OTHERS: Final = frozenset({"bumped", "healed", "concluded"})


@dataclass(slots=True)
class JobRow:
    """A row of the table of jobs while it is being moved. retention_ms: how long Redis keeps it once it has ended, and
    failed_retention_ms once it has failed."""

    job_id: str
    kind: str
    state: str
    created_at_ms: int
    updated_at_ms: int
    resource: str = ""
    reason: str = ""
    generation: int = 1
    attempts: int = 0
    token: int = 0
    nonce: str = ""
    worker: str = ""
    durable: bool = False
    epoch: int = 0
    seq: int = 0
    finished_at_ms: int | None = None
    retention_ms: int = _DAY_MS
    failed_retention_ms: int = 7 * _DAY_MS

    def values(self) -> tuple[Any, ...]:
        """In the order of COLUMNS."""
        return tuple(getattr(self, name) for name in COLUMNS)


COLUMNS: Final = (
    "job_id", "kind", "resource", "state", "reason", "generation", "attempts", "token", "nonce", "worker", "durable",
    "epoch", "seq", "created_at_ms", "updated_at_ms", "finished_at_ms",
)  # fmt: skip


def fold(row: JobRow | None, epoch: int, event: Event) -> JobRow | None:
    """Return the row as it is after an event; it is changed in place. None: no row, and the event makes none."""
    if event.name not in MOVES and event.name not in _OTHERS:
        return row
    if row is None:
        row = JobRow(event.job_id, event.kind, State.PROCESSING, event.at_ms, event.at_ms)
    elif (epoch, event.seq) <= (row.epoch, row.seq):
        return row
    ended = row.state in TERMINAL
    if event.name in ("requeued", "enqueued"):
        if ended and not _starts_over(row, epoch, event):
            return row
        _start(row, event)
    elif ended:
        if not _ends_otherwise(row, epoch, event):
            return row
        if event.name != "concluded":  # which only says in Redis what is known here
            row.state, row.reason, row.finished_at_ms = event.name, event.reason, event.at_ms
    else:
        _move(row, event)
    row.epoch, row.seq, row.updated_at_ms = epoch, event.seq, event.at_ms
    row.kind = event.kind or row.kind
    row.resource = event.resource or row.resource
    return row


def generation_of(event: Event) -> int:
    """The number a `requeued` event names, before whatever reason was given; 0 where it names none."""
    found = _GENERATION.match(event.reason)
    return int(found[1]) if found else 0


def _starts_over(row: JobRow, epoch: int, event: Event) -> bool:
    if event.name == "requeued":
        return row.state != State.DONE and (epoch > row.epoch or generation_of(event) > row.generation)
    if epoch == row.epoch or not row.durable:
        return True  # this Redis had the end of the job, and its retention is over
    kept = row.failed_retention_ms if row.state == State.FAILED else row.retention_ms
    return event.at_ms >= (row.finished_at_ms or 0) + kept


def _start(row: JobRow, event: Event) -> None:
    again = row.state in TERMINAL
    row.state, row.reason, row.finished_at_ms, row.nonce = State.QUEUED, "", None, ""
    if event.name == "requeued":
        row.generation, row.attempts = max(row.generation, generation_of(event)), 0
    elif again:
        row.generation, row.attempts, row.created_at_ms = 1, 0, event.at_ms


def _end_of(event: Event) -> str:
    return event.reason if event.name == "concluded" else event.name


def _ends_otherwise(row: JobRow, epoch: int, event: Event) -> bool:
    return row.state != State.DONE and _end_of(event) in TERMINAL and epoch > row.epoch


def _move(row: JobRow, event: Event) -> None:
    """A job that lives goes on, or ends."""
    name = event.name
    if name == "bumped":
        row.token = event.token or row.token
        return
    if name == "healed":
        row.state = event.reason if event.reason in LIVE else row.state or State.QUEUED
        return
    row.state, row.reason = (_end_of(event), "") if name == "concluded" else (MOVES[name], event.reason)
    if row.state in TERMINAL:
        row.finished_at_ms = event.at_ms
    if event.token is not None:
        row.token = event.token
    if event.attempt is not None:  # of a run that is not charged, the event names its number
        row.attempts = event.attempt - 1 if name in ("lost", "released") and event.nonce else event.attempt
    if name == "acquired":
        row.nonce, row.worker = event.nonce, event.worker
    elif name in ("released", "retry_scheduled", "lost"):
        row.nonce = ""
