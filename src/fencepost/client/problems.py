"""Refusals as exceptions: those of fencepost.errors where one says it, ApiError for all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from fencepost.errors import (
    ArgumentsRefused,
    FencepostError,
    IdempotencyConflict,
    IllegalTransition,
    JobNotFound,
    LeaseExpired,
    LedgerUnavailable,
    QueueFull,
    RedisUnavailable,
    ResourceBusy,
    StaleToken,
)

__all__ = ["ApiError", "NoAnswer", "document", "error_of"]


class ApiError(FencepostError):
    """The service refused a call. slug: which problem, such as "forbidden"; empty if the answer was not the service's.
    problem: the whole document."""

    def __init__(self, status: int, slug: str, detail: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(status, slug, detail, problem)
        self.status, self.slug, self.detail, self.problem = status, slug, detail, dict(problem or {})

    def __str__(self) -> str:
        more = f" More: GET /v1/problems/{self.slug}." if self.slug else ""
        return f"{self.status} {self.slug or 'without a problem document'}: {self.detail}{more}"


class NoAnswer(FencepostError):
    """The service could not be reached, or gave no answer. executed: False = the call did not run; None = unknown."""

    def __init__(self, what: str, cause: str, executed: bool | None) -> None:
        super().__init__(what, cause, executed)
        self.what, self.cause, self.executed = what, cause, executed

    def __str__(self) -> str:
        changed = "Nothing was changed" if self.executed is False else "Whether it was carried out is unknown"
        return (
            f"the service gave no answer to `{self.what}` ({self.cause.rstrip('. ')}). {changed}. See whether the "
            f"service runs and whether the URL is right; then send it again, an enqueue with the same idempotency key."
        )


def document(raw: bytes) -> dict[str, Any]:
    """Open a problem document; empty for anything else."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_Known = Callable[[str, dict[str, Any]], FencepostError]


def _executed(problem: Mapping[str, Any]) -> bool | None:
    return False if problem.get("changed") == "nothing" else None


def _argument(path: str) -> str:
    return "" if path == "args" else path.removeprefix("args.")


# A document that lacks what the error needs becomes an ApiError.
_KNOWN: Final[dict[str, _Known]] = {
    "stale-token": lambda _, p: StaleToken(p["job_id"], int(p["token"]), int(p["newest"])),
    "lease-expired": lambda _, p: LeaseExpired(p["job_id"], int(p["token"])),
    "job-not-found": lambda _, p: JobNotFound(p["job_id"]),
    "arguments-refused": lambda _, p: ArgumentsRefused(p["kind"], _argument(p["path"]), p["problem"]),
    "idempotency-conflict": lambda _, p: IdempotencyConflict(p["key"], p["job_id"]),
    "illegal-transition": lambda _, p: IllegalTransition(p["job_id"], p["state"], p["verb"]),
    "queue-full": lambda _, p: QueueFull(p["queue"], int(p["limit"])),
    "resource-busy": lambda _, p: ResourceBusy(p["resource"], p.get("holder", "")),
    "redis-unavailable": lambda what, p: RedisUnavailable(what, "so says the HTTP service", _executed(p)),
    "ledger-unavailable": lambda what, p: LedgerUnavailable(what, "so says the HTTP service", _executed(p)),
}


def error_of(what: str, status: int, raw: bytes, about: Mapping[str, Any] | None = None) -> FencepostError:
    """The error that stands for a refusal. what: the call. about: what the call knows and the document may lack."""
    return of_document(what, status, document(raw), about)


def of_document(what: str, status: int, problem: dict[str, Any], about: Mapping[str, Any] | None) -> FencepostError:
    """As error_of, for a document that stands inside an answer."""
    slug = str(problem.get("type", "")).rpartition("/v1/problems/")[2]
    known = _KNOWN.get(slug)
    if known is not None:
        try:
            return known(what, {**(about or {}), **problem})
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
    detail = str(problem.get("detail") or f"`{what}` was answered with {status}, and the answer does not say why.")
    return ApiError(status, slug, detail, problem)
