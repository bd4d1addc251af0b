"""The shop's own database: SQLite, with nothing in it that would hide a doubled invoice.

There is on purpose no UNIQUE on invoices.order_id and on bookings(sku, seq): what keeps them single is the guard, and
where the guard is off one shall see it. Each row tells which run wrote it and when, for the count at the end.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.clock import boottime_s
from fencepost.demo import guard
from fencepost.demo.orders import Order

__all__ = ["TEMPLATE", "Booking", "Shop", "create", "expected_bookings"]

TEMPLATE: Final = "invoice"
"""The e-mail template of the demo."""
_SPARE: Final = 40
_SCHEMA: Final = """
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL, email TEXT NOT NULL,
    cents INTEGER NOT NULL);
CREATE TABLE stock (sku TEXT PRIMARY KEY, on_hand INTEGER NOT NULL);
CREATE TABLE invoices (number INTEGER PRIMARY KEY AUTOINCREMENT, order_id INTEGER NOT NULL, cents INTEGER NOT NULL,
    run TEXT NOT NULL, at_s REAL NOT NULL);
CREATE TABLE bookings (id INTEGER PRIMARY KEY AUTOINCREMENT, sku TEXT NOT NULL, seq INTEGER NOT NULL,
    quantity INTEGER NOT NULL, before INTEGER NOT NULL, after INTEGER NOT NULL, run TEXT NOT NULL, at_s REAL NOT NULL);
CREATE TABLE shop_window (id INTEGER PRIMARY KEY CHECK (id = 1), text TEXT NOT NULL);
"""


class Booking(NamedTuple):
    """A stock booking. seq: its place among the bookings of its SKU, from 1; it must be made in this order."""

    order_id: int
    sku: str
    seq: int
    quantity: int


def expected_bookings(orders: Sequence[Order]) -> dict[int, list[Booking]]:
    """The bookings of each order; the place of each follows from the order of the orders."""
    counts: dict[str, int] = {}
    out: dict[int, list[Booking]] = {}
    for order in orders:
        out[order.order_id] = []
        for line in order.lines:
            counts[line.sku] = counts.get(line.sku, 0) + 1
            out[order.order_id].append(Booking(order.order_id, line.sku, counts[line.sku], line.quantity))
    return out


def create(path: Path, orders: Sequence[Order]) -> None:
    """Make the database of a shop that has these orders, and stock for all of them and some to spare."""
    db = _connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(_SCHEMA + guard.SCHEMA)
    users: dict[str, int] = {}
    needed: dict[str, int] = {}
    with guard.transaction(db):
        for order in orders:
            user_id = users.setdefault(order.email.casefold(), len(users) + 1)
            row = (order.order_id, user_id, order.email, order.total_cents)
            db.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", row)
            for line in order.lines:
                needed[line.sku] = needed.get(line.sku, _SPARE) + line.quantity
        db.executemany("INSERT INTO stock VALUES (?, ?)", sorted(needed.items()))
    db.close()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=20.0, isolation_level=None)
    db.execute("PRAGMA synchronous = NORMAL")
    return db


class Shop:
    """What the handlers do with the shop. Each thread has a connection of its own, in autocommit: transactions are
    begun by guard.py, in the open."""

    def __init__(self, path: Path) -> None:
        self._path, self._local = path, threading.local()

    @property
    def db(self) -> sqlite3.Connection:
        """The connection of this thread."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = _connect(self._path)
        return connection

    def order(self, order_id: int) -> tuple[int, str, int]:
        """(user id, e-mail, cents) of an order."""
        row: tuple[int, str, int] = self.db.execute(
            "SELECT user_id, email, cents FROM orders WHERE order_id = ?", (order_id,)
        ).fetchone()
        return row

    def write_invoice(self, order_id: int, cents: int, run: str) -> str:
        """Write an invoice and return its number."""
        row = self.db.execute(
            "INSERT INTO invoices (order_id, cents, run, at_s) VALUES (?, ?, ?, ?)",
            (order_id, cents, run, boottime_s()),
        )
        return f"INV-{row.lastrowid:05d}"

    def on_hand(self, sku: str) -> int:
        """Pieces in stock."""
        return int(self.db.execute("SELECT on_hand FROM stock WHERE sku = ?", (sku,)).fetchone()[0])

    def book(self, booking: Booking, before: int, run: str) -> str:
        """Set the stock to what was read before, less the booking: a read-modify-write, as shops do it."""
        after = before - booking.quantity
        self.db.execute("UPDATE stock SET on_hand = ? WHERE sku = ?", (after, booking.sku))
        self.db.execute(
            "INSERT INTO bookings (sku, seq, quantity, before, after, run, at_s) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (booking.sku, booking.seq, booking.quantity, before, after, run, boottime_s()),
        )
        return str(after)

    def dress_window(self) -> None:
        """Build the cached text of the shop window anew."""
        rows = self.db.execute("SELECT sku, on_hand FROM stock ORDER BY on_hand LIMIT 5").fetchall()
        text = "Nearly sold out: " + ", ".join(f"{sku} ({left})" for sku, left in rows)
        with guard.transaction(self.db):
            self.db.execute(
                "INSERT INTO shop_window VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET text = ?", (text, text)
            )

    def close(self) -> None:
        """Close this thread's connection."""
        self.db.close()
        del self._local.connection
