"""Sends calls to the service. A call is a value; the asynchronous and the synchronous client send the same ones.

A call is sent again only where that is harmless: it did not run, or it may run twice because it has an idempotency key
or is made to be repeated.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

import httpx2
import msgspec

from fencepost.client.problems import NoAnswer, document, error_of
from fencepost.errors import FencepostError

__all__ = ["Call", "Pause", "Plan", "run", "run_sync"]

T = TypeVar("T")

_AGAIN: Final = frozenset({429, 502, 503, 504})
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. body: to be sent as JSON, None for none. parse: turns status and bytes of an answer below 400 into a
    value. repeatable: may be sent again although it may have run. waits_s: how long the service may take on purpose.
    about: for the error, should the problem document lack it. accepts: statuses above 399 that are answers, too."""

    method: str
    path: str
    parse: Callable[[bytes], T]
    body: Any = None
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    waits_s: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)
    accepts: frozenset[int] = frozenset()

    @property
    def what(self) -> str:
        return f"{self.method} {self.path}"


class Pause(float):
    """Seconds to wait before going on."""

    __slots__ = ()


Plan: TypeAlias = Generator["Call[Any] | Pause", Any, T]
"""Several calls and pauses, one after another: yields them, is sent the answers, returns what came of them."""


def _converse(call: Call[T], give_up_s: float) -> Generator[Pause | None, httpx2.Response, T]:
    """The life of one call, without I/O: yields None to have it sent, pauses to make; returns the parsed answer.
    give_up_s: no new attempt begins later than that after the first."""
    until_s, wait_s, executed = time.monotonic() + give_up_s, _FIRST_WAIT_S, False
    while True:
        asked_s = 0.0
        try:
            response = yield None
        except httpx2.TransportError as error:
            failed: Exception = error
            not_sent = isinstance(error, _NOT_SENT)
            executed = executed or not not_sent
            again = not_sent or call.repeatable
            final: Exception = NoAnswer(call.what, _cause(error), None if executed else False)
        else:
            status = response.status_code
            if status < 400 or status in call.accepts:
                return _parsed(call, status, response.content)
            failed = final = error_of(call.what, status, response.content, call.about)
            nothing = status == 429 or document(response.content).get("changed") == "nothing"
            again = status in _AGAIN and (nothing or call.repeatable)
            asked_s = _retry_after_s(response)
        pause_s = max(asked_s, wait_s * (0.5 + random.random() / 2))
        if not again or time.monotonic() + pause_s > until_s:
            raise final from (None if final is failed else failed)
        yield Pause(pause_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def _parsed(call: Call[T], status: int, raw: bytes) -> T:
    try:
        return call.parse(raw)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        # A proxy or another service answered; a call that was carried out is told apart by nobody.
        raise NoAnswer(call.what, f"{status}, but the answer cannot be read: {error}", None) from error


def _cause(error: Exception) -> str:
    return str(error) or type(error).__name__


def _retry_after_s(response: httpx2.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0.0


def request_of(http: httpx2.Client | httpx2.AsyncClient, call: Call[Any], timeout_s: float) -> httpx2.Request:
    """Make the request. timeout_s: for each step of sending and reading, beside what the call waits on purpose."""
    headers = dict(call.headers)
    content = None
    if call.body is not None:
        content = msgspec.json.encode(call.body)
        headers["Content-Type"] = "application/json"
    timeout = httpx2.Timeout(timeout_s, read=timeout_s + call.waits_s)
    params = dict(call.params) or None
    return http.build_request(call.method, call.path, content=content, params=params, headers=headers, timeout=timeout)


async def send(http: httpx2.AsyncClient, call: Call[T], timeout_s: float, give_up_s: float) -> T:
    """Send one call; repeat it where that is harmless. Raises what the service refused with, NoAnswer."""
    talk = _converse(call, give_up_s)
    step = next(talk)
    try:
        while True:
            if step is not None:
                await asyncio.sleep(step)
                step = next(talk)
                continue
            try:
                response = await http.send(request_of(http, call, timeout_s))
            except httpx2.TransportError as error:
                step = talk.throw(error)
            else:
                step = talk.send(response)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def send_sync(http: httpx2.Client, call: Call[T], timeout_s: float, give_up_s: float) -> T:
    """As send, on the calling thread."""
    talk = _converse(call, give_up_s)
    step = next(talk)
    try:
        while True:
            if step is not None:
                time.sleep(step)
                step = next(talk)
                continue
            try:
                response = http.send(request_of(http, call, timeout_s))
            except httpx2.TransportError as error:
                step = talk.throw(error)
            else:
                step = talk.send(response)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run(http: httpx2.AsyncClient, plan: Plan[T], timeout_s: float, give_up_s: float) -> T:
    """Run a plan to its end. Raises what its calls raise, and what the plan itself does."""
    try:
        step = next(plan)
        while True:
            try:
                if isinstance(step, Pause):
                    await asyncio.sleep(step)
                    answer = None
                else:
                    answer = await send(http, step, timeout_s, give_up_s)
            except FencepostError as error:  # the plan may know what to do with it
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        plan.close()


def run_sync(http: httpx2.Client, plan: Plan[T], timeout_s: float, give_up_s: float) -> T:
    """As run, on the calling thread."""
    try:
        step = next(plan)
        while True:
            try:
                if isinstance(step, Pause):
                    time.sleep(step)
                    answer = None
                else:
                    answer = send_sync(http, step, timeout_s, give_up_s)
            except FencepostError as error:  # as above
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        plan.close()
