"""Channels of SQLAlchemy: Session, Connection, and their asynchronous fronts, which run the same functions inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from fencepost.errors import ConfigurationError

from .channel import Channel, Dialect, Row, Statement, limits_text

__all__ = ["alchemy_channel"]

_NOTES: Final = "fencepost_after_commit"
_PUT_BACK: Final = "fencepost_put_back"


def alchemy_channel(thing: Any) -> Channel | None:
    """Return the channel of a session or connection of SQLAlchemy, None for anything else."""
    if isinstance(thing, scoped_session | async_scoped_session):
        thing = thing()
    if isinstance(thing, Session | Connection):
        return AlchemyChannel(thing, thing)
    if isinstance(thing, AsyncSession):
        return AsyncAlchemyChannel(thing, thing.sync_session)
    if isinstance(thing, AsyncConnection) and thing.sync_connection is not None:
        return AsyncAlchemyChannel(thing, thing.sync_connection)
    if isinstance(thing, AsyncConnection):
        raise ConfigurationError(
            "connection", "the AsyncConnection is not open", "Enter it first: `async with engine.connect() as …`."
        )
    return None


class _Alchemy(Channel):
    """inner: the synchronous session or connection that does the work."""

    def __init__(self, held: Any, inner: Session | Connection) -> None:
        self.held, self.inner = held, inner
        self.dialect = _dialect(inner)
        self.greenlet = bool(_bind(inner).dialect.is_async)

    def in_transaction(self) -> bool:
        return self.inner.in_transaction() and not self.autocommit()  # else it only looks like one

    def autocommit(self) -> bool:
        return _autocommit(_bind(self.inner))

    def after_commit(self, tell: Callable[[], None]) -> bool:
        if not isinstance(self.inner, Session):
            return False
        if _NOTES not in self.inner.info:
            self.inner.info[_NOTES] = []
            event.listen(self.inner, "after_commit", _tell)
            event.listen(self.inner, "after_soft_rollback", _forget)
        self.inner.info[_NOTES].append(tell)
        return True


class AlchemyChannel(_Alchemy):
    """Session or Connection."""

    asynchronous = False

    async def perform(self, statement: Statement) -> list[Row]:
        return _execute(self.inner, statement)

    async def begin(self) -> None:
        _begin(self.inner, self.dialect)

    async def become_writer(self, lock: Statement) -> None:
        _become_writer(self.inner, lock)

    async def limit_waits(self, seconds: int) -> None:
        _limit_waits(self.inner, seconds)

    async def put_back(self) -> None:
        _put_back(self.inner)

    async def flush(self) -> None:
        _flush(self.inner)

    async def commit(self) -> None:
        self.inner.commit()

    async def rollback(self) -> None:
        self.inner.rollback()

    async def close(self) -> None:
        self.inner.close()


class AsyncAlchemyChannel(_Alchemy):
    """AsyncSession or AsyncConnection."""

    asynchronous = True

    async def perform(self, statement: Statement) -> list[Row]:
        return cast("list[Row]", await self.held.run_sync(_execute, statement))

    async def begin(self) -> None:
        await self.held.run_sync(_begin, self.dialect)

    async def become_writer(self, lock: Statement) -> None:
        await self.held.run_sync(_become_writer, lock)

    async def limit_waits(self, seconds: int) -> None:
        await self.held.run_sync(_limit_waits, seconds)

    async def put_back(self) -> None:
        await self.held.run_sync(_put_back)

    async def flush(self) -> None:
        await self.held.run_sync(_flush)

    async def commit(self) -> None:
        await self.held.commit()

    async def rollback(self) -> None:
        await self.held.rollback()

    async def close(self) -> None:
        await self.held.close()


# -- what both do ---------------------------------------------------------------------------------------------


def _bind(inner: Session | Connection) -> Any:
    if isinstance(inner, Connection):
        return inner
    try:
        return inner.get_bind()
    except UnboundExecutionError as error:
        raise ConfigurationError(
            "connection",
            "the session has engines for its classes only, so where the tables of the guard are is unknown",
            "Give the session a `bind`: the engine of the database whose effects are guarded.",
        ) from error


def _dialect(inner: Session | Connection) -> Dialect:
    name = _bind(inner).dialect.name
    name = "mysql" if name == "mariadb" else name
    if name not in ("postgresql", "sqlite", "mysql"):
        raise ConfigurationError(
            "connection", f"the database {name!r} is unknown", "PostgreSQL, SQLite, MySQL or MariaDB."
        )
    return cast("Dialect", name)


def _autocommit(bind: Any) -> bool:
    """Whether the engine or connection was told AUTOCOMMIT: SQLAlchemy then shows transactions that are none."""
    level = bind.get_execution_options().get("isolation_level")
    return (level or getattr(bind.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def _connection(inner: Session | Connection) -> Connection:
    """The connection of the transaction that is open. Raises ConfigurationError if it commits by itself."""
    connection = inner.connection() if isinstance(inner, Session) else inner
    if _autocommit(connection) or _driver_commits(connection):
        raise ConfigurationError(
            "connection",
            "it is in autocommit mode, so each statement would be committed by itself",
            'Take an engine without isolation_level="AUTOCOMMIT" and without autocommit in its connect_args.',
        )
    return connection


def _driver_commits(connection: Connection) -> bool:
    raw = connection.connection.dbapi_connection
    if getattr(raw, "autocommit", False) is True:  # PyMySQL and aiomysql have a method of that name
        return True
    asked = getattr(raw, "get_autocommit", None)
    return bool(asked()) if callable(asked) else False


def _execute(inner: Session | Connection, statement: Statement) -> list[Row]:
    result = _connection(inner).execute(text(statement.text), statement.params)
    return [tuple(row) for row in result] if result.returns_rows else []


def _begin(inner: Session | Connection, dialect: Dialect) -> None:
    inner.begin()
    try:
        connection = _connection(inner)
        if dialect == "sqlite" and not _sqlite_open(connection):
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # pysqlite would begin late, and deferred
    except BaseException:
        inner.rollback()
        raise


def _become_writer(inner: Session | Connection, lock: Statement) -> None:
    connection = _connection(inner)
    if not connection.in_transaction():
        connection.begin()  # the engine's own events may begin one; otherwise they would do it a statement too late
    if not _sqlite_open(connection):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    _execute(inner, lock)


def _sqlite_open(connection: Connection) -> bool:
    """Whether SQLite itself has a transaction: the engine's own events, or Python 3.12, may have begun one."""
    driver: Any = connection.connection.driver_connection
    return bool(driver.in_transaction)


def _flush(inner: Session | Connection) -> None:
    if isinstance(inner, Session):
        inner.flush()


def _limit_waits(inner: Session | Connection, seconds: int) -> None:
    # A Session gives its connection back after each transaction, so the pool is where the values are put back.
    connection = _connection(inner)
    if connection.dialect.name not in ("mysql", "mariadb") or _PUT_BACK in connection.info:
        return
    limit, back = limits_text(seconds, bool(getattr(connection.dialect, "is_mariadb", False)))
    if not event.contains(connection.engine.pool, "reset", _given_back):
        event.listen(connection.engine.pool, "reset", _given_back)
    connection.exec_driver_sql(limit)
    connection.info[_PUT_BACK] = back


def _put_back(inner: Session | Connection) -> None:
    if isinstance(inner, Connection) and _PUT_BACK in inner.info:
        _on_driver(inner.connection.dbapi_connection, inner.info.pop(_PUT_BACK))  # begins no transaction


def _given_back(raw: Any, record: Any, state: Any) -> None:
    """The pool takes a connection back. One whose values cannot be put back is closed by the pool for the error."""
    back = record.info.pop(_PUT_BACK, None)
    if back is not None and not state.terminate_only and state.asyncio_safe:
        _on_driver(raw, back)


def _on_driver(raw: Any, statement: str) -> None:
    cursor = raw.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()


def _tell(session: Session) -> None:
    if session.in_nested_transaction():
        return  # a savepoint was released: the transaction around it may still be undone
    notes = session.info[_NOTES]
    while notes:
        notes.pop(0)()


def _forget(session: Session, _previous: Any) -> None:
    # Also for a savepoint: what was noted inside it is undone. Too few notes are no lie.
    session.info[_NOTES].clear()
