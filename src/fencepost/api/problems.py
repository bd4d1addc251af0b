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

__all__ = ["MEDIA_TYPE", "PAGES", "Problem", "of_error", "page", "rendered"]

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
    names = ("job_id", "token", "newest", "path", "problem", "queue", "limit", "resource", "holder", "state", "verb")
    extra = {name: getattr(error, name) for name in names if getattr(error, name, "") != ""}
    for name in ("token", "newest"):
        if name in extra:
            extra[name] = str(extra[name])  # programs that read numbers as doubles stay exact
    return Problem(status, slug, title, str(error), changed=changed, headers=headers, **extra)


def rendered(problem: Problem, path: str = "") -> Response:
    """The answer to send. path: of the request; what stands before its /v1/ stands before the type, too, so that the
    page about it is found where the service is mounted."""
    about = problem.to_json()
    about["type"] = path[: max(0, path.find("/v1/"))] + about["type"]
    return Response(msgspec.json.encode(about), problem.status, problem.headers, MEDIA_TYPE)


# What GET /v1/problems/{slug} tells, one row a slug: what it means, and what to do.
PAGES: Final[dict[str, tuple[str, str]]] = {
    "answer-not-kept": (
        "The request was carried out. Its answer, of status `answered`, was a stream, or too large to be kept.",
        "Read what the request made, by its own address. A new key would do it again.",
    ),
    "answer-refused": (
        "The request went silent for longer than its lease, and another one with the same key may have taken over.",
        "Send it again with the same key: it gets the answer that counts, or runs if there is none.",
    ),
    "arguments-refused": (
        "The arguments do not fit the kind. `path` names the first one that does not, such as args.order.lines[2].",
        "Send what the kind's schema asks for (GET /v1/kinds, or the OpenAPI document). The same body fails again.",
    ),
    "batch-too-large": (
        "The batch has more jobs than this service takes at once.",
        "Send it in parts, each with a key of its own.",
    ),
    "body-cut-off": (
        "The connection ended, or the caller sent less than it had announced, before the body was whole.",
        "Send the request again.",
    ),
    "body-refused": (
        "The body is JSON, but not of the shape that this route takes: a field is missing, unknown or of another type.",
        "Compare it with the OpenAPI document. The detail names the field. The same body fails again.",
    ),
    "body-too-large": (
        "The body has more bytes than this service takes. No more than that was read.",
        "Send less; put large data elsewhere and its address into the arguments. `fencepost api --max-body` raises it.",
    ),
    "duplicate": (
        "The job's dedup key belongs to a newer job that lives; `owner` is its id. Nothing was started again.",
        "Follow the owner, or start the job again when the owner has ended.",
    ),
    "forbidden": (
        "The credential is good, but it has not the scope that this call needs; `scope` names it.",
        "Use a credential that has it: `fencepost token make NAME --scope SCOPE`. A scope cannot be added later.",
    ),
    "idempotency-conflict": (
        "The idempotency key was used before, for another method, path or body.",
        "Send the same request with the same key, or another request with a new key.",
    ),
    "idempotency-key-malformed": (
        "The header Idempotency-Key is empty, too long, not printable ASCII, badly quoted, or sent more than once.",
        'Send 1 to 255 characters, bare or as "text in quotes"; a UUID, for instance.',
    ),
    "idempotency-key-missing": (
        "Jobs of this kind are accepted only with the header Idempotency-Key.",
        "Send a new key with each new request, and the same one when a request is repeated.",
    ),
    "illegal-transition": (
        "The job is in a state to which the action does not apply: it has ended, or somebody was first.",
        "Read the job (GET /v1/jobs/{id}) and choose an action that fits its state.",
    ),
    "internal": (
        "Something failed in the service that no caller can mend. What was changed is not known.",
        "Look at the log of the service. A call with an idempotency key may be repeated safely.",
    ),
    "job-not-found": (
        "No job with this id is known: it was never accepted here, was purged, or its retention is over.",
        "Check the id. With a ledger, jobs are remembered beyond their retention.",
    ),
    "lease-expired": (
        "The lease of this run ran out and the job was taken back. Nobody holds it at the moment.",
        "Stop the work and drop its result: the job runs again by itself. Renew more often, or ask for a longer lease.",
    ),
    "ledger-unavailable": (
        "The SQL database of the ledger gave no answer.",
        "Try again after Retry-After. Look at the database, and `fencepost ledger status`.",
    ),
    "method-not-allowed": (
        "The path exists, but not with this method.",
        "The header Allow names the methods there are.",
    ),
    "misconfigured": (
        "A setting of the service is wrong: for durable jobs, most likely the ledger's database or its tables.",
        "Nothing that a caller can mend. Its operator runs `fencepost doctor` and looks at the service's log.",
    ),
    "no-json": (
        "The body is not JSON in UTF-8.",
        "Send one JSON object. `{}` stands for an empty one.",
    ),
    "no-such-problem": (
        "No problem has this name.",
        "The last part of a problem's `type` is its name.",
    ),
    "not-admitted": (
        "Without authentication only callers on the same machine are served, and not by a proxy or from another site.",
        "Run the service with tokens (without --no-auth), and give the caller one: `fencepost token make`.",
    ),
    "not-found": (
        "There is no such path.",
        "See the OpenAPI document (/openapi.json) for those there are.",
    ),
    "queue-full": (
        "The queue has as many ready jobs as it may (queue_limit).",
        "Try again after Retry-After, with the same idempotency key. Start more workers.",
    ),
    "rate-limited": (
        "The credential calls more often than this process lets it.",
        "Wait for the seconds of Retry-After, then go on. Send many jobs as one batch.",
    ),
    "redis-unavailable": (
        "Redis gave no answer in time. Where `changed` is unknown, the call may have been carried out all the same.",
        "Try again after Retry-After, with the same idempotency key: nothing is done twice then.",
    ),
    "request-in-progress": (
        "A request with this idempotency key runs at this moment.",
        "Send it again after Retry-After, with the same key: it gets the answer of the first, or runs if that fails.",
    ),
    "resource-busy": (
        "The resource is held by somebody else.",
        "Try again later; GET /v1/resources/{resource} tells who holds it and for how long.",
    ),
    "resource-free": (
        "Nobody holds the resource, and nobody waits for it. Resources are not kept beyond that.",
        "If you expected a holder, check the name: it is what the template of the kind makes of the arguments.",
    ),
    "result-expired": (
        "The job is done, but its result is kept no longer.",
        "Raise `retention` of the kind if callers need it for longer.",
    ),
    "section-repeat": (
        "The database rolled the transaction back because of another one at the same time. Nothing was written.",
        "Send the request again after Retry-After, with the same idempotency key.",
    ),
    "stale-token": (
        "A newer fencing token exists: another worker holds the job now. `newest` is its token.",
        "Stop the work and drop its result. Never repeat the refused write, and never send it with the newer token.",
    ),
    "too-many-streams": (
        "This process already has as many event streams and long polls as it may (max_streams).",
        "Try again after Retry-After, or ask without `wait`. Close streams that nobody reads.",
    ),
    "too-many-waiting": (
        "This process already has as many claims that wait for a job as it may (max_streams).",
        "Try again after Retry-After, or without `wait_s`. Nothing was claimed.",
    ),
    "unauthenticated": (
        "The call has no credential, or one that is unknown, revoked or has run out.",
        "Send `Authorization: Bearer fp_…`. `fencepost token list` shows which there are, `token make` makes one.",
    ),
    "unknown-kind": (
        "The application of this service has no such kind of job, or does not offer it over HTTP.",
        "GET /v1/kinds lists those that this credential may enqueue.",
    ),
    "unsupported-media-type": (
        "The body is not declared as JSON, or is compressed.",
        "Send `Content-Type: application/json` and the body as it is.",
    ),
    "value-refused": (
        "A value is outside of what is allowed. The detail names it.",
        "Change the value. The same request fails again.",
    ),
    "value-too-large": (
        "A checkpoint has more than 64 KiB as JSON.",
        "Keep the data elsewhere, and its address in the checkpoint.",
    ),
}  # fmt: skip


def page(slug: str) -> str | None:
    """What a problem means and what to do, as plain text; None for a slug that no answer has."""
    found = PAGES.get(slug)
    return None if found is None else f"{slug}\n\n{found[0]}\n\nWhat to do: {found[1]}\n"
