"""SIGTERM and SIGINT while a worker's loop runs; `start` looks after them before.

One means: stop; once more after a second or later: stop now. Whoever sends it twice at once (a terminal to the whole
group and a wrapper to its child) means it once. At the end it is ignored: the process is leaving anyway.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from fencepost.cli.start import SIGNALS, ignore

__all__ = ["Asked", "listen"]

REPEATS_S: Final = 1.0


class Asked:
    """Counts what was asked. heard(name, now): called for each signal that means something; now is False at first."""

    def __init__(self, heard: Callable[[str, bool], None]) -> None:
        self._heard, self._first_at = heard, 0.0

    def __call__(self, name: str) -> None:
        moment = time.monotonic()
        if not self._first_at:
            self._first_at = moment
            self._heard(name, False)
        elif moment - self._first_at >= REPEATS_S:
            self._heard(name, True)


@contextmanager
def listen(loop: asyncio.AbstractEventLoop, asked: Callable[[str], None]) -> Iterator[None]:
    """Deliver signals to `asked`, on the loop. Afterwards they are ignored."""
    for one in SIGNALS:
        try:
            loop.add_signal_handler(one, asked, one.name)
        except NotImplementedError:  # this loop has no such hook; the interpreter has
            signal.signal(one, lambda number, _: loop.call_soon_threadsafe(asked, signal.Signals(number).name))
    try:
        yield
    finally:
        _end(loop)


def _end(loop: asyncio.AbstractEventLoop) -> None:
    # Taking the loop's handler away brings the default back for a moment: nothing may arrive in it.
    blockable = hasattr(signal, "pthread_sigmask")
    if blockable:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for one in SIGNALS:
        if not loop.is_closed():
            with suppress(NotImplementedError):
                loop.remove_signal_handler(one)
    ignore()
    if blockable:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
