"""The relay: publishes what the outbox still holds, for as long as it is let run. Any number may run at once."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Final

from fencepost.errors import FencepostError
from fencepost.log import emit
from fencepost.outbox import Outbox
from fencepost.outbox.publish import BATCH, Published
from fencepost.outbox.table import Row, Waiting

__all__ = ["Relay"]

_log = logging.getLogger("fencepost.relay")
_CLEAR_EVERY_S: Final = 600.0
_LONGEST_WAIT_S: Final = 15.0


class Relay:
    """Works off one outbox. keep_s: how long a row is kept after it was published, for status and for people."""

    def __init__(self, outbox: Outbox, *, keep_s: float = 86_400.0) -> None:
        self._outbox, self._publisher, self._keep_ms = outbox, outbox.publisher(), round(keep_s * 1000)
        self._clear_at_s = time.monotonic() + _CLEAR_EVERY_S * random.random()

    def step(self) -> Published:
        """Publish up to 500 rows, the oldest first; now and then delete old ones. Raises LedgerUnavailable."""
        done = self._publisher.publish_some()
        if time.monotonic() >= self._clear_at_s:
            more = self._publisher.table.clear(self._keep_ms) > 0
            self._clear_at_s = time.monotonic() + (0 if more else _CLEAR_EVERY_S)
        return done

    def run(self, stop: threading.Event, *, every_s: float = 0.5, once: bool = False) -> Published:
        """Step until `stop` is set; once: until nothing is left. Returns the sum.

        While the database or Redis is away it logs `outbox_away` once and tries again with growing pauses. With
        `once` the error is raised instead: LedgerUnavailable.
        """
        total, wait_s, away = Published(), every_s, ""
        while not stop.is_set():
            try:
                done = self.step()
                cause = done.away
            except FencepostError as error:
                if once:
                    raise
                done, cause = Published(), str(error)
            total = add(total, done)
            if bool(cause) != bool(away):
                emit(_log, logging.WARNING, "outbox_away" if cause else "outbox_back", cause=cause[:300])
            away = cause
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S) if cause else every_s
            if once and (cause or done.seen < BATCH):
                return total._replace(away=cause)
            if cause or done.seen < BATCH:
                stop.wait(wait_s * (0.5 + random.random()))
        return total

    def close(self) -> None:
        """Close the connections to the database; a later step opens new ones."""
        self._publisher.table.engine.dispose()

    def waiting(self) -> Waiting:
        """How much is left to publish."""
        return self._publisher.table.waiting()

    def held(self) -> list[Row]:
        """Rows that are not published without a person's word: an earlier try may have reached Redis long ago."""
        return self._publisher.table.held_rows()

    def let_go(self, job_ids: list[str]) -> int:
        """Publish such rows all the same, with the next step. Returns how many there were."""
        return self._publisher.table.let_go(job_ids)


def add(one: Published, other: Published) -> Published:
    """The sum of two rounds."""
    seen, sent, known, failed, held = (a + b for a, b in zip(one[:5], other[:5], strict=True))
    return Published(seen, sent, known, failed, held, other.away)
