"""The lanes: each sends outcomes and brings the next jobs, one round trip for both.

Two lanes keep the server busy while this process works on the other batch. A lane's call is repeated with the same
nonce until it is answered, so an outcome outlives an outage of Redis in memory and is written, with its token, later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING

from fencepost.clock import boottime_s, new_nonce
from fencepost.errors import FencepostError, ScriptError
from fencepost.lease import local_deadline
from fencepost.log import emit
from fencepost.store import Claimed, Outcome, Request, Served
from fencepost.worker import settle

if TYPE_CHECKING:
    from fencepost.worker.worker import Worker

__all__ = ["Lanes"]

_log = logging.getLogger("fencepost.worker")
_MOST_OUTCOMES = 200
_MOST_JOBS = 1000
_UPKEEP_S = 1.0


class Lanes:
    """The lanes of one worker and the watcher that wakes them.

    hungry: the last answer was full, so there are more ready jobs. curious: it is time to look, one lane is enough.
    due_in_s: when the next scheduled job is due, as of the last answer. abandoned: outcomes of calls given up.
    """

    def __init__(self, worker: Worker, count: int, batch: int) -> None:
        self._worker, self._batch = worker, min(batch, _MOST_JOBS)
        self._names = [f"lane{n}" for n in range(count)]
        self._sleepers: list[asyncio.Future[None]] = []
        self.hungry, self.curious, self.sweep = False, True, False
        self.in_flight = 0
        self.abandoned = 0
        self.answered_at_s = boottime_s()
        self._calm = asyncio.Event()
        self._upkeep_at = -math.inf
        self._turn = 0
        self._asked: dict[str, Request] = {}  # where queues are capped: the requests on their way, by lane
        self.due_in_s: float | None = None
        self._due_as_of_ms = 0

    def start(self) -> list[asyncio.Task[None]]:
        """Start all lanes and the watcher; the watcher is the last of the tasks."""
        tasks = [asyncio.create_task(self._lane(name), name=f"fencepost-{name}") for name in self._names]
        return [*tasks, asyncio.create_task(self._watch(), name="fencepost-watch")]

    def kick(self) -> None:
        """Wake one lane that sleeps: there is something to send or to ask for."""
        while self._sleepers:
            sleeper = self._sleepers.pop()
            if not sleeper.done():  # else its lane was cancelled and has not noticed yet
                sleeper.set_result(None)
                return

    def kick_all(self) -> None:
        for _ in range(len(self._sleepers)):
            self.kick()

    async def _lane(self, name: str) -> None:
        worker = self._worker
        loop = asyncio.get_running_loop()
        while True:
            outcomes = worker.outcomes[:_MOST_OUTCOMES]
            look = self.hungry or self.curious or bool(outcomes)
            wanted = min(worker.free, self._batch) if look and not worker.stopping else 0
            if not outcomes and not wanted and not self.sweep:
                if worker.drained:
                    return
                future: asyncio.Future[None] = loop.create_future()
                self._sleepers.append(future)
                try:
                    await future
                except asyncio.CancelledError:
                    if future in self._sleepers:
                        self._sleepers.remove(future)
                    raise
                continue
            del worker.outcomes[: len(outcomes)]
            self.sweep = False
            if wanted:
                self.curious = False
            worker.free -= wanted
            if worker.outcomes or (self.hungry and worker.free):
                self.kick()
            self.in_flight += 1
            try:
                got = await self._exchange(name, outcomes, wanted)
            except BaseException:
                self.abandoned += len(outcomes)
                raise
            finally:
                self.in_flight -= 1
                self._asked.pop(name, None)
            worker.free += wanted - got
            if wanted:
                self._set_hungry(got == wanted)
            else:  # what was written may come back in a moment: nobody has asked when
                self._look()
            if worker.stopping:
                self.kick_all()

    def _set_hungry(self, hungry: bool) -> None:
        self.hungry = hungry
        if hungry:
            self._calm.clear()
            self.kick()
        else:
            self._calm.set()

    def _look(self) -> None:
        self.curious = True
        self._calm.clear()
        self.kick()

    async def _exchange(self, name: str, outcomes: list[Outcome], wanted: int) -> int:
        """One round trip. Returns the number of jobs that were started."""
        worker, sent_at = self._worker, boottime_s()
        request = self._request(name, wanted, sent_at)
        try:
            if outcomes:
                served = await worker.driver.run(worker.store.finish(outcomes, request), math.inf)
            else:
                served = await worker.driver.run(worker.store.claim(request), math.inf)
        except ScriptError as error:
            emit(_log, logging.ERROR, "script_error", worker_id=worker.id, error=str(error))
            if len(outcomes) > 1:  # one of them stands on a broken key: the others must not suffer
                for one in outcomes:
                    await self._exchange(name, [one], 0)
            elif outcomes:
                emit(_log, logging.ERROR, "outcome_dropped", job_id=outcomes[0].job_id, word=outcomes[0].word)
            else:
                await asyncio.sleep(1.0)
            return 0
        if len(served.jobs) < wanted:  # a full answer does not say what is due
            self._note_due(served)
        self._heard(outcomes, served)
        self.answered_at_s = now = boottime_s()
        jobs, deadline_s = served.jobs, local_deadline(sent_at, worker.lease_s)
        if jobs and now - sent_at > worker.lease_s / 3:  # a late answer: nobody knows when the leases began
            jobs, deadline_s = await self._renewed(jobs)
        started = 0
        for claimed in jobs:
            if worker.stopping:  # asked for before the worker was told to stop
                worker.outcomes.append(settle.handed_back(claimed))
            else:
                started += worker.start_run(claimed, deadline_s)
        return started

    def _note_due(self, served: Served) -> None:
        """Keep when the next job is due. Of two lanes' answers the older one may be read last."""
        due_in_s, as_of_ms = served.due_in_s, served.server_ms
        if as_of_ms == self._due_as_of_ms and self.due_in_s is not None:
            due_in_s = self.due_in_s if due_in_s is None else min(due_in_s, self.due_in_s)
        if as_of_ms >= self._due_as_of_ms:
            self.due_in_s, self._due_as_of_ms = due_in_s, as_of_ms

    async def _renewed(self, jobs: list[Claimed]) -> tuple[list[Claimed], float]:
        """Renew before the first line of a handler runs; return the runs that still are ours and their deadline."""
        worker, sent_at = self._worker, boottime_s()
        lease_ms = round(worker.lease_s * 1000)
        call = worker.store.renew(lease_ms, worker.id, [claimed.key for claimed in jobs])
        try:
            answers = await worker.driver.run(call, worker.lease_s / 3)
        except FencepostError as error:  # the leases run out by themselves and the jobs come back
            emit(_log, logging.WARNING, "renew_failed", worker_id=worker.id, runs=len(jobs), cause=str(error)[:200])
            return [], 0.0
        ours = [claimed for claimed, answer in zip(jobs, answers, strict=True) if answer.word in ("OK", "CANCEL")]
        if ours and boottime_s() - sent_at > worker.lease_s / 3:  # late again
            return await self._renewed(ours)
        return ours, local_deadline(sent_at, worker.lease_s)

    def _request(self, name: str, wanted: int, now: float) -> Request:
        worker = self._worker
        upkeep = ""
        if now - self._upkeep_at >= _UPKEEP_S:
            self._upkeep_at, upkeep = now, worker.about
        self._turn += 1
        # One call in eight serves the queues in the opposite order, so that the last of them is never starved.
        queues = worker.queues if self._turn % 8 else worker.queues[::-1]
        if worker.capped:
            held = worker.held_by_queue()
            for asked in self._asked.values():  # what another lane may be getting at this moment
                for queue, most in asked.queues:
                    held[queue] = held.get(queue, 0) + min(most, asked.wanted)
            queues = tuple((queue, max(0, most - held.get(queue, 0))) for queue, most in queues)
        request = Request(worker.id, name, new_nonce(), wanted, round(worker.lease_s * 1000), upkeep, queues)
        if worker.capped:
            self._asked[name] = request
        return request

    def _heard(self, outcomes: list[Outcome], served: Served) -> None:
        for outcome, (word, newest) in zip(outcomes, served.replies, strict=True):
            if word != "OK" and word != "REPLAY":
                self._worker.refused += 1
                emit(
                    _log, logging.WARNING, "refused_stale", job_id=outcome.job_id, verb=outcome.word.lower(),
                    answer=word.lower(), fencing_token=outcome.token, newest_token=newest,
                )  # fmt: skip

    async def _watch(self) -> None:
        """Wake the lanes when the bell rings, a scheduled job is due, or a second has gone."""
        worker = self._worker
        bells = [worker.store.keys.bell(queue) for queue, _ in worker.queues]
        while not worker.stopping:
            try:
                await asyncio.wait_for(self._calm.wait(), worker.poll_s)
            except TimeoutError:  # busy all the time: look for lapsed leases all the same
                self.sweep = True
                self.kick()
                continue
            if worker.free == 0:  # the next slot that gets free asks
                self._look()
                continue
            worker.consider_burst_end()
            pause_s = worker.poll_s if self.due_in_s is None else min(worker.poll_s, max(0.001, self.due_in_s))
            rung = await worker.driver.wait(bells, pause_s)
            if rung and worker.free == 0:  # not for us: pass it on to another worker
                with contextlib.suppress(FencepostError):
                    await worker.driver.run(worker.store.ring(bells[0]), 1.0)
            self._look()
