"""The end of the process, told early: servers call the application only when all its answers have ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from types import FrameType
from typing import Final

__all__ = ["tell"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def tell(stopping: asyncio.Event) -> None:
    """Set the event, too, when a signal comes that ends the server; what the server does with it stays as it is.

    To be called once, on the loop that waits for the event, while the server runs. Nothing happens on another thread
    than the main one, where no signals arrive, and where a signal would end the process at once anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if not callable(before) or before is signal.default_int_handler:
            continue

        def both(number: int, frame: FrameType | None, before: signal._HANDLER = before) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed since
                loop.call_soon_threadsafe(stopping.set)
            if callable(before):
                before(number, frame)

        signal.signal(number, both)
