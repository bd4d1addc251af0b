"""What workers ask of the service: claim runs, keep their leases, report how they ended.

All of it may be sent twice: the service tells a repetition by the claim's id, or by token and nonce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fencepost.client.answers import Claims, Held, Renewal, Settled
from fencepost.client.calls import decoded
from fencepost.client.sending import Call
from fencepost.clock import uuid7

__all__ = ["checkpoint", "claim", "finish", "progress", "release", "renew", "retry"]


def claim(
    worker: str,
    queues: Sequence[str],
    *,
    wanted: int = 1,
    lease_s: float | None = None,
    wait_s: float = 0.0,
    claim_id: str | None = None,
) -> Call[Claims]:
    """Take up to `wanted` runs; each is this worker's for lease_s seconds, unless it is renewed. wait_s: how long to
    wait where there is none. claim_id: the same one again gets the same runs again; made if none is given."""
    body: dict[str, Any] = {"worker": worker, "queues": list(queues), "wanted": wanted, "wait_s": wait_s}
    body["claim_id"] = claim_id or uuid7()
    if lease_s is not None:
        body["lease_s"] = lease_s
    return Call("POST", "/v1/claims", decoded(Claims), body, repeatable=True, waits_s=wait_s)


def renew(worker: str, runs: Sequence[Held], *, lease_s: float | None = None) -> Call[list[Renewal]]:
    """Keep the leases of runs. Returns what became of each, in order."""
    body: dict[str, Any] = {"worker": worker, "runs": [_run(run) for run in runs]}
    if lease_s is not None:
        body["lease_s"] = lease_s
    return Call("POST", "/v1/renew", lambda raw: decoded(_Renewals)(raw).runs, body, repeatable=True)


class _Renewals(msgspec.Struct):
    runs: list[Renewal]


def finish(run: Held, result: Any = None) -> Call[Settled]:
    """End a run: its job is done. Raises StaleToken or LeaseExpired where it is not this worker's any more: drop it."""
    return _about_run("finish", run, result=result)


def retry(
    run: Held, error_class: str, message: str, *, permanent: bool = False, after_s: float | None = None
) -> Call[Settled]:
    """End a run that went wrong. The kind's policy decides whether there is another attempt, and when. permanent:
    there is none. after_s: when, instead of the policy. Raises as finish."""
    error = {"class": error_class, "message": message}
    more: dict[str, Any] = {"permanent": permanent} if permanent else {}
    return _about_run("retry", run, error=error, **(more if after_s is None else {**more, "after_s": after_s}))


def checkpoint(run: Held, value: Any) -> Call[Settled]:
    """Keep a value, at most 64 KiB as JSON, for the next attempt. Raises as finish."""
    return _about_run("checkpoint", run, value=value)


def progress(run: Held, progress: float, text: str = "") -> Call[Settled]:
    """Say how far the run has come, from 0 to 1. Raises as finish."""
    return _about_run("checkpoint", run, progress=progress, text=text)


def release(run: Held, *, reason: str = "", delay_s: float = 0.0) -> Call[Settled]:
    """Hand a run back; no attempt is charged. Raises as finish."""
    return _about_run("release", run, reason=reason, delay_s=delay_s)


def _about_run(verb: str, run: Held, **more: Any) -> Call[Settled]:
    about = {"job_id": run.job_id, "token": str(run.token), "verb": verb}
    return Call("POST", f"/v1/{verb}", decoded(Settled), {**_run(run), **more}, repeatable=True, about=about)


def _run(run: Held) -> dict[str, str]:
    return {"job_id": run.job_id, "token": str(run.token), "nonce": run.nonce}
