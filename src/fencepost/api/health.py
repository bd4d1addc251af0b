"""What machines ask: does it live, can it work, how many workers are needed; and what a problem means."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from fencepost.api.problems import PAGES, Problem, page
from fencepost.api.service import Service
from fencepost.clock import boottime_s
from fencepost.doctor.server import server
from fencepost.errors import ConfigurationError, FencepostError
from fencepost.operate.demand import demand
from fencepost.operate.plan import View, look, run

__all__ = ["add_routes"]

_READ_AGAIN_S: Final = 1.0
_GIVE_UP_S: Final = 1.0
_LEDGER_S: Final = 2.0
_JOBS_PER_WORKER: Final = 100
"""The slots that a worker has by default."""


class _Readiness:
    """Whether the service can work. Asked without a credential, so it is found out once a second at most."""

    def __init__(self, service: Service) -> None:
        self._service, self._app = service, service.app
        self._task: asyncio.Task[dict[str, Any]] | None = None
        self._asked_s = -math.inf
        self._ledger: asyncio.Future[dict[str, Any]] | None = None

    async def told(self) -> dict[str, Any]:
        now_s = boottime_s()
        if self._task is None or (self._task.done() and now_s - self._asked_s >= _READ_AGAIN_S):
            self._asked_s, self._task = now_s, asyncio.create_task(self._find_out())
        found = await asyncio.shield(self._task)
        if self._service.stopping.is_set():
            found = {**found, "ready": False, "stopping": True}
        return found

    async def _find_out(self) -> dict[str, Any]:
        redis = await self._redis()
        about = {"ready": redis["ok"], "namespace": self._app.namespace, "redis": redis}
        if self._app.ledger_url is not None:
            about["ledger"] = await self._about_ledger()
        return about

    async def _redis(self) -> dict[str, Any]:
        driver, store = self._app.link.asynchronous, self._app.link.store
        try:
            view: View = await driver.run(look(store.keys, [("HGET", store.keys.meta, "seq")]), _GIVE_UP_S)
            found = await run(driver, server(store), _GIVE_UP_S)
        except FencepostError as error:
            return {"ok": False, "problem": type(error).__name__}  # the text would tell where Redis is
        errors = sorted(one.check for one in found if one.level == "error")
        if errors:
            return {"ok": False, "problem": "the doctor found errors", "checks": errors}
        return {"ok": True, "events": int(view.replies[0] or 0)}

    async def _about_ledger(self) -> dict[str, Any]:
        """Told, not required: what is not durable goes on without SQL. One look at a time, however long it takes."""
        if self._ledger is None or self._ledger.done():
            self._ledger = asyncio.ensure_future(asyncio.to_thread(_ledger_state, self._app))
        done, _ = await asyncio.wait({self._ledger}, timeout=_LEDGER_S)
        return self._ledger.result() if done else {"ok": False, "problem": "no answer in time"}


def _ledger_state(app: Any) -> dict[str, Any]:
    try:
        from fencepost.ledger.status import place

        epoch, seq, updated_at = place(app.ledger)
    except Exception as error:  # noqa: BLE001 - told, whatever it is
        return {"ok": False, "problem": type(error).__name__}
    return {"ok": True, "epoch": epoch, "seq": seq, "updated_at": updated_at}


def add_routes(router: APIRouter, service: Service) -> None:
    """Add /livez, /readyz, /v1/scaling and the pages of problems."""
    readiness = _Readiness(service)

    async def livez(request: Request) -> Response:
        return service.json({"live": True})

    async def readyz(request: Request) -> Response:
        found = await readiness.told()
        return service.json(found, 200 if found["ready"] else 503)

    async def scaling(request: Request) -> Response:
        await service.admit(request, "read")
        query = request.query_params
        queues = query.getlist("queue") or sorted(
            {one.settings.queue for one in service.app.handlers.values()} or {"default"}
        )
        plan = demand(service.app.link.store.keys, queues, _whole(query.get("jobs_per_worker")))
        return service.json(await service.operator.run(plan, _GIVE_UP_S))

    async def problem(request: Request) -> Response:
        slug = request.path_params["slug"]
        found = page(slug)
        if found is None:
            text = f"No problem is called {slug[:80]!a}. There are: {', '.join(sorted(PAGES))}."
            raise Problem(404, "no-such-problem", "No such problem", text)
        return PlainTextResponse(found)

    _document(router, livez, readyz, scaling, problem)


def _whole(text: str | None) -> int:
    if text is None:
        return _JOBS_PER_WORKER
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ConfigurationError("jobs_per_worker", f"{text[:40]!a} is no whole number", "Write 1 or more.")
    return int(text)


def _parameter(name: str, where: str, about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "description": about, "schema": schema}


def _object(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": {"type": "object"}}}}


def _problem(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/problem+json": {"schema": {"type": "object"}}}}


def _document(router: APIRouter, livez: Any, readyz: Any, scaling: Any, problem: Any) -> None:
    tags: list[Any] = ["health"]
    router.add_api_route(
        "/livez", livez, methods=["GET"], summary="Does the process answer", tags=tags, response_class=Response,
        responses={200: _object("It does. Nothing else is looked at.")}, openapi_extra={"security": []},
    )  # fmt: skip
    router.add_api_route(
        "/readyz", readyz, methods=["GET"], summary="Can it work: Redis answers, and its scripts run", tags=tags,
        response_class=Response, openapi_extra={"security": []},
        responses={200: _object("Ready."), 503: _object("Not ready, and why; or it is stopping.")},
    )  # fmt: skip
    parameters = [
        _parameter(
            "queue", "query", "May be repeated. By default the queues of all kinds of the application.",
            {"type": "array", "items": {"type": "string"}, "maxItems": 50},
        ),
        _parameter(
            "jobs_per_worker", "query", "Slots of one worker.",
            {"type": "integer", "minimum": 1, "maximum": 100_000, "default": _JOBS_PER_WORKER},
        ),
    ]  # fmt: skip
    router.add_api_route(
        "/v1/scaling", scaling, methods=["GET"], summary="How much work there is, and for how many workers", tags=tags,
        response_class=Response, openapi_extra={"parameters": parameters},
        responses={
            200: _object("Numbers for an autoscaler; desired_workers, ready, oldest_wait_s and more."),
            401: _problem("No credential."), 403: _problem("The scope read is missing."),
            422: _problem("A value is refused."), 429: _problem("Too many calls."), 503: _problem("Redis is away."),
        },
    )  # fmt: skip
    slug = {"type": "string", "enum": sorted(PAGES)}
    parameters = [_parameter("slug", "path", "The last part of a problem's type.", slug)]
    told = {"description": "In plain text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    router.add_api_route(
        "/v1/problems/{slug}", problem, methods=["GET"], summary="What a problem means, and what to do", tags=tags,
        response_class=Response, openapi_extra={"parameters": parameters, "security": []},
        responses={200: told, 404: _problem("No problem has this name.")},
    )  # fmt: skip
