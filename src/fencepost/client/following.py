"""The events of a job as they happen, over connections that may break: nothing is lost and nothing told twice."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Final

import httpx2
import msgspec

from fencepost.client.answers import Event
from fencepost.client.calls import path
from fencepost.client.problems import NoAnswer, error_of
from fencepost.client.sending import Call

__all__ = ["Following"]

_SILENCE_S: Final = 45.0
"""The service says something every 15 s; a connection on which nothing comes for this long is dead."""
_AGAIN: Final = frozenset({429, 502, 503, 504})
_LONGEST_WAIT_S: Final = 5.0


class Following:
    """One following of a job, without I/O. give_up_s: how long it goes without an answer
    before that is an error."""

    def __init__(self, job_id: str, after: str | None, give_up_s: float) -> None:
        self._call = Call("GET", path("v1", "jobs", job_id, "events"), bytes, headers={"Accept": "text/event-stream"})
        self._about = {"job_id": job_id}
        self._last, self._give_up_s = after, give_up_s
        self._wait_s, self._away_since_s = 0.1, 0.0
        self._over = False

    def over(self) -> bool:
        """Whether nothing more comes."""
        return self._over

    def call(self) -> Call[bytes]:
        """The request for what comes next."""
        call = replace(self._call, waits_s=_SILENCE_S)
        return call if self._last is None else replace(call, headers={**call.headers, "Last-Event-ID": self._last})

    def began(self) -> None:
        """The service has begun to answer."""
        self._away_since_s = 0.0

    def refused(self, response: httpx2.Response) -> float:
        """Take an answer other than 200, read whole. Returns how long to wait before the next try; raises what it
        stands for."""
        if response.status_code == 204:
            self._over = True
            return 0.0
        error = error_of(self._call.what, response.status_code, response.content, self._about)
        if response.status_code not in _AGAIN:
            raise error
        return self._pause_s(error, response.headers.get("retry-after", ""))

    def broken(self, error: httpx2.TransportError | None) -> float:
        """The connection ended, or could not be made. Returns how long to wait; raises NoAnswer."""
        cause = "the stream ended" if error is None else str(error) or type(error).__name__
        return self._pause_s(NoAnswer(self._call.what, cause, False), "")

    def told(self, sse: httpx2.ServerSentEvent) -> Event | None:
        """Take an event of the stream. Returns it, or None for one about the stream itself."""
        self._wait_s = 0.1
        if sse.event == "end":
            self._over = True
            return None
        if not sse.data:
            return None
        event = msgspec.json.decode(sse.data, type=Event, strict=False)
        self._last = sse.id or self._last
        return event if event.name else msgspec.structs.replace(event, name=sse.event)

    def _pause_s(self, error: Exception, asked: str) -> float:
        pause_s = self._wait_s * (0.5 + random.random() / 2)
        if asked.isascii() and asked.isdecimal() and len(asked) < 7:
            pause_s = max(pause_s, float(asked))
        now_s = time.monotonic()
        if not self._away_since_s:  # it was there until now
            self._away_since_s = now_s
        elif now_s + pause_s > self._away_since_s + self._give_up_s:
            raise error
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)
        return pause_s
