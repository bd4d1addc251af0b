"""What the handlers and producers write down themselves: the truth the demo is counted from, not the queue's word.

Each process appends JSON lines to a file of its own, one system call a line, so that SIGKILL loses none. Times are
seconds since the host booted, the same clock in every process.

    {"e": "begin", "at", "run", "job", "kind", "resource", "token"}   a handler was entered as the owner
    {"e": "jam", "run", "place"}                                      it stands still; see jam.py
    {"e": "refused", "run", "what"}                                   a write of it was refused
    {"e": "end", "at", "run", "how"}                                  ok | late (it lost its job) | failed | skipped
    {"e": "enqueued", "job", "kind", "new"}                           new: false for a duplicate
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost.clock import boottime_s

__all__ = ["Note", "Recorder", "Records", "RunSeen"]


class Recorder:
    """Appends the records of one process. name: of the worker or producer."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._file = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, **values: Any) -> None:
        os.write(self._file, json.dumps({"e": event, "at": boottime_s(), **values}).encode() + b"\n")

    def close(self) -> None:
        """Close the file; nothing can be written after that."""
        os.close(self._file)

    def enqueued(self, job: str, kind: str, *, new: bool) -> None:
        self.write("enqueued", job=job, kind=kind, new=new)

    @contextmanager
    def run(self, run: str, job: str, kind: str, resource: str, token: int, late: tuple[type[BaseException], ...])\
            -> Iterator[Note]:  # fmt: skip
        """Record begin and end of a run. late: the errors that mean "this run is not the owner any more"."""
        self.write("begin", run=run, job=job, kind=kind, resource=resource, token=token)
        note = Note(self, run)
        try:
            yield note
        except BaseException as error:
            note.end(late=isinstance(error, late))
            raise
        self.write("end", run=run, how=note.how)


@dataclass(slots=True)
class Note:
    """The records of one run that goes on."""

    recorder: Recorder
    run: str
    how: str = "ok"

    def jam(self, place: str) -> None:
        self.recorder.write("jam", run=self.run, place=place)

    def refused(self, what: str) -> None:
        self.recorder.write("refused", run=self.run, what=what)

    def end(self, *, late: bool) -> None:
        self.recorder.write("end", run=self.run, how="late" if late else "failed")


@dataclass(slots=True)
class RunSeen:
    """One run, as its records tell. end: None while it goes on, and for ever if its worker was killed."""

    run: str
    worker: str
    job: str
    kind: str
    resource: str
    token: int
    begin: float
    end: float | None = None
    how: str = ""
    place: str = ""
    refused: list[str] = field(default_factory=list)


class Records:
    """Reads what all processes wrote, again and again, only what is new each time.

    runs: by run id, in the order they were read. accepted: job id -> kind, of every job an enqueue answered with.
    done: job id -> kind, of every job that a run ended well; done_by_kind: their number. duplicates: enqueues that were
    answered with a job that was there before.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.runs: dict[str, RunSeen] = {}
        self.by_job: dict[str, list[RunSeen]] = {}
        self.accepted: dict[str, str] = {}
        self.done: dict[str, str] = {}
        self.done_by_kind: Counter[str] = Counter()
        self.duplicates = 0

    def read(self) -> None:
        """Take in what was written since the last call."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._offsets.get(path, 0))
                lines = file.read()
            whole = lines.rfind(b"\n") + 1  # a line that is being written waits for the next call
            self._offsets[path] = self._offsets.get(path, 0) + whole
            for line in lines[:whole].splitlines():
                self._take(path.stem, json.loads(line))

    def _take(self, name: str, record: dict[str, Any]) -> None:
        event = record["e"]
        if event == "enqueued":
            self.accepted.setdefault(record["job"], record["kind"])
            self.duplicates += not record["new"]
            return
        if event == "begin":
            seen = RunSeen(
                record["run"], name, record["job"], record["kind"], record["resource"], record["token"], record["at"]
            )
            self.runs[seen.run] = seen
            self.by_job.setdefault(seen.job, []).append(seen)
            return
        seen = self.runs[record["run"]]
        if event == "end":
            seen.end, seen.how = record["at"], record["how"]
            if seen.how == "ok" and seen.job not in self.done:
                self.done[seen.job] = seen.kind
                self.done_by_kind[seen.kind] += 1
        elif event == "jam":
            seen.place = record["place"]
        elif event == "refused":
            seen.refused.append(record["what"])

    def going_on(self, worker: str) -> list[RunSeen]:
        """The runs of a worker that have begun and not ended."""
        return [seen for seen in self.runs.values() if seen.worker == worker and seen.end is None]

    def successor(self, seen: RunSeen) -> RunSeen | None:
        """The first run of the same job that another claim began later."""
        later = [one for one in self.by_job[seen.job] if (one.begin, one.run) > (seen.begin, seen.run)]
        return min(later, key=lambda one: one.begin, default=None)
