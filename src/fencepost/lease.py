"""A lease on a resource without a job: one holder at a time, a fencing token, a heartbeat that keeps it.

The same slots and lines serve jobs and stand-alone leases: a job with resource "stock:42" and a lease named "stock:42"
never hold it together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from fencepost.clock import boottime_s, new_nonce
from fencepost.driver import AsyncDriver, Call, SyncDriver
from fencepost.errors import (
    ConfigurationError,
    FencepostError,
    LeaseExpired,
    LeaseLost,
    RedisUnavailable,
    ResourceBusy,
    StaleToken,
)
from fencepost.log import emit
from fencepost.store import Answer, RunKey, Store

if TYPE_CHECKING:
    from fencepost.fence import Guarded

__all__ = ["Lease", "local_deadline"]

_log = logging.getLogger("fencepost.lease")
_ASK_AGAIN_S = 1.0
_LATE_ANSWERS = 3


def local_deadline(sent_at_s: float, ttl_s: float) -> float:
    """Return when a holder stops trusting its lease, on the clock of boottime_s.

    Counted from before the request was sent, less a tenth for drift: the server, which counts from later, cannot give
    the lease to another before (Gray and Cheriton, "Leases", 1989).
    """
    return sent_at_s + ttl_s * 0.9


class Lease:
    """A lease as an asynchronous or a synchronous context manager. Made by Fencepost.lease.

    name: the resource. ttl_s: how long it outlives a holder that stopped renewing; renewed every third of it from a
    thread of its own. limit: how many may hold the resource together. wait_s: how long to stand in line, 0 to try
    once, math.inf to wait for ever. token: the fencing token, above each earlier one of the partition; pass it to what
    you write to. on_lost is called once, from the renewing thread, when the lease is lost.
    Entering raises ResourceBusy, LeaseLost where the place was gone before the answer came, or RedisUnavailable unless
    when_redis_away="fail_open" (then token is 0 and held is False).
    Leaving gives the lease back if it is still ours and raises nothing otherwise; see `lost`.
    """

    def __init__(
        self,
        store: Store,
        drivers: tuple[Callable[[], AsyncDriver], Callable[[], SyncDriver]],
        name: str,
        *,
        ttl_s: float,
        owner: str,
        wait_s: float = 0.0,
        limit: int = 1,
        when_redis_away: Literal["fail_closed", "fail_open"] = "fail_closed",
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        if not 1.0 <= ttl_s <= 86_400:
            raise ConfigurationError("ttl", f"{ttl_s!r} is not 1 to 86400 seconds", "30 suits most work.")
        if when_redis_away not in ("fail_closed", "fail_open"):
            raise ConfigurationError("when_redis_away", f"{when_redis_away!r} is unknown", "fail_closed or fail_open")
        if type(limit) is not int or not 1 <= limit <= 10_000:
            raise ConfigurationError("limit", f"{limit!r} is not a whole number from 1 to 10000")
        if not name or len(name) > 512 or not name.isprintable() or not set("{} ").isdisjoint(name):
            raise ConfigurationError("name", f"{name[:60]!a} cannot name a resource", 'Write "stock-sync:sku:42".')
        self.name, self.ttl_s, self.owner, self.limit = name, ttl_s, owner, limit
        self.token, self.held, self.lost = 0, False, ""
        self._store, self._drivers, self._wait_s, self._policy = store, drivers, wait_s, when_redis_away
        self._on_lost, self._nonce, self._until = on_lost, "", 0.0
        self._is_open = False
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None

    def check(self) -> None:
        """Raise LeaseLost if this lease is not ours: by its own clock, by an answer of the server, or not entered.

        One that failed open passes: there is nothing to ask.
        """
        if not self.held and not self._is_open:
            raise LeaseLost(self.name, self.lost or "released")
        if not self.lost and self.held and boottime_s() >= self._until:
            self._lose("deadline")
        if self.lost:
            raise LeaseLost(self.name, self.lost)

    # -- what the SQL guard asks of a holder --------------------------------------------------------------

    def guarded(self, factory: Any, name: str, resource: str | None = None) -> Guarded:
        """Return a section that commits in the user's own SQL database only while this lease is ours, and once a name.

        name: of the effect, within this resource: "2026-11-30" makes one effect a day. The rest as in Run.guarded.
        """
        from fencepost.fence import Guarded

        return Guarded(self, factory, name, resource)

    @property
    def namespace(self) -> str:
        return self._store.keys.namespace

    @property
    def job_id(self) -> str:
        return ""

    @property
    def nonce(self) -> str:
        return self._nonce

    @property
    def lease_s(self) -> float:
        return self.ttl_s

    def fence_resource(self, resource: str | None = None) -> str:
        """What is fenced in SQL: the resource; where more than one may hold it, this lease alone.

        Raises ConfigurationError for a lease that failed open: it has no token to guard with.
        """
        if self._is_open:
            raise ConfigurationError(
                "lease",
                f"{self.name} failed open while Redis was away, so there is no fencing token to guard SQL with",
                'Use when_redis_away="fail_closed" for what writes to SQL, or look at lease.held first.',
            )
        if resource is not None:
            return resource
        return self.name if self.limit == 1 else f"@{self._nonce}"

    def effect_key(self, name: str) -> str:
        """Return the key of an effect: the resource and the name."""
        if not 0 < len(name) <= 100 or not name.isprintable() or name != name.strip():
            raise ConfigurationError("effect", f"{name!a:.60} is not a printable name of 1 to 100 characters")
        return f"@{self.name}:{name}"

    async def bump(self, floor: int, where: str) -> None:
        """Get a token above floor, which SQL knows, if the lease is still ours. Raises StaleToken, LeaseExpired."""
        self._bumped(await self._drivers[0]().run(self._store.bump(self._run_key(), self.owner, floor, where)), floor)

    def bump_sync(self, floor: int, where: str) -> None:
        """As bump, for code without an event loop."""
        self._bumped(self._drivers[1]().run(self._store.bump(self._run_key(), self.owner, floor, where)), floor)

    def _bumped(self, answer: Answer, floor: int) -> None:
        if answer.word == "OK":
            self.token = max(self.token, int(answer.detail))
        elif answer.word == "STALE":
            self.newer(max(floor, int(answer.detail)))
            raise StaleToken(self.name, self.token, max(floor, int(answer.detail)))
        else:
            self._lose("expired")
            raise LeaseExpired(self.name, self.token)

    def newer(self, token: int) -> None:
        """Somebody else has this token, which is above ours."""
        self._lose("stale")

    def note_effect(self, key: str, first: bool) -> None:
        """Log an effect that SQL has; without a job there is no outcome to tell it with."""
        emit(_log, logging.INFO, "effect" if first else "effect_found", resource=self.name, key=key)

    # -- entering -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        driver = self._drivers[0]()
        self._begin()
        try:
            while not self._granted(await driver.run(self._ask())):
                await driver.wait([self._store.keys.grant(self._nonce)], self._pause_s())
            while not self._in_time():
                self._confirmed((await driver.run(self._renewal()))[0].word)
        except RedisUnavailable:
            if self._policy == "fail_closed":
                raise
            self._tell_open()
            return self
        except asyncio.CancelledError:
            await asyncio.shield(self._withdraw(driver))
            raise
        self._hold()
        return self

    async def _withdraw(self, driver: AsyncDriver) -> None:
        """Leave the line; give the place back if it was handed over meanwhile."""
        with contextlib.suppress(FencepostError):
            word, token, _ = await driver.run(self._leave(), 2.0)
            if word == "HELD":
                await driver.run(self._store.release(self._nonce, token, self.owner), 2.0)

    def __enter__(self) -> Self:
        driver = self._drivers[1]()
        self._begin()
        try:
            while not self._granted(driver.run(self._ask())):
                driver.wait([self._store.keys.grant(self._nonce)], self._pause_s())
            while not self._in_time():
                self._confirmed(driver.run(self._renewal())[0].word)
        except RedisUnavailable:
            if self._policy == "fail_closed":
                raise
            self._tell_open()
            return self
        except FencepostError:
            raise
        except BaseException:  # Ctrl-C while it waits: the place must not be handed to nobody
            self._withdraw_sync(driver)
            raise
        self._hold()
        return self

    def _withdraw_sync(self, driver: SyncDriver) -> None:
        with contextlib.suppress(FencepostError):
            word, token, _ = driver.run(self._leave(), 2.0)
            if word == "HELD":
                driver.run(self._store.release(self._nonce, token, self.owner), 2.0)

    def _begin(self) -> None:
        if self.held:
            raise ConfigurationError("lease", f"{self.name} is held already by this object", "Make one for each use.")
        self._nonce, self.lost, self.token, self._waited = new_nonce(), "", 0, False
        self._late, self._is_open = 0, False
        self._give_up_at = time.monotonic() + self._wait_s
        self._sent_at = self._asked_at = boottime_s()
        self._stop = threading.Event()  # of this use alone: a renewal of the last one may still be on its way

    def _pause_s(self) -> float:
        return max(0.01, min(_ASK_AGAIN_S, self._give_up_at - time.monotonic()))

    def _ask(self) -> Call[tuple[str, str, str]]:
        left_ms = math.ceil(min(86_400.0, max(0.0, self._give_up_at - time.monotonic())) * 1000)
        if self._waited and left_ms == 0:
            return self._leave()
        # A place that is handed over is granted between two asks: the older one is the safe start of the lease.
        self._asked_at, self._sent_at = (self._sent_at if self._waited else boottime_s()), boottime_s()
        ttl_ms = round(self.ttl_s * 1000)
        return self._store.acquire(self.name, self._nonce, self.owner, ttl_ms, self.limit, left_ms)

    def _leave(self) -> Call[tuple[str, str, str]]:
        return self._store.acquire(self.name, self._nonce, self.owner, 1000, 1, -1)

    def _granted(self, answer: tuple[str, str, str]) -> bool:
        word, detail, _ = answer
        if word == "HELD":
            self.token, self._until = int(detail), local_deadline(self._asked_at, self.ttl_s)
            return True
        if word == "WAIT":
            self._waited = True
            return False
        raise ResourceBusy(self.name, detail if word == "BUSY" else "others in line")

    def _in_time(self) -> bool:
        """Whether enough of the lease is left to begin with. After a late answer nobody knows when it began: renew."""
        return self._until - boottime_s() > self.ttl_s / 2

    def _run_key(self) -> RunKey:
        return RunKey(f"@{self._nonce}", str(self.token), self._nonce)

    def _renewal(self) -> Call[list[Answer]]:
        self._sent_at, self._late = boottime_s(), self._late + 1
        if self._late > _LATE_ANSWERS:
            raise LeaseLost(self.name, "deadline")
        return self._store.renew(round(self.ttl_s * 1000), self.owner, [self._run_key()])

    def _confirmed(self, word: str) -> None:
        if word != "OK":
            raise LeaseLost(self.name, "stale" if word == "STALE" else "expired")
        self._until = local_deadline(self._sent_at, self.ttl_s)

    def _hold(self) -> None:
        self.held = True
        name = f"fencepost-lease-{self.name}"
        self._heart = threading.Thread(target=self._beat, args=(self._stop,), name=name, daemon=True)
        self._heart.start()

    def _tell_open(self) -> None:
        self.token, self._is_open = 0, True
        emit(_log, logging.WARNING, "lease_failed_open", resource=self.name, owner=self.owner)

    # -- holding ------------------------------------------------------------------------------------------

    def _beat(self, stop: threading.Event) -> None:
        """Renew until released or lost. A network error is retried until the local deadline; "not yours" is final."""
        pause_s = self.ttl_s / 3
        while not stop.wait(min(pause_s, max(0.0, self._until - boottime_s()))):
            sent_at = boottime_s()
            if sent_at >= self._until:
                return None if stop.is_set() else self._lose("deadline")
            # An answer that comes after the deadline is of no use: nobody waits for it.
            run = self._run_key()
            word = self._renew(run, max(0.02, min(self.ttl_s / 6, self._until - sent_at)))
            if stop.is_set():
                return None
            if word == "OK":
                self._until, pause_s = local_deadline(sent_at, self.ttl_s), self.ttl_s / 3
            elif word and run != self._run_key():  # bumped while the call was on its way: ask again
                pause_s = self.ttl_s / 12
            elif word:
                return self._lose("stale" if word == "STALE" else "expired")
            else:
                pause_s = self.ttl_s / 12
        return None

    def _renew(self, run: RunKey, patience_s: float) -> str:
        """Ask once, on a connection that lives no longer than the call. Returns the answer's word, "" without one."""
        driver = SyncDriver(self._drivers[1]().connections, give_up_s=0.0, timeout_s=patience_s)
        try:
            return driver.run(self._store.renew(round(self.ttl_s * 1000), self.owner, [run]))[0].word
        except FencepostError as error:
            emit(_log, logging.WARNING, "renew_failed", resource=self.name, cause=str(error)[:200])
            return ""
        finally:
            driver.close()

    def _lose(self, why: str) -> None:
        if self.lost or not self.held or self._stop.is_set():
            return
        self.lost = why
        emit(
            _log, logging.WARNING, "lease_lost", resource=self.name, owner=self.owner, fencing_token=self.token, why=why
        )
        if self._on_lost is not None:
            self._on_lost(why)

    # -- leaving ------------------------------------------------------------------------------------------

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._ending():
            return
        try:
            answer = await self._drivers[0]().run(self._store.release(self._nonce, str(self.token), self.owner), 2.0)
            self._released(answer.word)
        except RedisUnavailable as away:
            emit(_log, logging.WARNING, "release_failed", resource=self.name, cause=away.cause)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._ending():
            return
        try:
            answer = self._drivers[1]().run(self._store.release(self._nonce, str(self.token), self.owner), 2.0)
            self._released(answer.word)
        except RedisUnavailable as away:
            emit(_log, logging.WARNING, "release_failed", resource=self.name, cause=away.cause)

    def _ending(self) -> bool:
        was_held, self.held, self._is_open = self.held, False, False
        self._stop.set()
        return was_held

    def _released(self, word: str) -> None:
        if word == "STALE" and not self.lost:  # an operator took it, and no renewal had come across that yet
            self.lost = "stale"
            emit(_log, logging.WARNING, "lease_lost", resource=self.name, owner=self.owner, why="stale")
        # GONE before our own deadline: an earlier try of this very release, whose answer was lost, gave it back.
        if word != "OK" and not self.lost and boottime_s() >= self._until:
            self.lost = "expired"
            emit(_log, logging.WARNING, "lease_lost", resource=self.name, owner=self.owner, why="expired")
