"""Synchronous code that an asynchronous session runs: it is on the loop's thread, and blocks nothing."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from fencepost import fence


async def test_inside_run_sync_of_an_asynchronous_session_nothing_blocks_and_nothing_is_refused(new_base, run):
    sqlite_base = new_base("sqlite")
    engine = create_async_engine(sqlite_base.url.replace("sqlite:", "sqlite+aiosqlite:"))

    def write(session):
        fence.install_sync(session, run)
        with session.begin(), fence.effect(session, run, "k"):
            session.execute(text("INSERT INTO done (note) VALUES ('x')"))

    async with async_sessionmaker(engine)() as session:
        await session.run_sync(write)
    assert sqlite_base.done == ["x"]
    await engine.dispose()
