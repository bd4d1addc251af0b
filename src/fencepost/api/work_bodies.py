"""What the calls of workers in other languages take, and what the document says of it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fencepost.api.openapi import inlined

__all__ = [
    "CheckpointBody",
    "ClaimBody",
    "ErrorBody",
    "FinishBody",
    "ReleaseBody",
    "RenewBody",
    "RetryBody",
    "RunBody",
    "document",
]

JobId = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}$")]
Token = Annotated[str, Meta(pattern="^[0-9]{1,16}$", description="The fencing token, as decimal text.")]
Nonce = Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")]
WorkerName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$")]
Queue = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
LeaseS = Annotated[float, Meta(ge=1, le=3_600, description="Seconds; by default the application's.")]


class ClaimBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
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


class RunBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which run a call is about: all three of a claim. worker: as in the claim, for the records."""

    job_id: JobId
    token: Token
    nonce: Nonce
    worker: WorkerName = "unnamed"


class RunOfRenewal(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One run whose lease is to be renewed."""

    job_id: JobId
    token: Token
    nonce: Nonce


class RenewBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
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


def document(body: type[msgspec.Struct]) -> dict[str, Any]:
    """The request body in the document."""
    whole = msgspec.json.schema(body)
    definitions = whole.pop("$defs", {})
    schema = inlined({**definitions.pop(body.__name__), "$defs": definitions})
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
