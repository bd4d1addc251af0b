"""Connections and transactions as a user opens them himself, for each kind of connection."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fencepost import fence
from fencepost.fence import Effect
from tests.guard.holding import Kind, Writer

__all__ = ["connected", "effect_in", "install_on", "own_transaction"]


@asynccontextmanager
async def connected(kind: Kind, factory: Any) -> AsyncIterator[Any]:
    """A session or connection, closed at the end."""
    session = factory.connect() if hasattr(factory, "dialect") else factory()
    if inspect.isawaitable(session):
        session = await session
    try:
        yield session
    finally:
        closing = session.close()
        if inspect.isawaitable(closing):
            await closing


@asynccontextmanager
async def own_transaction(kind: Kind, session: Any) -> AsyncIterator[None]:
    """A transaction in the way of its library; an error rolls it back and passes."""
    if kind.name.startswith("sqlite3"):
        if session.isolation_level is None:
            session.execute("BEGIN")
        try:
            yield
        except BaseException:
            session.rollback()
            raise
        session.commit()
        return
    manager = session.transaction() if hasattr(session, "transaction") else session.begin()
    if kind.asynchronous:
        async with manager:
            yield
    else:
        with manager:
            yield


async def install_on(kind: Kind, session: Any, holder: Writer, resource: str | None = None) -> None:
    if kind.asynchronous:
        await fence.install(session, holder, resource)
    else:
        fence.install_sync(session, holder, resource)


async def effect_in(
    kind: Kind,
    session: Any,
    holder: Writer,
    body: Callable[[Effect], Awaitable[Any]],
    key: str = "invoice",
    resource: str | None = None,
) -> Effect:
    """Pass through `fence.effect`."""
    if kind.asynchronous:
        async with fence.effect(session, holder, key, resource) as effect:
            await body(effect)
    else:
        with fence.effect(session, holder, key, resource) as effect:
            await body(effect)
    return effect
