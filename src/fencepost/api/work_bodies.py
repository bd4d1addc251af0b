"""What the calls of workers in other languages take and answer, and what the document says of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fencepost.api.openapi import inlined

__all__ = [
    "CheckpointBody",
    "ClaimBody",
    "ClaimsAnswer",
    "ErrorBody",
    "FinishBody",
    "ReleaseBody",
    "RenewAnswer",
    "RenewBody",
    "RenewalAnswer",
    "RetryAnswer",
    "RetryBody",
    "RunAnswer",
    "RunBody",
    "SettledAnswer",
    "described",
    "document",
]

JobId = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}$")]
Token = Annotated[str, Meta(pattern="^[0-9]{1,16}$", description="The fencing token, as decimal text.")]
Nonce = Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")]
WorkerName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$")]
Queue = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
LeaseS = Annotated[float, Meta(ge=1, le=3_600, description="Seconds; by default the application's.")]


class _OneLine(msgspec.Struct, kw_only=True):
    """To a pattern, a text with a line feed behind it ends before that. Such a one would break a line of events."""

    def __post_init__(self) -> None:
        for name in ("job_id", "token", "nonce", "worker", "claim_id"):
            if str(getattr(self, name, "") or "").endswith("\n"):
                raise ValueError(f"a line feed in `{name}`")


class ClaimBody(_OneLine, forbid_unknown_fields=True, kw_only=True):
    """What POST /v1/claims takes."""

    worker: WorkerName
    queues: Annotated[list[Queue], Meta(min_length=1, max_length=50, description="In the order to serve.")]
    wanted: Annotated[int, Meta(ge=1, le=100)] = 1
    lease_s: LeaseS | None = None
    wait_s: Annotated[float, Meta(ge=0, le=300, description="How long to wait where there is nothing to do.")] = 0.0
    claim_id: (
        Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{8,48}$", description="The same one gets the same runs again.")]
        | None
    ) = None
    kinds: (
        Annotated[list[str], Meta(max_length=1_000, description="Those the worker knows; others are put back.")] | None
    ) = None


class RunBody(_OneLine, forbid_unknown_fields=True, kw_only=True):
    """Which run a call is about: all three of a claim. worker: as in the claim, for the records."""

    job_id: JobId
    token: Token
    nonce: Nonce
    worker: WorkerName = "unnamed"


class RunOfRenewal(_OneLine, forbid_unknown_fields=True, kw_only=True):
    """One run whose lease is to be renewed."""

    job_id: JobId
    token: Token
    nonce: Nonce


class RenewBody(_OneLine, forbid_unknown_fields=True, kw_only=True):
    """What POST /v1/renew takes."""

    runs: Annotated[list[RunOfRenewal], Meta(max_length=1_000)]
    worker: WorkerName = "unnamed"
    lease_s: LeaseS | None = None


class FinishBody(RunBody, forbid_unknown_fields=True, kw_only=True):
    """What POST /v1/finish takes. result: any JSON of at most 64 KiB."""

    result: Any = None


class ErrorBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What went wrong: the name of its class, and words."""

    kind: Annotated[str, Meta(min_length=1, max_length=200)] = msgspec.field(name="class", default="Error")
    message: str = ""


class RetryBody(RunBody, forbid_unknown_fields=True, kw_only=True):
    """What POST /v1/retry takes. permanent: no other attempt. after_s: the wait, instead of the policy's."""

    error: ErrorBody
    permanent: bool = False
    after_s: Annotated[float, Meta(ge=0, le=315_360_000)] | None = None


class CheckpointBody(RunBody, forbid_unknown_fields=True, kw_only=True):
    """What POST /v1/checkpoint takes: value (any JSON of at most 64 KiB), or progress with a text."""

    value: Any = msgspec.UNSET
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    text: Annotated[str, Meta(max_length=200)] = ""


class ReleaseBody(RunBody, forbid_unknown_fields=True, kw_only=True):
    """What POST /v1/release takes. reason "unknown_kind": nobody here knows the kind; after a day of that it fails."""

    delay_s: Annotated[float, Meta(ge=0, le=315_360_000)] = 0.0
    reason: Annotated[str, Meta(max_length=200)] = ""


class RunAnswer(msgspec.Struct, kw_only=True, gc=False):
    """A claimed run. args and checkpoint: JSON; null for none."""

    job_id: str
    token: str
    nonce: str
    kind: str
    queue: str
    args: Any
    attempt: int
    crashes: int
    version: int
    resource: str | None
    checkpoint: Any
    lease_s: float


class ClaimsAnswer(msgspec.Struct, kw_only=True):
    """What POST /v1/claims answers. worker: its id in Redis."""

    jobs: list[RunAnswer]
    claim_id: str
    worker: str
    lease_s: float


class RenewalAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of one lease. reason: of a cancel. newest: the token that made this one stale."""

    job_id: str
    outcome: Literal["ok", "cancel", "stale", "expired", "gone"]
    reason: str | None = None
    newest: str | None = None


class RenewAnswer(msgspec.Struct):
    """What POST /v1/renew answers, in the order of the runs."""

    runs: list[RenewalAnswer]


class SettledAnswer(msgspec.Struct, kw_only=True):
    """The state that the job is in now, and whether the report was known before."""

    state: str
    replayed: bool


class RetryAnswer(SettledAnswer, kw_only=True):
    """As SettledAnswer. delay_s: until the next attempt, where there is one. reason: of a failed job."""

    delay_s: float | None
    reason: str


def described(kind: type[msgspec.Struct]) -> dict[int | str, dict[str, Any]]:
    """The answer 200 in the document."""
    return {200: {"description": "Done", "content": {"application/json": {"schema": _schema(kind)}}}}


def document(body: type[msgspec.Struct]) -> dict[str, Any]:
    """The request body in the document."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _schema(body)}}}}


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    whole = msgspec.json.schema(kind)
    definitions = whole.pop("$defs", {})
    return inlined({**definitions.pop(kind.__name__), "$defs": definitions})
