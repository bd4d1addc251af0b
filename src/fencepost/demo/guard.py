"""The fence check of the shop, in plain SQL: install, read, verify.

Redis alone cannot protect the shop's own database. A worker may be frozen between "I am the owner" and its write, and
wake up when another has long done the work. So each handler

1. installs its fencing token at the resource, in a short transaction of its own (`install`),
2. then reads and works, as long as it takes, without holding any lock,
3. then writes in one transaction that begins by verifying that the token is still its own (`effect`).

The order matters. With a check at step 3 alone the new owner could read at step 2 what the late one overwrites a
moment later, and an update is lost although each write passed its check. Once the new owner has installed its token,
the late write is refused, so what the new owner reads is settled.

`effect` also keeps one row for each effect key, in the same transaction as the effect. A run that finds the row there
gets the stored result and does nothing: the run before it wrote, and died before it could say so.

SQLite has one writer at a time: BEGIN IMMEDIATE takes its place before anything is read, so no check of this file can
be overtaken. A plain BEGIN would check first and become the writer later. A process that is frozen *inside* such a
transaction blocks all others until it goes on; keep it short, and never wait in it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["SCHEMA", "Effect", "Fence", "StaleWrite", "effect", "install", "transaction"]

SCHEMA: Final = """
CREATE TABLE fences (resource TEXT PRIMARY KEY, token INTEGER NOT NULL, nonce TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE effects (effect_key TEXT PRIMARY KEY, token INTEGER NOT NULL, nonce TEXT NOT NULL, result TEXT)
    WITHOUT ROWID;
"""


class Fence(NamedTuple):
    """Who writes: a run's resource, its fencing token, and the nonce of its claim."""

    resource: str
    token: int
    nonce: str


class StaleWrite(Exception):
    """The shop's database knows a newer owner of the resource. Nothing was written; never try it again."""

    def __init__(self, resource: str, token: int, newest: int) -> None:
        super().__init__(resource, token, newest)
        self.resource, self.token, self.newest = resource, token, newest

    def __str__(self) -> str:
        return (
            f"{self.resource}: token {self.token} is stale, the newest is {self.newest}. Nothing was written. "
            f"Stop: the owner of that token does the work."
        )


@dataclass(slots=True)
class Effect:
    """An effect inside its transaction. first: nobody did it before. result: set it when first, else it is stored."""

    first: bool
    result: str | None


def install(db: sqlite3.Connection, fence: Fence) -> None:
    """Step 1: make the run's token the newest of its resource. From here on, older runs cannot write.

    Raises StaleWrite if a newer one is there.
    """
    with transaction(db):
        _verify(db, fence)
        db.execute(
            "INSERT INTO fences (resource, token, nonce) VALUES (?, ?, ?)"
            " ON CONFLICT (resource) DO UPDATE SET token = excluded.token, nonce = excluded.nonce",
            fence,
        )


@contextmanager
def effect(db: sqlite3.Connection, fence: Fence, effect_key: str) -> Iterator[Effect]:
    """Step 3: a transaction in which the fence is verified, for one effect.

    effect_key: names the effect, never the attempt. The block writes only if `first`; what it sets as `result` is
    stored with the key. Raises StaleWrite if a newer run has installed its token: nothing was written.
    """
    with transaction(db):
        _verify(db, fence)
        row = db.execute("SELECT result FROM effects WHERE effect_key = ?", (effect_key,)).fetchone()
        done = Effect(first=row is None, result=row[0] if row else None)
        yield done
        if done.first:
            db.execute(
                "INSERT INTO effects (effect_key, token, nonce, result) VALUES (?, ?, ?, ?)",
                (effect_key, fence.token, fence.nonce, done.result),
            )


def _verify(db: sqlite3.Connection, fence: Fence) -> None:
    """Accept a token above the installed one, or the installed one with the same nonce.

    The same token with another nonce is what a Redis that lost its newest writes would mint: refused.
    """
    row = db.execute("SELECT token, nonce FROM fences WHERE resource = ?", (fence.resource,)).fetchone()
    if row is None or fence.token > row[0] or (fence.token, fence.nonce) == tuple(row):
        return
    raise StaleWrite(fence.resource, fence.token, row[0])


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK for whatever is raised inside."""
    if db.isolation_level is not None or db.in_transaction:
        raise ValueError("a connection with isolation_level=None and no open transaction is needed. Nothing was done.")
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        db.rollback()  # does nothing where SQLite has rolled back by itself
        raise
