"""What operators do: look at jobs, locks, workers and queues; cancel, requeue, purge, pause, revoke, heal.

Each operation is a plan, run by ``await operator.run(plan)`` or ``operator.run_sync(plan)``. Nothing here reads a whole
index or walks all keys in one call: lists have pages, scans have steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from fencepost.clock import uuid7
from fencepost.driver import Call
from fencepost.errors import ConfigurationError
from fencepost.job import JobRecord
from fencepost.operate import acts, dead, held, overview
from fencepost.operate import heal as healing
from fencepost.operate import jobs as reading
from fencepost.operate.acts import Paused, QueueChange, check_actor, check_reason, local_actor
from fencepost.operate.dead import BulkReport, DeadFilter, ItemOutcome, Verb
from fencepost.operate.heal import HalfState, HealReport
from fencepost.operate.held import Holder, Lock, Waiter
from fencepost.operate.jobs import Event, JobView, Page, summary
from fencepost.operate.overview import Overview, QueueView, WorkerView
from fencepost.operate.plan import Plan, run, run_sync
from fencepost.states import State
from fencepost.store import Answer

if TYPE_CHECKING:
    from fencepost.app import Fencepost

__all__ = [
    "BulkReport",
    "DeadFilter",
    "Event",
    "HalfState",
    "HealReport",
    "Holder",
    "ItemOutcome",
    "JobView",
    "Lock",
    "Operator",
    "Overview",
    "Page",
    "Paused",
    "Plan",
    "QueueChange",
    "QueueView",
    "Waiter",
    "WorkerView",
    "summary",
]

T = TypeVar("T")
_SCAN_STEPS = 200


class Operator:
    """The operations on one application's partition. Each method but run, run_sync and heal_some returns a plan.

    actor: who acts; it stands in the events and in the ledger. By default the user of this process.
    """

    def __init__(self, app: Fencepost, *, actor: str | None = None) -> None:
        self.actor = local_actor("python") if actor is None else check_actor(actor)
        self._link, self._store, self._keys = app.link, app.link.store, app.link.store.keys
        self._queues = sorted({handler.settings.queue for handler in app.handlers.values()})

    async def run(self, plan: Plan[T], give_up_s: float | None = None) -> T:
        """Run a plan on this event loop. Raises RedisUnavailable, and what the plan names."""
        return await run(self._link.asynchronous, plan, give_up_s)

    def run_sync(self, plan: Plan[T], give_up_s: float | None = None) -> T:
        """As run, for code without an event loop."""
        return run_sync(self._link.synchronous, plan, give_up_s)

    # -- reading ------------------------------------------------------------------------------------------

    def job(self, job_id: str, *, history: bool = False) -> Plan[JobView]:
        """Read a job, with its events where asked for. Raises JobNotFound."""
        return reading.job(self._keys, job_id, history)

    def jobs(
        self,
        state: str,
        *,
        queue: str | None = None,
        kind: str | None = None,
        resource: str | None = None,
        error_class: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Plan[Page[JobRecord]]:
        """Read a page of the jobs in a state: in the order in which they are served, ended ones newest first.

        The records lack payload, result and error text. limit: 1 to 1000. Raises ConfigurationError.
        """
        queues, resources = [queue] if queue else [], [resource] if resource else []
        if state == State.QUEUED and not queues:
            queues, _ = yield from overview.queue_names(self._keys, self._queues, _SCAN_STEPS)
        if state == State.WAITING and not resources:
            resources = yield from held.resources(self._keys)

        def wanted(record: JobRecord) -> bool:
            fits = queue in (None, record.queue) and kind in (None, record.kind)
            return fits and resource in (None, record.resource) and error_class in (None, record.error_class)

        return (yield from reading.jobs(self._keys, state, queues, resources, wanted, limit, cursor))

    def dead(
        self, chosen: DeadFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Plan[Page[JobRecord]]:
        """Read a page of the dead letters that agree with the filter, newest first. Nothing is dropped by reading."""
        chosen = chosen or DeadFilter()
        moment = (yield from overview.now_ms(self._keys)) - round(chosen.older_than_s * 1000)

        def wanted(record: JobRecord) -> bool:
            return chosen.accepts(record) and (record.finished_at or 0) <= moment

        return (yield from reading.jobs(self._keys, State.FAILED, [], [], wanted, limit, cursor))

    def locks(self, resource: str | None = None, *, limit: int = 50, cursor: str | None = None) -> Plan[Page[Lock]]:
        """Read a page of the resources that are held or reserved, by name; or one, held or only waited for."""
        return held.locks(self._keys, resource, limit, cursor)

    def workers(self) -> Plan[list[WorkerView]]:
        """The workers of the last hour, the one seen last first."""
        return overview.workers(self._keys)

    def overview(self, *, steps: int = _SCAN_STEPS) -> Plan[Overview]:
        """Queues, sizes and counters. steps: how far to scan for queues that nobody serves, 1,000 keys a step."""
        return overview.overview(self._keys, self._queues, steps)

    # -- changing -----------------------------------------------------------------------------------------

    def cancel(
        self,
        job_ids: Sequence[str],
        *,
        hard: bool = False,
        reason: str = "cancelled",
        token: str = "",
        request_id: str = "",
    ) -> Plan[BulkReport]:
        """Cancel jobs. A running one is asked to stop; hard takes it from its worker at once, whose later writes are
        refused. token: of a single job, as the caller saw it. Outcomes: cancelled, asked, illegal (it has ended),
        stale (its token is a newer one by now), gone. request_id: the same one again gets its answer again."""
        check_reason(reason)
        if token and len(set(job_ids)) != 1:
            raise ConfigurationError("token", "a token is that of one job", "Cancel one at a time, or without it.")

        def send(job_id: str) -> Call[Answer]:
            asked = request_id or uuid7()
            return self._store.cancel(job_id, asked, hard=hard, reason=reason, actor=self.actor, token=token)

        return dead.each("cancel", send, job_ids)

    def requeue(self, job_ids: Sequence[str], *, reason: str = "", request_id: str = "") -> Plan[BulkReport]:
        """Start failed or cancelled jobs again, with fresh counters. Outcomes: requeued, illegal (it lives, or is
        done: somebody was first), duplicate (its dedup key has a newer owner), gone (dropped from the index)."""
        return dead.by_ids("requeue", self._requeueing(reason, request_id), job_ids)

    def requeue_all(self, chosen: DeadFilter, *, dry_run: bool = False, reason: str = "") -> Plan[BulkReport]:
        """Requeue every dead letter that agrees with the filter, in batches. dry_run: only count them."""
        return dead.by_filter(self._store, "requeue", self._requeueing(reason), chosen, dry_run)

    def _requeueing(self, reason: str, request_id: str = "") -> Verb:
        return dead.requeueing(self._store, check_reason(reason) if reason else "", self.actor, request_id)

    def purge(self, job_ids: Sequence[str], *, reason: str = "operator") -> Plan[BulkReport]:
        """Forget ended jobs for good. Outcomes: purged, illegal (it lives), gone."""
        return dead.by_ids("purge", dead.purging(self._store, check_reason(reason), self.actor), job_ids)

    def purge_all(self, chosen: DeadFilter, *, dry_run: bool = False, reason: str = "operator") -> Plan[BulkReport]:
        """Purge every dead letter that agrees with the filter, in batches. dry_run: only count them."""
        send = dead.purging(self._store, check_reason(reason), self.actor)
        return dead.by_filter(self._store, "purge", send, chosen, dry_run)

    def pause(self, queue: str, *, reason: str) -> Plan[QueueChange]:
        """Hand out nothing more from a queue; what runs goes on, what is enqueued is kept. A queue that is paused
        already stays so, with its first reason."""
        return acts.set_paused(self._store, "pause", queue, reason, self.actor)

    def resume(self, queue: str, *, reason: str) -> Plan[QueueChange]:
        """Let a paused queue go on."""
        return acts.set_paused(self._store, "resume", queue, reason, self.actor)

    def revoke(self, holder: str, token: str, *, reason: str, request_id: str = "") -> Plan[str]:
        """Take a run (holder: its job's id) or a stand-alone lease ("@nonce") from its holder at once, whose later
        writes are refused. token: as the caller saw it; only that holder is meant. No attempt is charged.

        Returns what became of it: "queued" (the job is first in its queue again), "cancelled" (that had been asked
        for), "ended" (the lease; the next in line has the place). Raises StaleToken (somebody else has it by now),
        IllegalTransition (nobody runs it), JobNotFound.
        """
        return acts.revoke(self._store, holder, token, request_id or uuid7(), reason, self.actor)

    def heal(self, *, dry_run: bool = True, steps: int = _SCAN_STEPS, cursor: str | None = None) -> Plan[HealReport]:
        """Find live jobs that stand in no list, and entries without a job; mend them unless dry_run.

        steps: how far to scan, 1,000 keys a step; the report's cursor goes on from there.
        """
        if cursor is not None and not cursor.isdecimal():
            raise ConfigurationError("cursor", f"{cursor[:40]!a} is not from a heal report", "Use it unchanged.")
        return healing.heal(self._store, dry_run, steps, int(cursor or 0))

    async def heal_some(self, cursor: int = 0) -> int:
        """Mend what a step of 200 keys finds; returns the cursor for the next call. A worker calls it now and then."""
        return await self.run(healing.heal_some(self._store, cursor))
