"""Puts the service together: a router to include, or a whole ASGI application to serve or to mount."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fencepost.api.openapi import completed, secured
from fencepost.api.problems import Problem, rendered
from fencepost.api.service import ProblemRoute, Service
from fencepost.api.settings import ApiSettings

if TYPE_CHECKING:
    from fencepost.app import Fencepost

__all__ = ["asgi", "fencepost_router"]

_PARTS: Final = ("enqueue", "follow", "stream", "act", "work", "health")


def fencepost_router(app: Fencepost, settings: ApiSettings | None = None) -> APIRouter:
    """Return the routes of the service, to include in a FastAPI application."""
    return _routes(Service(app, settings or ApiSettings()))


def asgi(app: Fencepost, settings: ApiSettings | None = None) -> FastAPI:
    """Return the service as an ASGI application."""
    service = Service(app, settings or ApiSettings())

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.stopping.clear()
        yield
        service.stopping.set()
        await app.link.asynchronous.close()

    served = FastAPI(
        title=f"Fencepost: {app.namespace}", lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None
    )
    served.state.fencepost = service
    served.include_router(_routes(service))
    if service.settings.auth == "bearer":
        secured(served)
    served.add_exception_handler(HTTPException, _no_route)
    served.add_exception_handler(Exception, _failed)
    return served


async def _no_route(request: Request, error: Exception) -> Response:
    """What is answered where there is no route, in the form of all other problems."""
    assert isinstance(error, HTTPException)
    if error.status_code not in (404, 405):
        return await http_exception_handler(request, error)
    headers = {"Cache-Control": "no-store", **(error.headers or {})}
    if error.status_code == 405:
        text = "The path has no such method. Nothing was changed. The header Allow names those it has."
        return rendered(Problem(405, "method-not-allowed", "No such method", text, headers=headers))
    text = "There is no such path. Nothing was changed. See /openapi.json for those there are."
    return rendered(Problem(404, "not-found", "No such path", text, headers=headers))


def _failed(_: Request, error: Exception) -> Response:
    """The answer after an error that nobody expected; the server writes it to its log."""
    text = f"The service failed ({type(error).__name__}). What was changed is not known. Look at the service's log."
    headers = {"Cache-Control": "no-store"}
    return rendered(Problem(500, "internal", "The service failed", text, changed="unknown", headers=headers))


def _routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=ProblemRoute)
    for part in _PARTS:
        importlib.import_module(f"fencepost.api.{part}").add_routes(router, service)
    completed(router)
    return router
