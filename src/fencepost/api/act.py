"""What operators do over HTTP: cancel, requeue and purge jobs, pause queues, revoke what is held.

Each action has a reason. It stands with the caller's name in the events, and in the ledger.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from fencepost.api.openapi import problems
from fencepost.api.problems import Problem
from fencepost.api.requests import header_key
from fencepost.api.schemas import inlined
from fencepost.api.service import Caller, Service
from fencepost.errors import IllegalTransition, JobNotFound, StaleToken
from fencepost.operate import BulkReport, DeadFilter, ItemOutcome, Operator, QueueChange
from fencepost.operate.dead import to_json

__all__ = ["add_routes"]

_MOST_IDS: Final = 1_000
_KEY: Final = 255

_Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=200, description="Why, in one line.")]
_Token = Annotated[
    str, msgspec.Meta(pattern="^[0-9]{1,16}$", description="The fencing token, as the caller saw it: decimal text.")
]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class _Why(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    reason: _Reason


class _Cancel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    reason: _Reason
    hard: Annotated[bool, msgspec.Meta(description="Take a running job from its worker at once.")] = False
    token: _Token | None = None


class _Revoke(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: Annotated[_Id, msgspec.Meta(description="A job's id, or @ and the nonce of a stand-alone lease.")]
    token: _Token
    reason: _Reason


class _Filter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters are meant: all that agree with each part that is set."""

    kind: str = ""
    reason: str = ""
    error_class: str = ""
    older_than_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


class _Bulk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of filter and ids is needed."""

    reason: _Reason
    filter: _Filter | None = None
    ids: Annotated[list[_Id], msgspec.Meta(min_length=1, max_length=_MOST_IDS)] | None = None
    dry_run: Annotated[bool, msgspec.Meta(description="With a filter: only count them.")] = False


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes of this part."""
    act = _Acts(service)
    of_job = (404, 409)
    for path, endpoint, shape, name, summary, refusals in (
        ("/v1/jobs/{id}/cancel", act.cancel, _Cancel, "cancel_job", "Cancel a job", of_job),
        ("/v1/jobs/{id}/requeue", act.requeue, _Why, "requeue_job", "Start a failed or cancelled job again", of_job),
        ("/v1/jobs/{id}/purge", act.purge, _Why, "purge_job", "Forget an ended job for good", of_job),
        ("/v1/dead/requeue", act.requeue_dead, _Bulk, "requeue_dead", "Start dead letters again", ()),
        ("/v1/dead/purge", act.purge_dead, _Bulk, "purge_dead", "Forget dead letters for good", ()),
        ("/v1/queues/{queue}/pause", act.pause, _Why, "pause_queue", "Hand out nothing more from a queue", ()),
        ("/v1/queues/{queue}/resume", act.resume, _Why, "resume_queue", "Let a paused queue go on", ()),
        ("/v1/leases/revoke", act.revoke, _Revoke, "revoke", "Take a run or a lease from its holder", of_job),
    ):
        router.add_api_route(
            path, endpoint, methods=["POST"], response_model=None, tags=["act"], summary=summary, operation_id=name,
            responses={200: _DONE, **problems(400, 401, 403, 413, 415, 422, 429, 503, *refusals)},
            openapi_extra=_document(path, shape, keyed=endpoint in (act.cancel, act.requeue, act.revoke)),
        )  # fmt: skip


class _Acts:
    """The handlers. Each acts under the name of its caller."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def cancel(self, request: Request) -> Response:
        """A job that waits ends at once. A running one is asked to stop (`asked`), which its worker learns with its
        next heartbeat; `hard` takes it from its worker at once, whose later writes are refused. With `token` only if
        that is still the job's newest."""
        caller = await self._service.admit(request, "operate")
        body, job_id = await self._service.body(request, _Cancel), request.path_params["id"]
        operator = self._operator(caller)
        report = await operator.run(
            operator.cancel(
                [job_id],
                hard=body.hard,
                reason=body.reason,
                token=body.token or "",
                request_id=_request_id(request, caller, body),
            )
        )
        outcome = _only(report, body.token or "")
        return self._service.json({"id": job_id, "outcome": outcome.word, "state_before": outcome.detail})

    async def requeue(self, request: Request) -> Response:
        """The job begins a new generation, with fresh counters; its history stays."""
        caller = await self._service.admit(request, "operate")
        body, job_id = await self._service.body(request, _Why), request.path_params["id"]
        operator = self._operator(caller)
        plan = operator.requeue([job_id], reason=body.reason, request_id=_request_id(request, caller, body))
        outcome = _only(await operator.run(plan))
        return self._service.json({"id": job_id, "outcome": outcome.word, "generation": int(outcome.detail)})

    async def purge(self, request: Request) -> Response:
        """A live job is never touched. The ledger keeps what it knows."""
        caller = await self._service.admit(request, "operate")
        body, job_id = await self._service.body(request, _Why), request.path_params["id"]
        operator = self._operator(caller)
        outcome = _only(await operator.run(operator.purge([job_id], reason=body.reason)))
        return self._service.json({"id": job_id, "outcome": outcome.word, "state_before": outcome.detail})

    async def requeue_dead(self, request: Request) -> Response:
        """By filter or by ids. Each job has an outcome of its own; one that cannot be done keeps none of the others
        back. With a filter the answer has counts, and those that were refused."""
        caller = await self._service.admit(request, "operate")
        body, operator = await self._bulk(request), self._operator(caller)
        if body.ids is not None:
            report = await operator.run(operator.requeue(body.ids, reason=body.reason))
        else:
            plan = operator.requeue_all(_chosen(body), dry_run=body.dry_run, reason=body.reason)
            report = await operator.run(plan)
        return self._service.json(to_json(report))

    async def purge_dead(self, request: Request) -> Response:
        """As requeue. An empty filter means all dead letters: look with `dry_run` first."""
        caller = await self._service.admit(request, "operate")
        body, operator = await self._bulk(request), self._operator(caller)
        if body.ids is not None:
            report = await operator.run(operator.purge(body.ids, reason=body.reason))
        else:
            plan = operator.purge_all(_chosen(body), dry_run=body.dry_run, reason=body.reason)
            report = await operator.run(plan)
        return self._service.json(to_json(report))

    async def pause(self, request: Request) -> Response:
        """What runs goes on, and what is enqueued is kept. Pausing twice changes nothing: the first reason stays."""
        caller = await self._service.admit(request, "operate")
        body, operator = await self._service.body(request, _Why), self._operator(caller)
        change = await operator.run(operator.pause(request.path_params["queue"], reason=body.reason))
        return self._changed(change)

    async def resume(self, request: Request) -> Response:
        """`running`: it was not paused."""
        caller = await self._service.admit(request, "operate")
        body, operator = await self._service.body(request, _Why), self._operator(caller)
        change = await operator.run(operator.resume(request.path_params["queue"], reason=body.reason))
        return self._changed(change)

    async def revoke(self, request: Request) -> Response:
        """What the holder still writes is refused. `became`: `queued` (the job is back in its queue, no attempt
        charged), `cancelled` (that had been asked for) or `ended` (a lease; the next in line has the place)."""
        caller = await self._service.admit(request, "operate")
        body, operator = await self._service.body(request, _Revoke), self._operator(caller)
        plan = operator.revoke(body.id, body.token, reason=body.reason, request_id=_request_id(request, caller, body))
        became = await operator.run(plan)
        return self._service.json({"id": body.id, "outcome": "revoked", "became": became})

    def _operator(self, caller: Caller) -> Operator:
        name = f"{caller.name} ({caller.id})" if caller.id else caller.name
        return Operator(self._service.app, actor=name)

    async def _bulk(self, request: Request) -> _Bulk:
        body = await self._service.body(request, _Bulk)
        if (body.filter is None) == (body.ids is None):
            raise _refused("Exactly one of `filter` and `ids` is needed.")
        if body.ids is not None and body.dry_run:
            raise _refused("`dry_run` goes with `filter`.")
        return body

    def _changed(self, change: QueueChange) -> Response:
        told = {"queue": change.queue, "outcome": change.word}
        return self._service.json(told | ({} if change.paused_at is None else {"paused_at": change.paused_at}))


def _refused(detail: str) -> Problem:
    return Problem(422, "body-refused", "The body does not fit", f"{detail} Nothing was changed.")


def _chosen(body: _Bulk) -> DeadFilter:
    chosen = body.filter or _Filter()
    return DeadFilter(
        kind=chosen.kind, reason=chosen.reason, error_class=chosen.error_class, older_than_s=chosen.older_than_s
    )


def _only(report: BulkReport, token: str = "") -> ItemOutcome:
    """The outcome of an action on one job. Raises what stands for a refusal."""
    [outcome] = report.outcomes
    if outcome.word == "gone":
        raise JobNotFound(outcome.id)
    if outcome.word == "stale":
        raise StaleToken(outcome.id, int(token), int(outcome.detail))
    if outcome.word == "illegal":
        raise IllegalTransition(outcome.id, outcome.detail, report.verb)
    if outcome.word == "duplicate":
        raise Problem(
            409,
            "duplicate",
            "A newer job has the dedup key",
            f"The dedup key of job {outcome.id} belongs to job {outcome.detail}, which lives. Nothing was changed. "
            f"Wait until that one has ended.",
            job_id=outcome.id,
            owner=outcome.detail,
        )
    return outcome


def _request_id(request: Request, caller: Caller, body: msgspec.Struct) -> str:
    """The header Idempotency-Key, as the id of this caller's request; "" without one. The same key with another path or
    body is another request: it is done, not taken for the first one. Raises Problem 400."""
    key = header_key(request)
    if key is None:
        return ""
    whole = msgspec.json.encode([caller.id, key, request.scope["path"], body])
    return blake2b(whole, digest_size=16).hexdigest()


# -- the document ---------------------------------------------------------------------------------------------

_DONE: Final = {"description": "Done.", "content": {"application/json": {"schema": {"type": "object"}}}}
_PARAMETERS: Final = {
    "id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
    "queue": {
        "name": "queue",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"},
    },
}
_HEADER: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key again gets the same answer again, and nothing is done twice.",
    "schema": {"type": "string", "minLength": 1, "maxLength": _KEY},
}


def _document(path: str, shape: type, keyed: bool) -> dict[str, Any]:
    """What the document says of body and parameters. keyed: the call may have an idempotency key."""
    parameters = [one for name, one in _PARAMETERS.items() if f"{{{name}}}" in path] + ([_HEADER] if keyed else [])
    schema = {name: value for name, value in inlined(msgspec.json.schema(shape)).items() if name != "title"}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"parameters": parameters, "requestBody": body}
