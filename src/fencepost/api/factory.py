"""Puts the service together: a router to include, or a whole ASGI application to serve or to mount."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, FastAPI

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
    served = FastAPI(title=f"Fencepost: {app.namespace}")
    served.state.fencepost = service
    served.include_router(_routes(service))
    return served


def _routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=ProblemRoute)
    for part in _PARTS:
        importlib.import_module(f"fencepost.api.{part}").add_routes(router, service)
    return router
