"""The places where a fault can hit for certain: during a jam, handlers stand still in the middle of their work.

A real machine fails at any moment. The demo has to fail at a bad one, every time, and where that is depends on the
fault: killed, a run does most harm after its effect and before it could say so; frozen, after it read and before it
wrote. So a handler that comes by a place which the director has jammed for its worker says "I am inside" and waits; the
director strikes when it has heard that. And when the frozen worker wakes up, the new owners of its jobs are in the
middle of them: the late write comes when it would do most harm.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fencepost.demo.records import Note
from fencepost.demo.stage import Stage

__all__ = ["Jam", "block"]

_LONGEST_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.02


def block(stage: Stage, who: str, places: Iterable[str]) -> Path:
    """Jam some places for all runs of a worker, or for those of one job in any worker. Deleting the file ends it."""
    new, file = stage.jams / f".{who}", stage.jams / who
    new.write_text("\n".join(places))
    return new.replace(file)  # whoever sees the file sees all of it


class Jam:
    """The jam as the handlers of one worker see it."""

    def __init__(self, stage: Stage, worker: str) -> None:
        self._folder, self._worker = stage.jams, worker

    def here(self, note: Note, job: str, place: str) -> bool:
        """Stand still while this place is jammed. Returns whether it was."""
        file = next((file for name in (self._worker, job) if place in _places(file := self._folder / name)), None)
        if file is None:
            return False
        note.jam(place)
        end = time.monotonic() + _LONGEST_S
        while file.exists() and time.monotonic() < end:
            time.sleep(_LOOK_EVERY_S)
        return True


def _places(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except FileNotFoundError:
        return []
