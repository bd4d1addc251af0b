"""What all routes share: the application, the settings, who calls, and how bodies come in and answers go out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from fencepost.api.problems import Problem, of_error, rendered
from fencepost.api.settings import ApiSettings
from fencepost.errors import FencepostError
from fencepost.operate import Operator

if TYPE_CHECKING:
    from fencepost.app import Fencepost

__all__ = ["Caller", "ProblemRoute", "Service"]

T = TypeVar("T")


class Caller(msgspec.Struct, frozen=True):
    """Who calls. id: of the credential, "" where authentication is off; idempotency keys are scoped to it. name: as
    given when it was made; it stands as the actor in the ledger."""

    id: str
    name: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """Whether a scope is granted; "enqueue:*" stands for every kind."""
        return scope in self.scopes or (scope.startswith("enqueue:") and "enqueue:*" in self.scopes)


_ANYBODY = Caller("", "anonymous", frozenset({"enqueue:*", "read", "operate", "work"}))


class Service:
    """One HTTP service of an application. stopping: set when the server begins to stop; streams and long polls end."""

    def __init__(self, app: Fencepost, settings: ApiSettings) -> None:
        self.app, self.settings, self.operator = app, settings, Operator(app)
        self.stopping = asyncio.Event()

    async def admit(self, request: Request, scope: str) -> Caller:
        """Return who calls. Raises Problem: 401, 403 (the scope is not granted), 429 (too often)."""
        return _ANYBODY

    async def raw(self, request: Request) -> bytes:
        """Return the body. Raises Problem 413 before more than max_body bytes are read."""
        return await request.body()

    async def body(self, request: Request, kind: type[T]) -> T:
        """Decode the JSON body. Raises Problem 400 (no JSON) or 422 (not of this shape)."""
        raw = await self.raw(request)
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError as error:
            raise Problem(422, "body-refused", "The body does not fit", f"{error}. Nothing was changed.") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(400, "no-json", "The body is not JSON", f"{error}. Nothing was changed.") from error

    def json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        """Answer with JSON."""
        return Response(msgspec.json.encode(value), status, headers, "application/json")


class ProblemRoute(APIRoute):
    """A route whose errors become problem documents, in whatever application it is mounted."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(request)
            except Problem as problem:
                return rendered(problem)
            except FencepostError as error:
                return rendered(of_error(error))

        return handler
