"""What a database meant by an error, whichever driver and wrapper it came through. Imports none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

__all__ = ["CHECK_SQL", "Fault", "fault_of", "short_cause"]

CHECK_SQL: Final = "Check host, port, database and user, and whether the server runs."
"""The hint of LedgerUnavailable where no job was being sent."""

Fault: TypeAlias = Literal["repeat", "missing", "duplicate", "away", "aborted", ""]

# By SQLSTATE. 25P03 and the 57P: the server ended the session, so what was sent last may or may not have been done.
_STATES: Final[dict[str, Fault]] = {
    "40001": "repeat",
    "40P01": "repeat",
    "55P03": "repeat",
    "25P02": "aborted",
    "42P01": "missing",
    "23505": "duplicate",
    "25P03": "away",
    "57P01": "away",
    "57P02": "away",
    "57P03": "away",
}
# Deadlock; lock wait timeout; record has changed since last read (MariaDB with innodb_snapshot_isolation).
_MYSQL: Final[dict[int, Fault]] = {
    1213: "repeat",
    1205: "repeat",
    1020: "repeat",
    1146: "missing",
    1062: "duplicate",
    1927: "away",
    2002: "away",
    2003: "away",
    2006: "away",
    2013: "away",
    2055: "away",
}
_MYSQL_DRIVERS: Final = ("pymysql", "aiomysql", "asyncmy", "MySQLdb", "mysql", "mariadb")
_SQLITE_BUSY, _SQLITE_LOCKED, _SQLITE_ERROR = 5, 6, 1
_SQLITE_DUPLICATES: Final = (1555, 2067)  # SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE
_WRAPPERS: Final = ("sqlalchemy", "django")


def fault_of(error: BaseException) -> Fault:
    """Return what an error of a database means, "" for anything else.

    repeat: the transaction is undone and may succeed when all of it is done again (serialization, deadlock, a lock
    that was not had in time). missing: no such table. duplicate: a unique key is taken. away: the connection is gone,
    and whether the last statement was carried out is unknown. aborted: an earlier error has ended the transaction.
    """
    for layer in _layers(error):
        if fault := _sqlstate(layer) or _sqlite(layer) or _mysql(layer) or _connection(layer) or _session(layer):
            return fault
    return ""


def short_cause(error: BaseException) -> str:
    """Return the driver's own words in one line of at most 200 characters."""
    innermost = list(_layers(error))[-1]
    text = " ".join(str(innermost).split()) or type(innermost).__name__
    return text[:200].rstrip(". ")


def _layers(error: BaseException) -> Iterator[BaseException]:
    """The error, then what SQLAlchemy or Django wrapped in it. An error that a user raised `from` one stays his own."""
    seen = 0
    current: BaseException | None = error
    while current is not None and seen < 5:
        yield current
        seen += 1
        wrapped: Any = getattr(current, "orig", None)
        if wrapped is None and type(current).__module__.startswith(_WRAPPERS):
            wrapped = current.__cause__
        current = wrapped if isinstance(wrapped, BaseException) else None


def _sqlstate(error: BaseException) -> Fault:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if not isinstance(state, str):
        return ""
    return _STATES.get(state) or ("away" if state.startswith("08") else "")


def _sqlite(error: BaseException) -> Fault:
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(code, int):
        return ""
    if code & 0xFF in (_SQLITE_BUSY, _SQLITE_LOCKED):
        return "repeat"
    if code in _SQLITE_DUPLICATES:
        return "duplicate"
    return "missing" if code & 0xFF == _SQLITE_ERROR and "no such table" in str(error) else ""


def _mysql(error: BaseException) -> Fault:
    if not type(error).__module__.startswith(_MYSQL_DRIVERS) or not error.args:
        return ""
    code = error.args[0]
    return _MYSQL.get(code, "") if isinstance(code, int) else ""


def _connection(error: BaseException) -> Fault:
    if getattr(error, "connection_invalidated", False):
        return "away"
    if isinstance(error, OSError | EOFError):
        return "away"
    # psycopg gives no SQLSTATE where the server said nothing any more; asyncpg has an error of its own for it.
    kind = type(error)
    lost = kind.__module__.startswith("psycopg") and kind.__name__ == "OperationalError"
    return "away" if lost or kind.__name__ in ("ConnectionDoesNotExistError", "ConnectionTimeout") else ""


def _session(error: BaseException) -> Fault:
    """A Session of SQLAlchemy whose flush failed refuses everything until it is rolled back."""
    kind = type(error)
    return "aborted" if kind.__module__.startswith("sqlalchemy") and kind.__name__ == "PendingRollbackError" else ""
