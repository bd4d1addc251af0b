"""POST /v1/jobs/{kind}, /v1/jobs/batch and GET /v1/kinds: quick, and never the work itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from fencepost.api import openapi
from fencepost.api.admission import Caller
from fencepost.api.problems import Problem, of_error
from fencepost.api.requests import BatchBody, BatchItem, JobBody, idempotency_key, prepared
from fencepost.api.service import Service
from fencepost.errors import ConfigurationError, FencepostError, JobNotFound, UnknownKind
from fencepost.handle import Job
from fencepost.handler import Handler, Prepared

__all__ = ["add_routes"]

_HEADER: Final = "Idempotency-Key"


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes of this part: one for each kind there is now, and one for those that are registered later."""
    accepting = _Accepting(service)
    router.add_api_route(
        "/v1/kinds", accepting.kinds, methods=["GET"], response_model=None, tags=["jobs"], **openapi.kinds_document()
    )
    router.add_api_route(
        "/v1/jobs/batch", accepting.batch, methods=["POST"], response_model=None, status_code=200, tags=["jobs"],
        **openapi.batch_document(service),
    )  # fmt: skip
    for handler in accepting.offered():
        if handler.kind == "batch":
            raise ConfigurationError("kind", '"batch" is the path of batches', "Give the handler another kind=….")
        router.add_api_route(
            f"/v1/jobs/{handler.kind}", accepting.route_of(handler.kind), methods=["POST"], response_model=None,
            status_code=202, tags=["jobs"], **openapi.kind_document(handler, service),
        )  # fmt: skip
    router.add_api_route(
        "/v1/jobs/{kind}", accepting.any_kind, methods=["POST"], response_model=None, status_code=202,
        include_in_schema=False,
    )  # fmt: skip


class _Accepting:
    """The routes of one service."""

    def __init__(self, service: Service) -> None:
        self._service, self._app = service, service.app

    def offered(self) -> list[Handler[Any, Any]]:
        """The kinds that may be enqueued over HTTP, by name."""
        kinds = self._service.settings.kinds
        return [one for name, one in sorted(self._app.handlers.items()) if kinds is None or name in kinds]

    def _handler(self, kind: str) -> Handler[Any, Any]:
        kinds = self._service.settings.kinds
        if kinds is not None and kind not in kinds:
            raise UnknownKind(kind, tuple(sorted(kinds)))
        return self._app.handler(kind)

    # -- one job ------------------------------------------------------------------------------------------

    def route_of(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def route(request: Request) -> Response:
            return await self._accept(request, kind)

        return route

    async def any_kind(self, request: Request) -> Response:
        return await self._accept(request, request.path_params["kind"])

    async def _accept(self, request: Request, kind: str) -> Response:
        service = self._service
        caller = await service.admit(request, f"enqueue:{kind}")
        handler = self._handler(kind)
        key = idempotency_key(request.headers.get(_HEADER))
        raw = await service.raw(request)
        body = service.decode(raw, JobBody) if raw else JobBody()
        where = (f"POST /v1/jobs/{kind}", raw)
        ready = prepared(handler, body, key, caller, where, service.settings.idempotency_ttl_s)
        job = await self._app.enqueue_prepared(ready)
        described = await self._described(job, ready, request)
        headers = {"Location": described["links"]["self"]}
        if job.replayed:
            headers["Idempotent-Replayed"] = "true"
        return service.json(described, 202, headers)

    async def _described(self, job: Job[Any], ready: Prepared, request: Request) -> dict[str, Any]:
        state = job.state
        if not state:  # replayed, and Redis has forgotten the job since
            try:
                state = (await job.status()).state
            except JobNotFound:
                state = "expired"
        path = request.scope["path"]
        here = f"{path[: path.rindex('/v1/jobs/')]}/v1/jobs/{job.id}"
        return {
            "id": job.id, "kind": ready.spec.kind, "queue": ready.spec.queue, "state": state,
            "duplicate": job.duplicate, "replayed": job.replayed, "links": {"self": here, "events": f"{here}/events"},
        }  # fmt: skip

    # -- many jobs ----------------------------------------------------------------------------------------

    async def batch(self, request: Request) -> Response:
        service = self._service
        caller = await service.admit(request, "")
        key = idempotency_key(request.headers.get(_HEADER))
        body = await service.body(request, BatchBody)
        most = service.settings.max_batch
        if len(body.jobs) > most:
            text = f"The batch has {len(body.jobs)} jobs, {most} are allowed. Nothing was enqueued. Send it in parts."
            raise Problem(422, "batch-too-large", "The batch is too large", text)
        ready = [self._item(raw, key, number, caller) for number, raw in enumerate(body.jobs)]
        jobs = [one for one in ready if isinstance(one, Prepared)]
        answers = iter(await self._app.enqueue_many(jobs) if jobs else [])
        items, accepted = [], 0
        for one in ready:
            answer = next(answers) if isinstance(one, Prepared) else one
            if isinstance(answer, Job) and isinstance(one, Prepared):
                accepted += 1
                items.append({"status": 202, "job": await self._described(answer, one, request)})
            else:
                problem = answer if isinstance(answer, Problem) else of_error(answer)  # type: ignore[arg-type]
                items.append({"status": problem.status, "problem": problem.to_json()})
        return service.json({"jobs": items, "accepted": accepted, "refused": len(items) - accepted})

    def _item(self, raw: msgspec.Raw, key: str | None, number: int, caller: Caller) -> Prepared | Problem:
        """One item of a batch, or why it is refused: it does not keep the others out."""
        service = self._service
        try:
            item = service.decode(bytes(raw), BatchItem)
            caller.check(f"enqueue:{item.kind}")
            handler = self._handler(item.kind)
            own = idempotency_key(item.idempotency_key)
            if own is None and key is not None:
                own = idempotency_key(f"{key}#{number}")
            where = (f"POST /v1/jobs/{item.kind}", bytes(raw))
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
