"""What the commands share that run an event loop for long: which loop, and how to begin when a stop may come first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fencepost.errors import ConfigurationError

__all__ = ["loop_factory", "unless_stopped"]


def loop_factory(choice: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop. choice: "auto" (uvloop if it is there) | "asyncio" | "uvloop"."""
    if choice != "asyncio":
        try:
            import uvloop
        except ImportError:
            if choice == "uvloop":
                hint = "Run `pip install 'fencepost[fast]'`, or use --loop asyncio."
                raise ConfigurationError("loop", "uvloop is not installed", hint) from None
        else:
            factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
            return factory
    return None


async def unless_stopped(work: Any, stopped: asyncio.Event) -> bool:
    """Await `work` unless a stop comes first; whether it was done. Raises what it raises."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        return task.done() and not stopped.is_set()
    finally:
        task.cancel()
        stop.cancel()
