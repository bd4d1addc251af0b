"""SQL engines for Fencepost's own use: synchronous, one way of opening each kind of database."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from fencepost.errors import ConfigurationError
from fencepost.sql.urls import check_sql_url

__all__ = ["absent_file", "existing", "now_ms", "open_engine", "synchronous_url"]

# The synchronous driver for each asynchronous one that a user's own URL may name.
_SYNCHRONOUS: Final = {
    "postgresql+asyncpg": "postgresql+psycopg",
    "postgresql+psycopg_async": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "sqlite+aiosqlite": "sqlite",
    "mysql+aiomysql": "mysql+pymysql",
    "mysql+asyncmy": "mysql+pymysql",
    "mariadb+aiomysql": "mariadb+pymysql",
    "mariadb+asyncmy": "mariadb+pymysql",
}

_engines: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()


def _forget_connections() -> None:
    """A forked child must not speak on its parent's connections: it leaves them alone and opens its own."""
    for engine in list(_engines):
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections)


def now_ms() -> int:
    """Milliseconds since 1970 by this host, for rows that no event of Redis made."""
    return time.time_ns() // 1_000_000


def synchronous_url(url: str | URL) -> URL:
    """Return the URL with a synchronous driver. Raises ConfigurationError for text that is no URL."""
    if isinstance(url, str):
        check_sql_url(url)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        shown = str(url).split("@")[-1]  # what stands before it may be a password
        raise ConfigurationError(
            "SQL URL", f"{shown[:80]!r} is none", "Write sqlite:///shop.sqlite or postgresql+psycopg://host/database."
        ) from error
    return parsed.set(drivername=_SYNCHRONOUS.get(parsed.drivername, parsed.drivername))


def absent_file(url: str | URL) -> Path | None:
    """The file of a SQLite URL that is not there, which opening it would make; None for all else."""
    parsed = synchronous_url(url)
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    if str(parsed.database).startswith("file:"):  # SQLite reads it by rules of its own
        return None
    path = Path(str(parsed.database))
    return None if path.exists() else path


def existing(url: str | URL) -> str | URL:
    """Return the URL. Raises ConfigurationError where it names a SQLite file that is not there."""
    if path := absent_file(url):
        raise ConfigurationError(
            "SQL URL", f"no such file: {path.absolute()}; nothing was created", "Correct the path."
        )
    return url


def open_engine(url: str | URL, **settings: Any) -> Engine:
    """Return an engine; nothing is connected yet. SQLite: WAL, synchronous=FULL, BEGIN IMMEDIATE, foreign keys off.

    Raises ConfigurationError where the URL is none or its driver is not installed.
    """
    parsed = synchronous_url(url)
    try:
        engine = create_engine(parsed, pool_pre_ping=True, **settings)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        if parsed.drivername in ("mysql", "mariadb"):  # SQLAlchemy takes it for MySQLdb, which few have
            raise ConfigurationError(
                "SQL URL", f"the driver of {parsed.drivername!r} is not installed",
                f"Write {parsed.drivername}+pymysql://…, and pip install 'fencepost[mysql]'.",
            ) from error  # fmt: skip
        extra = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}.get(parsed.get_backend_name(), "sql")
        raise ConfigurationError(
            "SQL URL", f"the driver of {parsed.drivername!r} is not installed", f"pip install 'fencepost[{extra}]'."
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    _engines.add(engine)
    return engine


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at once, or with the execution option fencepost_reading=True none: others write meanwhile."""
    reading = connection.get_execution_options().get("fencepost_reading")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver would begin late, and deferred
    connection.execute("PRAGMA busy_timeout = 5000")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
