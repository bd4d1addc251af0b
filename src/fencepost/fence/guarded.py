"""`run.guarded(…)`: a section with a transaction of its own, as a context manager or as a function that is repeated."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from fencepost.errors import ConfigurationError, SectionRepeat
from fencepost.sql.channel import at_once

from .hands import BLOCKING, LOOPED, Hands
from .holder import Holder
from .section import PATIENCE_LEASES, Effect, Section, pause_s

__all__ = ["Guarded"]

_PASSAGES: Final = 10
_OF_AN_EFFECT: Final = ("first", "result", "session", "key")


def _not_entered(name: str) -> ConfigurationError:
    return ConfigurationError(
        "guarded",
        f"`.{name}` is what the block gets, and this is not entered",
        f"Write `with run.guarded(…) as effect:`, or `async with`, and take `effect.{name}`.",
    )


class Guarded:
    """An effect in the user's database that is committed at most once, and only by the newest holder.

    factory: what makes a connection: a sessionmaker, an engine, or a callable that gives a session or connection, or a
    context manager of one. key: names the effect within the job, never the attempt. resource: whose token is checked;
    None for the resource of the run, or the job itself.

    Entering installs the token in a short transaction of its own, opens the transaction of the block, and looks whether
    the effect is there. Leaving verifies by a locking statement that the token is still the newest, writes the effect
    row with `effect.result`, and commits; or undoes everything. Where the effect was there, nothing is written.

    Raises StaleToken, LeaseExpired or LeaseLost (somebody else has the job; all is rolled back), SectionRepeat (the
    database wants the section once more; `call` does that by itself), ResultRefused, ConfigurationError,
    RedisUnavailable, TransactionEnded, and what the block or the driver raises. One object serves one block at a time.
    """

    def __init__(self, holder: Holder, factory: Any, key: str, resource: str | None = None) -> None:
        if not key:
            raise ConfigurationError("key", f"{key!r:.60} does not name an effect", 'Write "invoice", or "charge:eur".')
        self._holder, self._factory, self._key, self._resource = holder, factory, key, resource
        self._section: Section | None = None

    if not TYPE_CHECKING:  # for who forgot to enter it; type checkers know that it has none of these

        def __getattr__(self, name: str) -> Any:
            raise _not_entered(name) if name in _OF_AN_EFFECT else AttributeError(name, name=name, obj=self)

        def __setattr__(self, name: str, value: Any) -> None:
            if name in _OF_AN_EFFECT:
                raise _not_entered(name)
            object.__setattr__(self, name, value)

    # -- as a context manager -----------------------------------------------------------------------------

    async def __aenter__(self) -> Effect:
        return await self._enter(LOOPED)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave(error)

    def __enter__(self) -> Effect:
        return at_once(self._enter(BLOCKING))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        at_once(self._leave(error))

    # -- as a function ------------------------------------------------------------------------------------

    async def call(self, work: Callable[[Effect], Any]) -> Any:
        """Do `work(effect)` in the section and return the result; where the effect is there, only its stored result.

        What `work` returns is the result, unless it sets `effect.result`. The whole section is repeated, from install
        on, up to 10 times where the database asks for it (serialization failure, deadlock, lock timeout), so `work`
        must do nothing outside the database. Entering is not tried for longer than about 3 leases. Raises what the
        context manager raises, SectionRepeat after the last time.
        """
        return await self._repeat(LOOPED, work)

    def call_sync(self, work: Callable[[Effect], Any]) -> Any:
        """As call, on the calling thread, with a function that is not async."""
        if inspect.iscoroutinefunction(work):
            raise ConfigurationError("work", "it is an async function", "Use `await guarded.call(…)`.")
        return at_once(self._repeat(BLOCKING, work))

    async def _repeat(self, hands: Hands, work: Callable[[Effect], Any]) -> Any:
        until = time.monotonic() + PATIENCE_LEASES * self._holder.lease_s
        for left in reversed(range(_PASSAGES)):
            effect = None
            try:
                effect = await self._enter(hands)
                return await self._pass(hands, effect, work)
            except SectionRepeat:
                if not left or (effect is None and time.monotonic() >= until):
                    raise
            await hands.pause(pause_s())
        raise AssertionError("unreachable")

    async def _pass(self, hands: Hands, effect: Effect, work: Callable[[Effect], Any]) -> Any:
        try:
            if effect.first:
                value = work(effect)
                if hands.asynchronous and inspect.isawaitable(value):
                    value = await value
                if value is not None:
                    effect.result = value
        except BaseException as error:
            await self._leave(error)
            raise
        await self._leave(None)
        return effect.result

    # -- both ---------------------------------------------------------------------------------------------

    async def _enter(self, hands: Hands) -> Effect:
        if self._section is not None:
            raise ConfigurationError(
                "guarded", "the same object is in use already", "Call `guarded` again for each section."
            )
        self._section = section = Section(hands, self._holder, self._factory, self._key, self._resource)
        try:
            return await section.enter()
        except BaseException:
            self._section = None
            raise

    async def _leave(self, error: BaseException | None) -> None:
        section, self._section = self._section, None
        if section is None:
            raise ConfigurationError("guarded", "it was not entered", "Write `with run.guarded(…) as effect:`.")
        await section.leave(error)
