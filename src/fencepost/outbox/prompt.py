"""Publishes jobs right after the commit of their transaction, on a thread of its own."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from typing import Final

from fencepost.log import emit
from fencepost.outbox.publish import BATCH, Publisher

__all__ = ["Prompt"]

_log = logging.getLogger("fencepost.relay")
# Of a transaction that nobody sees ending: when to look again, in seconds after the last look. Then the relay has it.
_LOOKS_S: Final = (0.002, 0.01, 0.04, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
_CLOSE_S: Final = 2.0


class Prompt:
    """Is told of job ids and publishes those whose rows are there; the rest were rolled back, or are for the relay.

    The thread starts with the first one told, also in a forked child. It never raises and never holds up the process.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._reset()

    def _reset(self) -> None:
        self._pid, self._thread, self._closing = os.getpid(), None, False
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, list[str], int]] = []
        self._number = itertools.count()
        self._away = ""

    _thread: threading.Thread | None

    def tell(self, job_ids: list[str], certain: bool) -> None:
        """Their transaction has committed; where that is not certain, it may go on for a while."""
        if self._pid != os.getpid():
            self._reset()
        looks = len(_LOOKS_S) if certain else 0
        with self._changed:
            self._add(job_ids, looks, 0.0 if certain else _LOOKS_S[0])
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="fencepost-outbox", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Publish what is due, at most two seconds, and end the thread."""
        with self._changed:
            self._closing = True
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None and self._pid == os.getpid():
            thread.join(_CLOSE_S)

    def _add(self, job_ids: list[str], looks: int, in_s: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + in_s, next(self._number), job_ids, looks))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (ready := self._ready()):
                    if self._closing:
                        return self._publisher.table.engine.dispose()
                    wait_s = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(wait_s)
            self._publish(ready)

    def _ready(self) -> list[tuple[list[str], int]]:
        """What is due now, at most a batch; all that is left where we are closing."""
        out: list[tuple[list[str], int]] = []
        size, now = 0, time.monotonic()
        while self._due and size < BATCH and (self._due[0][0] <= now or self._closing):
            _, _, ids, looks = heapq.heappop(self._due)
            out.append((ids, looks))
            size += len(ids)
        return out

    def _publish(self, ready: list[tuple[list[str], int]]) -> None:
        ids = [job_id for some, _ in ready for job_id in some]
        seen = 0
        try:
            for at in range(0, len(ids), BATCH):
                done = self._publisher.publish_some(BATCH, ids[at : at + BATCH])
                seen += done.seen
                if done.away:
                    return self._stay_away(done.away)
            if seen < len(ids):
                self._look_again(ready)
        except Exception as error:  # noqa: BLE001 - whatever it is, the rows are there and the relay has them
            return self._stay_away(str(error))
        self._away = ""

    def _look_again(self, ready: list[tuple[list[str], int]]) -> None:
        with self._changed:
            for some, looks in ready:
                if looks < len(_LOOKS_S) - 1 and not self._closing:
                    self._add(some, looks + 1, _LOOKS_S[looks + 1])
        self._warn([job_id for some, looks in ready if looks >= len(_LOOKS_S) for job_id in some])

    def _warn(self, committed: list[str]) -> None:
        """Rows that were committed and are not there went into another database, where no relay may ever look."""
        for job_id in self._publisher.table.missing(committed) if committed else ():
            emit(_log, logging.ERROR, "outbox_row_elsewhere", job_id=job_id, outbox=self._publisher.table.where)

    def _stay_away(self, cause: str) -> None:
        if not self._away:
            emit(_log, logging.WARNING, "outbox_away", cause=cause[:300])
        self._away = cause
