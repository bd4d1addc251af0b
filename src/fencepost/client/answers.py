"""What the service answers, as values. Fields that this release does not know are left out, those that are missing have
their default: client and service may be of different releases. Moments (`…_at`, `now`) are ms since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

__all__ = [
    "Accepted",
    "Bulk",
    "Claimed",
    "Claims",
    "Event",
    "Held",
    "JobInfo",
    "Kind",
    "LeaseView",
    "NewJob",
    "Outcome",
    "Page",
    "Queue",
    "Ready",
    "Renewal",
    "Resource",
    "Settled",
]

T = TypeVar("T")

ENDED: Final = frozenset({"done", "failed", "cancelled"})


class NewJob(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A job of enqueue_many. args: arguments by name. delay: seconds, or a text such as "2m". The rest as enqueue."""

    kind: str
    args: Mapping[str, Any] = {}
    delay: float | str | None = None
    run_at: datetime | str | None = None
    priority: int | None = None
    dedup: str | bool | None = None
    resource: str | None = None
    queue: str | None = None
    idempotency_key: str | None = None


class Accepted(msgspec.Struct, frozen=True):
    """The answer to enqueue. state: at that moment. duplicate: the dedup key belonged to this live job already.
    replayed: this very request was accepted before."""

    id: str
    kind: str = ""
    queue: str = ""
    state: str = ""
    duplicate: bool = False
    replayed: bool = False


class LeaseView(msgspec.Struct, frozen=True):
    """The lease of a run. state: "held" (left_s), "ran_out" (ran_out_for_s) or "missing". text: the same in words."""

    state: str
    text: str = ""
    left_s: float | None = None
    ran_out_for_s: float | None = None


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the service shows it; what looks like a secret in payload, result or error text is blacked out.

    state: one of the seven, or "lost": Redis lost the job before it ended (last_known_state; comes_back: the ledger
    puts it back). source: "ledger" where Redis has forgotten the job; result_expired: what it returned is gone. lease:
    of a running job. position: jobs that are served before it. history, args_preview: where asked for.
    """

    id: str
    state: str = ""
    kind: str = ""
    queue: str = ""
    now: int | None = None
    created_at: int | None = None
    updated_at: int | None = None
    claimed_at: int | None = None
    due_at: int | None = None
    finished_at: int | None = None
    priority: int = 0
    resource: str | None = None
    dedup: str | None = None
    attempts: int = 0
    crashes: int = 0
    releases: int = 0
    generation: int = 1
    token: int = 0
    worker: str | None = None
    lease: LeaseView | None = None
    lease_left_ms: int | None = None
    position: int | None = None
    payload: Any = None
    result: Any = None
    progress: Any = None
    checkpoint: Any = None
    error: str | None = None
    error_class: str | None = None
    reason: str | None = None
    cancel: str | None = None
    source: str = "redis"
    result_expired: bool = False
    last_known_state: str = ""
    comes_back: bool = False
    args_preview: str = ""
    history: list[Event] = []

    @property
    def ended(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self.state in ENDED


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job. at: by the clock of Redis. by: the worker or caller that caused it."""

    seq: int = 0
    at: int = 0
    name: str = ""
    job_id: str = ""
    kind: str = ""
    by: str = ""
    token: str = ""
    attempt: str = ""
    reason: str = ""
    resource: str = ""

    @property
    def id(self) -> str:
        """Its place in the stream of its job, for `after`."""
        return f"{self.seq}.{self.at}"


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. cursor: for the next one, None at the end. missing: what the index names, but is gone."""

    items: list[T] = []
    cursor: str | None = None
    missing: list[str] = []


class Resource(msgspec.Struct, frozen=True):
    """A resource that is held. holders: role, token, time left, owner. waiting: how many stand in line; waiters: the
    first of them, in the order in which they are served."""

    resource: str
    limit: int = 1
    holders: list[dict[str, Any]] = []
    waiting: int = 0
    waiters: list[dict[str, Any]] = []


class Queue(msgspec.Struct, frozen=True):
    """A queue. ready: jobs that could start now; head_waits_ms: how long the first of them has been there. paused: why,
    and since when; None while it hands out jobs."""

    name: str
    ready: int = 0
    head_waits_ms: int | None = None
    workers: int = 0
    paused: dict[str, Any] | None = None


class Kind(msgspec.Struct, frozen=True):
    """A kind that the caller may enqueue. args: the JSON schema of its arguments. resource: the template."""

    kind: str
    queue: str = ""
    resource: str | None = None
    caller_resource: bool = False
    idempotency: str = "optional"
    priority: int = 0
    timeout_s: float = 0.0
    attempts: int = 0
    durable: bool = False
    args: dict[str, Any] = {}


class Ready(msgspec.Struct, frozen=True):
    """Whether the service can work. redis, ledger: what it found."""

    ready: bool
    namespace: str = ""
    stopping: bool = False
    redis: dict[str, Any] = {}
    ledger: dict[str, Any] | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What an action did. id or queue: to what. outcome: the word for it, such as "cancelled", "asked", "paused"."""

    outcome: str
    id: str = ""
    queue: str = ""
    state_before: str = ""
    generation: int = 0
    became: str = ""
    paused_at: int | None = None


class Bulk(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk action did, or (dry_run) would do; as BulkReport of the operator."""

    verb: str = ""
    dry_run: bool = False
    matched: int = 0
    done: int = 0
    missing: list[str] = []
    refused: list[dict[str, Any]] = []
    refused_count: int = 0
    outcomes: list[dict[str, Any]] = []
    verdict: str = ""


class Held(Protocol):
    """What a claim gave: it proves that a call about the run comes from its owner."""

    @property
    def job_id(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def nonce(self) -> str: ...
    @property
    def worker(self) -> str: ...


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that this worker owns until its lease ends. token: the fencing token; pass it to what you write to.
    version: of the signature of its arguments. checkpoint: what an earlier attempt kept."""

    job_id: str
    token: int
    nonce: str
    kind: str = ""
    queue: str = ""
    args: dict[str, Any] = {}
    attempt: int = 1
    crashes: int = 0
    resource: str | None = None
    checkpoint: Any = None
    version: int = 1
    lease_s: float = 0.0
    worker: str = "unnamed"


class Claims(msgspec.Struct, frozen=True):
    """The answer to claim; the same claim_id again gets the same jobs again."""

    jobs: list[Claimed] = []
    claim_id: str = ""


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the lease of a run. outcome: "ok" | "cancel" (stop soon; see reason) | "stale", "expired", "gone":
    stop at once, write nothing."""

    job_id: str
    outcome: str
    reason: str = ""
    newest: int = 0


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's end made of the job. replayed: this very call was made before. delay_s: until the next attempt."""

    state: str = ""
    replayed: bool = False
    delay_s: float | None = None
    reason: str = ""
