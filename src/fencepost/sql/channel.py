"""One way to run statements on whatever connection the user holds.

SQL logic is a *plan*: a generator that yields statements, is sent the rows of each, and returns what it found out. It
is written once and runs on synchronous and asynchronous connections of SQLAlchemy, psycopg, sqlite3 and Django.

The channels themselves are coroutines. Those of a synchronous connection never wait, so `at_once` runs them to their
end on the calling thread; there is no second copy of anything.

This module imports no driver and no SQLAlchemy: a user of plain sqlite3 needs neither.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from fencepost.errors import ConfigurationError

from .faults import fault_of

__all__ = [
    "ACCEPTED",
    "Channel",
    "Dialect",
    "Plan",
    "Row",
    "Statement",
    "at_once",
    "channel_of",
    "is_connection",
    "limits_text",
    "require_transaction",
]

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]
Dialect: TypeAlias = Literal["postgresql", "sqlite", "mysql"]

ACCEPTED: Final = (
    "a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy, a Connection or AsyncConnection of psycopg, "
    "a sqlite3.Connection, or a connection of Django"
)
_TABLE: Final = re.compile(r"fencepost_\w+")


class Statement(NamedTuple):
    """One SQL statement. text: parameters are written `:name`, and no other colon or percent sign stands in it."""

    text: str
    params: dict[str, Any]


Plan: TypeAlias = Generator[Statement, list[Row], T]
"""Yields statements, is sent the rows of each ([] where it has none), returns a value."""


class Channel(ABC):
    """A connection of the user, whatever kind it is.

    dialect: MariaDB counts as mysql. asynchronous: whether the connection belongs to an event loop. held: the user's
    own object. always_open: the driver opens the next transaction as soon as one ends, so nobody can tell whether
    anything was done in it. greenlet: it looks synchronous and does not block, as inside `run_sync` of an AsyncSession.
    """

    dialect: Dialect
    asynchronous: bool
    held: Any
    always_open: bool = False
    greenlet: bool = False

    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is open. SQLAlchemy: whether it was begun, as soon as anything was done with it."""

    @abstractmethod
    def autocommit(self) -> bool:
        """Whether a statement commits by itself while nobody has begun a transaction."""

    @abstractmethod
    async def perform(self, statement: Statement) -> list[Row]:
        """Run one statement. Raises what the driver raises."""

    @abstractmethod
    async def begin(self) -> None:
        """Open a transaction. On SQLite it is the writer's, before anything is read (BEGIN IMMEDIATE)."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit what begin() opened."""

    @abstractmethod
    async def rollback(self) -> None:
        """Undo what begin() opened; nothing where it is gone already."""

    @abstractmethod
    async def close(self) -> None:
        """Give the connection back to whom it came from."""

    async def flush(self) -> None:
        """Write what an ORM session still keeps to itself."""
        return None

    async def become_writer(self, lock: Statement) -> None:
        """SQLite, in the user's own transaction: be the one writer from here on. lock: a write that changes nothing.

        Raises SQLITE_BUSY where the transaction has read what another has changed since.
        """
        await self.perform(lock)

    async def limit_waits(self, seconds: int) -> None:
        """MySQL and MariaDB, in an open transaction: wait for a lock no longer than `seconds`, and on MariaDB stand
        still no longer. For this session, until it is given back."""
        return None

    async def put_back(self) -> None:
        """Undo limit_waits() now, where nobody has done it yet. Called outside a transaction."""
        return None

    def after_commit(self, tell: Any) -> bool:
        """Call `tell()` once when the user's transaction has committed. Returns False where nobody would notice."""
        return False

    async def follow(self, plan: Plan[T]) -> T:
        """Run a plan. A missing table of ours raises ConfigurationError; all else passes as the driver raised it."""
        try:
            statement = next(plan)
            while True:
                try:
                    rows = await self.perform(statement)
                except Exception as error:
                    if fault_of(error) == "missing":
                        raise _missing(statement) from error
                    statement = plan.throw(error)
                else:
                    statement = plan.send(rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            plan.close()

    def run(self, plan: Plan[T]) -> T:
        """Run a plan on a synchronous connection. Raises as follow(), and ConfigurationError on an asynchronous one."""
        if self.asynchronous:
            plan.close()
            raise ConfigurationError(
                "connection", f"{kind_of(self.held)} is asynchronous", "Use the call that is awaited."
            )
        return at_once(self.follow(plan))

    async def arun(self, plan: Plan[T]) -> T:
        """Run a plan on an asynchronous connection. Raises as follow(), and ConfigurationError on a synchronous one."""
        if not self.asynchronous:
            plan.close()
            raise ConfigurationError(
                "connection",
                f"{kind_of(self.held)} is synchronous and would block the event loop",
                "Use an asynchronous one, or the call whose name ends in _sync.",
            )
        return await self.follow(plan)


def limits_text(seconds: int, mariadb: bool) -> tuple[str, str]:
    """The statement that limits the waits of a session, never to more than they were, and the one that puts it back."""
    lock, idle = "@@SESSION.innodb_lock_wait_timeout", "@@SESSION.idle_transaction_timeout"
    limit = f"SET @fencepost_lock_wait = {lock}, {lock} = LEAST({lock}, {seconds})"
    back = f"SET {lock} = @fencepost_lock_wait"
    if mariadb:
        limit += f", @fencepost_idle = {idle}, {idle} = IF({idle} BETWEEN 1 AND {seconds}, {idle}, {seconds})"
        back += f", {idle} = @fencepost_idle"
    return limit, back


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, because everything below it is synchronous, and return its value."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a step of a synchronous section waited; this is a mistake in Fencepost")


def kind_of(connection: Any) -> str:
    """What it is, for an error: `sqlalchemy.orm.Session`."""
    kind = type(connection)
    return f"{kind.__module__}.{kind.__qualname__}"


def is_connection(thing: Any) -> bool:
    """Whether channel_of accepts it."""
    return _channel(thing) is not None


def channel_of(connection: Any) -> Channel:
    """Return the channel of a connection or session. Nothing is sent.

    Raises ConfigurationError for what is none, or for a database that Fencepost does not know.
    """
    channel = _channel(connection)
    if channel is None:
        raise ConfigurationError(
            "connection", f"{kind_of(connection)} is none that Fencepost can use", f"Pass {ACCEPTED}."
        )
    return channel


def _channel(thing: Any) -> Channel | None:
    from .plain import plain_channel

    # Nobody holds an object of a package that was never imported, so nothing is imported here for the asking.
    if (channel := plain_channel(thing)) or sys.modules.get("sqlalchemy") is None:
        return channel
    try:
        from .alchemy import alchemy_channel
    except ImportError as error:
        if not any(kind.__module__.startswith("sqlalchemy") for kind in type(thing).__mro__):
            return None
        raise ConfigurationError(
            "connection", f"this SQLAlchemy is none that Fencepost can use ({error})", "pip install 'fencepost[sql]'"
        ) from error
    return alchemy_channel(thing)


def require_transaction(channel: Channel, what: str, torn: str = "the check and the work") -> None:
    """Make sure that statements of the channel land in a transaction which the user commits. Nothing is sent.

    what: whose sake it is for, such as "fence.effect". torn: what must not be committed apart. A connection that begins
    by itself at its first statement is fine. Raises ConfigurationError in autocommit mode without an explicit
    transaction.
    """
    if channel.in_transaction() or not channel.autocommit():
        return
    raise ConfigurationError(
        what,
        f"{kind_of(channel.held)} is in autocommit mode and no transaction is open, so {torn} would be committed "
        f"one without the other",
        how_to_begin(channel),
    )


def how_to_begin(channel: Channel) -> str:
    """How a transaction is opened on such a connection, as a sentence."""
    module = type(channel.held).__module__
    if module.startswith("sqlalchemy"):
        return 'Take an engine without isolation_level="AUTOCOMMIT", and open the transaction with `.begin()`.'
    if module.startswith("psycopg"):
        return "Write it inside `with connection.transaction():`, or connect without autocommit=True."
    if module.startswith("django"):
        return "Write it inside `with transaction.atomic():`."
    return 'Execute "BEGIN IMMEDIATE" first, and commit at the end.'


def _missing(statement: Statement) -> ConfigurationError:
    found = _TABLE.search(statement.text)
    return ConfigurationError(
        "SQL tables",
        f"the table {found[0] if found else 'of Fencepost'} is missing in this database",
        "Run `fencepost sql upgrade URL` once, or put what `fencepost sql ddl` prints into your own migrations.",
    )
