"""The two ways a section works: on an event loop, or on the thread that calls it. The section is written once."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fencepost.errors import ConfigurationError
from fencepost.sql.channel import ACCEPTED, Channel, channel_of, is_connection, kind_of

from .holder import Holder

__all__ = ["BLOCKING", "LOOPED", "Hands", "Opened"]


class Opened(NamedTuple):
    """A connection that a factory gave. session: the user's object. leave: gives it back."""

    channel: Channel
    session: Any
    manager: Any


class Hands:
    """What differs between the two ways. Methods of the blocking one never wait for anything (`at_once`)."""

    asynchronous: bool

    async def bump(self, holder: Holder, floor: int, where: str) -> None:
        raise NotImplementedError

    async def pause(self, seconds: float) -> None:
        raise NotImplementedError

    async def enter(self, manager: Any) -> Any:
        raise NotImplementedError

    async def leave(self, manager: Any) -> None:
        raise NotImplementedError

    def require(self, channel: Channel) -> None:
        """Refuse a connection that does not fit: it would block the event loop, or nobody would await it."""
        if not channel.greenlet:
            self.require_thread()
        if channel.asynchronous and not self.asynchronous:
            raise ConfigurationError(
                "connection",
                f"{kind_of(channel.held)} is asynchronous, and this section is not",
                "Write `async with`, or give a synchronous connection.",
            )
        if self.asynchronous and not channel.asynchronous:
            raise ConfigurationError(
                "connection",
                f"{kind_of(channel.held)} is synchronous and would block the event loop, heartbeats of other jobs "
                f"included",
                "Give an asynchronous one (AsyncSession, AsyncEngine, psycopg.AsyncConnection), or write `with` in a "
                "handler that is not async.",
            )

    def require_thread(self) -> None:
        """Refuse to block an event loop that runs on this thread."""

    async def open(self, factory: Any) -> Opened:
        """Make a connection. factory: a callable that gives one, or a context manager of one; or an engine."""
        self.require_thread()
        made = _call(factory)
        if inspect.isawaitable(made):
            made = await self._awaited(made)
        manager = None
        if not is_connection(made):
            if not hasattr(made, "__aenter__" if self.asynchronous else "__enter__"):
                raise ConfigurationError("factory", f"it gave {kind_of(made)}", _what_a_factory_gives(made))
            manager, made = made, await self.enter(made)
        try:
            channel = channel_of(made)
            self.require(channel)
            if channel.in_transaction() and not channel.always_open:
                raise ConfigurationError(
                    "factory",
                    "the connection that it gave has an open transaction, and the section has to open its own",
                    "Give the factory itself (the sessionmaker, the engine), not `.begin()` of it.",
                )
        except BaseException:
            if manager is not None:
                await self.leave(manager)
            raise
        return Opened(channel, made, manager)

    async def close(self, opened: Opened) -> None:
        """Give the connection back as it was. Raises what the driver raises."""
        with contextlib.suppress(Exception):
            await opened.channel.put_back()
        if opened.manager is None:
            await opened.channel.close()
        else:
            await self.leave(opened.manager)

    async def _awaited(self, made: Any) -> Any:
        return await made


class _Looped(Hands):
    asynchronous = True

    async def bump(self, holder: Holder, floor: int, where: str) -> None:
        await holder.bump(floor, where)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def enter(self, manager: Any) -> Any:
        return await manager.__aenter__()

    async def leave(self, manager: Any) -> None:
        await manager.__aexit__(None, None, None)


class _Blocking(Hands):
    asynchronous = False

    def require_thread(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise ConfigurationError(
            "with",
            "an event loop runs on this thread, and a section that is not asynchronous would block it, with the "
            "heartbeats of all jobs on it",
            "Write `async with` (or `await`) and give an asynchronous engine or connection; or make the handler a "
            "plain `def`, which gets a thread of its own.",
        )

    async def bump(self, holder: Holder, floor: int, where: str) -> None:
        holder.bump_sync(floor, where)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - see the class above: this one has no event loop

    async def enter(self, manager: Any) -> Any:
        return manager.__enter__()

    async def leave(self, manager: Any) -> None:
        manager.__exit__(None, None, None)

    async def _awaited(self, made: Any) -> Any:
        if inspect.iscoroutine(made):
            made.close()
        raise ConfigurationError("factory", f"it gave {kind_of(made)}, which has to be awaited", "Write `async with`.")


LOOPED: Final[Hands] = _Looped()
BLOCKING: Final[Hands] = _Blocking()


def _call(factory: Any) -> Any:
    """What the factory makes. An engine makes a connection; a connection of Django, which every thread has, is one."""
    if is_connection(factory):
        if hasattr(factory, "in_atomic_block"):
            return factory
        if hasattr(factory, "registry"):  # scoped_session, async_scoped_session
            return factory()
        raise ConfigurationError(
            "factory",
            f"{kind_of(factory)} is a connection, and a section may need a second one",
            "Give what makes one: the sessionmaker, the engine, or `lambda: connect(…)`.",
        )
    connect: Callable[[], Any] | None = getattr(factory, "connect", None) if hasattr(factory, "dialect") else None
    if connect is not None:
        return connect()
    if not callable(factory):
        raise ConfigurationError("factory", f"{kind_of(factory)} cannot be called", _what_a_factory_gives(factory))
    return factory()


def _what_a_factory_gives(made: Any) -> str:
    if hasattr(made, "__aenter__"):
        return "It is asynchronous: write `async with`."
    if hasattr(made, "__enter__"):
        return "It is synchronous: write `with`, in a handler that is not async."
    return f"A factory is a sessionmaker, an engine, or a callable that gives {ACCEPTED}, or a context manager of one."
