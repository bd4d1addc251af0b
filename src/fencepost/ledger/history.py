"""The story of one job, checked: does it follow the table of transitions, does each run end once and by its own hand,
does the row say what the events say?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from fencepost.job import JobSpec
from fencepost.ledger.fold import MOVES, JobRow, fold, generation_of
from fencepost.ledger.paths import ANYWHERE, KNOWN_EVENTS, NOWHERE, Where, after
from fencepost.ledger.stream import Event
from fencepost.states import LIVE, TERMINAL, State

__all__ = ["Breaks", "History", "check_job"]

Told = tuple[bool, str, str]
"""(whether it is a broken promise, what, in words)"""
_ENDS = frozenset({"done", "failed", "cancelled", "released", "retry_scheduled", "lost"})


class History(NamedTuple):
    """A job's events by epoch and number."""

    job_id: str
    rows: list[Any]


class Breaks:
    """Where the numbers of a partition do not simply go on."""

    def __init__(self) -> None:
        self._holes: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._shared: dict[tuple[int, int], tuple[int, int]] = {}
        self._pruned: dict[tuple[int, int], int] = {}

    def add(self, part: int, epoch: int, why: str, first: int, last: int, parent: int = 0) -> None:
        """Note one mark. Marks come in the order of their first number."""
        if why == "rewind":
            self._shared[part, epoch] = (parent, last)
        elif why == "pruned":
            self._pruned[part, epoch] = last
        else:
            self._holes.setdefault((part, epoch), []).append((first, last))

    def start_of(self, part: int, epoch: int) -> int:
        """The last number an epoch took over from an older one."""
        return self._shared.get((part, epoch), (0, 0))[1]

    def story(self, part: int, epoch: int) -> Iterator[tuple[int, int]]:
        """The epochs that an epoch goes on from, newest first, each with the last number that still belongs to it."""
        last = sys.maxsize
        while (part, epoch) in self._shared:
            epoch, shared = self._shared[part, epoch]
            last = min(last, shared)
            yield epoch, last

    def unexplained(self, part: int, epoch: int, first: int, last: int) -> str:
        """Which of the numbers are missing without a reason, as text; "" if none."""
        first = max(first, self._pruned.get((part, epoch), 0) + 1)
        out: list[str] = []
        for begin, end in self._holes.get((part, epoch), []):
            if end < first or begin > last:
                continue
            if begin > first:
                out.append(f"{first}-{begin - 1}")
            first = end + 1
        if first <= last:
            out.append(f"{first}-{last}")
        return ", ".join(out)

    def between(self, part: int, epoch: int, before: int, seq: int) -> bool:
        """Whether events that are not there may have come between two numbers, the first of this or an older epoch."""
        return any(
            before < end and begin < seq
            for (of_part, of_epoch), holes in self._holes.items()
            if of_part == part and of_epoch <= epoch
            for begin, end in holes
        )

    def rewound(self, part: int) -> bool:
        """Whether Redis was rewound: then events may be gone of which nobody knows."""
        return any(key[0] == part for key in self._shared)

    def lost(self, part: int) -> bool:
        """Whether events of the partition were gone before they were copied."""
        return any(key[0] == part for key in self._holes)

    def pruned(self, part: int) -> bool:
        """Whether old events of the partition were deleted."""
        return any(key[0] == part for key in self._pruned)


def check_job(history: History, row: Any, breaks: Breaks) -> Iterator[Told]:
    """Yield what is wrong or odd about a job. row: of the table of jobs, None where there is none."""
    yield from _Walk(breaks).through(history.rows)
    moved = [one for one in history.rows if one.name in MOVES or one.name in ("bumped", "healed", "concluded")]
    if row is None:
        if moved and not breaks.pruned(moved[0].part):
            yield True, "row_missing", "events tell of it, and it has no row"
        return
    expected = _refold(history.rows, row)
    if expected is None or (row.state == "accepted" and row.durable):
        return
    if row.durable and row.state in TERMINAL and expected.state in LIVE:  # no event ended it: the reconciler may have
        if row.state == State.CANCELLED and row.reason == "duplicate":
            yield False, "duplicate", "it was lost from Redis, and a newer job had its dedup key by then"
            return
        if breaks.lost(row.part):
            yield False, "untold", f"it is {row.state}, and the event that ended it is among the lost ones"
            return
    if row.durable and row.state in TERMINAL and breaks.rewound(row.part) and _stood_still(history.rows, row):
        yield False, "untold", f"it is {row.state}, as Redis told the reconciler before a rewind took that back"
        return
    for name in ("state", "generation", "attempts", "token", "finished_at_ms", "epoch", "seq"):
        if getattr(row, name) != getattr(expected, name):
            text = f"{name} is {getattr(row, name)}, the events make it {getattr(expected, name)}"
            yield True, "row_differs", text
            return


def _stood_still(rows: list[Any], row: Any) -> bool:
    """Whether the row is, but for its end, what the events up to its last one make it, and it lived then: it was ended
    by what Redis showed, and a rewind took the event away. What came later did not move it: an end stays."""
    then = _refold([one for one in rows if (one.epoch, one.seq) <= (row.epoch, row.seq)], row)
    names = ("generation", "attempts", "token", "nonce", "worker", "epoch", "seq")
    return then is not None and then.state in LIVE and all(getattr(then, name) == getattr(row, name) for name in names)


def _refold(rows: list[Any], known: Any) -> JobRow | None:
    row: JobRow | None = None
    for one in rows:
        event = Event(*(getattr(one, name) for name in Event._fields))
        row = fold(row, one.epoch, event)
        if row is not None and known.durable:
            spec = msgspec.json.decode(known.spec, type=JobSpec) if known.spec else JobSpec(id="", kind="")
            row.durable = True
            row.retention_ms, row.failed_retention_ms = spec.retention_ms, spec.failed_retention_ms
    return row


class _Walk:
    """Goes through a job's events. where: the states it may be in; holder: token and nonce of its run."""

    def __init__(self, breaks: Breaks) -> None:
        self._breaks = breaks
        self._where: Where = NOWHERE
        self._part, self._epoch, self._seq = 0, 0, 0
        self._token = 0
        self._holder: tuple[int | None, str] | None = None
        self._generation = 1
        self._past: dict[int, list[tuple[int, Where, tuple[int | None, str] | None, int, int]]] = {}
        self._done_in: dict[int, list[int]] = {}

    def through(self, rows: list[Any]) -> Iterator[Told]:
        for row in rows:
            if row.name not in KNOWN_EVENTS:
                yield True, "unknown_event", f"event {row.seq} is called {row.name!r}"
                continue
            self._come_to(row)
            yield from self._step(row)
            self._seq = row.seq
            stood = (row.seq, self._where, self._holder, self._token, self._generation)
            self._past.setdefault(row.epoch, []).append(stood)
        for generation, epochs in self._done_in.items():
            if len(set(epochs)) > 1:
                text = f"generation {generation} was done in the epochs {', '.join(map(str, sorted(set(epochs))))}"
                yield False, "repeated_after_a_rewind", text

    def _come_to(self, row: Any) -> None:
        """Cross what lies between the event before and this one: the start, another epoch, a gap."""
        if row.epoch != self._epoch:
            self._rewind(row.part, row.epoch)
        if self._breaks.between(row.part, row.epoch, self._seq, row.seq):
            self._where, self._holder = ANYWHERE, None
        self._part, self._epoch = row.part, row.epoch

    def _rewind(self, part: int, epoch: int) -> None:
        """Go back to where the job stood in the story that this epoch goes on with."""
        for older, last in self._breaks.story(part, epoch):
            for stood in reversed(self._past.get(older, [])):
                if stood[0] <= last:
                    self._seq, self._where, self._holder, self._token, self._generation = stood
                    return
        self._seq, self._holder, self._token, self._generation = 0, None, 0, 1
        self._where = ANYWHERE if self._breaks.pruned(part) else NOWHERE

    def _step(self, row: Any) -> Iterator[Told]:
        name = row.name
        if name == "enqueued" and None not in self._where:
            yield from self._again(row)
        where = after(self._where, name, row.reason)
        if not where:
            states = "/".join(sorted(str(one or "absent") for one in self._where))
            if name == "done" and self._where == {State.DONE}:
                yield True, "done_twice", f"event {row.seq}: generation {self._generation} is done once more"
            else:
                yield True, "illegal_path", f"event {row.seq}: {name} of a job that is {states}"
            where = after(ANYWHERE, name, row.reason) or ANYWHERE
        elif name in _ENDS and row.nonce and self._holder is not None:
            yield from self._by_whom(row)
        self._where = where
        yield from self._token_of(row)
        if name == "requeued":
            yield from self._requeue(row)
        if name == "done":
            self._done_in.setdefault(self._generation, []).append(row.epoch)

    def _again(self, row: Any) -> Iterator[Told]:
        """Enqueued although it was there: Redis had forgotten it, or lost it."""
        if self._where & TERMINAL:
            text = f"event {row.seq}: its id was enqueued anew after its retention"
            yield False, "enqueued_anew", text
        elif self._where & LIVE:
            yield False, "put_back", f"event {row.seq}: it lived, was lost from Redis and was put back"
        self._where, self._holder, self._generation, self._done_in = NOWHERE, None, 1, {}

    def _by_whom(self, row: Any) -> Iterator[Told]:
        assert self._holder is not None
        token, nonce = self._holder
        if row.nonce != nonce or (row.name == "done" and row.token != token):
            text = f"event {row.seq}: {row.name} by token {row.token} and nonce {row.nonce}"
            yield True, "wrong_hand", f"{text}; the run had {token} and {nonce}"

    def _token_of(self, row: Any) -> Iterator[Told]:
        if row.name not in ("acquired", "bumped") or row.token is None:
            if row.name in _ENDS or row.name in ("requeued", "enqueued"):
                self._holder = None
            return
        if row.token <= self._token:
            text = f"event {row.seq}: it was claimed under token {row.token} after {self._token}"
            yield True, "token_fell", text
        self._token, self._holder = row.token, (row.token, row.nonce)

    def _requeue(self, row: Any) -> Iterator[Told]:
        number = generation_of(Event(*(getattr(row, name) for name in Event._fields)))
        if number <= self._generation and self._where != ANYWHERE:
            text = f"event {row.seq}: generation {number} was started after {self._generation}"
            yield True, "generation_fell", text
        self._generation = max(number, self._generation)
