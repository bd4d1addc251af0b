"""Ways of fencing a write that are in use and do not hold, and the one that does, in plain SQL.

Each is a whole section: it returns "done", "stale", or the error by which the database refused it. They share the
tables of the scene. `way(engine, claim)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tests.guard.scene import NAMESPACE, RESOURCE, Claim, add_one

__all__ = [
    "NEVER_REFUSED",
    "Way",
    "check_last",
    "install",
    "lte_token",
    "no_fence",
    "one_transaction",
    "plain_check",
    "right_way",
]

Way = Callable[[Engine, Claim], str]
NEVER_REFUSED: Final = "done"


def no_fence(engine: Engine, claim: Claim) -> str:
    """Read, write. The lease is trusted."""
    with engine.connect() as connection:
        return _commit(connection, lambda: add_one(connection, claim))


def check_last(engine: Engine, claim: Claim) -> str:
    """Read first; at the end take the token and write, in one transaction: the textbook's fencing token."""

    def work() -> None:
        read = connection.execute(text("SELECT value FROM account")).scalar_one()
        if not install(connection, claim):
            raise _StaleError
        add_one(connection, claim, read)

    with engine.connect() as connection:
        return _commit(connection, work)


def one_transaction(engine: Engine, claim: Claim) -> str:
    """Take the token first, read and write, all in one transaction: it holds, but the fence is locked all the while."""

    def work() -> None:
        if not install(connection, claim):
            raise _StaleError
        add_one(connection, claim)

    with engine.connect() as connection:
        return _commit(connection, work)


def plain_check(engine: Engine, claim: Claim) -> str:
    """Take the token in a transaction of its own; later look with a plain SELECT if it is still there, and write."""
    return _two_transactions(engine, claim, lock=False)


def lte_token(engine: Engine, claim: Claim) -> str:
    """As the right way, but `<=` on the token alone: two holders with one number are the same to it."""
    return _two_transactions(engine, claim, nonces=False)


def right_way(engine: Engine, claim: Claim) -> str:
    """Take (token, nonce) in a transaction of its own, read, work, look again by a locking statement, commit.

    Without effect rows; Fencepost's own code has them.
    """
    return _two_transactions(engine, claim)


def install(connection: Connection, claim: Claim, nonces: bool = True) -> bool:
    """Put the claim at the resource, if nothing newer is there. Whether it is there now."""
    values = {"namespace": NAMESPACE, "resource": RESOURCE, "token": claim.token, "nonce": claim.nonce}
    same = "fencepost_fences.nonce = :nonce" if nonces else "1 = 1"
    if connection.dialect.name not in ("mysql", "mariadb"):
        upsert = (
            "INSERT INTO fencepost_fences VALUES (:namespace, :resource, :token, :nonce, 0) "
            "ON CONFLICT (namespace, resource) DO UPDATE SET token = :token, nonce = :nonce "
            f"WHERE fencepost_fences.token < :token OR (fencepost_fences.token = :token AND {same}) RETURNING 1"
        )
        return connection.execute(text(upsert), values).one_or_none() is not None
    connection.execute(
        text("INSERT IGNORE INTO fencepost_fences VALUES (:namespace, :resource, :token, :nonce, 0)"), values
    )
    there = _fence(connection, lock=True)
    if there.token > claim.token or (there.token == claim.token and nonces and there.nonce != claim.nonce):
        return False
    connection.execute(text("UPDATE fencepost_fences SET token = :token, nonce = :nonce"), values)
    return True


def _two_transactions(engine: Engine, claim: Claim, lock: bool = True, nonces: bool = True) -> str:
    def work() -> None:
        read = connection.execute(text("SELECT value FROM account")).scalar_one()
        there = _fence(connection, lock)
        if there.token != claim.token or (nonces and there.nonce != claim.nonce):
            raise _StaleError
        add_one(connection, claim, read)

    def take() -> None:
        if not install(connection, claim, nonces):
            raise _StaleError

    with engine.connect() as connection:
        taken = _commit(connection, take)
        return _commit(connection, work) if taken == "done" else taken


def _fence(connection: Connection, lock: bool) -> Any:
    # SQLite has no FOR UPDATE; there BEGIN IMMEDIATE locks.
    locking = " FOR UPDATE" if lock and connection.dialect.name != "sqlite" else ""
    return connection.execute(text(f"SELECT token, nonce FROM fencepost_fences{locking}")).one()


class _StaleError(Exception):
    pass


def _commit(connection: Connection, work: Callable[[], None]) -> str:
    """Run the work in the transaction that begins by itself. "done", "stale", or what the database said."""
    try:
        work()
        connection.commit()
    except _StaleError:
        connection.rollback()
        return "stale"
    except DBAPIError as error:
        connection.rollback()
        return _name(error)
    return "done"


def _name(error: DBAPIError) -> str:
    """The SQLSTATE of PostgreSQL, the number of MariaDB, or the text of SQLite."""
    original = error.orig
    return str(getattr(original, "sqlstate", None) or (original.args[0] if original and original.args else original))
