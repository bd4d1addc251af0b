"""The shop's own database: SQLite, with nothing in it that would hide a doubled invoice.

There is on purpose no UNIQUE on invoices.order_id and on bookings(sku, seq): what keeps them single is the guard, and
where the guard is off one shall see it. Each row tells which run wrote it and when, for the count at the end.

SQLite has one writer at a time. A process that is frozen *inside* a transaction blocks all others until it goes on, so
the handlers wait and work outside of it. A server such as PostgreSQL ends such a session after the length of the lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker

from fencepost.clock import boottime_s
from fencepost.demo.orders import Order
from fencepost.sql.upgrade import upgrade

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
    """Make the database of a shop that has these orders, and stock for all of them and some to spare.

    The two tables of the guard come along, as by `fencepost sql upgrade`.
    """
    engine = _engine(path)
    users: dict[str, int] = {}
    needed: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for order in orders:
        user_id = users.setdefault(order.email.casefold(), len(users) + 1)
        rows.append({"id": order.order_id, "user": user_id, "email": order.email, "cents": order.total_cents})
        for line in order.lines:
            needed[line.sku] = needed.get(line.sku, _SPARE) + line.quantity
    stock = [{"sku": sku, "on_hand": on_hand} for sku, on_hand in sorted(needed.items())]
    with engine.begin() as db:
        for statement in _SCHEMA.split(";")[:-1]:
            db.execute(text(statement))
        db.execute(text("INSERT INTO orders VALUES (:id, :user, :email, :cents)"), rows)
        db.execute(text("INSERT INTO stock VALUES (:sku, :on_hand)"), stock)
    upgrade(engine)
    engine.dispose()


def _engine(path: Path) -> Engine:
    """An engine as any user would make it. Whoever finds another writer at work waits up to 20 s."""
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": 20.0})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    return engine


class Shop:
    """What the handlers do with the shop. Where a method takes `db`, it writes in the transaction of its caller."""

    def __init__(self, path: Path) -> None:
        self.engine = _engine(path)
        self.sessions = sessionmaker(self.engine)

    def order(self, order_id: int) -> tuple[int, str, int]:
        """(user id, e-mail, cents) of an order."""
        with self.sessions() as db:
            select = text("SELECT user_id, email, cents FROM orders WHERE order_id = :order_id")
            user_id, email, cents = db.execute(select, {"order_id": order_id}).one()
        return user_id, email, cents

    def write_invoice(self, db: Session, order_id: int, cents: int, run: str) -> str:
        """Write an invoice and return its number."""
        number = db.scalar(
            text(
                "INSERT INTO invoices (order_id, cents, run, at_s) VALUES (:order, :cents, :run, :at) RETURNING number"
            ),
            {"order": order_id, "cents": cents, "run": run, "at": boottime_s()},
        )
        return f"INV-{number:05d}"

    def on_hand(self, sku: str) -> int:
        """Pieces in stock."""
        with self.sessions() as db:
            return int(db.execute(text("SELECT on_hand FROM stock WHERE sku = :sku"), {"sku": sku}).scalar_one())

    def book(self, db: Session, booking: Booking, before: int, run: str) -> int:
        """Set the stock to what was read before, less the booking: a read-modify-write, as shops do it."""
        after = before - booking.quantity
        db.execute(text("UPDATE stock SET on_hand = :after WHERE sku = :sku"), {"after": after, "sku": booking.sku})
        db.execute(
            text(
                "INSERT INTO bookings (sku, seq, quantity, before, after, run, at_s)"
                " VALUES (:sku, :seq, :quantity, :before, :after, :run, :at)"
            ),
            {
                "sku": booking.sku, "seq": booking.seq, "quantity": booking.quantity,
                "before": before, "after": after, "run": run, "at": boottime_s(),
            },
        )  # fmt: skip
        return after

    def dress_window(self) -> None:
        """Build the cached text of the shop window anew."""
        with self.sessions() as db:
            rows = db.execute(text("SELECT sku, on_hand FROM stock ORDER BY on_hand LIMIT 5")).all()
        shown = "Nearly sold out: " + ", ".join(f"{sku} ({left})" for sku, left in rows)
        upsert = text("INSERT INTO shop_window VALUES (1, :shown) ON CONFLICT (id) DO UPDATE SET text = :shown")
        with self.sessions.begin() as db:
            db.execute(upsert, {"shown": shown})

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self.engine.dispose()
