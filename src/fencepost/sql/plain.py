"""Channels of connections that are used without SQLAlchemy: psycopg, sqlite3, Django. Imports none of them."""

from __future__ import annotations

import re
import sys
from typing import Any, Final, cast

from fencepost.errors import ConfigurationError

from .channel import Channel, Dialect, Row, Statement, limits_text

__all__ = ["plain_channel"]

_PARAMETER: Final = re.compile(r":([a-z_]+)")


def plain_channel(thing: Any) -> Channel | None:
    """Return the channel of such a connection, None for anything else."""
    if (sqlite3 := sys.modules.get("sqlite3")) is not None and isinstance(thing, sqlite3.Connection):
        return SqliteChannel(thing)
    if (psycopg := sys.modules.get("psycopg")) is not None:
        if isinstance(thing, psycopg.Connection):
            return PsycopgChannel(thing)
        if isinstance(thing, psycopg.AsyncConnection):
            return AsyncPsycopgChannel(thing)
    # Django's `connection` is a proxy that belongs to no class of interest; these two names no other connection has.
    if "django.db" in sys.modules and hasattr(thing, "in_atomic_block") and hasattr(thing, "vendor"):
        return DjangoChannel(thing)
    return None


def _pyformat(text: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", text)


class SqliteChannel(Channel):
    """sqlite3.Connection, in each of its modes."""

    dialect: Dialect = "sqlite"
    asynchronous = False

    def __init__(self, held: Any) -> None:
        self.held = held
        self.always_open = getattr(held, "autocommit", None) is False  # from Python 3.12 on

    def in_transaction(self) -> bool:
        return bool(self.held.in_transaction)

    def autocommit(self) -> bool:
        if getattr(self.held, "autocommit", None) is True:
            return True
        return self.held.isolation_level is None and not self.always_open

    async def perform(self, statement: Statement) -> list[Row]:
        cursor = self.held.cursor()
        cursor.row_factory = None
        try:
            rows = cursor.execute(statement.text, statement.params).fetchall()
        finally:
            cursor.close()
        return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]

    async def begin(self) -> None:
        if self.always_open:
            self.held.rollback()  # it is fresh from its factory: only what it began by itself is open
        else:
            self.held.execute("BEGIN IMMEDIATE")

    async def become_writer(self, lock: Statement) -> None:
        if not self.held.in_transaction:
            self.held.execute("BEGIN IMMEDIATE")  # the driver would begin late, and deferred
        await self.perform(lock)

    async def commit(self) -> None:
        if self.always_open:
            self.held.commit()
        else:
            self.held.execute("COMMIT")  # commit() does nothing where autocommit is True

    async def rollback(self) -> None:
        if self.always_open:
            self.held.rollback()
        elif self.held.in_transaction:
            self.held.execute("ROLLBACK")

    async def close(self) -> None:
        self.held.close()


class _Psycopg(Channel):
    dialect: Dialect = "postgresql"

    def __init__(self, held: Any) -> None:
        self.held = held

    def in_transaction(self) -> bool:
        # By value: 0 is idle, 4 unknown, as on a connection that is closed.
        return int(self.held.info.transaction_status) in (1, 2, 3)

    def autocommit(self) -> bool:
        return bool(self.held.autocommit)

    def _cursor(self) -> Any:
        # Made here, because the user's own cursors may return dicts or write their parameters in another way.
        psycopg: Any = sys.modules["psycopg"]
        rows: Any = sys.modules["psycopg.rows"]
        kind = psycopg.AsyncCursor if self.asynchronous else psycopg.Cursor
        return kind(self.held, row_factory=rows.tuple_row)


class PsycopgChannel(_Psycopg):
    """psycopg.Connection."""

    asynchronous = False

    async def perform(self, statement: Statement) -> list[Row]:
        with self._cursor() as cursor:
            cursor.execute(_pyformat(statement.text), statement.params)
            return list(cursor.fetchall()) if cursor.description else []

    async def begin(self) -> None:
        if self.held.autocommit:
            self.held.execute("BEGIN")  # otherwise the first statement does it

    async def commit(self) -> None:
        self.held.commit()

    async def rollback(self) -> None:
        if not self.held.closed:
            self.held.rollback()

    async def close(self) -> None:
        self.held.close()


class AsyncPsycopgChannel(_Psycopg):
    """psycopg.AsyncConnection."""

    asynchronous = True

    async def perform(self, statement: Statement) -> list[Row]:
        async with self._cursor() as cursor:
            await cursor.execute(_pyformat(statement.text), statement.params)
            return list(await cursor.fetchall()) if cursor.description else []

    async def begin(self) -> None:
        if self.held.autocommit:
            await self.held.execute("BEGIN")

    async def commit(self) -> None:
        await self.held.commit()

    async def rollback(self) -> None:
        if not self.held.closed:
            await self.held.rollback()

    async def close(self) -> None:
        await self.held.close()


class DjangoChannel(Channel):
    """`django.db.connection`, or one of `django.db.connections`."""

    asynchronous = False

    def __init__(self, held: Any) -> None:
        if held.vendor not in ("postgresql", "sqlite", "mysql"):
            raise ConfigurationError(
                "connection", f"the database {held.vendor!r} is unknown", "PostgreSQL, SQLite, MySQL or MariaDB."
            )
        self.held, self.dialect = held, cast("Dialect", held.vendor)
        self._atomic: Any = None
        self._back = ""

    def in_transaction(self) -> bool:
        return bool(self.held.in_atomic_block)

    def autocommit(self) -> bool:
        return bool(self.held.get_autocommit())

    async def perform(self, statement: Statement) -> list[Row]:
        with self.held.cursor() as cursor:
            cursor.execute(_pyformat(statement.text), statement.params)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    async def begin(self) -> None:
        transaction: Any = sys.modules["django.db.transaction"]
        self._atomic = transaction.atomic(using=self.held.alias, durable=True)
        self._atomic.__enter__()

    async def commit(self) -> None:
        atomic, self._atomic = self._atomic, None
        atomic.__exit__(None, None, None)

    async def rollback(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            undo = RuntimeError("rolled back by a guarded section")
            atomic.__exit__(type(undo), undo, None)

    async def limit_waits(self, seconds: int) -> None:
        if self.dialect == "mysql" and not self._back:
            limit, back = limits_text(seconds, bool(self.held.mysql_is_mariadb))
            await self.perform(Statement(limit, {}))
            self._back = back

    async def put_back(self) -> None:
        back, self._back = self._back, ""
        if back:
            await self.perform(Statement(back, {}))

    async def close(self) -> None:
        # It belongs to the thread, not to the section; one that is broken is opened anew when it is next used.
        if not self.held.in_atomic_block:
            self.held.close_if_unusable_or_obsolete()

    def after_commit(self, tell: Any) -> bool:
        transaction: Any = sys.modules["django.db.transaction"]
        transaction.on_commit(tell, using=self.held.alias)
        return True
