"""A guarded effect in plain SQL, as small as can be: install my token, work, verify and insert in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fencepost import Run


def prepare(path: Path) -> None:
    """Make the tables."""
    with _transaction(path) as db:
        db.execute("CREATE TABLE fences (resource TEXT PRIMARY KEY, token INTEGER NOT NULL, nonce TEXT NOT NULL)")
        db.execute("CREATE TABLE effects (key TEXT PRIMARY KEY, token INTEGER NOT NULL, result TEXT NOT NULL)")


def install(path: Path, resource: str, run: Run) -> bool:
    """Put the run's token at the resource, unless a newer one is there. Returns whether it is ours."""
    with _transaction(path) as db:
        row = db.execute("SELECT token, nonce FROM fences WHERE resource = ?", (resource,)).fetchone()
        if row and (row[0] > run.token or (row[0] == run.token and row[1] != run.nonce)):
            return False
        db.execute("INSERT OR REPLACE INTO fences VALUES (?, ?, ?)", (resource, run.token, run.nonce))
        return True


def once(path: Path, resource: str, run: Run, key: str, result: str) -> str:
    """Do the effect if its key is new and the token still is ours: "done" | "before" | "refused"."""
    with _transaction(path) as db:
        fence = db.execute("SELECT token, nonce FROM fences WHERE resource = ?", (resource,)).fetchone()
        if fence != (run.token, run.nonce):
            return "refused"
        if db.execute("SELECT 1 FROM effects WHERE key = ?", (key,)).fetchone():
            return "before"
        db.execute("INSERT INTO effects VALUES (?, ?, ?)", (key, run.token, result))
        return "done"


def effects(path: Path) -> list[tuple[str, int, str]]:
    """Return all effects: key, token of the run that did it, result."""
    with _transaction(path) as db:
        return db.execute("SELECT key, token, result FROM effects ORDER BY key").fetchall()


@contextmanager
def _transaction(path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path, timeout=20, isolation_level=None)
    try:
        db.execute("BEGIN IMMEDIATE")
        yield db
        db.execute("COMMIT")
    finally:
        db.close()
