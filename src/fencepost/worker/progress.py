"""Coalescing: of values that come faster than they can be written, only the newest is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Coalesced"]


class Coalesced:
    """Writes one field of a run, one call at a time; of those who wait meanwhile, the newest value goes for all."""

    __slots__ = ("_busy", "_newest", "_task", "_waiting", "_write")

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write, self._busy, self._newest = write, False, b""
        self._waiting: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def put(self, raw: bytes) -> None:
        """Return when this value, or a newer one, is stored. Raises what the write raised."""
        if self._busy:
            self._newest = raw
            if self._waiting is None:
                self._waiting = asyncio.get_running_loop().create_future()
                self._waiting.add_done_callback(_seen)
            await asyncio.shield(self._waiting)
            return
        self._busy = True
        try:
            await self._write(raw)
        finally:
            if self._waiting is None:
                self._busy = False
            else:  # in a task of its own: this caller has what it wanted, or is being cancelled
                self._task = asyncio.get_running_loop().create_task(self._rest())

    async def _rest(self) -> None:
        while self._waiting is not None:
            shared, self._waiting = self._waiting, None
            try:
                await self._write(self._newest)
            except Exception as error:  # noqa: BLE001 - handed to those who wait
                shared.set_exception(error)
            except BaseException:
                shared.cancel()
                self._busy = False
                raise
            else:
                shared.set_result(None)
        self._busy = False


def _seen(future: asyncio.Future[None]) -> None:
    """All who waited may have been cancelled: then nobody else asks for the error."""
    if not future.cancelled():
        future.exception()
