"""An application with a few kinds, its HTTP service in this process (`client`) and on a loopback port (`live`).

A module that wants other kinds or settings overrides `app` or `settings`; the rest is built on them:

    @pytest.fixture
    def app(app):
        @app.job(queue="sums")
        async def subtract(a: int, b: int) -> int: ...
        return app
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI

from fencepost import Fencepost, credentials
from fencepost.api import ApiSettings, asgi
from fencepost.api.service import Service
from fencepost.operate.plan import run_sync
from tests.support.partition import Partition
from tests.support.waiting import wait_until


@pytest.fixture
async def app(url: str, namespace: str) -> AsyncIterator[Fencepost]:
    """An application of this test alone, with the kinds `add` and `book`."""
    application = Fencepost(url, namespace=namespace, lease=2.0, give_up=5.0)

    @application.job(queue="sums")
    async def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @application.job(resource="stock:{sku}", dedup=True)
    def book(sku: str) -> None:
        """Book a piece."""

    yield application
    await application.close()


@pytest.fixture
def settings() -> ApiSettings:
    """What the service of `client` and `live` allows: callers without a token. Override it for other settings."""
    return ApiSettings(auth="off")


@pytest.fixture
def served(app: Fencepost, settings: ApiSettings) -> FastAPI:
    """The ASGI application behind `client` and `live`."""
    return asgi(app, settings)


@pytest.fixture
def service(served: FastAPI) -> Service:
    """The service behind `client` and `live`."""
    one: Service = served.state.fencepost
    return one


@pytest.fixture
async def client(served: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that calls the service in this process, without sockets. Answers come whole: streams want `live`."""
    async with in_process(served) as one:
        yield one


def in_process(served: Any, **options: Any) -> httpx2.AsyncClient:
    """A client of any ASGI application in this process, for `async with`. Its address is that of loopback."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=served), base_url="http://127.0.0.1", **options)


class Live:
    """A server on a loopback port, on a thread with an event loop of its own. url: without a slash at the end."""

    def __init__(self, served: Any, stopping: Callable[[], object], closing: Callable[[], Coroutine[Any, Any, None]]):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            served, lifespan="on", log_config=None, access_log=False, server_header=False, ws="none",
            timeout_graceful_shutdown=3,
        )  # fmt: skip
        self._server, self._stopping, self._closing = uvicorn.Server(config), stopping, closing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),), daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started or not self._thread.is_alive(), timeout=10)
        assert self._server.started, "the server did not start"

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._server.serve([self._socket])
        finally:
            await self._closing()

    def client(self, **options: Any) -> httpx2.AsyncClient:
        """A client of this server, for `async with`."""
        return httpx2.AsyncClient(base_url=self.url, **options)

    def blocking(self, **options: Any) -> httpx2.Client:
        """A client of this server for code without an event loop, for `with`."""
        return httpx2.Client(base_url=self.url, **options)

    def stop(self) -> None:
        """End as on SIGTERM: streams and long polls end, then the server."""
        if self._thread.is_alive() and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._stopping)
            self._server.should_exit = True
            self._thread.join(15)
            assert not self._thread.is_alive(), "the server did not stop"


@pytest.fixture
def new_live(app: Fencepost) -> Iterator[Callable[..., Live]]:
    """Serve any ASGI application: `new_live(served, stopping=lambda: None)`. Stopped at the end."""
    started: list[Live] = []

    def start(served: Any, stopping: Callable[[], object] = lambda: None) -> Live:
        started.append(Live(served, stopping, app.link.asynchronous.close))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def live(served: FastAPI, service: Service, new_live: Callable[..., Live]) -> Live:
    """The service on a loopback port: `live.url`, `async with live.client() as c`, `with live.blocking() as c`."""
    return new_live(served, service.stopping.set)


@pytest.fixture
def new_token(app: Fencepost) -> Callable[..., str]:
    """Make a credential and return its token: `new_token("read", "enqueue:*")`."""

    def make(*scopes: str, name: str = "ann", expires_s: float | None = None) -> str:
        plan = credentials.make(app.link.store, name, scopes, actor="tests", expires_s=expires_s)
        return run_sync(app.link.synchronous, plan).token

    return make


def bearer(token: str) -> dict[str, str]:
    """The headers of a caller with a token; for services with ApiSettings(auth="bearer")."""
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def partition(redis: Any, url: str, namespace: str) -> Iterator[Partition]:
    """The namespace of this test, with a verb for each script."""
    one = Partition(redis, url, namespace)
    yield one
    one.close()
