"""The place where a fault can hit for certain: during a jam, handlers stand still in the middle of their work.

A real machine freezes at any moment. The demo has to freeze at a bad one, every time: after the handler read, before
it wrote. So a handler that comes by while the director has jammed its worker says "I am inside" and waits; the director
strikes when it has heard that. And when the frozen worker wakes up, the new owners of its jobs stand at the same place:
the late write comes while they have read and not written yet, which is when it would do most harm.
"""

from __future__ import annotations

import time

from fencepost.demo.records import Note
from fencepost.demo.stage import Stage

__all__ = ["Jam"]

_LONGEST_S = 30.0
_LOOK_EVERY_S = 0.02


class Jam:
    """The jam as the handlers of one worker see it: all of them stand still, or the runs of one job in any worker."""

    def __init__(self, stage: Stage, worker: str) -> None:
        self._folder, self._worker = stage.jams, worker

    def here(self, note: Note, job: str, place: str) -> bool:
        """Stand still while there is a jam. Returns whether there was one."""
        file = next((file for name in (self._worker, job) if (file := self._folder / name).exists()), None)
        if file is None:
            return False
        note.jam(place)
        end = time.monotonic() + _LONGEST_S
        while file.exists() and time.monotonic() < end:
            time.sleep(_LOOK_EVERY_S)
        return True
