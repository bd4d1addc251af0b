"""A run: one claimed attempt of a job, as its handler sees it and as the worker keeps it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fencepost.clock import boottime_s
from fencepost.codec import decode_result, encode_result
from fencepost.errors import ArgumentsRefused, JobNotFound, LeaseExpired, LeaseLost, StaleToken
from fencepost.link import Link
from fencepost.store import Answer, Claimed, RunKey

__all__ = ["GONE", "Run"]

GONE: Final = frozenset({"deadline", "stale", "expired"})
"""Why a run is not ours any more: nothing it says is written."""
_SMALL: Final = 64 * 1024


class Run:
    """One claimed attempt of a job. Handlers get it as their first parameter where they ask for it.

    job_id, kind, queue, resource ("" without one). attempt: from 1, this one included. crashes: how often a worker
    died with the job. token: the fencing token, above that of every earlier claim. nonce: identity of this claim.
    why: "" while the run is good; else "deadline" | "stale" | "expired" | "cancelled" | "timeout" | "shutdown".
    """

    __slots__ = (
        "_checkpoint",
        "_link",
        "cancel_reason",
        "claimed",
        "deadline_s",
        "handler",
        "job_id",
        "nonce",
        "reported_at_s",
        "started_s",
        "task",
        "timeout_at_s",
        "told_at_s",
        "why",
        "worker_id",
    )

    def __init__(self, claimed: Claimed, handler: Any, link: Link, worker_id: str, deadline_s: float) -> None:
        self.claimed, self.job_id, self.nonce = claimed, claimed.job_id, claimed.nonce
        self._checkpoint = claimed.checkpoint
        self.handler, self._link, self.worker_id, self.deadline_s = handler, link, worker_id, deadline_s
        self.why, self.cancel_reason = "", ""
        self.started_s = boottime_s()
        self.timeout_at_s = self.started_s + handler.settings.timeout_s
        self.told_at_s = self.reported_at_s = 0.0
        self.task: asyncio.Task[None] | None = None

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

    def effect_key(self, name: str) -> str:
        """Return a key for an effect outside SQL (a mail, a charge) that is the same in every attempt of this job.

        Send it to the provider as its idempotency key.
        """
        if not name or len(name) > 100 or not name.isprintable():
            raise ArgumentsRefused(self.kind, "effect_key", f"{name[:60]!a} is not a printable name of 1 to 100")
        return f"{self.job_id}:{name}"

    @property
    def last_checkpoint(self) -> Any:
        """What the last run stored with checkpoint, None without one."""
        return decode_result(self._checkpoint) if self._checkpoint else None

    async def checkpoint(self, value: Any) -> None:
        """Store up to 64 KiB of JSON for the next attempt. Checked against token, nonce and lease in the same step.

        Raises StaleToken, LeaseExpired (nothing was written; stop), ArgumentsRefused, RedisUnavailable.
        """
        raw = self._small("checkpoint", value)
        self._heard(await self._link.asynchronous.run(self._write("checkpoint", raw)))
        self._checkpoint = raw

    def checkpoint_sync(self, value: Any) -> None:
        """As checkpoint, for a handler that is not async."""
        raw = self._small("checkpoint", value)
        self._heard(self._link.synchronous.run(self._write("checkpoint", raw)))
        self._checkpoint = raw

    async def progress(self, fraction: float, text: str = "") -> None:
        """Show how far the run is: fraction from 0 to 1, and a text. Checked and refused as checkpoint."""
        self._heard(await self._link.asynchronous.run(self._write("progress", self._progress(fraction, text))))

    def progress_sync(self, fraction: float, text: str = "") -> None:
        """As progress, for a handler that is not async."""
        self._heard(self._link.synchronous.run(self._write("progress", self._progress(fraction, text))))

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

    def _write(self, field: str, raw: bytes) -> Any:
        return self._link.store.checkpoint(self.key, self.worker_id, field, raw)

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
