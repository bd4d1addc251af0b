"""One event a call in the log: which method and path, what came of it, how long it took, whose credential it was.

Without the query string, the headers and the body: they may hold what nobody else should read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from fencepost.log import emit

__all__ = ["AccessLog"]

_log: Final = logging.getLogger("fencepost.api")
_QUIET: Final = frozenset({"/livez", "/readyz"})
_PATH: Final = 300

_Message = MutableMapping[str, Any]


class AccessLog:
    """An ASGI application around another one. Status 0: the call ended without an answer. ms: until the last byte."""

    def __init__(self, inner: Callable[..., Awaitable[None]]) -> None:
        self._inner = inner

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noting(message: _Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._inner(scope, receive, noting)
        finally:
            path = str(scope["path"])
            level = logging.DEBUG if path in _QUIET and status == 200 else logging.INFO
            client = scope.get("client")
            emit(
                _log, level, "request", method=scope["method"], path=path[:_PATH], status=status,
                ms=round((time.perf_counter() - began) * 1000, 1), caller=scope.get("fencepost_caller", ""),
                client=client[0] if client else "",
            )  # fmt: skip
