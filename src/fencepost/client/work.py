"""What workers ask of the service: claim runs, keep their leases, report how they ended.

All of it may be sent twice: the service tells a repetition by the claim's id, or by token and nonce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from fencepost.client.answers import Claims, Held, Renewal, Settled
from fencepost.client.calls import decoded
from fencepost.client.sending import Call
from fencepost.clock import uuid7
from fencepost.codec import encode_result

__all__ = ["checkpoint", "claim", "finish", "progress", "release", "renew", "retry"]


def claim(
    worker: str,
    queues: Sequence[str],
    *,
    wanted: int = 1,
    kinds: Sequence[str] | None = None,
    lease_s: float | None = None,
    wait_s: float = 0.0,
    claim_id: str | None = None,
) -> Call[Claims]:
    """Take up to `wanted` runs; each is this worker's for lease_s seconds, unless it is renewed.

    kinds: those the worker knows; others are put back. wait_s: how long to wait where there is nothing to do. claim_id:
    the same one again gets the same runs again; made if none is given.
    """
    body: dict[str, Any] = {"worker": worker, "queues": list(queues), "wanted": wanted, "wait_s": wait_s}
    body["claim_id"] = claim_id or uuid7()
    for name, value in (("lease_s", lease_s), ("kinds", None if kinds is None else list(kinds))):
        if value is not None:
            body[name] = value

    def claims(raw: bytes) -> Claims:
        found = decoded(Claims)(raw)
        return Claims([replace(run, worker=worker) for run in found.jobs], found.claim_id)

    return Call("POST", "/v1/claims", claims, body, repeatable=True, waits_s=wait_s)


def renew(runs: Sequence[Held], *, lease_s: float | None = None) -> Call[list[Renewal]]:
    """Keep the leases of runs, all of one worker; every third of a lease. Returns what became of each, in order."""
    body: dict[str, Any] = {"runs": [_proof(run) for run in runs]}
    if runs:
        body["worker"] = runs[0].worker
    if lease_s is not None:
        body["lease_s"] = lease_s
    return Call("POST", "/v1/renew", lambda raw: decoded(_Renewals)(raw).runs, body, repeatable=True)


class _Renewals(msgspec.Struct):
    runs: list[Renewal]


def finish(run: Held, result: Any = None) -> Call[Settled]:
    """End a run: its job is done. Raises StaleToken or LeaseExpired where it is not this worker's any more: drop it;
    ResultRefused for what JSON cannot hold."""
    return _about_run("finish", run, result=msgspec.Raw(encode_result(result) or b"null"))


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
    return _about_run("checkpoint", run, value=msgspec.Raw(encode_result(value) or b"null"))


def progress(run: Held, fraction: float, text: str = "") -> Call[Settled]:
    """Say how far the run has come, from 0 to 1. Raises as finish."""
    return _about_run("checkpoint", run, progress=fraction, text=text)


def release(run: Held, *, reason: str = "", delay_s: float = 0.0) -> Call[Settled]:
    """Hand a run back; no attempt is charged. Raises as finish."""
    return _about_run("release", run, reason=reason, delay_s=delay_s)


def _about_run(verb: str, run: Held, **more: Any) -> Call[Settled]:
    about = {"job_id": run.job_id, "token": str(run.token), "verb": verb}
    body = {"worker": run.worker, **_proof(run), **more}
    return Call("POST", f"/v1/{verb}", decoded(Settled), body, repeatable=True, about=about)


def _proof(run: Held) -> dict[str, str]:
    return {"job_id": run.job_id, "token": str(run.token), "nonce": run.nonce}
