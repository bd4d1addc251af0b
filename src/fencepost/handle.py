"""The handle of an accepted job: what the caller of enqueue keeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any, Generic, TypeVar

from fencepost.clock import uuid7
from fencepost.codec import decode_result
from fencepost.errors import (
    IdempotencyConflict,
    IllegalTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    ResultExpired,
    ResultTimeout,
)
from fencepost.job import JobRecord
from fencepost.link import Link
from fencepost.states import State
from fencepost.store import Answer

__all__ = ["Job"]

R = TypeVar("R")


class Job(Generic[R]):
    """An accepted job.

    id: its job id. state: at the moment of the answer; "outbox" until its transaction has committed. duplicate: the
    dedup key belonged to this live job already, nothing new was stored. replayed: this very request (idempotency key)
    was accepted before.
    """

    __slots__ = ("_link", "duplicate", "id", "replayed", "state")

    def __init__(self, link: Link, job_id: str, state: str, *, duplicate: bool = False, replayed: bool = False) -> None:
        self._link, self.id, self.state = link, job_id, state
        self.duplicate, self.replayed = duplicate, replayed

    def __repr__(self) -> str:
        marks = "".join(f", {name}=True" for name in ("duplicate", "replayed") if getattr(self, name))
        return f"Job({self.id!r}, state={self.state!r}{marks})"

    async def status(self) -> JobRecord:
        """Read the job as it is now.

        What Redis has not (any more) comes from the ledger or the outbox, where the application has one; then
        `other["source"]` says so. Raises JobNotFound, RedisUnavailable, LedgerUnavailable.
        """
        return await self._read(None)

    async def _read(self, give_up_s: float | None) -> JobRecord:
        record = await self._link.asynchronous.run(self._link.store.job(self.id), give_up_s)
        if record is not None or self._link.recall is None:
            return _found(self.id, record)
        record = await asyncio.to_thread(self._link.recall, self.id)
        if record is None:  # it may have come from the outbox into Redis since Redis was asked
            record = _found(self.id, await self._link.asynchronous.run(self._link.store.job(self.id)))
        owner = _owner(record)
        return record if owner is None else await Job[R](self._link, owner, "").status()

    def status_sync(self) -> JobRecord:
        """As status, for code without an event loop."""
        return self._read_sync(None)

    def _read_sync(self, give_up_s: float | None) -> JobRecord:
        record = self._link.synchronous.run(self._link.store.job(self.id), give_up_s)
        if record is not None or self._link.recall is None:
            return _found(self.id, record)
        record = self._link.recall(self.id)
        if record is None:
            record = _found(self.id, self._link.synchronous.run(self._link.store.job(self.id)))
        owner = _owner(record)
        return record if owner is None else Job[R](self._link, owner, "").status_sync()

    async def result(self, timeout: float = 30.0) -> R:
        """Wait for the job to end and return what its handler returned, at most `timeout` seconds.

        Raises JobFailed, JobCancelled, JobNotFound (also once its retention is over; with a ledger, a job that was done
        then raises ResultExpired), ResultTimeout, RedisUnavailable, LedgerUnavailable.
        Asks with pauses of a tenth of the time waited so far, 5 ms to 1 s.
        """
        waiting, until_s = _wait(self.id, timeout), time.monotonic() + timeout
        try:
            pause_s = next(waiting)
            while True:
                await asyncio.sleep(pause_s)
                pause_s = waiting.send(await self._read(_patience(self._link, until_s)))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def result_sync(self, timeout: float = 30.0) -> R:
        """As result, for code without an event loop."""
        waiting, until_s = _wait(self.id, timeout), time.monotonic() + timeout
        try:
            pause_s = next(waiting)
            while True:
                time.sleep(pause_s)
                pause_s = waiting.send(self._read_sync(_patience(self._link, until_s)))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def cancel(self, *, hard: bool = False, reason: str = "cancelled") -> str:
        """Cancel the job: "cancelled" where it had not begun, "asked" where a run has to stop by itself first.

        hard: take a running job from its worker at once; what that worker still writes is refused.
        Raises IllegalTransition for a job that has ended, JobNotFound.
        """
        call = self._link.store.cancel(self.id, uuid7(), hard=hard, reason=reason)
        return cancelled(self.id, await self._link.asynchronous.run(call))

    def cancel_sync(self, *, hard: bool = False, reason: str = "cancelled") -> str:
        """As cancel, for code without an event loop."""
        call = self._link.store.cancel(self.id, uuid7(), hard=hard, reason=reason)
        return cancelled(self.id, self._link.synchronous.run(call))


def cancelled(job_id: str, answer: Answer) -> str:
    """Turn the answer of the cancel script into a word for people, or an error."""
    if answer.word == "GONE":
        raise JobNotFound(job_id)
    if answer.word == "ILLEGAL":
        raise IllegalTransition(job_id, answer.detail, "cancel")
    return answer.word.lower()


def _patience(link: Link, until_s: float) -> float:
    """How long one read may wait for a server that is away: no longer than the caller."""
    return max(0.05, min(link.synchronous.give_up_s, until_s - time.monotonic()))


def _found(job_id: str, record: JobRecord | None) -> JobRecord:
    if record is None:
        raise JobNotFound(job_id)
    return record


def _owner(record: JobRecord) -> str | None:
    """The job that has the work of one from the outbox, if another was there first. Raises IdempotencyConflict."""
    owner = record.other.get("owner")
    if owner is not None and record.other.get("answer") == "CONFLICT":
        raise IdempotencyConflict((record.idem or "").partition(":")[2], owner)
    return owner


def _wait(job_id: str, timeout_s: float) -> Generator[float, JobRecord, Any]:
    """The waiting of result, without I/O: yields pauses, is sent records, returns the result."""
    started = time.monotonic()
    record = yield 0.0
    while True:
        if record.state == State.DONE:
            if record.result is None and "ledger" in (record.reason, record.other.get("source")):
                raise ResultExpired(job_id)
            return decode_result(record.result)
        if record.state == State.FAILED:
            raise JobFailed(job_id, record.reason or "", record.error or "")
        if record.state == State.CANCELLED:
            raise JobCancelled(job_id, record.reason or "")
        waited = time.monotonic() - started
        if waited >= timeout_s:
            raise ResultTimeout(job_id, waited, record.state)
        record = yield min(max(0.005, waited / 10), 1.0, max(0.001, timeout_s - waited))
