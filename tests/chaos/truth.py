"""What really happened: a file to which handlers append a line when they begin, do something, and end.

The queue's own status is never asked for what ran: it is what is on trial.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def now_s() -> float:
    """One clock for all processes of this host."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def note(path: Path, event: str, **fields: Any) -> None:
    """Append one line. A single write to a file opened for appending is not mixed with another's."""
    line = json.dumps({"at": now_s(), "event": event, "pid": os.getpid(), **fields}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@dataclass
class Ran:
    """One run of a handler. ended_at: None where no end was written (killed, frozen, cancelled or still inside)."""

    job: str
    key: str
    pid: int
    token: int
    began_at: float
    attempt: int
    ended_at: float | None = None
    how: str = ""


class Truth:
    """Reads the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[dict[str, Any]]:
        whole = self.path.read_text().rpartition("\n")[0]  # the last line may be on its way
        return [json.loads(line) for line in whole.splitlines()]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == event]

    def runs(self, key: str | None = None) -> list[Ran]:
        """All runs, in the order in which they began; of one key if it is given."""
        found: dict[int, Ran] = {}
        for line in self.lines():
            if line["event"] == "begin":
                found[line["token"]] = Ran(
                    line["job"], line["key"], line["pid"], line["token"], line["at"], line["attempt"]
                )
            elif line["event"] == "end":
                run = found[line["token"]]
                run.ended_at, run.how = line["at"], line["how"]
        return [run for run in found.values() if key is None or run.key == key]

    def inside(self, pid: int | None = None) -> list[Ran]:
        """Runs that have begun and not ended; of one process if it is given."""
        return [run for run in self.runs() if run.ended_at is None and pid in (None, run.pid)]

    def overlaps(self, key: str, dead: dict[int, float] | None = None) -> list[tuple[Ran, Ran]]:
        """Pairs of runs of one key that were inside together. dead: when a process was killed, by pid."""
        runs = self.runs(key)
        return [(one, two) for one, two in _pairs(runs) if two.began_at < _left_at(one, dead or {})]


def _left_at(run: Ran, dead: dict[int, float]) -> float:
    if run.ended_at is not None:
        return run.ended_at
    return dead.get(run.pid, float("inf"))


def _pairs(runs: list[Ran]) -> Iterator[tuple[Ran, Ran]]:
    for at, one in enumerate(runs):
        for two in runs[at + 1 :]:
            yield one, two
