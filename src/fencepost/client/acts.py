"""What operators ask of the service. Each action has a reason, which stands with the caller's name in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost.client.answers import Bulk, Outcome
from fencepost.client.calls import decoded, keyed, path
from fencepost.client.sending import Call

__all__ = ["cancel", "pause", "purge", "purge_dead", "requeue", "requeue_dead", "resume", "revoke"]


def cancel(job_id: str, *, reason: str, hard: bool = False, token: int | None = None) -> Call[Outcome]:
    """Cancel a job: "cancelled" where it had not begun, "asked" where a run has to stop by itself first.

    hard: take a running job from its worker at once; what that worker still writes is refused. token: only if that is
    still the job's newest. Raises IllegalTransition for a job that has ended, StaleToken, JobNotFound.
    """
    body: dict[str, Any] = {"reason": reason, "hard": hard}
    about: dict[str, Any] = {"job_id": job_id, "verb": "cancel"}
    if token is not None:
        body["token"] = about["token"] = str(token)
    return keyed(path("v1", "jobs", job_id, "cancel"), body, decoded(Outcome), about=about)


def requeue(job_id: str, *, reason: str) -> Call[Outcome]:
    """Start a failed or cancelled job again, with fresh counters. Raises IllegalTransition, JobNotFound, ApiError."""
    about = {"job_id": job_id, "verb": "requeue"}
    return keyed(path("v1", "jobs", job_id, "requeue"), {"reason": reason}, decoded(Outcome), about=about)


def purge(job_id: str, *, reason: str) -> Call[Outcome]:
    """Forget an ended job for good. Not repeated by itself: a job that was purged just now is not found again.
    Raises IllegalTransition for a job that lives, JobNotFound."""
    about = {"job_id": job_id, "verb": "purge"}
    return Call("POST", path("v1", "jobs", job_id, "purge"), decoded(Outcome), {"reason": reason}, about=about)


def requeue_dead(
    *,
    reason: str,
    ids: Sequence[str] = (),
    kind: str = "",
    why: str = "",
    error_class: str = "",
    older_than_s: float = 0.0,
    dry_run: bool = False,
) -> Call[Bulk]:
    """Start dead letters again: these ids, or else all that agree with the filter. why: the reason for which they
    failed. dry_run: only count them. Not repeated by itself: what failed again meanwhile would be started once more."""
    return Call(
        "POST", "/v1/dead/requeue", decoded(Bulk), _bulk(reason, ids, kind, why, error_class, older_than_s, dry_run)
    )


def purge_dead(
    *,
    reason: str,
    ids: Sequence[str] = (),
    kind: str = "",
    why: str = "",
    error_class: str = "",
    older_than_s: float = 0.0,
    dry_run: bool = False,
) -> Call[Bulk]:
    """Forget dead letters for good, chosen as in requeue_dead. Without ids and filter: all of them."""
    return Call(
        "POST", "/v1/dead/purge", decoded(Bulk), _bulk(reason, ids, kind, why, error_class, older_than_s, dry_run)
    )


def _bulk(
    reason: str, ids: Sequence[str], kind: str, why: str, error_class: str, older_than_s: float, dry_run: bool
) -> dict[str, Any]:
    if ids:
        return {"reason": reason, "ids": list(ids)} | ({"dry_run": True} if dry_run else {})
    chosen = {"kind": kind, "reason": why, "error_class": error_class, "older_than_s": older_than_s}
    return {"reason": reason, "filter": chosen, "dry_run": dry_run}


def pause(queue: str, *, reason: str) -> Call[Outcome]:
    """Hand out nothing more from a queue; what runs goes on, what is enqueued is kept."""
    route = path("v1", "queues", queue, "pause")
    return Call("POST", route, decoded(Outcome), {"reason": reason}, repeatable=True)


def resume(queue: str, *, reason: str) -> Call[Outcome]:
    """Let a paused queue go on."""
    route = path("v1", "queues", queue, "resume")
    return Call("POST", route, decoded(Outcome), {"reason": reason}, repeatable=True)


def revoke(holder: str, token: int, *, reason: str) -> Call[Outcome]:
    """Take a run (holder: its job's id) or a stand-alone lease ("@" and its nonce) from its holder at once. token: as
    the caller saw it; only that holder is meant. Raises StaleToken, IllegalTransition, JobNotFound."""
    body = {"id": holder, "token": str(token), "reason": reason}
    about = {"job_id": holder, "verb": "revoke", "token": str(token)}
    return keyed("/v1/leases/revoke", body, decoded(Outcome), about=about)
