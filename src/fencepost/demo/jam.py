"""The place where a fault can hit for certain: while a worker has a jam, its handlers stand still in the middle.

A real machine freezes at any moment. The demo has to freeze at a bad one, every time: after the handler read, before
it wrote. So a handler that comes by while the director has jammed its worker says "I am inside" and waits; the director
strikes when it has heard that.
"""

from __future__ import annotations

import time

from fencepost.demo.records import Note
from fencepost.demo.stage import Stage

__all__ = ["Jam"]

_LONGEST_S = 30.0
_LOOK_EVERY_S = 0.02


class Jam:
    """The jam of one worker, as its handlers see it."""

    def __init__(self, stage: Stage, worker: str) -> None:
        self._file = stage.jams / worker

    def here(self, note: Note, place: str) -> bool:
        """Stand still while the worker is jammed. Returns whether it was."""
        if not self._file.exists():
            return False
        note.jam(place)
        end = time.monotonic() + _LONGEST_S
        while self._file.exists() and time.monotonic() < end:
            time.sleep(_LOOK_EVERY_S)
        return True
