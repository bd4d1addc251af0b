"""What all routes share: the application, the settings, who calls, and how bodies come in and answers go out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from fencepost.api import ending
from fencepost.api.admission import BELIEVED_S, Admission, Caller
from fencepost.api.problems import Problem, of_error, rendered
from fencepost.api.settings import ApiSettings
from fencepost.api.tail import Tail
from fencepost.errors import FencepostError, LedgerUnavailable, RedisUnavailable
from fencepost.operate import Operator

if TYPE_CHECKING:
    from fencepost.app import Fencepost

__all__ = ["Caller", "ProblemRoute", "Service"]

T = TypeVar("T")


class Service:
    """One HTTP service of an application. stopping: set when the server begins to stop; streams and long polls end."""

    def __init__(self, app: Fencepost, settings: ApiSettings) -> None:
        self.app, self.settings, self.operator = app, settings, Operator(app)
        self.stopping = asyncio.Event()
        self._admission = Admission(app.link, settings)
        self.tail = Tail(app.link, settings.max_streams)
        self._is_told = False

    def ending(self) -> asyncio.Event:
        """Return `stopping`, for an answer that takes its time. Whatever serves it: it hears of SIGTERM from now on."""
        if not self._is_told:
            self._is_told = True
            ending.tell(self.stopping)
        return self.stopping

    async def admit(self, request: Request, scope: str) -> Caller:
        """Return who calls. scope: what the call needs. Raises Problem: 401, 403 (the scope is not granted), 429 (too
        often), 503 (Redis was not there to look the credential up)."""
        return await self._admission.admit(request, scope)

    async def recheck(self, request: Request, scope: str) -> None:
        """As admit, for a call that was admitted and has waited since: a credential may have been revoked meanwhile."""
        await self._admission.recheck(request, scope)

    async def unwelcome(self, request: Request, scope: str) -> None:
        """Return when the credential of an open call is not good any more; looked at every BELIEVED_S."""
        while True:
            await asyncio.sleep(BELIEVED_S)
            try:
                await self.recheck(request, scope)
            except Problem:
                return
            except RedisUnavailable:
                continue  # nothing is told meanwhile, and it is looked up when Redis is back

    async def raw(self, request: Request) -> bytes:
        """Return the body. Raises Problem 413 before more than max_body bytes are kept, 415 (not declared as JSON),
        400 (cut off)."""
        declared, most = request.headers.get("content-length"), self.settings.max_body
        if declared is not None:
            if not (declared.isascii() and declared.isdecimal()):
                raise Problem(400, "body-cut-off", "The length of the body is no number", "Nothing was changed.")
            if len(declared) > 15 or int(declared) > most:
                raise _too_large(most)
        chunks, size = [], 0
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise _too_large(most)
                chunks.append(chunk)
        except ClientDisconnect as error:
            text = "The connection ended before the body did. Nothing was changed."
            raise Problem(400, "body-cut-off", "The body is not whole", text) from error
        if size:
            _check_media_type(request)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def body(self, request: Request, kind: type[T]) -> T:
        """Read and decode the JSON body."""
        return self.decode(await self.raw(request), kind)

    def decode(self, raw: bytes, kind: type[T]) -> T:
        """Decode JSON. Raises Problem 400 (no JSON) or 422 (not of this shape)."""
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError as error:
            raise Problem(422, "body-refused", "The body does not fit", f"{error}. Nothing was changed.") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = f"The body is not JSON in UTF-8: {error}. Nothing was changed."
            raise Problem(400, "no-json", "The body is not JSON", text) from error

    def json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        """Answer with JSON."""
        return Response(msgspec.json.encode(value), status, headers, "application/json")


def _too_large(most: int) -> Problem:
    text = f"The body has more than {most} bytes, which is the most that this service takes. Nothing was changed."
    # The rest of it is not waited for: the connection cannot be used for another call.
    return Problem(413, "body-too-large", "The body is too large", text, headers={"Connection": "close"})


def _check_media_type(request: Request) -> None:
    declared = request.headers.get("content-type", "")
    media = declared.partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        text = f"The body is declared as {declared[:80]!a}. Nothing was changed. Send Content-Type: application/json."
        raise Problem(415, "unsupported-media-type", "The body is not declared as JSON", text)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        text = "The body is compressed, which this service does not open. Nothing was changed. Send it as it is."
        raise Problem(415, "unsupported-media-type", "The body is compressed", text)


class ProblemRoute(APIRoute):
    """A route whose errors become problem documents, in whatever application it is mounted. No answer may be stored by
    a proxy or a browser: it is about a moment, and about the caller's rights."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                response = await inner(request)
            except Problem as problem:
                response = rendered(problem, request.scope["path"])
            except FencepostError as error:
                if request.method == "GET" and isinstance(error, RedisUnavailable | LedgerUnavailable):
                    error.executed = False  # reading changes nothing, whatever became of the call
                response = rendered(of_error(error), request.scope["path"])
            response.headers["Cache-Control"] = "no-store"
            return response

        return handler
