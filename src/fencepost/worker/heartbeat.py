"""The heartbeat: renews the leases of a worker's runs from a thread and a connection of its own.

A handler that blocks the event loop, or one that uses up every pooled connection, cannot starve it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping

from fencepost.clock import boottime_s
from fencepost.driver import Connections, SyncDriver
from fencepost.errors import FencepostError
from fencepost.lease import local_deadline
from fencepost.log import emit
from fencepost.store import Store
from fencepost.worker.run import GONE, Run

__all__ = ["Heartbeat"]

_log = logging.getLogger("fencepost.worker")
_BATCH = 500


class Heartbeat(threading.Thread):
    """Renews every run once a third of the lease has gone. lose(run, why) is called on the event loop.

    loop_moved_at: set by the event loop while it runs; its age shows a handler that blocks the loop.
    """

    def __init__(
        self,
        connections: Connections,
        store: Store,
        worker_id: str,
        lease_s: float,
        runs: Mapping[str, Run],
        loop: asyncio.AbstractEventLoop,
        lose: Callable[[Run, str], None],
    ) -> None:
        super().__init__(name=f"fencepost-heartbeat-{worker_id}", daemon=True)
        # A lost renewal can be repeated twice before the local deadline.
        self._driver = SyncDriver(connections, give_up_s=0.0, timeout_s=max(0.2, lease_s / 6))
        self._store, self._worker_id, self._lease_s = store, worker_id, lease_s
        self._runs, self._loop, self._lose = runs, loop, lose
        self._halt = threading.Event()
        self.tick_s = min(1.0, max(0.05, lease_s / 12))
        self.loop_moved_at = boottime_s()
        self.beat_at = boottime_s()
        self.worst_gap_s = 0.0
        self._blocked_told = False

    def run(self) -> None:
        while not self._halt.wait(self.tick_s):
            try:
                self._beat(boottime_s())
            except Exception as error:  # noqa: BLE001  whatever it was: without the next beat every lease would be lost
                emit(_log, logging.ERROR, "heartbeat_failed", worker_id=self._worker_id, error=repr(error))
        self._driver.close()

    def stop(self) -> None:
        """End the thread after its present call."""
        self._halt.set()

    def _beat(self, now: float) -> None:
        self._watch_loop(now)
        # deadline = sent + 0.9 lease; due once a third of the lease has gone since it was sent.
        line = now + self._lease_s * (0.9 - 1 / 3)
        due = [run for run in list(self._runs.values()) if run.deadline_s <= line and run.why not in GONE]
        for at in range(0, len(due), _BATCH):
            self._renew(due[at : at + _BATCH])
        self.beat_at = boottime_s()

    def _renew(self, runs: list[Run]) -> None:
        sent_at = boottime_s()
        keys = [run.key for run in runs]
        call = self._store.renew(round(self._lease_s * 1000), self._worker_id, keys)
        try:
            answers = self._driver.run(call)
        except FencepostError as error:  # tried again at the next tick, until the local deadline of each run
            emit(
                _log, logging.WARNING, "renew_failed", worker_id=self._worker_id, runs=len(runs), cause=str(error)[:200]
            )
            for run in runs:
                rule = run.handler.settings.resource
                if rule is not None and rule.when_redis_away == "fail_open":
                    run.deadline_s = local_deadline(sent_at, self._lease_s)  # goes on; its writes are checked later
            return
        for run, key, answer in zip(runs, keys, answers, strict=True):
            if answer.word in ("OK", "CANCEL"):
                gap = self._lease_s * 0.9 - (run.deadline_s - sent_at)
                self.worst_gap_s = max(self.worst_gap_s, gap)
                if gap > self._lease_s / 2:
                    emit(
                        _log, logging.WARNING, "renewed_late", job_id=run.job_id, kind=run.kind,
                        gap_ms=round(gap * 1000), lease_ms=round(self._lease_s * 1000),
                    )  # fmt: skip
                run.deadline_s = local_deadline(sent_at, self._lease_s)
                if answer.word == "CANCEL" and not run.why:
                    run.cancel_reason = answer.detail
                    self._tell(run, "cancelled")
            elif run.nonce in self._runs and run.key == key:  # else it settled, or was bumped, while the call was away
                self._tell(run, "expired" if answer.word == "EXPIRED" else "stale")

    def _tell(self, run: Run, why: str) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lose, run, why)

    def _watch_loop(self, now: float) -> None:
        stood_s = now - self.loop_moved_at
        if not self._runs or stood_s < max(1.0, self.tick_s * 2):
            self._blocked_told = False
        elif not self._blocked_told:
            self._blocked_told = True
            kind = self._kind_on_loop()
            emit(
                _log,
                logging.WARNING,
                "loop_blocked",
                worker_id=self._worker_id,
                kind=kind,
                for_ms=round(stood_s * 1000),
            )

    def _kind_on_loop(self) -> str:
        """The kind of the handler that keeps the event loop busy, as far as can be told from outside."""
        task = asyncio.current_task(self._loop)
        found = [run.kind for run in list(self._runs.values()) if run.task is task and task is not None]
        return found[0] if found else ",".join(sorted({run.kind for run in list(self._runs.values())}))
