"""Accepting jobs: one, many, or one by one from many callers at once (sent together)."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fencepost.driver import Call
from fencepost.errors import (
    ConfigurationError,
    FencepostError,
    IdempotencyConflict,
    LedgerUnavailable,
    QueueFull,
    RedisUnavailable,
)
from fencepost.handle import Job
from fencepost.job import JobSpec
from fencepost.link import Link
from fencepost.log import emit

if TYPE_CHECKING:
    from fencepost.ledger import Ledger
    from fencepost.outbox import Outbox

__all__ = ["BATCH", "Enqueuer"]

_log = logging.getLogger("fencepost.app")

BATCH = 500
"""The most jobs in one script call; a longer list is sent in parts, each part all or nothing as far as Redis goes."""
_IN_FLIGHT = 2
_DEFER_AFTER_S: Final = 1.0
_Answer = tuple[str, str, str]
_Got: TypeAlias = _Answer | FencepostError
_Step: TypeAlias = tuple[Call[Any], float | None] | Callable[[], Any]


class _Gathering:
    """What one event loop gathers for its next calls."""

    __slots__ = ("loop", "pending", "scheduled", "tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.scheduled = loop, False
        self.pending: list[tuple[JobSpec, asyncio.Future[_Got]]] = []
        self.tasks: set[asyncio.Task[None]] = set()


class Enqueuer:
    """Sends jobs. Calls of enqueue that run at the same time on one event loop share a script call.

    ledger, outbox: of the application, asked for when a job needs them; None where it has none. Durable jobs go to the
    ledger first, those of one call in one transaction; on an event loop that is done by a thread.
    """

    def __init__(
        self,
        link: Link,
        queue_limit: int = 0,
        ledger: Callable[[], Ledger | None] = lambda: None,
        outbox: Callable[[], Outbox | None] = lambda: None,
    ) -> None:
        self._link, self._limit, self._ledger, self._outbox = link, queue_limit, ledger, outbox
        self._local = threading.local()  # a thread runs one loop at a time
        self._threads: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    async def enqueue(self, spec: JobSpec) -> Job[Any]:
        """Accept one job. Raises IdempotencyConflict, QueueFull, RedisUnavailable, LedgerUnavailable."""
        loop = asyncio.get_running_loop()
        name = "durable" if spec.durable else "plain"  # these do not wait for those
        here: _Gathering | None = getattr(self._local, name, None)
        if here is None or here.loop is not loop:
            here = _Gathering(loop)
            setattr(self._local, name, here)
        future: asyncio.Future[_Got] = loop.create_future()
        here.pending.append((spec, future))
        if not here.scheduled:
            here.scheduled = True
            loop.call_soon(self._flush, here)
        return self._accepted(spec, await future)

    def enqueue_sync(self, spec: JobSpec) -> Job[Any]:
        """As enqueue, for code without an event loop."""
        return self._accepted(spec, self._ask_sync([spec])[0])

    async def enqueue_many(self, specs: Sequence[JobSpec]) -> list[Job[Any] | FencepostError]:
        """Accept many jobs; the answer has a job or an error for each, in order. Parts are sent two at a time."""
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def send(part: Sequence[JobSpec]) -> list[_Got]:
            async with gate:
                return await self._ask(part)

        parts = [specs[at : at + BATCH] for at in range(0, len(specs), BATCH)]
        answers = await asyncio.gather(*map(send, parts), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return self._all(specs, [one for part in answers if not isinstance(part, BaseException) for one in part])

    def enqueue_many_sync(self, specs: Sequence[JobSpec]) -> list[Job[Any] | FencepostError]:
        """As enqueue_many, for code without an event loop."""
        parts = [specs[at : at + BATCH] for at in range(0, len(specs), BATCH)]
        return self._all(specs, [one for part in parts for one in self._ask_sync(part)])

    async def enqueue_in(self, connection: Any, spec: JobSpec) -> Job[Any]:
        """Write a job into the user's transaction. Raises ConfigurationError, and what the driver does."""
        await self._box(spec).write(connection, spec)
        return Job(self._link, spec.id, "outbox")

    def enqueue_in_sync(self, connection: Any, spec: JobSpec) -> Job[Any]:
        """As enqueue_in, with a synchronous connection."""
        self._box(spec).write_sync(connection, spec)
        return Job(self._link, spec.id, "outbox")

    def close(self) -> None:
        """End the threads that talk to the ledger; a later call starts new ones."""
        if self._threads is not None and self._pid == os.getpid():
            self._threads.shutdown(wait=False)
        self._threads = None

    def _box(self, spec: JobSpec) -> Outbox:
        outbox = self._outbox()
        if spec.durable:
            self._book()
        if outbox is None:
            raise ConfigurationError(
                "enqueue_in", "the application has no outbox", 'Write Fencepost(…, outbox="URL of your database").'
            )
        return outbox

    def _all(self, specs: Sequence[JobSpec], answers: Sequence[_Got]) -> list[Job[Any] | FencepostError]:
        out: list[Job[Any] | FencepostError] = []
        for spec, one in zip(specs, answers, strict=True):
            try:
                out.append(self._accepted(spec, one))
            except FencepostError as error:
                out.append(error)
        return out

    def _accepted(self, spec: JobSpec, answer: _Got) -> Job[Any]:
        if isinstance(answer, FencepostError):
            raise answer
        word, job_id, state = answer
        if word == "CONFLICT":
            raise IdempotencyConflict((spec.idem or "").partition(":")[2], job_id)
        if word == "FULL":
            raise QueueFull(spec.queue, self._limit)
        return Job(self._link, job_id, state, duplicate=word == "DUPLICATE", replayed=word == "REPLAYED")

    # -- one call, or a ledger's and a call ---------------------------------------------------------------

    async def _ask(self, specs: Sequence[JobSpec]) -> list[_Got]:
        """The answer or the error of each, in order."""
        return await self._run(self._asking(specs))

    def _ask_sync(self, specs: Sequence[JobSpec]) -> list[_Got]:
        talk = self._asking(specs)
        try:
            step = next(talk)
            while True:
                try:
                    got = self._link.synchronous.run(*step) if isinstance(step, tuple) else step()
                except Exception as error:  # noqa: BLE001 - the conversation knows what to do with it
                    step = talk.throw(error)
                else:
                    step = talk.send(got)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _run(self, talk: Generator[_Step, Any, list[_Got]]) -> list[_Got]:
        try:
            step = next(talk)
            while True:
                try:
                    if isinstance(step, tuple):
                        got = await self._link.asynchronous.run(*step)
                    else:
                        got = await asyncio.get_running_loop().run_in_executor(self._pool(), step)
                except Exception as error:  # noqa: BLE001 - as above
                    step = talk.throw(error)
                else:
                    step = talk.send(got)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _asking(self, specs: Sequence[JobSpec]) -> Generator[_Step, Any, list[_Got]]:
        durable = [spec for spec in specs if spec.durable]
        if not durable:
            return (yield from self._plain(specs))
        plain = [spec for spec in specs if not spec.durable]
        kept = iter((yield from self._kept(durable)))
        rest = iter((yield from self._plain(plain)) if plain else ())
        return [next(kept if spec.durable else rest) for spec in specs]

    def _plain(self, specs: Sequence[JobSpec]) -> Generator[_Step, Any, list[_Got]]:
        try:
            return (yield self._link.store.enqueue(specs, self._limit), None)  # type: ignore[no-any-return]
        except FencepostError as error:
            return [error] * len(specs)

    def _kept(self, specs: list[JobSpec]) -> Generator[_Step, Any, list[_Got]]:
        """Durable jobs: into the ledger, into Redis, and out of the ledger again where Redis has another job for it."""
        try:
            got: dict[str, _Got] = yield functools.partial(self._accept, specs)
        except FencepostError as error:
            return [error] * len(specs)
        rest = [spec for spec in specs if spec.id not in got]
        try:
            answers = (yield self._link.store.enqueue(rest, self._limit), _DEFER_AFTER_S) if rest else []
        except RedisUnavailable as error:  # they are accepted all the same; the reconciler brings them
            emit(_log, logging.WARNING, "enqueue_deferred", jobs=len(rest), cause=error.cause)
            answers = [("QUEUED", spec.id, _deferred_state(spec)) for spec in rest]
        except FencepostError as error:
            answers = [error] * len(rest)
        got |= {spec.id: answer for spec, answer in zip(rest, answers, strict=True)}
        refused = [spec.id for spec in rest if _is_refused(got[spec.id])]
        if refused:
            try:
                yield functools.partial(self._withdraw, refused)
            except LedgerUnavailable as error:  # it may come into Redis yet: to call it refused would be a lie
                unknown = LedgerUnavailable("withdraw", error.cause, None)
                got |= {job_id: unknown for job_id in refused if not isinstance(got[job_id], FencepostError)}
        return [got[spec.id] for spec in specs]

    def _accept(self, specs: list[JobSpec]) -> dict[str, _Got]:
        """Write the jobs down. Returns the answers of those that the ledger knows as ended: they are not sent again."""
        ledger = self._book()
        fresh = ledger.accept(specs)
        known = {spec.id: ledger.job(spec.id) for spec in specs if spec.id not in fresh}
        return {job_id: ("QUEUED", job_id, job.state) for job_id, job in known.items() if job is not None and job.ended}

    def _withdraw(self, job_ids: list[str]) -> None:
        self._book().withdraw(job_ids)

    def _book(self) -> Ledger:
        ledger = self._ledger()
        if ledger is None:
            raise ConfigurationError(
                "durability", "the application has no ledger", 'Write Fencepost(…, ledger="sqlite:///ledger.sqlite").'
            )
        return ledger

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None or self._pid != os.getpid():  # the threads of a parent process are not here
            self._threads, self._pid = ThreadPoolExecutor(2, thread_name_prefix="fencepost-ledger"), os.getpid()
        return self._threads

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

    async def _send(self, batch: list[tuple[JobSpec, asyncio.Future[_Got]]]) -> None:
        try:
            answers = await self._ask([spec for spec, _ in batch])
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


def _is_refused(got: _Got) -> bool:
    return isinstance(got, FencepostError) or got[0] in ("DUPLICATE", "REPLAYED", "CONFLICT", "FULL")


def _deferred_state(spec: JobSpec) -> str:
    return "scheduled" if spec.delay_ms or spec.run_at_ms else "queued"
