"""Tables come into a database: by Alembic (`fencepost sql upgrade`), or as text for the user's own migrations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import Connection, Engine, MetaData, create_mock_engine, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import Column, CreateIndex, CreateTable, Table
from sqlalchemy.types import String

from fencepost.errors import ConfigurationError, LedgerUnavailable
from fencepost.sql.engines import open_engine
from fencepost.sql.faults import CHECK_SQL, short_cause
from fencepost.sql.tables import METADATA, PARTS

__all__ = ["DIALECTS", "HEAD", "Upgraded", "ddl", "missing", "require", "revision", "upgrade"]

HEAD: Final = "0001"
"""The newest revision of the folder migrations."""
DIALECTS: Final = ("postgresql", "sqlite", "mysql", "mariadb")
VERSION_TABLE: Final = "fencepost_version"
_version: Final = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))
_LOCK: Final = 7_236_518_903_441  # any number that nobody else uses for an advisory lock
_one_at_a_time = threading.Lock()


class Upgraded(NamedTuple):
    """What an upgrade did. before: "" where there was nothing. made: the tables that were not there."""

    before: str
    after: str
    made: list[str]


def upgrade(target: str | Engine) -> Upgraded:
    """Bring the tables of a database up to HEAD. Changes nothing where they are; safe to run from many at once.

    A table that is there already, made by the user's own migrations, is left as it is. PostgreSQL and SQLite: one
    transaction. Raises ConfigurationError (a newer Fencepost was here), LedgerUnavailable.
    """
    engine = open_engine(target) if isinstance(target, str) else target
    connected = False
    try:
        with _one_at_a_time, engine.begin() as connection:  # Alembic keeps its context in a module
            connected = True
            _lock(connection)
            before, had = revision(connection), _tables(connection)
            if before not in ("", HEAD):
                _known(before)
            if before != HEAD:
                _run(connection)
            made = sorted(_tables(connection) - had)
            _unlock(connection)
            return Upgraded(before, HEAD, [name for name in made if name in METADATA.tables])
    except DBAPIError as error:
        # What was begun is rolled back, or (MySQL) done by the next call; before the connection nothing was.
        raise LedgerUnavailable("sql upgrade", short_cause(error), None if connected else False, CHECK_SQL) from error
    finally:
        if isinstance(target, str):
            engine.dispose()


def revision(connection: Connection) -> str:
    """The revision the tables are at, "" where Alembic was never here."""
    if VERSION_TABLE not in _tables(connection):
        return ""
    return connection.execute(select(_version.c.version_num)).scalar() or ""


def missing(connection: Connection, part: str) -> list[str]:
    """The tables of a part that are not in the database, by name."""
    there = _tables(connection)
    return [table.name for table in PARTS[part] if table.name not in there]


def require(connection: Connection, part: str) -> None:
    """Raise ConfigurationError that names the command where tables of a part are missing."""
    if absent := missing(connection, part):
        url = connection.engine.url.render_as_string(hide_password=True)
        raise ConfigurationError(
            "SQL tables", f"{', '.join(absent)} missing in {url}", f"Run `fencepost sql upgrade {url}`, then try again."
        )


def ddl(dialect: str, parts: Sequence[str] = ("guard", "outbox", "ledger")) -> str:
    """The statements that make the tables of some parts, for migrations of one's own."""
    if dialect not in DIALECTS:
        raise ConfigurationError("dialect", f"{dialect!r} is not known", f"Known are {', '.join(DIALECTS)}.")
    name = "mysql" if dialect == "mariadb" else dialect  # one text for both
    engine = create_mock_engine(f"{name}://", lambda *_, **__: None)
    out: list[str] = []
    for part in parts:
        out.append(f"-- {part}")
        for table in PARTS[part]:
            out.append(f"{str(CreateTable(table).compile(dialect=engine.dialect)).strip()};")
            for index in sorted(table.indexes, key=lambda one: str(one.name)):
                out.append(f"{str(CreateIndex(index).compile(dialect=engine.dialect)).strip()};")
    printed = "\n".join(out).replace("\t", "    ")
    return "\n".join(line.rstrip() for line in printed.splitlines()) + "\n"


def _tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def _known(found: str) -> None:
    names = {path.name.split("_")[0] for path in (Path(__file__).parent / "migrations" / "versions").glob("0*.py")}
    if found not in names:
        raise ConfigurationError(
            "SQL tables",
            f"they are at revision {found!r}, which this Fencepost does not know",
            "A newer Fencepost made them: run its command, or install it here.",
        )


def _run(connection: Connection) -> None:
    told = logging.getLogger("alembic")
    if told.level == logging.NOTSET:  # it tells of each plugin on INFO: nothing that belongs into an application's log
        told.setLevel(logging.WARNING)
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    elif connection.dialect.name in ("mysql", "mariadb"):
        connection.execute(text("SELECT GET_LOCK('fencepost_upgrade', 60)"))


def _unlock(connection: Connection) -> None:
    if connection.dialect.name in ("mysql", "mariadb"):
        connection.execute(text("SELECT RELEASE_LOCK('fencepost_upgrade')"))
