"""The orders: one line of a CSV file each."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Final

from fencepost.errors import ConfigurationError

__all__ = ["COLUMNS", "Line", "Order", "read_orders"]

COLUMNS: Final = ("order_id", "email", "items", "total")
_HINT: Final = (
    "The columns are order_id, email, items, total; a line looks like: "
    "1001,ada@example.com,GREEN-TEA:2:6.90 MUG:1:12.50,26.30 (an item is SKU:quantity:price)."
)
_SKU: Final = re.compile(r"[A-Z0-9][A-Z0-9-]{0,31}")
_EMAIL: Final = re.compile(r"[^@\s{}<>\"]+@[^@\s{}<>\"]+")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an order. cents: price of one piece."""

    sku: str
    quantity: int
    cents: int


@dataclass(frozen=True, slots=True)
class Order:
    """An order. lines: each SKU once. total_cents: what the customer was told."""

    order_id: int
    email: str
    lines: tuple[Line, ...]
    total_cents: int


class _Bad(Exception):
    """What is wrong with a line."""


def read_orders(path: Path | None, count: int | None = None) -> list[Order]:
    """Return the first `count` orders of a file; without a path those that ship with the package.

    Columns (in any order, others are left alone): order_id, email, items, total.
    Raises ConfigurationError that names file and line.
    """
    name = "orders.csv" if path is None else str(path)
    try:
        raw = (resources.files("fencepost.demo") / name).read_bytes() if path is None else path.read_bytes()
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigurationError("--orders", f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigurationError(f"{name}, line {line}", "it is not UTF-8 text", "Save the file as UTF-8.") from error
    found = list(_orders(name, text))
    if count is not None and count > len(found):
        raise ConfigurationError("--jobs", f"{count} orders are asked for, {name} has {len(found)}")
    if len(found) < 20:
        raise ConfigurationError(
            name, f"it has {len(found)} orders, the demo needs 20 to have work while it hits the workers", _HINT
        )
    return found[:count]


def _orders(name: str, text: str) -> Iterator[Order]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    seen: dict[int, int] = {}
    try:
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise _Bad(f"the columns {', '.join(missing)} are missing in the first line")
        for row in reader:
            order = _order(row)
            if order.order_id in seen:
                raise _Bad(f"order {order.order_id} is on line {seen[order.order_id]} already")
            seen[order.order_id] = reader.line_num
            yield order
    except _Bad as error:
        raise ConfigurationError(f"{name}, line {max(1, reader.line_num)}", str(error), _HINT) from error
    except csv.Error as error:  # the reader still stands behind the line before
        problem = f"it cannot be read, is there a quote too many? ({error})"
        raise ConfigurationError(f"{name}, line {reader.line_num + 1}", problem, _HINT) from error


def _order(row: dict[str, str | None]) -> Order:
    # Too few fields in a line give None, too many a list under the key None.
    if None in row or any(row[column] is None for column in COLUMNS):
        raise _Bad("it has not as many fields as the first line")
    number, email = str(row["order_id"]).strip(), str(row["email"]).strip()
    if not number.isdecimal() or len(number) > 15 or int(number) == 0:
        raise _Bad(f"the order_id {number!r} is not a number above 0 of at most 15 digits")
    if not _EMAIL.fullmatch(email):
        raise _Bad(f"{email!r} is not an e-mail address")
    lines = tuple(map(_line, str(row["items"]).split()))
    if not lines:
        raise _Bad("there are no items")
    twice = {one.sku for one in lines if sum(other.sku == one.sku for other in lines) > 1}
    if twice:
        raise _Bad(f"the SKU {min(twice)} is there twice; write it once, with the whole quantity")
    total, sum_cents = _cents(str(row["total"])), sum(one.quantity * one.cents for one in lines)
    if total != sum_cents:
        raise _Bad(f"the total is {_money(total)}, but the items add up to {_money(sum_cents)}")
    return Order(int(number), email, lines, total)


def _line(text: str) -> Line:
    parts = text.split(":")
    if len(parts) != 3:
        raise _Bad(f"the item {text!r} is not SKU:quantity:price")
    sku, quantity, price = parts
    if not _SKU.fullmatch(sku):
        raise _Bad(f"the SKU {sku!r} is not made of capitals, digits and dashes")
    if not quantity.isdecimal() or len(quantity) > 5 or not 1 <= int(quantity) <= 10_000:
        raise _Bad(f"the quantity {quantity!r} of {sku} is not a whole number from 1 to 10000")
    return Line(sku, int(quantity), _cents(price))


def _cents(text: str) -> int:
    try:
        cents = Decimal(text.strip()) * 100
    except ArithmeticError:
        raise _Bad(f"{text!r} is not an amount of money") from None
    if not cents.is_finite() or cents != cents.to_integral_value() or not 0 <= cents < 10**9:
        raise _Bad(f"{text!r} is not an amount of money with at most two decimals")
    return int(cents)


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"
