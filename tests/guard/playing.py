"""Sections of two holders, and every order of them."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from fencepost.errors import SectionRepeat, StaleToken
from fencepost.fence import Guarded, effect, install_sync
from fencepost.sql.faults import fault_of
from tests.guard.holders import PaperHolder
from tests.guard.interleaving import switches, watch
from tests.guard.scene import QUIET, START, Scene, add_one

__all__ = ["INTERRUPTIONS", "STOPS", "STOPS_OF_ONE_JOB", "awaited", "guarded", "owned", "play_all"]

INTERRUPTIONS: Final = int(os.environ.get("FENCEPOST_MATRIX_INTERRUPTIONS", "2"))
STOPS: Final = 7  # start, install, COMMIT, read, update, verify, COMMIT
STOPS_OF_ONE_JOB: Final = STOPS + 2  # look for the effect, and write it

Section = Callable[[Engine], str]


def guarded(holder: PaperHolder) -> Section:
    """A section with a transaction of its own that adds one."""

    def once(engine: Engine) -> str:
        with Guarded(holder, engine, "add") as done:
            if done.first:
                add_one(done.session, holder.claim)
                done.result = holder.nonce
        return "done" if done.first else f"found {done.result}"

    return _repeated(once)


def owned(holder: PaperHolder) -> Section:
    """The same in a transaction of the user's: install before it, effect inside."""

    def once(engine: Engine) -> str:
        with engine.connect() as connection:
            install_sync(connection, holder)
            with connection.begin(), effect(connection, holder, "add") as done:
                if done.first:
                    add_one(connection, holder.claim)
                    done.result = holder.nonce
        return "done" if done.first else f"found {done.result}"

    return _repeated(once)


def awaited(holder: PaperHolder) -> Section:
    """As guarded, on an event loop, with asyncpg."""

    async def section(engine: Engine) -> str:
        url = engine.url.set(drivername="postgresql+asyncpg")
        own = create_async_engine(url, poolclass=NullPool, isolation_level=engine.dialect._on_connect_isolation_level)
        watch(own.sync_engine, quiet=lambda statement: QUIET.search(statement) is not None)
        async with Guarded(holder, own, "add") as done:
            if done.first:
                await done.session.run_sync(add_one, holder.claim)
                done.result = holder.nonce
        return "done" if done.first else f"found {done.result}"

    return _repeated(lambda engine: asyncio.run(section(engine)))


def _repeated(once: Section) -> Section:
    """Done again as long as the database asks for it, as a worker would."""

    def work(engine: Engine) -> str:
        while True:
            try:
                return once(engine)
            except SectionRepeat:
                continue
            except StaleToken:
                return "stale"
            except DBAPIError as error:  # from a statement of the user's own
                if fault_of(error) != "repeat":
                    raise

    return work


def play_all(
    scene: Scene,
    make: Callable[[], tuple[PaperHolder, PaperHolder]],
    expected: Callable[[str, str], Any],
    stops: int = STOPS,
    section: Callable[[PaperHolder], Section] = guarded,
) -> Counter[tuple[str, str]]:
    """Play two sections in every order; return how often each pair of outcomes came.

    make: both holders, new for each order. expected(a, b): whether such outcomes may be. Raises AssertionError with
    the order at the first damage: an update that is lost, a stale write, work done twice.
    """
    seen: Counter[tuple[str, str]] = Counter()
    for turns in switches(("A", "B"), stops, INTERRUPTIONS):
        scene.reset()
        holders = make()
        a, b = (scene.actor(name, section(holder)) for name, holder in zip("AB", holders, strict=True))
        scene.interleaving.play(turns)
        outcomes = (a.outcome(), b.outcome())
        seen[outcomes] += 1
        entries = scene.entries()
        story = f"{turns}: {outcomes}, {entries}\nA: {a.trace}\nB: {b.trace}"
        assert scene.damage == [], f"{scene.damage}\n{story}"
        assert scene.value() == START + len(entries), story
        assert expected(*outcomes), story
        assert len(entries) == outcomes.count("done"), story
    return seen
