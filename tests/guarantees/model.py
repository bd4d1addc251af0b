"""The model: what a partition should be after each call, in plain dicts. Written from the headers of the scripts.

Instants are ms. A token is minted as FRESH, and a score of which only the ms is known as a range; both are learned
from the server after the call (see machine.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

RESERVED_MS = 30_000
ENDED = ("done", "failed", "cancelled")
ENDS = {"DONE": "done", "BURY": "failed", "CANCEL": "cancelled"}


class Fresh:
    """A token of which only is known that it is new: equal to any decimal text."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.isdigit()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "a fresh token"


FRESH: Any = Fresh()


@dataclass
class Job:
    id: str
    queue: str
    kind: str
    priority: int = 0
    resource: str | None = None
    limit: int = 1
    on_busy: str = "wait"
    ordered: bool = False
    dedup: str | None = None
    max_crashes: int = 3
    retention_ms: int = 86_400_000
    failed_retention_ms: int = 604_800_000
    state: str = "queued"
    score: float = 0
    score_ms: int | None = None  # the ms of a score that was made just now; its µs are learned
    due: int | None = None
    attempts: int | None = None
    crashes: int | None = None
    releases: int | None = None
    generation: int | None = None
    token: Any = None
    nonce: str | None = None
    had: list[str] = field(default_factory=list)  # the tokens that the present run had before it was bumped
    again: bool = False  # the present run is not the first
    kept: dict[str, str] = field(default_factory=dict)  # results of steps, notes about effects outside
    checkpoint: str | None = None
    result: str | None = None
    reason: str | None = None
    cancel: str | None = None
    cancel_request: str | None = None
    cancelled_from: str | None = None
    requeue_request: str | None = None
    revoke_request: str | None = None
    settled: tuple[str, str] | None = None
    expires: float | None = None

    @property
    def live(self) -> bool:
        return self.state not in ENDED


@dataclass
class Alone:
    """A stand-alone lease or a waiter for one."""

    nonce: str
    resource: str
    owner: str
    ttl_ms: int
    state: str
    token: Any = None
    expires: float | None = None
    had: list[str] = field(default_factory=list)
    revoke_request: str | None = None


@dataclass
class World:
    """clock: the server's own, which may go back; now: the partition's, which never does."""

    clock: int
    last: int = 0
    last_us: int = 0  # learned from the server: what its time is while its clock is behind `last`
    grace_until: int = 0
    lease_seen: int = 30_000
    jobs: dict[str, Job] = field(default_factory=dict)
    alone: dict[str, Alone] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    slots: dict[str, dict[str, int]] = field(default_factory=dict)
    lines: dict[str, dict[str, float]] = field(default_factory=dict)
    dedup: dict[str, str] = field(default_factory=dict)
    idem: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    records: dict[tuple[str, str], tuple[str, list[str]]] = field(default_factory=dict)
    suspects: dict[str, tuple[str, str]] = field(default_factory=dict)  # the last suspect that a worker got
    workers: dict[str, int] = field(default_factory=dict)  # when the replay record of a worker expires
    stats: Counter[str] = field(default_factory=Counter)
    paused: dict[str, int] = field(default_factory=dict)  # queue -> since
    now: int = 0
    in_grace: bool = False
    grace_seen: int = 0
    told: list[tuple[str, str]] = field(default_factory=list)  # events about effects, steps and bumps of the last call

    # -- jobs that are put off ----------------------------------------------------------------------------

    def put_off(self, job: Job, delay_ms: int) -> None:
        job.state, job.due = "scheduled", self.now + delay_ms
        job.releases = (job.releases or 0) + 1
        self.stats[f"put_off:{job.kind}"] += 1

    def has_suspect(self, worker: str) -> bool:
        """Whether this worker runs a job that crashed more than once: it gets no second one."""
        job_id, run = self.suspects.get(worker, ("", "")) if worker in self.workers else ("", "")
        job = self.jobs.get(job_id)
        return job is not None and (job.state, job.nonce) == ("processing", run)

    # -- the clock ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a call: time, what expired by itself, and whether the partition is in grace."""
        self.now, self.grace_seen = max(self.clock, self.last), self.grace_until
        silence = self.now - self.last
        if self.last and silence > 3_000 and silence > self.lease_seen / 2:
            self.grace_seen = self.now + self.lease_seen
        self.in_grace = self.now < self.grace_seen
        self.expire()

    def expire(self) -> list[str]:
        """Drop what Redis drops by itself, by the server's own clock. Returns the names of the keys."""
        gone = [f"job:{job.id}" for job in self.jobs.values() if job.expires is not None and self.clock > job.expires]
        gone += [f"lease:{one.nonce}" for one in self.alone.values() if one.expires and self.clock > one.expires]
        gone += [f"idem:{key}" for key, (_, _, until) in self.idem.items() if self.clock > until]
        gone += [f"worker:{worker}" for worker, until in self.workers.items() if self.clock > until]
        for key in gone:
            name, _, rest = key.partition(":")
            of: dict[str, Any] = {"job": self.jobs, "lease": self.alone, "idem": self.idem, "worker": self.workers}
            del of[name][rest]
        self.records = {key: record for key, record in self.records.items() if key[0] in self.workers}
        return gone

    def swept(self) -> None:
        """The call looked for lapsed leases: a sign of life of the partition."""
        self.last, self.grace_until = self.now, max(self.grace_until, self.grace_seen)

    # -- reading ------------------------------------------------------------------------------------------

    def in_state(self, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    def ready(self, queue: str) -> list[Job]:
        """The queue in the order of service; equal scores by id."""
        return sorted((j for j in self.in_state("queued") if j.queue == queue), key=lambda j: (j.score, j.id))

    def due_in(self) -> int | None:
        dues = [job.due for job in self.in_state("scheduled") if job.due is not None]
        return max(0, min(dues) - self.now) if dues else None

    def check(self, job: Job | None, token: str, nonce: str) -> tuple[str, str]:
        """May this run write?"""
        if job is None:
            return "GONE", ""
        if job.state == "processing" and job.nonce == nonce and token in (job.token, *job.had):
            alive = self.in_grace or self.leases[job.id] > self.now
            return ("OK" if alive else "EXPIRED"), ""
        if not job.nonce and job.state in ("queued", "waiting", "scheduled"):
            return "EXPIRED", ""
        return "STALE", job.token or "0"

    # -- places -------------------------------------------------------------------------------------------

    def hold(self, resource: str, member: str, until: int, lease: str | None = None) -> None:
        self.slots.setdefault(resource, {})[member] = until
        self.leases[member if lease is None else lease] = until

    def free(self, resource: str, member: str) -> None:
        """Give a place up; the first who waits gets it."""
        if self.slots.get(resource, {}).pop(member, None) is not None:
            self.hand_over(resource)

    def waiters(self, resource: str) -> list[str]:
        line = self.lines.get(resource, {})
        return sorted(line, key=lambda member: (line[member], member))

    def hand_over(self, resource: str) -> None:
        for member in self.waiters(resource):
            del self.lines[resource][member]
            if member[0] == "@":
                lease = self.alone.get(member[1:])
                if lease is not None and lease.state == "waiting":
                    lease.state, lease.token, lease.expires = "held", FRESH, None
                    self.hold(resource, member, self.now + lease.ttl_ms)
                    return
            else:
                self.jobs[member].state = "queued"
                if self.jobs[member].queue in self.paused:
                    continue  # nobody may come for the place: the next in line gets it
                self.hold(resource, f"={member}", self.now + RESERVED_MS)
                return
            self.stats["orphan:line"] += 1

    def reserve(self, job: Job, run: str, until: int) -> None:
        assert job.resource is not None
        self.slots[job.resource].pop(run, None)
        self.hold(job.resource, f"={job.id}", until)

    def end(self, job: Job, state: str, reason: str, run: str, event: str = "") -> None:
        """End a job for good: everything it had is free in the same step."""
        job.state, job.reason = state, reason or job.reason
        kept = job.failed_retention_ms if state == "failed" else job.retention_ms
        job.expires = self.clock + kept
        if job.dedup and self.dedup.get(job.dedup) == job.id:
            del self.dedup[job.dedup]
        if job.resource:
            if run:
                self.free(job.resource, run)
            if self.leases.pop(f"={job.id}", None) is not None:
                self.free(job.resource, f"={job.id}")
        self.stats[f"{event or state}:{job.kind}"] += 1

    # -- the sweep ----------------------------------------------------------------------------------------

    def sweep(self, most: int) -> None:
        if not self.in_grace:
            lapsed = sorted((until, member) for member, until in self.leases.items() if until <= self.now)
            for _, member in lapsed[:most]:
                self._reclaim(member)
        due = sorted((job.due or 0, job.id) for job in self.in_state("scheduled") if (job.due or 0) <= self.now)
        for _, job_id in due[:most]:
            self.jobs[job_id].state, self.jobs[job_id].due = "queued", None

    def _reclaim(self, member: str) -> None:
        if self.leases.pop(member, None) is None:
            return
        if member[0] == "=":
            resource = self.jobs[member[1:]].resource
            assert resource is not None
            self.free(resource, member)
        elif member[0] == "@":
            lease = self.alone.pop(member[1:])
            self.stats["crashed:@lease"] += 1
            self.free(lease.resource, member)
        else:
            self._take_back(self.jobs[member])

    def _take_back(self, job: Job) -> None:
        run, job.nonce, job.token = job.nonce or "", "", FRESH
        job.crashes, job.attempts = (job.crashes or 0) + 1, (job.attempts or 1) - 1
        self.stats[f"crashed:{job.kind}"] += 1
        if job.cancel is not None:
            self.end(job, "cancelled", job.cancel, run)
        elif job.crashes > job.max_crashes:
            self.end(job, "failed", "poison", run)
        else:
            job.state = "queued"
            if job.resource:
                self.reserve(job, run, self.now + RESERVED_MS)
