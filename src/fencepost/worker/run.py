"""A run: one claimed attempt of a job, as its handler sees it and as the worker keeps it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec

from fencepost.clock import boottime_s
from fencepost.codec import decode_result, encode_result
from fencepost.errors import ArgumentsRefused, JobNotFound, LeaseExpired, LeaseLost, StaleToken
from fencepost.link import Link
from fencepost.redact import redact_text
from fencepost.store import Answer, Claimed, RunKey
from fencepost.worker.outside import Outside
from fencepost.worker.progress import Coalesced

if TYPE_CHECKING:
    from fencepost.fence import Guarded

__all__ = ["GONE", "Run"]

GONE: Final = frozenset({"deadline", "stale", "expired"})
"""Why a run is not ours any more: nothing it says is written."""
_SMALL: Final = 64 * 1024
_PROGRESS_S: Final = 0.1

T = TypeVar("T")


class Run:
    """One claimed attempt of a job. Handlers get it as their first parameter where they ask for it.

    job_id, kind, queue, resource ("" without one). attempt: from 1, this one included. crashes: how often a worker
    died with the job. token: the fencing token, above that of every earlier claim. nonce: identity of this claim.
    why: "" while the run is good; else "deadline" | "stale" | "expired" | "cancelled" | "timeout" | "shutdown".
    """

    __slots__ = (
        "_checkpoint",
        "_coalesced",
        "_kept",
        "_link",
        "_progress_at_s",
        "_unsaved",
        "cancel_reason",
        "claimed",
        "deadline_s",
        "handler",
        "job_id",
        "lease_s",
        "nonce",
        "notes",
        "reported_at_s",
        "started_s",
        "task",
        "timeout_at_s",
        "told_at_s",
        "why",
        "worker_id",
    )

    def __init__(
        self, claimed: Claimed, handler: Any, link: Link, worker_id: str, deadline_s: float, lease_s: float = 30.0
    ) -> None:
        self.claimed, self.job_id, self.nonce = claimed, claimed.job_id, claimed.nonce
        self._coalesced: Coalesced | None = None
        self._checkpoint, self._progress_at_s = claimed.checkpoint, 0.0
        self._kept: dict[str, bytes] = {}
        self._unsaved: dict[str, bytes] = {}  # of steps that ran, until Redis has confirmed their result
        self.lease_s = lease_s
        self.notes: list[tuple[str, str]] = []
        self.handler, self._link, self.worker_id, self.deadline_s = handler, link, worker_id, deadline_s
        self.why, self.cancel_reason = "", ""
        self.started_s = boottime_s()
        self.timeout_at_s = self.started_s + handler.settings.timeout_s
        self.told_at_s = self.reported_at_s = 0.0
        self.task: asyncio.Task[None] | None = None

    def cleaned(self, text: str) -> str:
        """A text about this run without the secrets of its arguments, to be stored or logged."""
        return redact_text(text, self.claimed.payload, self._link.hidden)

    def __repr__(self) -> str:
        return f"<Run of {self.kind} {self.job_id}, attempt {self.attempt}, token {self.token}>"

    @property
    def token(self) -> int:
        return int(self.claimed.token)

    @property
    def kind(self) -> str:
        return self.claimed.kind

    @property
    def queue(self) -> str:
        return self.claimed.queue

    @property
    def attempt(self) -> int:
        return self.claimed.attempt

    @property
    def crashes(self) -> int:
        return self.claimed.crashes

    @property
    def resource(self) -> str:
        return self.claimed.resource

    @property
    def key(self) -> RunKey:
        return self.claimed.key

    def check(self) -> None:
        """Raise LeaseLost when this run has to stop: lease lost or run out, cancelled, timed out, shut down.

        Costs a clock read; call it before each effect, and often in a handler that runs in a thread.
        """
        if not self.why:
            now = boottime_s()
            if now >= self.deadline_s:
                self.why = "deadline"
            elif now >= self.timeout_at_s:
                self.why = "timeout"
        if self.why:
            raise LeaseLost(self.job_id, self.why)

    # -- effects ------------------------------------------------------------------------------------------

    def guarded(self, factory: Any, name: str, resource: str | None = None) -> Guarded:
        """Return a section that commits in the user's own SQL database at most once, for this job and effect name.

        ``async with run.guarded(Session, "invoice") as effect`` (or ``with`` in a handler that is not async). factory:
        a sessionmaker, an engine, or a callable that returns a session or connection. resource: what is fenced in SQL,
        by default the job's resource, else the job. See fencepost.fence.Guarded. Needs the extra `sql`.
        """
        from fencepost.fence import Guarded

        return Guarded(self, factory, name, resource)

    def outside(self, name: str, key: str | None = None) -> Outside:
        """Return a record of an effect outside SQL, as a context manager; see Outside. key: by default effect_key."""
        self._named("outside", name)
        if key is None:
            key = self.effect_key(name)
        elif not 0 < len(key) <= 500:
            raise ArgumentsRefused(self.kind, "outside", f"the key {key!r:.60} is not a text of 1 to 500 characters")
        return Outside(self, name, key)

    def effect_key(self, name: str) -> str:
        """Return a key for an effect (a mail, a charge, an SQL row) that is the same in every attempt of this job.

        Send it to the provider as its idempotency key.
        """
        if self._named("effect_key", name).startswith(":"):
            raise ArgumentsRefused(self.kind, "effect_key", f"{name!a:.60} begins with a colon, which is the separator")
        # Doubled in the id, so that job "a" with effect "1:x" has another key than job "a:1" with effect "x".
        return f"{self.job_id.replace(':', '::')}:{name}"

    def _named(self, what: str, name: str) -> str:
        if not 0 < len(name) <= 100 or not name.isprintable() or name != name.strip():
            raise ArgumentsRefused(
                self.kind, what, f"{name!a:.60} is not a printable name of 1 to 100 characters without spaces around it"
            )
        return name

    # -- what the SQL guard asks of a holder --------------------------------------------------------------

    @property
    def namespace(self) -> str:
        return self._link.store.keys.namespace

    def fence_resource(self, resource: str | None = None) -> str:
        """What is fenced in SQL: the resource where only one may hold it, else the job itself."""
        rule = self.handler.settings.resource
        if resource is None and self.resource and (rule is None or rule.limit == 1):
            return self.resource
        return f"={self.job_id}" if resource is None else resource

    async def bump(self, floor: int, where: str) -> None:
        """Get a token above floor, which SQL knows: where this server was rewound, and only for the owner.

        Raises StaleToken, LeaseExpired, JobNotFound (counted and told), RedisUnavailable. where: install | verify.
        """
        self._bumped(
            await self._link.asynchronous.run(self._link.store.bump(self.key, self.worker_id, floor, where)), floor
        )

    def bump_sync(self, floor: int, where: str) -> None:
        """As bump, for a handler that is not async."""
        self._bumped(self._link.synchronous.run(self._link.store.bump(self.key, self.worker_id, floor, where)), floor)

    def _bumped(self, answer: Answer, floor: int) -> None:
        if answer.word == "STALE":  # SQL may know a newer one than Redis
            self.newer(max(floor, int(answer.detail)))
            raise StaleToken(self.job_id, self.token, max(floor, int(answer.detail)))
        self._heard(answer)
        if int(answer.detail) > self.token:  # of two bumps at a time the older answer may be read last
            self.claimed = msgspec.structs.replace(self.claimed, token=answer.detail)

    def newer(self, token: int) -> None:
        """Somebody else has this token, which is above ours: nothing this run writes is accepted any more."""
        self.why = self.why or "stale"

    def note_effect(self, key: str, first: bool) -> None:
        """Remember an effect that SQL has, for the ledger. Told in the same step as the run's outcome."""
        self.notes.append(("effect" if first else "effect_found", key))

    # -- what later attempts find -------------------------------------------------------------------------

    @overload
    async def step(self, name: str, function: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call function(*args, **kwargs) once for this job and name; hand its stored result to later attempts.

        The result is what JSON makes of it, up to 64 KiB, in the first attempt too. Stored in one script call that
        checks token, nonce and lease; a worker that dies between the function's end and that call runs it again: for
        effects that must not repeat use guarded or outside. Where Redis is away for that call, the same step asked
        for again in this run stores what the function returned. Raises StaleToken, LeaseExpired, LeaseLost,
        ArgumentsRefused, RedisUnavailable, and what the function raises (then nothing is stored).
        """
        field = f"step:{self._named('step', name)}"
        raw = await self.kept(field)
        if raw is None:
            self.check()
            raw = self._unsaved.get(field)
            if raw is None:
                value = function(*args, **kwargs)
                if inspect.isawaitable(value):
                    value = await value
                raw = self._unsaved[field] = self._small(f"step {name}", value)
            await self.keep(field, raw, "step", name)
        return decode_result(raw)

    def step_sync(self, name: str, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """As step, for a handler that is not async."""
        field = f"step:{self._named('step', name)}"
        raw = self.kept_sync(field)
        if raw is None:
            self.check()
            raw = self._unsaved.get(field)
            if raw is None:
                raw = self._unsaved[field] = self._small(f"step {name}", function(*args, **kwargs))
            self.keep_sync(field, raw, "step", name)
        return decode_result(raw)  # type: ignore[no-any-return]

    async def kept(self, field: str) -> bytes | None:
        """What this or an earlier attempt stored in a field; asks Redis once, and not in a job's first run."""
        if field not in self._kept and self.claimed.again:
            self._found(field, await self._link.asynchronous.run(self._look(field)))
        return self._kept.get(field)

    def kept_sync(self, field: str) -> bytes | None:
        """As kept, for a handler that is not async."""
        if field not in self._kept and self.claimed.again:
            self._found(field, self._link.synchronous.run(self._look(field)))
        return self._kept.get(field)

    def _look(self, field: str) -> Any:
        return self._link.store.read(["HGET", self._link.store.keys.job(self.job_id), field], lambda reply: reply)

    def _found(self, field: str, raw: bytes | None) -> None:
        if raw is not None:
            self._kept[field] = raw

    async def keep(self, field: str, raw: bytes, event: str, reason: str) -> None:
        """Store a field of this job, fenced, and tell the event in the same step."""
        self._heard(await self._link.asynchronous.run(self._write(field, raw, event, reason)))
        self._kept[field] = raw
        self._unsaved.pop(field, None)

    def keep_sync(self, field: str, raw: bytes, event: str, reason: str) -> None:
        """As keep, for a handler that is not async."""
        self._heard(self._link.synchronous.run(self._write(field, raw, event, reason)))
        self._kept[field] = raw
        self._unsaved.pop(field, None)

    @property
    def last_checkpoint(self) -> Any:
        """What the last run stored with checkpoint, None without one."""
        return decode_result(self._checkpoint) if self._checkpoint else None

    async def checkpoint(self, value: Any) -> None:
        """Store up to 64 KiB of JSON for the next attempt. Checked against token, nonce and lease in the same step.

        Of calls that run at the same time the newest value is sent for all. Raises StaleToken, LeaseExpired (nothing
        was written; stop), ArgumentsRefused, RedisUnavailable.
        """
        raw = self._small("checkpoint", value)
        if self._coalesced is None:
            self._coalesced = Coalesced(self._send_checkpoint)
        await self._coalesced.put(raw)

    async def _send_checkpoint(self, raw: bytes) -> None:
        self._heard(await self._link.asynchronous.run(self._write("checkpoint", raw)))
        self._checkpoint = raw

    def checkpoint_sync(self, value: Any) -> None:
        """As checkpoint, for a handler that is not async."""
        raw = self._small("checkpoint", value)
        self._heard(self._link.synchronous.run(self._write("checkpoint", raw)))
        self._checkpoint = raw

    async def progress(self, fraction: float, text: str = "") -> None:
        """Show how far the run is: fraction from 0 to 1, and a text. Checked and refused as checkpoint.

        Sent at most ten times a second; what comes sooner is left out, but never 1.0.
        """
        raw = self._progress(fraction, text)
        if self._progress_is_due(fraction):
            self._heard(await self._link.asynchronous.run(self._write("progress", raw)))

    def progress_sync(self, fraction: float, text: str = "") -> None:
        """As progress, for a handler that is not async."""
        raw = self._progress(fraction, text)
        if self._progress_is_due(fraction):
            self._heard(self._link.synchronous.run(self._write("progress", raw)))

    def _progress_is_due(self, fraction: float) -> bool:
        now = boottime_s()
        if fraction < 1.0 and now - self._progress_at_s < _PROGRESS_S:
            return False
        self._progress_at_s = now
        return True

    def _progress(self, fraction: float, text: str) -> bytes:
        try:
            good = 0.0 <= fraction <= 1.0
        except TypeError:
            good = False
        if not good:
            raise ArgumentsRefused(self.kind, "progress", f"{fraction!r:.60} is not a number from 0 to 1")
        return self._small("progress", {"fraction": fraction, "text": text[:500]})

    def _small(self, field: str, value: Any) -> bytes:
        raw = encode_result(value, self.kind) or b"null"
        if len(raw) > _SMALL:
            raise ArgumentsRefused(
                self.kind, field, f"{len(raw)} bytes, {_SMALL} are allowed; store the data elsewhere"
            )
        return raw

    def _write(self, field: str, raw: bytes, event: str = "", reason: str = "") -> Any:
        return self._link.store.checkpoint(self.key, self.worker_id, field, raw, event, reason)

    def _heard(self, answer: Answer) -> None:
        if answer.word == "OK":
            return
        if answer.word == "GONE":
            raise JobNotFound(self.job_id)
        if answer.word == "STALE":
            self.why = self.why or "stale"
            raise StaleToken(self.job_id, self.token, int(answer.detail))
        self.why = self.why or "expired"
        raise LeaseExpired(self.job_id, self.token)
