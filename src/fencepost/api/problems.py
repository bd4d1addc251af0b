"""Errors as application/problem+json (RFC 9457): what, why, what was not changed, what to do."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from fencepost.errors import (
    ArgumentsRefused,
    ConfigurationError,
    FencepostError,
    IdempotencyConflict,
    IllegalTransition,
    JobNotFound,
    LeaseExpired,
    LedgerUnavailable,
    QueueFull,
    RedisUnavailable,
    ResourceBusy,
    ResultExpired,
    StaleToken,
    UnknownKind,
)

__all__ = ["MEDIA_TYPE", "Problem", "of_error", "rendered"]

MEDIA_TYPE: Final = "application/problem+json"


class Problem(Exception):
    """An answer that is an error. slug: the last part of its type, stable. detail: what, why, what was not changed and
    what to do, in sentences. changed: "nothing" | "unknown". headers, extra: beside it in the answer."""

    def __init__(
        self,
        status: int,
        slug: str,
        title: str,
        detail: str,
        *,
        changed: str = "nothing",
        headers: dict[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(status, slug, title, detail)
        self.status, self.slug, self.title, self.detail, self.changed = status, slug, title, detail, changed
        self.headers, self.extra = headers or {}, extra

    def to_json(self) -> dict[str, Any]:
        about = {"type": f"/v1/problems/{self.slug}", "title": self.title, "status": self.status}
        return {**about, "detail": self.detail, "changed": self.changed, **self.extra}


_KNOWN: Final[tuple[tuple[type[FencepostError], int, str, str], ...]] = (
    (StaleToken, 409, "stale-token", "A newer fencing token exists"),
    (LeaseExpired, 409, "lease-expired", "The lease ran out"),
    (ArgumentsRefused, 422, "arguments-refused", "The arguments do not fit"),
    (UnknownKind, 404, "unknown-kind", "No such kind"),
    (JobNotFound, 404, "job-not-found", "No such job"),
    (IdempotencyConflict, 422, "idempotency-conflict", "The idempotency key was used for another request"),
    (IllegalTransition, 409, "illegal-transition", "The job's state does not allow that"),
    (QueueFull, 503, "queue-full", "The queue is full"),
    (ResourceBusy, 409, "resource-busy", "The resource is held"),
    (RedisUnavailable, 503, "redis-unavailable", "Redis gave no answer"),
    (LedgerUnavailable, 503, "ledger-unavailable", "The SQL database gave no answer"),
    (ResultExpired, 410, "result-expired", "The result is gone"),
    (ConfigurationError, 422, "value-refused", "A value cannot be used"),
)


def of_error(error: FencepostError) -> Problem:
    """The problem that stands for an error of the library."""
    found = (known[1:] for known in _KNOWN if isinstance(error, known[0]))
    status, slug, title = next(found, (500, "internal", "Something went wrong in the service"))
    executed = getattr(error, "executed", False)
    changed = "nothing" if executed is False else "unknown"
    headers = {"Retry-After": "1"} if status == 503 else {}
    names = ("job_id", "token", "newest", "path", "problem", "queue", "resource", "state")
    extra = {name: getattr(error, name) for name in names if getattr(error, name, "") != ""}
    for name in ("token", "newest"):
        if name in extra:
            extra[name] = str(extra[name])  # programs that read numbers as doubles stay exact
    return Problem(status, slug, title, str(error), changed=changed, headers=headers, **extra)


def rendered(problem: Problem) -> Response:
    """The answer to send."""
    return Response(msgspec.json.encode(problem.to_json()), problem.status, problem.headers, MEDIA_TYPE)
