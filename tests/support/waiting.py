"""The only place in the tests where anybody sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar, overload

T = TypeVar("T")
_POLL_S = 0.005


def wait_until(predicate: Callable[[], T], timeout: float = 5.0) -> T:
    """Call `predicate` every 5 ms until it returns something true, and return that.

    timeout: seconds; after it an AssertionError names the predicate and its last answer.
    """
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {_name(predicate)} is still {answer!r}")
        time.sleep(_POLL_S)
    return answer


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], timeout: float = 5.0) -> T: ...
@overload
async def eventually(predicate: Callable[[], T], timeout: float = 5.0) -> T: ...
async def eventually(predicate: Callable[[], Any], timeout: float = 5.0) -> Any:
    """`wait_until` for asynchronous tests: the loop goes on; `predicate` may be a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        value = await answer if isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {_name(predicate)} is still {value!r}")
        await asyncio.sleep(_POLL_S)


def _name(predicate: Callable[..., object]) -> str:
    code = getattr(predicate, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"{getattr(predicate, '__qualname__', repr(predicate))}{where}"
