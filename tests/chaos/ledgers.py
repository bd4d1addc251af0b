"""What the tests with a ledger share: a stage whose handlers write to PostgreSQL, and what is asked at the end."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text

from fencepost.embedded import EmbeddedServer
from fencepost.keys import Keys
from fencepost.ledger import Ledger
from fencepost.ledger.verify import verify
from fencepost.sql.tables import METADATA
from tests.chaos.harness import Stage
from tests.chaos.ledger_tables import TABLES

ACCOUNTS = 8


class Books:
    """The SQL side: the shop's tables, the guard's and the ledger's in one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine: Engine = create_engine(url, pool_pre_ping=True)
        METADATA.create_all(self.engine)
        with self.engine.begin() as connection:
            for statement in TABLES:
                connection.execute(text(statement))
            for account in range(ACCOUNTS):
                connection.execute(text("INSERT INTO balances VALUES (:account, 0, 0)"), {"account": account})

    def rows(self, statement: str, **values: Any) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(statement), values))

    def doubled(self) -> list[int]:
        """Orders with more than one invoice."""
        return [row[0] for row in self.rows("SELECT order_id FROM invoices GROUP BY order_id HAVING count(*) > 1")]

    def lost_updates(self) -> list[tuple[int, int, int]]:
        """(account, bookings it shows, invoices it has) where they differ."""
        shown = {row[0]: (row[1], row[2]) for row in self.rows("SELECT account, cents, bookings FROM balances")}
        made: Counter[int] = Counter()
        cents: Counter[int] = Counter()
        for [order_id] in self.rows("SELECT order_id FROM invoices"):
            made[order_id % ACCOUNTS] += 1
            cents[order_id % ACCOUNTS] += order_id
        return [
            (account, bookings, made[account])
            for account, (balance, bookings) in shown.items()
            if (balance, bookings) != (cents[account], made[account])
        ]

    def fallen(self) -> list[Any]:
        """Where a token at the SQL side went down."""
        return self.rows("SELECT * FROM fallen")

    def proved(self) -> None:
        """The offline checker finds nothing wrong in the ledger."""
        ledger = Ledger(self.url, "own")
        verdict = verify(ledger)
        ledger.close()
        assert verdict.ok, verdict

    def close(self) -> None:
        self.engine.dispose()


def told(client: Any, namespace: str) -> Counter[tuple[Any, ...]]:
    """Every event that stands in the stream: (seq, at, name, job, nonce)."""
    found: Counter[tuple[Any, ...]] = Counter()
    for entry, fields in client.xrange(Keys(namespace).events):
        last, lines = int(entry.split(b"-")[0]), fields[b"e"].decode().split("\n")
        for at, line in enumerate(lines):
            name, job, *rest = line.split("\t")
            nonce = rest[2] if len(rest) > 2 else ""
            found[(last - len(lines) + 1 + at, int(fields[b"t"]), name, job, nonce)] += 1
    return found


def copied(books: Books, namespace: str) -> Counter[tuple[Any, ...]]:
    """Every event that stands in the ledger, in the same form."""
    rows = books.rows(
        "SELECT seq, at_ms, name, job_id, nonce FROM fencepost_events WHERE namespace = :namespace", namespace=namespace
    )
    return Counter(tuple(row) for row in rows)


def aof(server: EmbeddedServer) -> Path:
    """The file that takes the writes of a server."""
    [path] = server.path.rglob("*.incr.aof")
    return path


def rewind(server: EmbeddedServer, draw: random.Random, most: int) -> int:
    """Kill the server, cut up to `most` bytes off its file's end, start it again. Returns the bytes that were cut."""
    server.kill()
    path = aof(server)
    size = path.stat().st_size
    cut = min(size // 2, draw.randrange(1, most))
    with path.open("r+b") as handle:
        handle.truncate(size - cut)
    server.restart()
    return cut


def stage_with_books(server: EmbeddedServer, books: Books, folder: Path, seed: int, lease_s: float = 1.5) -> Stage:
    """A stage whose workers have a ledger and a shop in the database of `books`."""
    folder.mkdir()
    settings = {"CHAOS_SQL": books.url, "CHAOS_LEDGER": books.url, "CHAOS_LEASE": str(lease_s)}
    return Stage(server.url, "own", folder, seed, "ledger_handlers", settings)
