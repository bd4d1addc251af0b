"""Accepting jobs: one, many, or one by one from many callers at once (sent together)."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence
from typing import Any

from fencepost.errors import FencepostError, IdempotencyConflict, QueueFull
from fencepost.handle import Job
from fencepost.job import JobSpec
from fencepost.link import Link

__all__ = ["BATCH", "Enqueuer"]

BATCH = 500
"""The most jobs in one script call; a longer list is sent in parts, each part all or nothing as far as Redis goes."""
_IN_FLIGHT = 2
_Answer = tuple[str, str, str]


class _Gathering:
    """What one event loop gathers for its next calls."""

    __slots__ = ("loop", "pending", "scheduled", "tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.scheduled = loop, False
        self.pending: list[tuple[JobSpec, asyncio.Future[_Answer]]] = []
        self.tasks: set[asyncio.Task[None]] = set()


class Enqueuer:
    """Sends jobs. Calls of enqueue that run at the same time on one event loop share a script call."""

    def __init__(self, link: Link, queue_limit: int = 0) -> None:
        self._link, self._limit = link, queue_limit
        self._local = threading.local()  # a thread runs one loop at a time

    async def enqueue(self, spec: JobSpec) -> Job[Any]:
        """Accept one job. Raises IdempotencyConflict, QueueFull, RedisUnavailable."""
        loop = asyncio.get_running_loop()
        here: _Gathering | None = getattr(self._local, "gathering", None)
        if here is None or here.loop is not loop:
            here = self._local.gathering = _Gathering(loop)
        future: asyncio.Future[_Answer] = loop.create_future()
        here.pending.append((spec, future))
        if not here.scheduled:
            here.scheduled = True
            loop.call_soon(self._flush, here)
        return self._accepted(spec, await future)

    def enqueue_sync(self, spec: JobSpec) -> Job[Any]:
        """As enqueue, for code without an event loop."""
        return self._accepted(spec, self._link.synchronous.run(self._link.store.enqueue([spec], self._limit))[0])

    async def enqueue_many(self, specs: Sequence[JobSpec]) -> list[Job[Any] | FencepostError]:
        """Accept many jobs; the answer has a job or an error for each, in order. Parts are sent two at a time."""
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def send(part: Sequence[JobSpec]) -> list[_Answer]:
            async with gate:
                return await self._link.asynchronous.run(self._link.store.enqueue(part, self._limit))

        parts = [specs[at : at + BATCH] for at in range(0, len(specs), BATCH)]
        answers = await asyncio.gather(*map(send, parts), return_exceptions=True)
        return self._all(parts, answers)

    def enqueue_many_sync(self, specs: Sequence[JobSpec]) -> list[Job[Any] | FencepostError]:
        """As enqueue_many, for code without an event loop."""
        parts = [specs[at : at + BATCH] for at in range(0, len(specs), BATCH)]
        answers: list[list[_Answer] | BaseException] = []
        for part in parts:
            try:
                answers.append(self._link.synchronous.run(self._link.store.enqueue(part, self._limit)))
            except FencepostError as error:
                answers.append(error)
        return self._all(parts, answers)

    def _all(
        self, parts: list[Sequence[JobSpec]], answers: list[list[_Answer] | BaseException]
    ) -> list[Job[Any] | FencepostError]:
        out: list[Job[Any] | FencepostError] = []
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, FencepostError):
                out += [answer] * len(part)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for spec, one in zip(part, answer, strict=True):
                    try:
                        out.append(self._accepted(spec, one))
                    except FencepostError as error:
                        out.append(error)
        return out

    def _accepted(self, spec: JobSpec, answer: _Answer) -> Job[Any]:
        word, job_id, state = answer
        if word == "CONFLICT":
            raise IdempotencyConflict((spec.idem or "").partition(":")[2], job_id)
        if word == "FULL":
            raise QueueFull(spec.queue, self._limit)
        return Job(self._link, job_id, state, duplicate=word == "DUPLICATE", replayed=word == "REPLAYED")

    # -- many callers, one call ---------------------------------------------------------------------------

    def _flush(self, here: _Gathering) -> None:
        here.scheduled = False
        while here.pending and len(here.tasks) < _IN_FLIGHT:
            batch, here.pending = here.pending[:BATCH], here.pending[BATCH:]
            task = here.loop.create_task(self._send(batch))
            here.tasks.add(task)
            task.add_done_callback(functools.partial(self._sent, here))

    def _sent(self, here: _Gathering, task: asyncio.Task[None]) -> None:
        here.tasks.discard(task)
        if here.pending:
            self._flush(here)

    async def _send(self, batch: list[tuple[JobSpec, asyncio.Future[_Answer]]]) -> None:
        try:
            call = self._link.store.enqueue([spec for spec, _ in batch], self._limit)
            answers = await self._link.asynchronous.run(call)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    if isinstance(error, asyncio.CancelledError):
                        future.cancel()
                    else:
                        future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():  # its caller was cancelled meanwhile; the job is accepted all the same
                future.set_result(answer)
