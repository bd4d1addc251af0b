"""What is known of one job, wherever it is known: Redis for now, the ledger for what Redis has forgotten.

Where Redis cannot be asked nothing is told: the ledger may be behind, and an older state would be a wrong answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fencepost.api.tail import ENDS, PATIENCE_S
from fencepost.clock import wall_ms
from fencepost.errors import JobNotFound, LedgerUnavailable
from fencepost.log import emit
from fencepost.operate import Event, JobView, Operator
from fencepost.operate.jobs import history
from fencepost.states import TERMINAL, State

if TYPE_CHECKING:
    from fencepost.app import Fencepost

__all__ = ["MOVES", "Found", "Stories", "Story", "ended_by", "state_after"]

_log: Final = logging.getLogger("fencepost.api")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
_ROUNDS: Final = 3

MOVES: Final = ENDS | {
    "enqueued", "acquired", "parked", "handed_over", "released", "retry_scheduled", "lost", "requeued",
}  # fmt: skip
"""The events that say where a job is. All others tell what happened to it there."""


class Found(NamedTuple):
    """A job. source: "redis" | "ledger" | "outbox". lost: Redis has lost it before it ended, and this is the last that
    the ledger knows; a durable one comes back."""

    view: JobView
    source: str
    lost: bool = False

    @property
    def ended(self) -> bool:
        return self.view.record.state in TERMINAL


class Story(NamedTuple):
    """Events, oldest first. whole: they go back to the job's first."""

    events: list[Event]
    whole: bool


class Stories:
    """Reads jobs and their histories."""

    def __init__(self, app: Fencepost, operator: Operator) -> None:
        self._app, self._operator, self._keys = app, operator, app.link.store.keys

    async def find(self, job_id: str) -> Found:
        """Read a job. Raises JobNotFound, RedisUnavailable; LedgerUnavailable where only the ledger could tell."""
        if not _ID.fullmatch(job_id):
            raise JobNotFound(job_id[:200])
        found = await self._find(job_id)
        if found.source != "ledger" or found.ended:
            return found
        return await self._forgotten(job_id, found)

    async def _find(self, job_id: str) -> Found:
        for _ in range(_ROUNDS):
            try:
                return Found(await self._operator.run(self._operator.job(job_id), PATIENCE_S), "redis")
            except JobNotFound:
                if self._app.link.recall is None:
                    raise
            record = await self._app.get(job_id).status()
            source = record.other.pop("source", "")
            if source:
                return Found(JobView(record, wall_ms()), source)
            job_id = record.id  # it has come into Redis meanwhile, or another job has its work
        raise JobNotFound(job_id)

    async def _forgotten(self, job_id: str, found: Found) -> Found:
        """A job that lives by the ledger and is not in Redis. The ledger may be behind; what it knows last is not what
        the job is."""
        record = found.view.record
        assert self._app.ledger is not None
        events, _ = await self._operator.run(history(self._keys, job_id), PATIENCE_S)
        moves = [one for one in events if one.name in MOVES and one.name != "purged"]
        if moves and moves[-1].name in ENDS:
            last = moves[-1]
            record = msgspec.structs.replace(
                record, state=state_after(last), reason=last.reason or None, finished_at=last.at
            )
            return Found(msgspec.structs.replace(found.view, record=record), "ledger")
        row = await asyncio.to_thread(self._app.ledger.job, record.id)
        # An accepted job is in the ledger alone as yet, and comes into Redis.
        return found if row is not None and row.state == "accepted" and not moves else found._replace(lost=True)

    async def story(self, job_id: str, *, strict: bool = False) -> Story:
        """Read the events of a job. Those of a rewound Redis come first. strict: raise LedgerUnavailable where the
        stream does not go back to the first event and the ledger cannot be asked. Raises RedisUnavailable."""
        events: list[Event] = []
        failed: LedgerUnavailable | None = None
        if self._app.ledger_url is not None:
            try:
                events = await asyncio.to_thread(self._remembered, job_id)
            except LedgerUnavailable as error:
                failed = error
        recent, whole = await self._operator.run(history(self._keys, job_id), PATIENCE_S)
        if failed is not None and not whole:
            if strict:
                raise failed
            emit(_log, logging.WARNING, "ledger_away", error=str(failed))
        known = {(one.seq, one.at) for one in events}
        events += [one for one in recent if (one.seq, one.at) not in known]
        return Story(events, bool(events) and events[0].name == "enqueued")

    def _remembered(self, job_id: str) -> list[Event]:
        ledger = self._app.ledger
        assert ledger is not None
        return [
            Event(
                one.seq, one.at_ms, one.name, job_id, one.kind, one.worker, _shown(one.token), one.nonce,
                _shown(one.attempt), one.reason, one.resource,
            )
            for one in ledger.history(job_id)
        ]  # fmt: skip


def ended_by(events: list[Event]) -> Event | None:
    """The event that ended the job, if it has not moved again since."""
    moves = [one for one in events if one.name in MOVES]
    return moves[-1] if moves and moves[-1].name in ENDS else None


def _shown(number: int | None) -> str:
    return "" if number is None else str(number)


def state_after(event: Event) -> str:
    """The state in which an ending event left its job; "purged" for one that is forgotten."""
    if event.name == "concluded":
        return event.reason if event.reason in TERMINAL else State.DONE
    return event.name
