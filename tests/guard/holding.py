"""Holders whose luck the test decides, and the kinds of connections that a guarded section is tried with."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from fencepost.errors import LeaseLost, StaleToken
from fencepost.fence import Effect, Guarded
from fencepost.sql.channel import at_once
from fencepost.sql.tables import METADATA, PARTS

__all__ = ["KINDS", "Base", "Kind", "Writer", "kinds_of", "put"]


@dataclass
class Writer:
    """A holder of a lease. on_bump(floor) is what Redis answers: a token above it, or an error that it raises."""

    token: int = 10
    nonce: str = "n-ours"
    job_id: str = "j1"
    namespace: str = "shop"
    resource: str = "order:1"
    lease_s: float = 30.0
    lost: str = ""
    on_bump: Callable[[int], int] | None = None
    bumps: list[tuple[int, str]] = field(default_factory=list)
    notes: list[tuple[str, bool]] = field(default_factory=list)
    newest: int = 0

    def fence_resource(self, resource: str | None) -> str:
        return resource or self.resource

    def effect_key(self, name: str) -> str:
        return f"{self.job_id}:{name}"

    def check(self) -> None:
        if self.lost:
            raise LeaseLost(self.job_id, self.lost)

    async def bump(self, floor: int, where: str) -> None:
        self.bump_sync(floor, where)

    def bump_sync(self, floor: int, where: str) -> None:
        self.bumps.append((floor, where))
        if self.on_bump is None:
            raise StaleToken(self.job_id, self.token, floor)
        self.token = self.on_bump(floor)

    def note_effect(self, key: str, first: bool) -> None:
        self.notes.append((key, first))

    def newer(self, token: int) -> None:
        self.newest = token

    def guarded(self, factory: Any, key: str = "invoice", resource: str | None = None) -> Guarded:
        return Guarded(self, factory, key, resource)


def raised(floor: int) -> int:
    """The answer to the owner of the lease: a token above the floor."""
    return floor + 100


class Base:
    """A user's database with the tables of the guard and one of the user's own, `done`, looked at from outside."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine: Engine = create_engine(url, poolclass=NullPool)
        METADATA.create_all(self.engine, tables=PARTS["guard"])
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE done (note VARCHAR(200) NOT NULL)"))

    def empty(self) -> None:
        for table in ("done", "fencepost_fences", "fencepost_effects"):
            self.do(f"DELETE FROM {table}")

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    def do(self, statement: str, **params: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement), params)

    @property
    def done(self) -> list[str]:
        return sorted(row[0] for row in self.rows("SELECT note FROM done"))

    @property
    def fences(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT resource, token, nonce FROM fencepost_fences ORDER BY resource")

    @property
    def effects(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT effect_key, token, nonce, result FROM fencepost_effects ORDER BY effect_key")

    def install(self, token: int, nonce: str, resource: str = "order:1") -> None:
        """Put another's token where ours is, or would be."""
        self.do("DELETE FROM fencepost_fences WHERE resource = :resource", resource=resource)
        self.do(
            "INSERT INTO fencepost_fences (namespace, resource, token, nonce, updated_at_ms)"
            " VALUES ('shop', :resource, :token, :nonce, 0)",
            resource=resource,
            token=token,
            nonce=nonce,
        )

    def effect(self, key: str, result: str | None, token: int = 5, nonce: str = "n-other") -> None:
        """Put an effect there that another has committed."""
        self.do(
            "INSERT INTO fencepost_effects (namespace, effect_key, job_id, token, nonce, result, created_at_ms)"
            " VALUES ('shop', :key, 'j1', :token, :nonce, :result, 0)",
            key=key,
            token=token,
            nonce=nonce,
            result=result,
        )

    @property
    def state(self) -> dict[str, Any]:
        return {"done": self.done, "fences": self.fences, "effects": self.effects}


async def put(session: Any, note: str) -> None:
    """The user's own write, in the way of each kind of connection."""
    statement = f"INSERT INTO done (note) VALUES ('{note}')"
    if type(session).__module__.startswith("sqlalchemy"):
        answer = session.execute(text(statement))
    elif hasattr(session, "in_atomic_block"):
        with session.cursor() as cursor:
            cursor.execute(statement)
        return
    else:
        answer = session.execute(statement)
    if inspect.isawaitable(answer):
        await answer


@dataclass(frozen=True)
class Kind:
    """One way to reach a database. make(url) returns a factory and what closes it."""

    name: str
    engine: str
    asynchronous: bool
    make: Callable[[str], tuple[Any, Callable[[], Any]]]

    async def through(self, guarded: Guarded, body: Callable[[Effect], Any]) -> Effect:
        """Pass through the section as a context manager; `body` is a coroutine function."""
        if self.asynchronous:
            async with guarded as effect:
                await body(effect)
            return effect

        def section(drive: Callable[[Any], Any]) -> Effect:
            with guarded as effect:
                drive(body(effect))
            return effect

        return cast("Effect", await _on_a_thread(section))

    async def call(self, guarded: Guarded, work: Callable[[Effect], Any]) -> Any:
        """As a function; `work` is a coroutine function."""
        if self.asynchronous:
            return await guarded.call(work)
        return await _on_a_thread(lambda drive: guarded.call_sync(lambda effect: drive(work(effect))))


async def _on_a_thread(section: Callable[[Callable[[Any], Any]], Any]) -> Any:
    """Do what is synchronous: here where no event loop runs, else on a thread. The loop does what the block awaits."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return section(at_once)
    return await asyncio.to_thread(section, lambda body: asyncio.run_coroutine_threadsafe(body, loop).result())


def _nothing() -> None:
    return None


def _sessions(url: str) -> tuple[Any, Callable[[], Any]]:
    engine = create_engine(url)
    return sessionmaker(engine), engine.dispose


def _engine(url: str) -> tuple[Any, Callable[[], Any]]:
    engine = create_engine(url)
    return engine, engine.dispose


def _async_sessions(driver: str) -> Callable[[str], tuple[Any, Callable[[], Any]]]:
    def make(url: str) -> tuple[Any, Callable[[], Any]]:
        engine = create_async_engine(make_url(url).set(drivername=driver))
        return async_sessionmaker(engine), engine.dispose

    return make


def _async_engine(driver: str) -> Callable[[str], tuple[Any, Callable[[], Any]]]:
    def make(url: str) -> tuple[Any, Callable[[], Any]]:
        engine = create_async_engine(make_url(url).set(drivername=driver))
        return engine, engine.dispose

    return make


def _begun_by_events(url: str) -> tuple[Any, Callable[[], Any]]:
    """The recipe of SQLAlchemy's own documentation: the driver begins nothing, the engine emits BEGIN."""
    engine = create_engine(url)
    event.listen(engine, "connect", lambda raw, _record: setattr(raw, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine, engine.dispose


def file_of(url: str) -> str:
    return str(make_url(url).database)


def dsn_of(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


KINDS: tuple[Kind, ...] = (
    Kind("Session", "sqlite", False, _sessions),
    Kind("Connection", "sqlite", False, _engine),
    Kind("Connection-begun-by-events", "sqlite", False, _begun_by_events),
    Kind("AsyncSession-aiosqlite", "sqlite", True, _async_sessions("sqlite+aiosqlite")),
    Kind("AsyncConnection-aiosqlite", "sqlite", True, _async_engine("sqlite+aiosqlite")),
    Kind("sqlite3", "sqlite", False, lambda url: (lambda: sqlite3.connect(file_of(url)), _nothing)),
    Kind(
        "sqlite3-autocommit",
        "sqlite",
        False,
        lambda url: (lambda: sqlite3.connect(file_of(url), isolation_level=None), _nothing),
    ),
    Kind("Session", "postgresql", False, _sessions),
    Kind("Connection", "postgresql", False, _engine),
    Kind("AsyncSession-psycopg", "postgresql", True, _async_sessions("postgresql+psycopg")),
    Kind("AsyncSession-asyncpg", "postgresql", True, _async_sessions("postgresql+asyncpg")),
    Kind("AsyncConnection-asyncpg", "postgresql", True, _async_engine("postgresql+asyncpg")),
    Kind("psycopg", "postgresql", False, lambda url: (lambda: psycopg.connect(dsn_of(url)), _nothing)),
    Kind(
        "psycopg-autocommit",
        "postgresql",
        False,
        lambda url: (lambda: psycopg.connect(dsn_of(url), autocommit=True), _nothing),
    ),
    Kind(
        "async-psycopg",
        "postgresql",
        True,
        lambda url: (lambda: psycopg.AsyncConnection.connect(dsn_of(url)), _nothing),
    ),
    Kind(
        "async-psycopg-autocommit",
        "postgresql",
        True,
        lambda url: (lambda: psycopg.AsyncConnection.connect(dsn_of(url), autocommit=True), _nothing),
    ),
    Kind("Session", "mariadb", False, _sessions),
    Kind("Connection", "mariadb", False, _engine),
    Kind("AsyncSession-aiomysql", "mariadb", True, _async_sessions("mariadb+aiomysql")),
    Kind("AsyncConnection-aiomysql", "mariadb", True, _async_engine("mariadb+aiomysql")),
)


DRIVERS = ("Session", "AsyncSession-aiosqlite", "sqlite3", "AsyncSession-asyncpg", "psycopg", "AsyncSession-aiomysql")


def kinds_of(*engines: str, drivers: bool = False) -> list[Any]:
    """Parameters for pytest: every kind of connection of these engines, or of all. drivers: one for each driver."""
    chosen = [kind for kind in KINDS if not engines or kind.engine in engines]
    if drivers:
        chosen = [kind for kind in chosen if kind.name in DRIVERS]
    return [pytest.param(kind, id=f"{kind.engine}-{kind.name}") for kind in chosen]
