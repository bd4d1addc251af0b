"""The stream of events of a partition, as the archiver reads it: one consistent view at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from fencepost.driver import Call
from fencepost.keys import Keys
from fencepost.scripts import load

__all__ = ["Entry", "Event", "View", "fingerprint", "view"]

_FIELDS: Final = 8


class Event(NamedTuple):
    """One line of an entry. seq: its own number. Texts are cut to what the table holds."""

    seq: int
    at_ms: int
    name: str
    job_id: str
    kind: str
    resource: str
    worker: str
    attempt: int | None
    token: int | None
    nonce: str
    reason: str


class Entry(NamedTuple):
    """What one script call wrote. seq: of its last event; lines: its events, raw."""

    seq: int
    at_ms: int
    worker: str
    lines: list[str]
    fingerprint: str

    @property
    def first(self) -> int:
        """The number of its first event."""
        return self.seq - len(self.lines) + 1

    def events(self) -> Iterator[Event]:
        """Open the lines. A line that is none of ours becomes an event as far as it can be read."""
        seq, at_ms, worker = self.first, self.at_ms, self.worker[:200]
        for line in self.lines:
            parts = line.split("\t")
            parts += [""] * (_FIELDS - len(parts))
            name, job_id, kind, token, nonce, attempt, reason, resource = parts[:_FIELDS]
            yield Event(
                seq, at_ms, name[:40], job_id[:200], kind[:512], resource[:512], worker, _number(attempt),
                _number(token), nonce[:64], reason,
            )  # fmt: skip
            seq += 1


class View(NamedTuple):
    """The stream from a number on, and what the partition says of itself, all at one instant.

    incarnation: "" where it has none (yet). tip: the highest number given out. first: of the oldest entry, None where
    the stream is empty. archived: what the partition believes to be copied, None where nobody told it.
    """

    incarnation: str
    tip: int
    archived: int | None
    first: int | None
    entries: list[Entry]


def view(keys: Keys, start: int, count: int) -> Call[View]:
    """Read entries with a number of at least start, at most count of them, and the rest of the view."""
    commands: tuple[tuple[Any, ...], ...] = (
        ("HMGET", keys.meta, "incarnation", "seq", "archived"),
        ("XRANGE", keys.events, "-", "+", "COUNT", 1),
        ("XREVRANGE", keys.events, "+", "-", "COUNT", 1),
        ("XRANGE", keys.events, str(start) if start else "-", "+", "COUNT", count),
    )
    args: list[Any] = []
    for words in commands:
        args += (len(words), *words)
    base = (keys.meta, keys.events, keys.stats, keys.leases, keys.later, keys.dead, keys.recent)
    return Call("look", load("look"), base, args, _parse)


def _parse(reply: Any) -> View:
    (incarnation, seq, archived), oldest, newest, raw = reply[1:]
    last = _entry(newest[0]).seq if newest else 0
    return View(
        incarnation=_text(incarnation or b"")[:64],
        tip=max(int(seq or 0), last),
        archived=None if archived is None else int(archived),
        first=_entry(oldest[0]).first if oldest else None,
        entries=[_entry(one) for one in raw],
    )


def _entry(raw: Any) -> Entry:
    entry_id, flat = raw
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    at, worker, lines = fields.get(b"t", b"0"), fields.get(b"w", b""), fields.get(b"e", b"")
    return Entry(
        int(entry_id.split(b"-")[0]),
        _number(_text(at)) or 0,
        _text(worker),
        _text(lines).split("\n") if lines else [],
        fingerprint(entry_id, at, worker, lines),
    )


def fingerprint(*parts: bytes) -> str:
    """What tells an entry from another one under the same number."""
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        whole.update(b"%d:" % len(part))
        whole.update(part)
    return whole.hexdigest()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace").replace("\x00", "\\x00")  # PostgreSQL stores no NUL


def _number(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -(1 << 63) <= number < 1 << 63 else None
