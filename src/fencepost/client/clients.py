"""The two clients. A verb is written once, as a function that makes a call (`calls`, `acts`, `work`); each client has
it as a method that sends the call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import httpx2

from fencepost.client import acts, calls, work
from fencepost.client.answers import Event
from fencepost.client.following import Following
from fencepost.client.sending import Call, Plan, request_of, run, run_sync, send, send_sync
from fencepost.clock import parse_duration_s
from fencepost.errors import ConfigurationError

__all__ = ["AsyncClient", "Client"]

P = ParamSpec("P")
T = TypeVar("T")

_LIMITS: Final = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=20.0)
"""An idle connection is dropped before the service drops it, or a call would now and then be sent into a closed one."""


def _named(make: Callable[..., Any], method: Callable[..., Any]) -> None:
    """Give the method the name, the text and the parameters of the function that makes its call."""
    functools.update_wrapper(method, make)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [itself, *inspect.signature(make).parameters.values()]
    vars(method)["__signature__"] = inspect.Signature(parameters)
    del vars(method)["__wrapped__"]


def _blocking(make: Callable[P, Call[T] | Plan[T]]) -> Callable[Concatenate[Client, P], T]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(make(*args, **kwargs))

    _named(make, method)
    return method


def _awaited(make: Callable[P, Call[T] | Plan[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(make(*args, **kwargs))

    _named(make, method)
    return method


class _Settings:
    """What both clients are made from. Checked here."""

    def __init__(self, url: str, token: str | None, timeout: float | str, give_up: float | str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                "url", f"{url[:80]!a} is no address", "Write https://host or http://127.0.0.1:8000."
            )
        if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
            raise ConfigurationError(
                "token", "it has characters that no token has", "Use the text `token make` printed."
            )
        self.url = url.rstrip("/")
        self.headers = {"Accept": "application/json", "User-Agent": "fencepost"}
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self.timeout_s, self.give_up_s = parse_duration_s(timeout, "timeout"), parse_duration_s(give_up, "give_up")


class Client:
    """The service for code without an event loop. May be used by several threads at once.

    url: where the service is, with the path under which it is mounted. token: as `fencepost token make` printed it;
    None for a service without authentication. timeout: for each step of a call, seconds or a text. give_up: how long
    a call is tried again where that is harmless. transport: another way to the service, such as
    httpx2.HTTPTransport(uds="/run/fencepost.sock").
    Every method raises ApiError for a refusal that has no error of its own, and NoAnswer.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float | str = 10.0,
        give_up: float | str = 15.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._settings = _Settings(url, token, timeout, give_up)
        self._http = httpx2.Client(
            base_url=self._settings.url, headers=self._settings.headers, limits=_LIMITS, transport=transport
        )

    def __repr__(self) -> str:
        return f"Client({self._settings.url!r})"  # never the token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, call: Call[T] | Plan[T]) -> T:
        """Send a call, or all calls of a plan."""
        settings = self._settings
        if isinstance(call, Call):
            return send_sync(self._http, call, settings.timeout_s, settings.give_up_s)
        return run_sync(self._http, call, settings.timeout_s, settings.give_up_s)

    def events(self, job_id: str, *, after: str | None = None) -> Iterator[Event]:
        """Yield what happened to a job from its beginning, then what happens, until it has ended.

        A connection that breaks is made again where it broke off. after: the `id` of the last event known already.
        Raises JobNotFound, NoAnswer, ApiError.
        """
        following = Following(job_id, after, self._settings.give_up_s)
        while not following.over():
            pause_s = 0.0
            try:
                response = self._http.send(
                    request_of(self._http, following.call(), self._settings.timeout_s), stream=True
                )
                try:
                    if response.status_code != 200:
                        response.read()
                        pause_s = following.refused(response)
                    else:
                        following.began()
                        for sse in httpx2.EventSource(response):
                            if (event := following.told(sse)) is not None:
                                yield event
                        pause_s = 0.0 if following.over() else following.broken(None)
                finally:
                    response.close()
            except httpx2.TransportError as error:
                pause_s = 0.0 if following.over() else following.broken(error)
            time.sleep(pause_s)

    enqueue = _blocking(calls.enqueue)
    enqueue_many = _blocking(calls.enqueue_many)
    job = _blocking(calls.job)
    wait = _blocking(calls.wait)
    result = _blocking(calls.result)
    jobs = _blocking(calls.jobs)
    dead = _blocking(calls.dead)
    resources = _blocking(calls.resources)
    resource = _blocking(calls.resource)
    queues = _blocking(calls.queues)
    kinds = _blocking(calls.kinds)
    ready = _blocking(calls.ready)
    cancel = _blocking(acts.cancel)
    requeue = _blocking(acts.requeue)
    purge = _blocking(acts.purge)
    requeue_dead = _blocking(acts.requeue_dead)
    purge_dead = _blocking(acts.purge_dead)
    pause = _blocking(acts.pause)
    resume = _blocking(acts.resume)
    revoke = _blocking(acts.revoke)
    claim = _blocking(work.claim)
    renew = _blocking(work.renew)
    finish = _blocking(work.finish)
    retry = _blocking(work.retry)
    checkpoint = _blocking(work.checkpoint)
    progress = _blocking(work.progress)
    release = _blocking(work.release)


class AsyncClient:
    """As Client, for one event loop."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float | str = 10.0,
        give_up: float | str = 15.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = _Settings(url, token, timeout, give_up)
        self._http = httpx2.AsyncClient(
            base_url=self._settings.url, headers=self._settings.headers, limits=_LIMITS, transport=transport
        )

    def __repr__(self) -> str:
        return f"AsyncClient({self._settings.url!r})"  # never the token

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, call: Call[T] | Plan[T]) -> T:
        """Send a call, or all calls of a plan."""
        settings = self._settings
        if isinstance(call, Call):
            return await send(self._http, call, settings.timeout_s, settings.give_up_s)
        return await run(self._http, call, settings.timeout_s, settings.give_up_s)

    async def events(self, job_id: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """As Client.events. Leave it early only by closing it (contextlib.aclosing), or the connection stays open."""
        following = Following(job_id, after, self._settings.give_up_s)
        while not following.over():
            pause_s = 0.0
            try:
                response = await self._http.send(
                    request_of(self._http, following.call(), self._settings.timeout_s), stream=True
                )
                try:
                    if response.status_code != 200:
                        await response.aread()
                        pause_s = following.refused(response)
                    else:
                        following.began()
                        async for sse in httpx2.EventSource(response):
                            if (event := following.told(sse)) is not None:
                                yield event
                        pause_s = 0.0 if following.over() else following.broken(None)
                finally:
                    await response.aclose()
            except httpx2.TransportError as error:
                pause_s = 0.0 if following.over() else following.broken(error)
            await asyncio.sleep(pause_s)

    enqueue = _awaited(calls.enqueue)
    enqueue_many = _awaited(calls.enqueue_many)
    job = _awaited(calls.job)
    wait = _awaited(calls.wait)
    result = _awaited(calls.result)
    jobs = _awaited(calls.jobs)
    dead = _awaited(calls.dead)
    resources = _awaited(calls.resources)
    resource = _awaited(calls.resource)
    queues = _awaited(calls.queues)
    kinds = _awaited(calls.kinds)
    ready = _awaited(calls.ready)
    cancel = _awaited(acts.cancel)
    requeue = _awaited(acts.requeue)
    purge = _awaited(acts.purge)
    requeue_dead = _awaited(acts.requeue_dead)
    purge_dead = _awaited(acts.purge_dead)
    pause = _awaited(acts.pause)
    resume = _awaited(acts.resume)
    revoke = _awaited(acts.revoke)
    claim = _awaited(work.claim)
    renew = _awaited(work.renew)
    finish = _awaited(work.finish)
    retry = _awaited(work.retry)
    checkpoint = _awaited(work.checkpoint)
    progress = _awaited(work.progress)
    release = _awaited(work.release)
