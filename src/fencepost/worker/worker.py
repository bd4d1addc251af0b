"""A worker: claims jobs under a lease, runs their handlers, writes what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fencepost.clock import boottime_s, worker_identity
from fencepost.doctor import WorkerSettings, check_or_refuse
from fencepost.driver import AsyncDriver
from fencepost.errors import ConfigurationError, FencepostError, PayloadUndecodable
from fencepost.keys import check_queue
from fencepost.log import emit
from fencepost.store import Claimed, Outcome
from fencepost.worker import settle
from fencepost.worker.books import Books
from fencepost.worker.heartbeat import Heartbeat
from fencepost.worker.janitor import tend
from fencepost.worker.lanes import Lanes
from fencepost.worker.run import GONE, Run

if TYPE_CHECKING:
    from fencepost.app import Fencepost

__all__ = ["Worker"]

_log = logging.getLogger("fencepost.worker")
_SCAN_S = 0.1
_STUCK_AFTER_S = 5.0
_LISTENS_WITHIN_S = 2.0


class Worker:
    """Runs the jobs of an application's queues in this process.

    queues: names in the order to serve; (name, most) caps the slots one queue may hold, which keeps the rest for the
    others. concurrency: slots, 1 to 10 000; async handlers share the event loop, the others get a thread each.
    lease_s: by default the application's. grace_s: how long running jobs may go on after stop. poll_s: the longest
    silence of an idle worker, at most 2: it also looks for lapsed leases then, and a longer silence of all workers
    would count as an outage. books: look after the ledger and the outbox of the application, if it has them, on a
    thread beside the jobs. burst: end when nothing is ready or running. doctor: examine server and settings first and
    refuse to start on errors (UnsafeSetup). unwritten: outcomes that could not be written before the end.
    """

    def __init__(
        self,
        app: Fencepost,
        queues: Sequence[str | tuple[str, int]] = ("default",),
        *,
        concurrency: int = 100,
        lease_s: float | None = None,
        grace_s: float = 25.0,
        poll_s: float = 1.0,
        burst: bool = False,
        lanes: int = 2,
        doctor: bool = True,
        books: bool = True,
    ) -> None:
        if type(concurrency) is not int or not 1 <= concurrency <= 10_000:
            raise ConfigurationError("concurrency", f"{concurrency!r} is not a whole number from 1 to 10000")
        self.queues = _checked_queues(queues, concurrency)
        self.capped = any(most < concurrency for _, most in self.queues)
        self.app, self.store, self.id = app, app.link.store, worker_identity()
        self.lease_s = app.lease_s if lease_s is None else lease_s
        if not 1.0 <= self.lease_s <= 3_600:
            raise ConfigurationError("lease", f"{self.lease_s!r} is not 1 to 3600 seconds", "30 suits most work.")
        # 0 is "block for ever" to Redis.
        for name, value, low, high in (
            ("grace", grace_s, 0, 86_400),
            ("poll", poll_s, 0.01, 2),
            ("lanes", lanes, 1, 16),
        ):
            if not low <= value <= high:
                raise ConfigurationError(name, f"{value!r} is not {low:g} to {high:g}")
        self.driver = AsyncDriver(app.link.connections)
        self.concurrency, self.grace_s, self.poll_s, self._burst = concurrency, grace_s, poll_s, burst
        self.runs: dict[str, Run] = {}
        self.outcomes: list[Outcome] = []
        self.free, self.stopping, self.refused, self.ended, self.unwritten = concurrency, False, 0, 0, 0
        self._doctor = doctor
        self._books = Books(app) if books and (app.ledger_url or app.outbox_url) else None
        self.about = json.dumps(
            {"host": socket.gethostname(), "pid": os.getpid(), "queues": [q for q, _ in self.queues]}
        )
        lane_count = min(lanes, concurrency)
        self.lanes = Lanes(self, lane_count, -(-concurrency // lane_count))
        self._pool: ThreadPoolExecutor | None = None
        self._heartbeat: Heartbeat | None = None
        self._stop: asyncio.Event | None = None
        self._quiet = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scan_handle: asyncio.TimerHandle | None = None

    # -- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until stop is called (or, in a burst, until there is nothing left to do).

        Raises UnsafeSetup and RedisUnavailable before anything is claimed.
        """
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._doctor and not self.stopping:
            names = tuple(queue for queue, _ in self.queues)
            about = WorkerSettings(
                lease_s=self.lease_s, grace_s=self.grace_s, concurrency=self.concurrency, queues=names
            )
            await check_or_refuse(self.app, about, driver=self.driver)
        if self.stopping:
            return
        self._heartbeat = Heartbeat(
            self.app.link.connections, self.store, self.id, self.lease_s, self.runs, self._loop, self.lose
        )
        self._heartbeat.start()
        if self._books is not None:
            self._books.start()
        tasks = self.lanes.start()
        emit(_log, logging.INFO, "worker_started", worker_id=self.id, queues=",".join(q for q, _ in self.queues))
        failed = asyncio.ensure_future(_first_failure(tasks))
        stop = asyncio.ensure_future(self._stop.wait())
        janitor = asyncio.create_task(tend(self), name="fencepost-janitor")
        try:
            await asyncio.wait({failed, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stopping = True
            tasks[-1].cancel()
            await self._drain(tasks[:-1])
            for task in (*tasks, failed, stop, janitor):
                task.cancel()
            await asyncio.gather(*tasks, failed, stop, janitor, return_exceptions=True)
            if self._books is not None:
                await asyncio.to_thread(self._books.stop)
            await self._close()
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

    def stop(self, *, now: bool = False) -> None:
        """Stop claiming, let running jobs end within the grace, hand back the rest. now: no grace. From the loop."""
        if now:
            self.grace_s = 0.0
        self.stopping = True
        if self._stop is not None:
            self._stop.set()
        self.lanes.kick_all()

    @property
    def drained(self) -> bool:
        """Nothing runs and nothing is left to write."""
        return self.stopping and not self.runs and not self.outcomes

    def alive(self) -> bool:
        """Whether the event loop moved, the heartbeat went round and a script was answered in the last seconds.

        The health check: false while Redis is away. An idle worker calls a script every poll_s, a busy one too.
        """
        now, beat, patience = boottime_s(), self._heartbeat, max(10.0, 3 * self.poll_s)
        if beat is None or not beat.is_alive():
            return False
        return now - beat.beat_at < max(patience, self.lease_s) and now - self.lanes.answered_at_s < patience

    @property
    def stuck(self) -> list[Run]:
        """Runs that were told to stop some seconds ago and still go on, such as threads past their timeout."""
        return [run for run in self.runs.values() if run.reported_at_s]

    async def _drain(self, lanes: list[asyncio.Task[None]]) -> None:
        self.lanes.kick_all()
        began = boottime_s()
        while self.runs and boottime_s() - began < self.grace_s:  # stop(now=True) may end the grace at any time
            self._quiet.clear()
            await _within(self._quiet.wait(), min(0.1, self.grace_s))
        for run in list(self.runs.values()):
            self.lose(run, "shutdown")
        told_at = boottime_s()
        while self.runs and boottime_s() - told_at < _LISTENS_WITHIN_S:
            self._quiet.clear()
            await _within(self._quiet.wait(), 0.1)
        for run in list(self.runs.values()):  # they do not listen; the process is about to end
            self._ended(run, None if run.why in GONE else settle.handed_back(run.claimed))
        self.lanes.kick_all()
        if lanes:
            await asyncio.wait(lanes, timeout=max(2.0, min(self.grace_s, 10.0)))

    async def _close(self) -> None:
        if self._scan_handle is not None:
            self._scan_handle.cancel()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self.unwritten = len(self.outcomes) + self.lanes.abandoned
        if self.unwritten:  # their leases run out and the jobs run again
            emit(_log, logging.ERROR, "outcomes_unwritten", worker_id=self.id, outcomes=self.unwritten)
        with contextlib.suppress(FencepostError):
            await self.driver.run(self.store.leave(self.id), 0.5)
        await self.driver.close()
        emit(_log, logging.INFO, "worker_stopped", worker_id=self.id, ended=self.ended, refused=self.refused)

    def consider_burst_end(self) -> None:
        """In a burst: stop when nothing runs, nothing is ready and nothing comes back within a second."""
        due = self.lanes.due_in_s
        idle = not self.runs and not self.outcomes and not self.lanes.in_flight
        if self._burst and idle and (due is None or due > 1.0):
            self.stop()

    def held_by_queue(self) -> dict[str, int]:
        """How many slots each queue holds now."""
        held: dict[str, int] = {}
        for run in self.runs.values():
            held[run.queue] = held.get(run.queue, 0) + 1
        return held

    # -- runs ---------------------------------------------------------------------------------------------

    def start_run(self, claimed: Claimed, deadline_s: float) -> int:
        """Start the handler of a claimed job. Returns the slots it took: 0 where its outcome is known at once."""
        handler = self.app.handlers.get(claimed.kind)
        if handler is None or handler.settings.remote:
            self.outcomes.append(settle.of_unknown_kind(claimed))
            return 0
        try:
            arguments = handler.codec.decode(claimed.payload)
        except PayloadUndecodable as error:
            self.outcomes.append(settle.of_undecodable(claimed, error))
            return 0
        run = Run(claimed, handler, self.app.link, self.id, deadline_s, self.lease_s)
        assert self._loop is not None
        if self._scan_handle is None:  # nothing ran, so nobody looked: that is not a blocked loop
            self._moved(boottime_s())
            self._scan_handle = self._loop.call_later(_SCAN_S, self._scan)
        self.runs[run.nonce] = run
        if handler.is_async:
            run.task = self._loop.create_task(self._run_async(run, arguments))
        else:
            self._run_in_thread(run, arguments)
        return 1

    async def _run_async(self, run: Run, arguments: dict[str, Any]) -> None:
        handler = run.handler
        try:
            if handler.codec.takes_run:
                value = await handler.function(run, **arguments)
            else:
                value = await handler.function(**arguments)
            outcome = settle.of_stopped(run) if run.why else settle.of_value(run, value)
        except BaseException as error:  # noqa: BLE001  whatever a handler raises is an outcome, SystemExit too
            outcome = settle.of_stopped(run) if run.why else settle.of_error(run, error)
        self._ended(run, outcome)

    def _run_in_thread(self, run: Run, arguments: dict[str, Any]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="fencepost-run")
        function: Callable[..., Any] = run.handler.function
        call = functools.partial(function, run, **arguments) if run.handler.codec.takes_run else functools.partial(
            function, **arguments
        )  # fmt: skip
        context = contextvars.copy_context()
        loop = self._loop
        assert loop is not None

        def work() -> None:
            try:
                value, error = context.run(call), None
            except BaseException as raised:  # noqa: BLE001  as above
                value, error = None, raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._thread_ended, run, value, error)

        self._pool.submit(work)

    def _thread_ended(self, run: Run, value: Any, error: BaseException | None) -> None:
        if self.runs.get(run.nonce) is not run:
            return
        if error is not None:
            outcome = settle.of_stopped(run) if run.why else settle.of_error(run, error)
        elif run.why == "shutdown" and not run.handler.codec.takes_run:  # it could not hear of it: it has done its work
            outcome = settle.of_value(run, value)
        elif run.why and run.why != "timeout":
            outcome = settle.of_stopped(run)
        else:  # late, but its lease was kept until now: what it did, it did as the owner
            outcome = settle.of_value(run, value)
        self._ended(run, outcome)

    def _ended(self, run: Run, outcome: Outcome | None) -> None:
        if self.runs.pop(run.nonce, None) is None:
            return
        self.free += 1
        self.ended += 1
        self._tell(run)
        if run.notes:
            outcome = settle.with_notes(run, outcome)
        if outcome is not None:
            self.outcomes.append(outcome)
        if self.stopping:
            self._quiet.set()
        self.lanes.kick()

    def _tell(self, run: Run) -> None:
        """Log once that a run has to stop, whether it was told so or found out by itself."""
        if run.told_at_s or not run.why:
            return
        run.told_at_s = boottime_s()
        emit(
            _log, logging.WARNING if run.why != "shutdown" else logging.INFO, "lost" if run.why in GONE else run.why,
            job_id=run.job_id, kind=run.kind, worker_id=self.id, attempt=run.attempt, fencing_token=run.token,
            why=run.why,
        )  # fmt: skip

    def lose(self, run: Run, why: str) -> None:
        """Tell a run to stop. An async handler is cancelled; a thread learns it from run.check()."""
        if self.runs.get(run.nonce) is not run or run.why in GONE or (run.why and why not in GONE):
            return
        run.why = why
        self._tell(run)
        if run.task is not None:
            run.task.cancel()
            body = run.task.get_coro()
            if inspect.iscoroutine(body) and inspect.getcoroutinestate(body) == inspect.CORO_CREATED:
                self._ended(run, settle.of_stopped(run))  # cancelled before its first step: it will not say so itself

    def _scan(self) -> None:
        """Ten times a second while something runs: local deadlines and timeouts. One timer for all runs."""
        now = boottime_s()
        self._moved(now)
        for run in list(self.runs.values()):
            if not run.why:
                if now >= run.deadline_s:
                    self.lose(run, "deadline")
                elif now >= run.timeout_at_s:
                    self.lose(run, "timeout")
            elif not run.told_at_s:  # it found out by itself, with check or a refused write, and still goes on
                self._tell(run)
            elif not run.reported_at_s and now - run.told_at_s > _STUCK_AFTER_S:
                self._report_stuck(run, now)
        assert self._loop is not None
        self._scan_handle = self._loop.call_later(_SCAN_S, self._scan) if self.runs else None

    def _moved(self, now: float) -> None:
        if self._heartbeat is not None:
            self._heartbeat.loop_moved_at = now

    def _report_stuck(self, run: Run, now: float) -> None:
        run.reported_at_s = now
        emit(
            _log, logging.ERROR, "stuck", job_id=run.job_id, kind=run.kind, why=run.why, worker_id=self.id,
            thread=run.task is None, running_ms=round((now - run.started_s) * 1000),
        )  # fmt: skip
        if run.task is not None:
            run.task.cancel()  # it swallowed the first one


def _checked_queues(queues: Sequence[str | tuple[str, int]], concurrency: int) -> tuple[tuple[str, int], ...]:
    """Return (name, most slots) for each queue. Raises ConfigurationError."""
    if not queues or isinstance(queues, str):  # a text would be taken for a sequence of one-letter names
        raise ConfigurationError("queues", f"{queues!r} is no list of names", "Write for example ['default'].")
    pairs = [(queue, concurrency) if isinstance(queue, str) else queue for queue in queues]
    for queue, most in pairs:
        if type(most) is not int or most < 1:
            raise ConfigurationError("queues", f"{queue!r} is capped at {most!r}", "A cap is 1 or more slots.")
    names = [queue for queue, _ in pairs]
    if len(set(names)) < len(names):  # its cap would count twice
        raise ConfigurationError("queues", f"a queue is named twice in {names!r}", "Name each once.")
    return tuple((check_queue(queue), min(most, concurrency)) for queue, most in pairs)


async def _within(work: Awaitable[object], seconds: float) -> None:
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        return


async def _first_failure(tasks: list[asyncio.Task[None]]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        if not task.cancelled() and task.exception() is not None:
            emit(_log, logging.CRITICAL, "worker_failed", error=repr(task.exception()))
            return
