"""The SQL of the guard, as plans: install, look, conclude, settle. Each runs inside a transaction of its caller.

What a row says is compared here, in Python: on MySQL the number of changed rows tells nothing (an update to the same
values counts 0, an upsert that changed nothing may count 1), and SELECT … FOR UPDATE is the only read that sees past
the snapshot of the transaction.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from fencepost.clock import wall_ms
from fencepost.sql.channel import Dialect, Plan, Row, Statement
from fencepost.sql.faults import fault_of

__all__ = ["Claim", "Found", "Verdict", "conclude", "install", "judge", "look", "settle", "stored_key", "writer_lock"]

_KEY_CHARACTERS: Final = 255


class Claim(NamedTuple):
    """Who writes what: the row of the fence, the row of the effect, and the claim that must be its newest."""

    namespace: str
    resource: str
    effect_key: str
    job_id: str
    token: int
    nonce: str
    idle_ms: int

    def params(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


class Found(NamedTuple):
    """What is there when a section begins.

    effect: the effect row's (token, nonce, result), None without one. fence: the fence row's (token, nonce). mark:
    the same as long as it is the same transaction.
    """

    effect: Row | None
    fence: Row | None
    mark: str


class Verdict(NamedTuple):
    """word: "mine" | "stale" | "behind" (the fence holds an older claim, or none) | "ended" (another transaction).

    token: that of the fence, 0 without one.
    """

    word: str
    token: int


def stored_key(text: str) -> str:
    """Return the text as the tables hold it: what is too long, or ends in a blank, is cut and told apart by its hash.

    MySQL and MariaDB take "a" and "a " for the same key.
    """
    if len(text) <= _KEY_CHARACTERS and text == text.rstrip():
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[:180].rstrip()}:{digest}"


# -- install --------------------------------------------------------------------------------------------------

_INSERT_FENCE: Final = "INSERT INTO fencepost_fences (namespace, resource, token, nonce, updated_at_ms)"
_NEWER: Final = (
    " ON CONFLICT (namespace, resource) DO UPDATE"
    " SET token = excluded.token, nonce = excluded.nonce, updated_at_ms = excluded.updated_at_ms"
    " WHERE fencepost_fences.token < excluded.token"
    " OR (fencepost_fences.token = excluded.token AND fencepost_fences.nonce = excluded.nonce)"
)
_READ_FENCE: Final = "SELECT token, nonce FROM fencepost_fences WHERE namespace = :namespace AND resource = :resource"
_VALUES: Final = " VALUES (:namespace, :resource, :token, :nonce, :now_ms)"
# The session that holds the row and is frozen must not hold it longer than its lease: the server ends it.
_VALUES_POSTGRESQL: Final = (
    " SELECT CAST(:namespace AS VARCHAR), CAST(:resource AS VARCHAR), CAST(:token AS BIGINT), CAST(:nonce AS VARCHAR),"
    " CAST(:now_ms AS BIGINT) FROM set_config('idle_in_transaction_session_timeout', CAST(:idle_ms AS VARCHAR), true)"
)


def install(dialect: Dialect, claim: Claim) -> Plan[Verdict]:
    """Make the claim the newest of its resource, unless a greater token, or this one with another nonce, is there.

    Returns "mine", or "stale" with the token that is there. To be committed at once, in either case.
    """
    params = claim.params("namespace", "resource", "token", "nonce") | {"now_ms": wall_ms()}
    if dialect == "mysql":
        yield from _install_mysql(params)
    elif dialect == "postgresql":
        text = _INSERT_FENCE + _VALUES_POSTGRESQL + _NEWER + " RETURNING token, nonce"
        rows = yield Statement(text, params | {"idle_ms": str(claim.idle_ms)})
        if rows:
            return judge(claim, rows[0])
    else:
        yield Statement(_INSERT_FENCE + _VALUES + _NEWER, params)
    fence = yield from _locked_fence(dialect, claim)
    return judge(claim, fence)


def _install_mysql(params: dict[str, Any]) -> Generator[Statement, list[Row], None]:
    # The assignment changes nothing; unlike INSERT IGNORE it hides no error, and it locks the row as a writer would,
    # where two who share a lock on it could only end in a deadlock.
    yield Statement(_INSERT_FENCE + _VALUES + " ON DUPLICATE KEY UPDATE resource = resource", params)
    rows = yield Statement(_READ_FENCE + " FOR UPDATE", _only(params, "namespace", "resource"))
    token, nonce = rows[0]
    if token < params["token"] or (token, nonce) == (params["token"], params["nonce"]):
        yield Statement(
            "UPDATE fencepost_fences SET token = :token, nonce = :nonce, updated_at_ms = :now_ms"
            " WHERE namespace = :namespace AND resource = :resource",
            params,
        )


def _locked_fence(dialect: Dialect, claim: Claim) -> Generator[Statement, list[Row], Row | None]:
    """The fence row, locked until the transaction ends. On SQLite the caller is the one writer already."""
    lock = "" if dialect == "sqlite" else " FOR UPDATE"
    rows = yield Statement(_READ_FENCE + lock, claim.params("namespace", "resource"))
    return rows[0] if rows else None


def judge(claim: Claim, fence: Row | None) -> Verdict:
    if fence is None:
        return Verdict("behind", 0)
    token, nonce = int(fence[0]), str(fence[1])
    if nonce == claim.nonce:
        # The same claim; where its token is greater, another section of it had to raise it meanwhile.
        return Verdict("mine" if token >= claim.token else "behind", token)
    return Verdict("behind" if token < claim.token else "stale", token)


# -- the section ----------------------------------------------------------------------------------------------

_READ_EFFECT: Final = (
    "SELECT token, nonce, result FROM fencepost_effects WHERE namespace = :namespace AND effect_key = :effect_key"
)


def writer_lock(claim: Claim) -> Statement:
    """A write that changes nothing: SQLite takes its lock for it."""
    return Statement(
        "UPDATE fencepost_fences SET token = token WHERE namespace = :namespace AND resource = :resource",
        claim.params("namespace", "resource"),
    )


def look(dialect: Dialect, claim: Claim, and_fence: bool) -> Plan[Found]:
    """Begin a section: mark its transaction, limit how long it may stand still, read what is there.

    and_fence: also the fence, so that a holder who has not installed, or is late already, does no work for nothing.
    Nothing is locked by it, except at SERIALIZABLE on MySQL, where a plain SELECT locks what it reads: sections then
    wait for each other, and are repeated as victims of deadlocks. READ COMMITTED is enough for the fence.
    """
    if dialect == "postgresql":
        rows = yield Statement(
            "SELECT CAST(transaction_timestamp() AS VARCHAR),"
            " set_config('idle_in_transaction_session_timeout', CAST(:idle_ms AS VARCHAR), true)",
            {"idle_ms": str(claim.idle_ms)},
        )
        mark = str(rows[0][0])
    else:
        mark = f"fencepost_{secrets.token_hex(6)}"
        yield Statement(f"SAVEPOINT {mark}", {})
    fences: list[Row] = []
    if and_fence:
        fences = yield Statement(_READ_FENCE, claim.params("namespace", "resource"))
    effects = yield Statement(_READ_EFFECT, claim.params("namespace", "effect_key"))
    return Found(effects[0] if effects else None, fences[0] if fences else None, mark)


def conclude(dialect: Dialect, claim: Claim, mark: str, result: str | None) -> Plan[Verdict]:
    """End a section: the same transaction, the claim still the newest by a locking read, then the effect row.

    Only "mine" may be committed. The insert fails with a duplicate key where another transaction had the effect.
    """
    if not (yield from _same_transaction(dialect, mark)):
        return Verdict("ended", 0)
    fence = yield from _locked_fence(dialect, claim)
    verdict = judge(claim, fence)
    if verdict.word == "mine":
        yield Statement(
            "INSERT INTO fencepost_effects (namespace, effect_key, job_id, token, nonce, result, created_at_ms)"
            " VALUES (:namespace, :effect_key, :job_id, :token, :nonce, :result, :now_ms)",
            claim.params("namespace", "effect_key", "job_id", "nonce")
            | {"token": verdict.token, "result": result, "now_ms": wall_ms()},
        )
    return verdict


def _same_transaction(dialect: Dialect, mark: str) -> Plan[bool]:
    """Whether the transaction of the mark is still open: the block may have ended it, or the server itself (a deadlock
    undoes all of it on MySQL, a full disk on SQLite), and the block may have gone on as if nothing had been."""
    if dialect == "postgresql":
        try:
            rows = yield Statement("SELECT CAST(transaction_timestamp() AS VARCHAR)", {})
        except Exception as error:
            if fault_of(error) == "aborted":
                return False
            raise
        return bool(rows[0][0] == mark)
    try:
        yield Statement(f"RELEASE SAVEPOINT {mark}", {})
    except Exception as error:
        if fault_of(error) not in ("", "aborted"):
            raise
        return False
    return True


def settle(dialect: Dialect, claim: Claim) -> Plan[Row | None]:
    """After a COMMIT without an answer, on a new connection: wait until that transaction is over, return its effect.

    Whoever verified holds the lock of the fence row until its commit is done or undone; so this waits for it.
    """
    yield from _locked_fence(dialect, claim)
    rows = yield Statement(_READ_EFFECT, claim.params("namespace", "effect_key"))
    return rows[0] if rows else None


def _only(params: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: params[name] for name in names}
