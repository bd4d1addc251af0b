"""The events of one job as server-sent events: its history, then what happens, until it is over.

The id of an event is "<seq>.<at_ms>": a number alone would not do, as a Redis that lost the end of its data gives
numbers out again. The id of the last message has ".end" behind it, so that who comes back with it has missed nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost.api.follow import described_route, hidden_names
from fencepost.api.service import Service
from fencepost.api.story import MOVES, Found, Stories, ended_by, state_after
from fencepost.api.tail import ENDS, Listener
from fencepost.errors import JobNotFound, LedgerUnavailable, RedisUnavailable
from fencepost.operate import Event
from fencepost.states import TERMINAL

__all__ = ["PING_S", "add_routes"]

PING_S = 15.0
"""So often a comment is sent where nothing happens: proxies close what is silent."""
_RETRY_MS: Final = 1_000
_AGAIN_S: Final = 0.5
_END: Final = ".end"
_NONE: Final = "0.0"
_HEADER: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "Go on behind this event. One that is not known gives everything again.",
    "schema": {"type": "string"},
}


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes of this part."""
    described_route(
        router, "/v1/jobs/{id}/events", _Streams(service).events, "Follow the events of a job", (),
        {204: "The job is over and the caller has all of it.", 404: "There is no such job.", 422: "A parameter."},
        media_type="text/event-stream", more=(_HEADER,),
    )  # fmt: skip


class _Streams:
    """The handler."""

    def __init__(self, service: Service) -> None:
        self._service, self._stories = service, Stories(service.app, service.operator)

    async def events(self, request: Request) -> Response:
        """Server-sent events: `event` is what happened, `data` is JSON, `id` goes into Last-Event-ID to go on from
        there. The last one is `end` with the job's state; who comes back after it gets 204. A caller that comes back
        earlier misses nothing and gets nothing twice."""
        await self._service.admit(request, "read")
        job_id = request.path_params["id"]
        found = await self._stories.find(job_id)
        job_id = found.view.record.id  # of a job that another one has the work of: the other one
        listener = await self._service.tail.listen(job_id)
        try:
            stream = _Stream(self._stories, listener, hidden_names(self._service))
            rest = await stream.begin(request.headers.get("last-event-id", ""))
            if rest is None:
                listener.close()
                return Response(status_code=204)
            listener.watch(request, self._service.ending(), self._service.unwelcome(request, "read"))
            return _Answer(listener, stream.messages(rest))
        except BaseException:
            listener.close()
            raise


class _Answer(EventSourceResponse):
    """Its listener ends with it, also where the caller is gone before the first byte and nothing is iterated."""

    def __init__(self, listener: Listener, content: AsyncIterator[bytes]) -> None:
        # Nginx would keep the events back until it has a bufferful of them.
        super().__init__(content, headers={"X-Accel-Buffering": "no"})
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._listener.close()


class _Stream:
    """What one caller is sent. It keeps the ids of what it has sent, so that a history can be read again."""

    def __init__(self, stories: Stories, listener: Listener, hidden: Collection[str]) -> None:
        self._stories, self._listener, self._hidden = stories, listener, hidden
        self._sent: set[tuple[int, int]] = set()
        self._last = ""
        self._found: Found | None = None
        self._over: str | None = None

    async def begin(self, last_id: str) -> list[Event] | None:
        """What is to be sent at first; None where the caller has everything and the job is over.

        Raises JobNotFound, RedisUnavailable, LedgerUnavailable (only it knows how the job began).
        """
        events = await self._read()
        known, over = last_id.removesuffix(_END), last_id.endswith(_END)
        at = next((n for n, one in enumerate(events, 1) if _id(one) == known), 0)
        if at:
            self._last = known
        self._sent = {(one.seq, one.at) for one in events[:at]}
        return None if over and at == len(events) and self._over is not None else events[at:]

    async def _read(self) -> list[Event]:
        """Read the job, then its history, and note whether it is over."""
        job_id = self._listener.job_id
        self._found = found = await self._stories.find(job_id)
        events = (await self._stories.story(job_id, strict=True)).events
        self._over = None
        if (end := ended_by(events)) is not None:
            self._over = state_after(end)
        elif found.lost and not found.view.record.durable:
            self._over = "lost"
        elif found.ended:  # no event tells of it (any more), or it comes in a moment, or a new generation has begun
            again = (await self._stories.find(job_id)).view.record
            same = again.generation == found.view.record.generation
            self._over = again.state if same and again.state in TERMINAL else None
        return events

    async def messages(self, rest: list[Event]) -> AsyncIterator[bytes]:
        """The messages, as bytes."""
        yield format_sse_event(retry=_RETRY_MS, comment="fencepost")
        for one in rest:
            yield self._message(one)
        behind, said_s = False, time.monotonic()
        while self._over is None and not self._listener.ended:
            events, again = await self._listener.news(_AGAIN_S if behind else PING_S)
            if behind or again:
                events, behind = await self._missed()
            for one in events:
                if (one.seq, one.at) in self._sent:
                    continue
                yield self._message(one)
                said_s = time.monotonic()
                if one.name in MOVES:
                    self._over = state_after(one) if one.name in ENDS else None
            if time.monotonic() - said_s >= PING_S:
                yield format_sse_event(comment="ping")
                said_s = time.monotonic()
        if self._over is not None:
            data = {"id": self._listener.job_id, "state": self._over}
            yield format_sse_event(
                data_str=msgspec.json.encode(data).decode(), event="end", id=f"{self._last or _NONE}{_END}"
            )

    async def _missed(self) -> tuple[list[Event], bool]:
        """The history, read again, and whether that has to be tried once more."""
        try:
            return await self._read(), False
        except JobNotFound:
            self._over = "gone"
            return [], False
        except (RedisUnavailable, LedgerUnavailable):
            return [], True

    def _message(self, event: Event) -> bytes:
        assert self._found is not None
        self._sent.add((event.seq, event.at))
        self._last = _id(event)
        data = event.to_json(self._found.view.record.payload, self._hidden)
        return format_sse_event(data_str=msgspec.json.encode(data).decode(), event=event.name, id=self._last)


def _id(event: Event) -> str:
    return f"{event.seq}.{event.at}"
