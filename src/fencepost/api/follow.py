"""Reading over HTTP: one job, lists of jobs, dead letters, resources and queues. Nothing is changed by reading."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from fencepost.api.problems import MEDIA_TYPE, Problem
from fencepost.api.query import CURSOR, LIMIT, Parameter, described, read
from fencepost.api.service import Service
from fencepost.api.shown import job_json, line_json, preview
from fencepost.api.story import Found, Stories
from fencepost.api.tail import ENDS, PATIENCE_S
from fencepost.job import JobRecord
from fencepost.operate import DeadFilter, Page
from fencepost.operate.jobs import records
from fencepost.operate.plan import cursor_of, place_of
from fencepost.states import State

__all__ = ["add_routes", "described_route", "hidden_names"]

_STEPS: Final = 20
_PREVIEWED: Final = 100
_PREVIEWS_AT_A_TIME: Final = 20  # payloads may be large: they are not all read at once
_ORDER: Final = (
    State.PROCESSING, State.QUEUED, State.WAITING, State.SCHEDULED, State.FAILED, State.DONE, State.CANCELLED,
)  # fmt: skip
_QUEUE: Final = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"

_WAIT: Final = Parameter(
    "wait", "number", "Seconds to wait until the job has ended. More than the service allows is cut.", high=math.inf
)
_HISTORY: Final = Parameter("history", "flag", "Its events too, oldest first.", default=False)
_PREVIEW: Final = Parameter(
    "preview", "flag", f"The beginning of the arguments too; at most {_PREVIEWED} entries then.", default=False
)
_KIND: Final = Parameter("kind", "text", "Only of this kind.")
_ERROR_CLASS: Final = Parameter("error_class", "text", "Only those whose last error was of this class.")
_JOBS: Final = (
    Parameter("state", "text", "Only in this state. Without it, state by state.", words=tuple(map(str, _ORDER))),
    _KIND,
    Parameter("queue", "text", "Only of this queue.", longest=100, pattern=_QUEUE),
    Parameter("resource", "text", "Only those that need this resource."),
    _ERROR_CLASS, _PREVIEW, LIMIT, CURSOR,
)  # fmt: skip
_DEAD: Final = (
    _KIND,
    Parameter("reason", "text", "Only those that failed for this reason, such as `exhausted`."),
    _ERROR_CLASS,
    Parameter("older_than_s", "number", "Only those that failed at least so many seconds ago.", default=0),
    _PREVIEW, LIMIT, CURSOR,
)  # fmt: skip


def hidden_names(service: Service) -> Sequence[str]:
    """The names that the application declares as secret, beside those that always are."""
    return service.app.redact


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes of this part."""
    follow = _Follow(service)
    no_job, free = {404: "There is no such job."}, {404: "Nobody holds it."}
    add, many = described_route, {422: "A parameter does not fit."}
    add(router, "/v1/jobs/{id}", follow.job, "Read a job, or wait for its end", (_WAIT, _HISTORY), no_job | many)
    add(router, "/v1/jobs", follow.jobs, "List jobs", _JOBS, many)
    add(router, "/v1/dead", follow.dead, "List dead letters", _DEAD, many)
    add(router, "/v1/resources", follow.resources, "List the resources that are held", (LIMIT, CURSOR), many)
    add(router, "/v1/resources/{resource:path}", follow.resource, "See who holds a resource", (), free | many)
    add(router, "/v1/queues", follow.queues, "List queues", (), many)


class _Follow:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service, self._operator = service, service.operator
        self._stories = Stories(service.app, service.operator)
        self._keys = service.app.link.store.keys

    async def job(self, request: Request) -> Response:
        """The job as it is now. What Redis has forgotten comes from the ledger, and `source` says so; `result_expired`:
        it is done, but its result is not kept any more. `lost`: Redis lost it before it ended (`last_known_state`, and
        `comes_back` where the ledger puts it back). With `wait` the answer comes when the job has ended, and else after
        that time, with the state it has then. Arguments, results and errors are shown with secrets hidden."""
        await self._service.admit(request, "read")
        asked, job_id = read(request, (_WAIT, _HISTORY)), request.path_params["id"]
        wait_s = min(asked["wait"] or 0.0, self._service.settings.max_wait_s)
        found = await self._stories.find(job_id)
        if wait_s and not found.ended:
            found = await self._when_ended(request, found, wait_s)
            await self._service.recheck(request, "read")
        record = found.view.record
        story = await self._stories.story(record.id) if asked["history"] else None
        return self._service.json(job_json(found, story, hidden_names(self._service)))

    async def _when_ended(self, request: Request, found: Found, wait_s: float) -> Found:
        job_id, until_s = found.view.record.id, time.monotonic() + wait_s
        with await self._service.tail.listen(job_id) as listener:
            listener.watch(request, self._service.ending(), self._service.unwelcome(request, "read"))
            found = await self._stories.find(job_id)  # it may have ended just before somebody listened
            while not found.ended and not listener.ended and (left_s := until_s - time.monotonic()) > 0:
                events, again = await listener.news(left_s)
                if again or any(one.name in ENDS for one in events):
                    found = await self._stories.find(job_id)
            return found if found.ended else await self._stories.find(job_id)

    async def jobs(self, request: Request) -> Response:
        """In the order in which they are served; those that have ended newest first. `missing`: ids that an index names
        and whose records are gone. A list moves while it is read: what moves may be shown twice."""
        await self._service.admit(request, "read")
        asked = read(request, _JOBS)
        self._check_preview(asked)
        page = await (self._in_state(asked) if asked["state"] else self._in_any_state(asked))
        return await self._page(page, asked)

    async def dead(self, request: Request) -> Response:
        """The newest first. Nothing is dropped by reading."""
        await self._service.admit(request, "read")
        asked = read(request, _DEAD)
        self._check_preview(asked)
        chosen = DeadFilter(
            kind=asked["kind"] or "",
            reason=asked["reason"] or "",
            error_class=asked["error_class"] or "",
            older_than_s=asked["older_than_s"],
        )
        plan = self._operator.dead(chosen, limit=asked["limit"], cursor=asked["cursor"])
        return await self._page(await self._operator.run(plan, PATIENCE_S), asked)

    async def resources(self, request: Request) -> Response:
        """By name, those that a run or a stand-alone lease holds, or that are reserved for the next job in line. A
        holder has its token and what is left of its time; waiters come in the order in which they are served."""
        await self._service.admit(request, "read")
        asked = read(request, (LIMIT, CURSOR))
        plan = self._operator.locks(limit=asked["limit"], cursor=asked["cursor"])
        page = await self._operator.run(plan, PATIENCE_S)
        return self._service.json({"items": msgspec.to_builtins(page.items), "cursor": page.cursor})

    async def resource(self, request: Request) -> Response:
        """One resource: its holders, how many wait, and the first of them."""
        await self._service.admit(request, "read")
        read(request, ())
        name = request.path_params["resource"]
        page = await self._operator.run(self._operator.locks(name), PATIENCE_S) if name else None
        if page is None or not page.items:
            text = f"Nobody holds {name[:200]!a} or waits for it. Nothing was changed."
            raise Problem(404, "resource-free", "The resource is free", text, resource=name)
        return self._service.json(msgspec.to_builtins(page.items[0]))

    async def queues(self, request: Request) -> Response:
        """Each with the jobs that could start now, how long the next one has waited, the workers that serve it, and
        why it is paused. `whole`: all were looked for; else those that nobody serves may be missing."""
        await self._service.admit(request, "read")
        read(request, ())
        seen = await self._operator.run(self._operator.overview(steps=_STEPS), PATIENCE_S)
        return self._service.json(
            {
                "now": seen.now_ms,
                "queues": msgspec.to_builtins(seen.queues),
                "whole": seen.whole,
                "scheduled": seen.scheduled,
                "in_hand": seen.in_hand,
                "failed": seen.failed,
                "ended": seen.ended,
            }
        )

    # -- pages --------------------------------------------------------------------------------------------

    def _check_preview(self, asked: dict[str, Any]) -> None:
        if not asked["preview"] or asked["limit"] <= _PREVIEWED:
            return
        text = f"With `preview` a page has at most {_PREVIEWED} entries. Nothing was changed."
        raise Problem(422, "value-refused", "A value cannot be used", text)

    async def _in_state(self, asked: dict[str, Any]) -> Page[JobRecord]:
        filters = {name: asked[name] for name in ("queue", "kind", "resource", "error_class", "cursor")}
        plan = self._operator.jobs(asked["state"], limit=asked["limit"], **filters)
        return await self._operator.run(plan, PATIENCE_S)

    async def _in_any_state(self, asked: dict[str, Any]) -> Page[JobRecord]:
        """State by state. The cursor is the state, and the cursor within it."""
        opened = place_of(asked["cursor"], (State, str))
        started, inner = opened or (_ORDER[0], "")
        items: list[JobRecord] = []
        missing: list[str] = []
        for at in range(_ORDER.index(started), len(_ORDER)):
            page = await self._in_state(
                asked | {"state": _ORDER[at], "limit": asked["limit"] - len(items), "cursor": inner}
            )
            items, missing, inner = items + page.items, missing + page.missing, ""
            if page.cursor:  # as every full page has
                return Page(items, cursor_of(_ORDER[at], page.cursor), missing)
        return Page(items, None, missing)

    async def _page(self, page: Page[JobRecord], asked: dict[str, Any]) -> Response:
        items = [line_json(record) for record in page.items]
        hidden = hidden_names(self._service)
        for at in range(0, len(items) if asked["preview"] else 0, _PREVIEWS_AT_A_TIME):
            part = items[at : at + _PREVIEWS_AT_A_TIME]
            plan = records(self._keys, [one["id"] for one in part], ("payload",))
            payloads = await self._operator.run(plan, PATIENCE_S)
            for one in part:
                if (record := payloads[one["id"]]) is not None:
                    one["args_preview"] = preview(record.payload, hidden)
        return self._service.json({"items": items, "cursor": page.cursor, "missing": page.missing})


# -- the document ---------------------------------------------------------------------------------------------

_PATHS: Final = {
    "id": {"type": "string", "maxLength": 200},
    "resource": {"type": "string", "maxLength": 512},
}


def described_route(
    router: APIRouter,
    path: str,
    endpoint: Callable[[Request], Awaitable[Response]],
    summary: str,
    parameters: Sequence[Parameter],
    refusals: dict[int, str],
    *,
    media_type: str = "application/json",
    more: Sequence[dict[str, Any]] = (),
) -> None:
    """Add a route that reads. more: further parameters, as OpenAPI writes them."""
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in _PATHS.items()
        if f"{{{name}" in path
    ]
    problem = {"content": {MEDIA_TYPE: {"schema": {"type": "object"}}}}
    schema = {"type": "object"} if media_type == "application/json" else {"type": "string"}
    told = {503: "Redis gave no answer.", **refusals}
    router.add_api_route(
        path,
        endpoint,
        methods=["GET"],
        summary=summary,
        tags=["follow"],
        response_class=Response,
        responses={
            200: {"description": "As it is now.", "content": {media_type: {"schema": schema}}},
            **{status: {"description": text, **problem} for status, text in sorted(told.items())},
        },
        openapi_extra={"parameters": [*in_path, *described(parameters), *more]},
    )
