"""Follows the event stream for all who wait for news of a job: one reader a process, and only while somebody listens.

The reader has a place: the newest entry it has seen, with its content. It sleeps in Redis until there is a newer one,
then reads from its place on in one look. If its place holds another entry by then, or none, the stream was rewound,
emptied or trimmed away: the reader goes to its present end, and tells every listener to read the history again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from fencepost.api.problems import Problem
from fencepost.errors import FencepostError
from fencepost.link import Link
from fencepost.log import emit
from fencepost.operate import Event
from fencepost.operate.jobs import events_of
from fencepost.operate.plan import View, look, text

__all__ = ["ENDS", "PATIENCE_S", "Listener", "News", "Tail"]

_log: Final = logging.getLogger("fencepost.api")

ENDS: Final = frozenset({"done", "failed", "cancelled", "concluded", "purged"})
"""The events after which a job is over."""
PATIENCE_S: Final = 2.0
"""How long a call waits for a server that is away. Callers come again: better an honest 503 than a queue of calls."""
_BLOCK_S: Final = 2.0
_PAUSE_S: Final = 0.03  # a busy stream is read in batches, about 30 a second, and not entry by entry
_AWAY_S: Final = 0.5
_ENTRIES: Final = 500
_MOST_UNREAD: Final = 1_000


class _Place(NamedTuple):
    """An entry of the stream. An id without its content would not do: a rewound server gives numbers out again."""

    entry_id: bytes
    content: list[bytes]


class News(NamedTuple):
    """What a listener was told since it last asked. again: something was missed, read the history again."""

    events: list[Event]
    again: bool


class Listener:
    """Who waits for news of one job. ended: the client went away, may not listen any more, or the service stops. Close
    it."""

    def __init__(self, tail: Tail, job_id: str) -> None:
        self.job_id, self.ended = job_id, False
        self._tail, self._events, self._again = tail, list[Event](), False
        self._bell = asyncio.Event()
        self._watchers: list[asyncio.Task[None]] = []

    def watch(self, request: Request, stopping: asyncio.Event, unwelcome: Coroutine[Any, Any, None]) -> None:
        """From now on `ended` tells when it is no use to wait any more. unwelcome: returns when the caller must go."""
        waits = (self._until_gone(request), self._until(stopping.wait()), self._until(unwelcome))
        self._watchers = [asyncio.create_task(one) for one in waits]

    async def _until_gone(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._end()

    async def _until(self, wait: Coroutine[Any, Any, object]) -> None:
        await wait
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._bell.set()

    def tell(self, event: Event) -> None:
        """Add an event. One that does not ask for too long has to read the history."""
        if len(self._events) >= _MOST_UNREAD:
            self.tell_again()
        elif not self._again:
            self._events.append(event)
        self._bell.set()

    def tell_again(self) -> None:
        self._events, self._again = [], True
        self._bell.set()

    async def news(self, timeout_s: float) -> News:
        """What is new, at most timeout_s later; nothing where there is none or the wait has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._bell.wait()
        told = News(self._events, self._again)
        self._events, self._again = [], False
        if not self.ended:
            self._bell.clear()
        return told

    def close(self) -> None:
        """Listen no more. Twice is once."""
        for one in self._watchers:
            one.cancel()
        self._watchers = []
        self._tail.forget(self)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tail:
    """The reader of one application's events. most: listeners at a time."""

    def __init__(self, link: Link, most: int) -> None:
        self._link, self._most = link, most
        self._listeners: dict[str, set[Listener]] = {}
        self._count = 0
        self._place: _Place | None = None
        self._starting = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._away = False

    @property
    def listeners(self) -> int:
        """How many listen."""
        return self._count

    @property
    def reading(self) -> bool:
        """Whether the stream is read."""
        return self._reader is not None and not self._reader.done()

    async def listen(self, job_id: str) -> Listener:
        """Return a listener: what happens to the job after this call is told to it, so the history is read behind it.

        Raises Problem 503 where too many listen already, RedisUnavailable.
        """
        if self._count >= self._most:
            text = f"{self._most} callers wait for news from this process, which is the most. Nothing was changed."
            raise Problem(
                503, "too-many-streams", "Too many wait already", f"{text} Try again later, or ask without waiting.",
                headers={"Retry-After": "5"},
            )  # fmt: skip
        listener = Listener(self, job_id)
        self._listeners.setdefault(job_id, set()).add(listener)
        self._count += 1
        try:
            async with self._starting:
                if self._reader is None or self._reader.done():
                    self._place = await self._newest()
                    self._reader = asyncio.create_task(self._read())
        except BaseException:
            listener.close()
            raise
        return listener

    def forget(self, listener: Listener) -> None:
        """Let a listener go. With the last one the reader ends."""
        mine = self._listeners.get(listener.job_id, set())
        if listener not in mine:
            return
        mine.discard(listener)
        self._count -= 1
        if not mine:
            del self._listeners[listener.job_id]
        if not self._count and self._reader is not None:
            self._reader.cancel()
            self._reader = None

    async def _newest(self) -> _Place | None:
        keys = self._link.store.keys
        newest = look(keys, [("XREVRANGE", keys.events, "+", "-", "COUNT", 1)])
        return _place((await self._link.asynchronous.run(newest, PATIENCE_S)).replies[0])

    async def _read(self) -> None:
        events = self._link.store.keys.events
        while True:
            try:
                more = await self._step()
            except FencepostError as error:
                if not self._away:
                    emit(_log, logging.WARNING, "tail_away", error=str(error))
                self._away = True
                await asyncio.sleep(_AWAY_S)
                continue
            except Exception as error:  # noqa: BLE001 - see below
                # Whoever listens would wait in vain if the reader ended: tell, and go on from the present end.
                emit(_log, logging.ERROR, "tail_failed", error=f"{type(error).__name__}: {error}")
                self._place = None
                self._tell_again()
                await asyncio.sleep(_AWAY_S)
                continue
            if self._away:
                self._away = False
                emit(_log, logging.WARNING, "tail_back")
            if not more:
                await asyncio.sleep(_PAUSE_S)
                last = text(self._place.entry_id) if self._place else "0-0"
                await self._link.asynchronous.follow(events, last, _BLOCK_S)

    async def _step(self) -> bool:
        """Read from the place on, and tell. Returns whether there is more."""
        keys, place = self._link.store.keys, self._place
        start = place.entry_id if place else "-"
        commands = [
            ("XRANGE", keys.events, start, "+", "COUNT", _ENTRIES),
            ("XREVRANGE", keys.events, "+", "-", "COUNT", 1),
        ]
        view: View = await self._link.asynchronous.run(look(keys, commands), PATIENCE_S)
        entries, newest = view.replies
        if place is not None:
            if _place(entries) != place:
                self._place = _place(newest)
                self._tell_again()
                return False
            entries = entries[1:]
        for entry_id, flat in entries:
            self._tell(entry_id, flat)
        if entries:
            self._place = _place(entries[-1:])
        return len(entries) >= _ENTRIES - 1

    def _tell(self, entry_id: bytes, flat: list[bytes]) -> None:
        # Most entries are about jobs that nobody follows: look for the ids before anything is opened.
        lines = dict(zip(flat[::2], flat[1::2], strict=True)).get(b"e", b"").split(b"\n")
        told = {text(parts[1]) for parts in (line.split(b"\t", 2) for line in lines) if len(parts) > 1}
        if told.isdisjoint(self._listeners):
            return
        for event in events_of(text(entry_id), flat):
            for listener in self._listeners.get(event.job_id, ()):
                listener.tell(event)

    def _tell_again(self) -> None:
        for some in self._listeners.values():
            for listener in some:
                listener.tell_again()


def _place(entries: list[Any]) -> _Place | None:
    return _Place(entries[0][0], entries[0][1]) if entries else None
