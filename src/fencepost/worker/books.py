"""The books: a thread that copies events into the ledger, publishes the outbox and reconciles, beside the jobs.

It has connections of its own and nobody waits for it. While SQL or Redis is away it says so once and tries again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fencepost.clock import wall_ms
from fencepost.driver import SyncDriver
from fencepost.errors import FencepostError, RedisUnavailable
from fencepost.log import emit

if TYPE_CHECKING:
    from fencepost.app import Fencepost
    from fencepost.ledger.archiver import Archiver
    from fencepost.ledger.reconcile import Reconciler
    from fencepost.relay import Relay

__all__ = ["Books"]

_log = logging.getLogger("fencepost.worker")
GIVE_UP_S: Final = 2.0
ARCHIVE_EVERY_S: Final = (0.1, 1.0)
RELAY_EVERY_S: Final = 0.5
RECONCILE_EVERY_S: Final = 30.0
UNTOLD_EVERY_S: Final = 3.0
_LONGEST_WAIT_S: Final = 15.0
_REWOUND_LATELY_MS: Final = 600_000
_LAST_WORDS_S: Final = 2.0
_OTHERS_COMPARE_IN_S: Final = (5.0, 30.0)
BATCH: Final = 500


class _Side:
    """What duties need and cannot always reach. failing: the duties that could not; told when the first one is, and
    when none is any more."""

    def __init__(self, name: str) -> None:
        self.name, self.failing = name, set[str]()


class _Duty:
    """One thing to do again and again. work: does a step and returns in how many seconds it wants the next."""

    def __init__(self, name: str, side: _Side, work: Callable[[], float]) -> None:
        self.name, self._side, self._work = name, side, work
        self.due_at_s, self._wait_s = time.monotonic(), 0.5

    def step(self) -> None:
        try:
            wait_s = self._work()
        except Exception as error:  # noqa: BLE001 - the books must not end, whatever a driver or a database raises
            self._wait_s = wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)
            if not self._side.failing:
                cause = str(error) if isinstance(error, FencepostError) else f"{type(error).__name__}: {error}"
                emit(_log, logging.ERROR, f"{self._side.name}_away", duty=self.name, cause=cause[:300])
            self._side.failing.add(self.name)
        else:
            if self._side.failing == {self.name}:
                emit(_log, logging.WARNING, f"{self._side.name}_back", duty=self.name)
            self._side.failing.discard(self.name)
            self._wait_s = 0.5
        self.due_at_s = time.monotonic() + wait_s * (0.75 + random.random() / 2)


class Books(threading.Thread):
    """Started by a worker whose application has a ledger or an outbox."""

    def __init__(self, app: Fencepost) -> None:
        super().__init__(name="fencepost-books", daemon=True)
        self._app, self._over = app, threading.Event()
        self._driver = SyncDriver(app.link.connections, give_up_s=GIVE_UP_S)
        self._archiver: Archiver | None = None
        self._reconciler: Reconciler | None = None
        self._relay: Relay | None = None
        self._pause_s, self._everything, self._epoch = ARCHIVE_EVERY_S[0], False, 0
        self._ledger, self._outbox = _Side("ledger"), _Side("outbox")
        self._reconcile = _Duty("reconcile", self._ledger, self._compare)
        self._duties: list[_Duty] = []

    def run(self) -> None:
        app = self._app
        if app.ledger_url is not None:
            self._duties += [
                _Duty("archive", self._ledger, self._archive),
                _Duty("untold", self._ledger, self._ask_for_untold),
            ]
            self._duties.append(self._reconcile)
        if app.outbox_url is not None:
            self._duties.append(_Duty("relay", self._outbox, self._publish))
        while not self._over.is_set():
            now = time.monotonic()
            for duty in self._duties:
                if duty.due_at_s <= now and not self._over.is_set():
                    duty.step()
            soonest = min((duty.due_at_s for duty in self._duties), default=now + 1)
            self._over.wait(max(0.0, soonest - time.monotonic()))
        self._last_words()
        self._driver.close()
        # Whoever closed the application may have done so before this thread came to its end.
        if self._archiver is not None:
            self._archiver.ledger.close()
        if self._relay is not None:
            self._relay.close()

    def stop(self, wait_s: float = _LAST_WORDS_S + 1) -> None:
        """Copy what is there, within two seconds, and end. Blocks at most wait_s."""
        self._over.set()
        if self.is_alive():
            self.join(wait_s)

    # -- the duties ---------------------------------------------------------------------------------------

    def _archive(self) -> float:
        if self._archiver is None:
            self._open_ledger()
        assert self._archiver is not None
        copied = self._archiver.copy_some()
        if copied.rewound or self._epoch not in (0, copied.epoch):  # Redis came back older or empty
            # At once by the one who saw it first; later by the others, in case that one is no more.
            wait_s = 0.0 if copied.rewound else random.uniform(*_OTHERS_COMPARE_IN_S)
            self._everything, self._reconcile.due_at_s = True, time.monotonic() + wait_s
        self._epoch = copied.epoch
        if copied.more and not copied.busy:
            return 0.0
        # An idle ledger is looked after less often; one that another worker looks after, too.
        shortest, longest = ARCHIVE_EVERY_S
        self._pause_s = shortest if copied.events else min(self._pause_s * 1.5, longest)
        return self._pause_s

    def _compare(self) -> float:
        if self._reconciler is None:
            return 1.0
        everything = self._everything
        report = self._reconciler.run(everything=everything)
        if report.busy:
            return 1.0
        if everything:
            self._everything = False
        # All workers of the application take turns: together about one round in half a minute.
        keys = self._app.link.store.keys
        lately = wall_ms() - 120_000
        workers: int = self._driver.run(self._app.link.store.read(["ZCOUNT", keys.workers, lately, "+inf"], int))
        return RECONCILE_EVERY_S * max(1, workers)

    def _ask_for_untold(self) -> float:
        """Durable jobs of which Redis has told nothing for seconds: it was away, or lost them before a copy."""
        if self._reconciler is not None:
            self._reconciler.run(untold=True)
        return UNTOLD_EVERY_S

    def _publish(self) -> float:
        if self._relay is None:
            from fencepost.relay import Relay

            outbox = self._app.outbox
            assert outbox is not None
            self._relay = Relay(outbox)
        done = self._relay.step()
        if done.away:
            raise RedisUnavailable("enqueue", done.away, False)
        return 0.0 if done.sent == BATCH else RELAY_EVERY_S

    def _open_ledger(self) -> None:
        from fencepost.ledger.archiver import Archiver
        from fencepost.ledger.reconcile import Reconciler

        ledger, store = self._app.ledger, self._app.link.store
        assert ledger is not None
        archiver = Archiver(ledger, store, self._driver)
        reconciler = Reconciler(ledger, store, self._driver, archiver)
        # Whoever saw the rewind may have died before it compared anything.
        self._everything = reconciler.rewound_at_ms() > wall_ms() - _REWOUND_LATELY_MS
        self._archiver, self._reconciler = archiver, reconciler

    def _last_words(self) -> None:
        """What the worker's own last outcomes left in the stream, so that a burst ends with its ledger written."""
        if self._archiver is None:
            return
        until_s = time.monotonic() + _LAST_WORDS_S
        try:
            while time.monotonic() < until_s:
                copied = self._archiver.copy_some()
                if copied.busy or not copied.more:
                    return
        except Exception as error:  # noqa: BLE001 - another worker, or the next start, goes on from there
            emit(_log, logging.WARNING, "ledger_away", duty="archive", cause=str(error)[:300])
