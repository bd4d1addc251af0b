"""POST /v1/jobs/{kind}, /v1/jobs/batch and GET /v1/kinds: quick, and never the work itself."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from fencepost.api import openapi
from fencepost.api.admission import Caller
from fencepost.api.problems import Problem, of_error
from fencepost.api.requests import BatchBody, BatchItem, JobBody, header_key, idempotency_key, prepared
from fencepost.api.service import ProblemRoute, Service
from fencepost.errors import (
    ConfigurationError,
    FencepostError,
    JobNotFound,
    LedgerUnavailable,
    RedisUnavailable,
)
from fencepost.handle import Job
from fencepost.handler import Handler, Prepared

__all__ = ["add_routes"]

_IN_A_PATH: Final = re.compile(r"[^/{}?#%\\]+")
"""Other names cannot stand in a path of the document; such a kind is enqueued by batch."""

_ROOM: Final = 250
"""The longest key of a batch that leaves room for the number of an item."""


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes of this part: one that serves every kind, also those registered later, and for the document one
    for each kind there is now."""
    accepting = _Accepting(service)
    router.add_api_route(
        "/v1/jobs/batch", accepting.batch, methods=["POST"], response_model=None, status_code=200, tags=["jobs"],
        **openapi.batch_document(service),
    )  # fmt: skip
    router.add_api_route(
        "/v1/jobs/{kind}", accepting.any_kind, methods=["POST"], response_model=None, status_code=202,
        include_in_schema=False,
    )  # fmt: skip
    router.add_api_route(
        "/v1/kinds", accepting.kinds, methods=["GET"], response_model=None, tags=["jobs"], **openapi.kinds_document()
    )
    for handler in accepting.offered():
        if handler.kind == "batch":
            raise ConfigurationError("kind", '"batch" is the path of batches', "Give the handler another kind=….")
        if _IN_A_PATH.fullmatch(handler.kind):
            router.add_api_route(
                f"/v1/jobs/{handler.kind}", accepting.any_kind, methods=["POST"], response_model=None,
                status_code=202, tags=["jobs"], route_class_override=_Shown, **openapi.kind_document(handler, service),
            )  # fmt: skip


class _Shown(ProblemRoute):
    """A route that is in the document only: its calls are served by the one for every kind. So a call is not compared
    with the path of each kind, of which there may be hundreds."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.NONE, {}


class _Accepting:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._service, self._app = service, service.app

    def offered(self) -> list[Handler[Any, Any]]:
        """The kinds that may be enqueued over HTTP, by name."""
        return [one for name, one in sorted(self._app.handlers.items()) if self._offers(name)]

    def _offers(self, kind: str) -> bool:
        kinds = self._service.settings.kinds
        return kinds is None or kind in kinds

    def _handler(self, kind: str, caller: Caller) -> Handler[Any, Any]:
        handler = self._app.handlers.get(kind) if self._offers(kind) else None
        if handler is None:
            known = [one.kind for one in self.offered() if caller.may(f"enqueue:{one.kind}")]
            text = (
                f"This service offers no kind {kind[:80]!a}. Nothing was enqueued. Correct the name (there are: "
                f"{', '.join(known[:20]) or 'none'}{', …' if len(known) > 20 else ''}); GET /v1/kinds lists them."
            )
            raise Problem(404, "unknown-kind", "No such kind", text, kind=kind[:200], known=known[:20])
        return handler

    # -- one job ------------------------------------------------------------------------------------------

    async def any_kind(self, request: Request) -> Response:
        service, kind = self._service, request.path_params["kind"]
        caller = await service.admit(request, f"enqueue:{kind}")
        handler = self._handler(kind, caller)
        key = header_key(request)
        raw = await service.raw(request)
        body = service.decode(raw, JobBody) if raw else JobBody()
        where = (f"POST /v1/jobs/{kind}", raw)
        ready = prepared(handler, body, key, caller, where, service.settings.idempotency_ttl_s)
        try:
            job = await self._app.enqueue_prepared(ready)
        except ConfigurationError as error:
            raise _misconfigured(error) from error
        described = await self._described(job, ready, _root(request))
        headers = {"Location": described["links"]["self"]}
        if job.replayed:
            headers["Idempotent-Replayed"] = "true"
        return service.json(described, 202, headers)

    async def _described(self, job: Job[Any], ready: Prepared, root: str) -> dict[str, Any]:
        state = job.state
        if not state:  # replayed, and Redis has forgotten the job since
            try:
                state = (await job.status()).state
            except JobNotFound:
                state = "expired"
        here = f"{root}/v1/jobs/{job.id}"
        return {
            "id": job.id, "kind": ready.spec.kind, "queue": ready.spec.queue, "state": state,
            "duplicate": job.duplicate, "replayed": job.replayed, "links": {"self": here, "events": f"{here}/events"},
        }  # fmt: skip

    # -- many jobs ----------------------------------------------------------------------------------------

    async def batch(self, request: Request) -> Response:
        service = self._service
        caller = await service.admit(request, "")
        key = header_key(request)
        body = await service.body(request, BatchBody)
        most = service.settings.max_batch
        if len(body.jobs) > most:
            text = f"The batch has {len(body.jobs)} jobs, {most} are allowed. Nothing was enqueued. Send it in parts."
            raise Problem(422, "batch-too-large", "The batch is too large", text)
        ready = [self._item(raw, key, number, caller) for number, raw in enumerate(body.jobs)]
        jobs = [one for one in ready if isinstance(one, Prepared)]
        answers = await self._app.enqueue_many(jobs) if jobs else []
        _check_any_answer(answers)
        left, root, items = iter(answers), _root(request), []
        for one in ready:
            items.append(await self._outcome(one, next(left) if isinstance(one, Prepared) else one, root))
        accepted = sum("job" in item for item in items)
        return service.json({"jobs": items, "accepted": accepted, "refused": len(items) - accepted})

    async def _outcome(
        self, ready: Prepared | Problem, answer: Job[Any] | FencepostError | Problem, root: str
    ) -> dict[str, Any]:
        try:
            if isinstance(answer, Job) and isinstance(ready, Prepared):
                return {"status": 202, "job": await self._described(answer, ready, root)}
        except FencepostError as error:  # it was accepted before; what became of it cannot be read now
            answer = error
        problem = answer if isinstance(answer, Problem) else _of_sent(answer)  # type: ignore[arg-type]
        return {"status": problem.status, "problem": problem.to_json()}

    def _item(self, raw: msgspec.Raw, key: str | None, number: int, caller: Caller) -> Prepared | Problem:
        """One item of a batch, or why it is refused: it does not keep the others out."""
        service = self._service
        try:
            item = service.decode(bytes(raw), BatchItem)
            caller.check(f"enqueue:{item.kind}")
            handler = self._handler(item.kind, caller)
            own = idempotency_key(item.idempotency_key)
            if own is None and key is not None:
                short = key if len(key) <= _ROOM else blake2b(key.encode(), digest_size=20).hexdigest()
                own = f"{short}#{number}"
            where = ("POST /v1/jobs/batch", bytes(raw))
            return prepared(handler, item, own, caller, where, service.settings.idempotency_ttl_s)
        except Problem as problem:
            return problem
        except FencepostError as error:
            return of_error(error)

    # -- what there is ------------------------------------------------------------------------------------

    async def kinds(self, request: Request) -> Response:
        caller = await self._service.admit(request, "")
        shown = [openapi.described(one) for one in self.offered() if caller.may(f"enqueue:{one.kind}")]
        ttl_s = self._service.settings.idempotency_ttl_s
        return self._service.json({"kinds": shown, "idempotency_ttl_s": ttl_s})


def _root(request: Request) -> str:
    """Where the service is mounted, as it stands in a URL: "" or "/queue"."""
    path = request.scope["path"]
    root = path[: path.rindex("/v1/jobs/")]
    return quote(root) if root else ""


def _check_any_answer(answers: list[Job[Any] | FencepostError]) -> None:
    """Raise the error if Redis or SQL kept all jobs of a batch out: to the caller that is one failed call."""
    away = [one for one in answers if isinstance(one, RedisUnavailable | LedgerUnavailable)]
    if away and len(away) == len(answers):
        raise away[0]


def _of_sent(error: FencepostError) -> Problem:
    """The problem of a job that was in order and could not be sent."""
    return _misconfigured(error) if isinstance(error, ConfigurationError) else of_error(error)


def _misconfigured(error: ConfigurationError) -> Problem:
    # The values of the caller were checked before; this is the ledger's set-up, of which callers need not hear more.
    return Problem(
        500, "misconfigured", "The service is not set up",
        f"A setting of the service is wrong ({error.setting}). Nothing was enqueued. Its operator has to mend it.",
    )  # fmt: skip
