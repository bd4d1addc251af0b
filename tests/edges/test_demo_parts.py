"""The parts of the demo: its orders, its guard, and how it counts overlaps."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencepost.demo import guard, shop
from fencepost.demo.command import command
from fencepost.demo.guard import Fence, StaleWrite
from fencepost.demo.measure import overlaps
from fencepost.demo.orders import read_orders
from fencepost.demo.records import Recorder, Records
from fencepost.errors import ConfigurationError

HEAD = "order_id,email,items,total\n"
GOOD = "7,ada@example.com,TEA:2:6.90 MUG:1:12.50,26.30\n"

# -- orders -----------------------------------------------------------------------------------------------


def test_the_orders_that_ship_have_several_skus_and_customers_who_order_twice():
    orders = read_orders(None)
    assert len(orders) == 200
    assert len({line.sku for order in orders for line in order.lines}) == 12
    assert 150 < len({order.email for order in orders}) < 200
    assert len(read_orders(None, 60)) == 60


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("7,ada@example.com,TEA:2,13.80", "the item 'TEA:2' is not SKU:quantity:price"),
        ("7,ada@example.com,TEA:two:6.90,13.80", "the quantity 'two' of TEA is not a whole number"),
        ("7,ada@example.com,TEA:2:6.905,13.81", "'6.905' is not an amount of money with at most two decimals"),
        ("7,ada@example.com,TEA:2:NaN,13.80", "'NaN' is not an amount of money"),
        ("7,ada@example.com,TEA:2:6.90,14.80", "the total is 14.80, but the items add up to 13.80"),
        ("7,ada@example.com,TEA:1:6.90 TEA:1:6.90,13.80", "the SKU TEA is there twice"),
        ("7,ada@example.com,,0", "there are no items"),
        ("7,ada.example.com,TEA:2:6.90,13.80", "'ada.example.com' is not an e-mail address"),
        ("-7,ada@example.com,TEA:2:6.90,13.80", "the order_id '-7' is not a number above 0"),
        ("7,ada@example.com,TEA:2:6.90", "it has not as many fields as the first line"),
        ("1,ada@example.com,TEA:2:6.90,13.80", "order 1 is on line 2 already"),
        ('7,"ada@example.com,TEA:2:6.90,13.80', "it cannot be read, is there a quote too many?"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_what_is_wrong_with_it(tmp_path, line, problem):
    path = tmp_path / "mine.csv"
    path.write_text(HEAD + GOOD.replace("7", "1", 1) + line + "\n")
    result = CliRunner().invoke(command, ["--orders", str(path)])
    assert result.exit_code == 2
    assert f"mine.csv, line 3: {problem}" in result.stderr
    assert "Nothing was changed." in result.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "line 1: the columns order_id, email, items, total are missing"),
        (b"order_id,email\n", "line 1: the columns items, total are missing"),
        (HEAD.encode() + GOOD.encode(), "it has 1 orders, the demo needs 20"),
        (HEAD.encode() + b"7,\xff@example.com,TEA:1:1,1\n", "line 2: it is not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, problem):
    path = tmp_path / "mine.csv"
    path.write_bytes(text)
    with pytest.raises(ConfigurationError, match=problem):
        read_orders(path)


def test_a_missing_file_and_too_many_jobs_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_orders(tmp_path / "none.csv")
    with pytest.raises(ConfigurationError, match=r"300 orders are asked for, orders\.csv has 200"):
        read_orders(None, 300)


# -- the guard --------------------------------------------------------------------------------------------


@pytest.fixture
def db(tmp_path: Path):
    path = tmp_path / "shop.sqlite"
    shop.create(path, read_orders(None, 20))
    opened = shop.Shop(path)
    yield opened.db
    opened.close()


OLD, NEW = Fence("stock:TEA", 33, "a"), Fence("stock:TEA", 34, "b")


def write(db: sqlite3.Connection, fence: Fence, key: str, result: str) -> tuple[bool, str | None]:
    with guard.effect(db, fence, key) as done:
        if done.first:
            db.execute("INSERT INTO invoices (order_id, cents, run, at_s) VALUES (1, 1, ?, 0)", (result,))
            done.result = result
    return done.first, done.result


def count(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM invoices").fetchone()[0])


def test_once_a_newer_token_is_installed_the_late_write_changes_nothing(db):
    guard.install(db, OLD)
    guard.install(db, NEW)
    with pytest.raises(StaleWrite, match=r"token 33 is stale, the newest is 34\. Nothing was written"):
        write(db, OLD, "invoice:1", "late")
    with pytest.raises(StaleWrite):
        guard.install(db, OLD)
    assert count(db) == 0
    assert write(db, NEW, "invoice:1", "good") == (True, "good")


def test_an_equal_token_with_another_nonce_is_refused(db):
    guard.install(db, OLD)
    with pytest.raises(StaleWrite):
        guard.install(db, Fence(OLD.resource, OLD.token, "other"))
    guard.install(db, OLD)


def test_an_effect_happens_once_and_later_runs_get_its_result(db):
    guard.install(db, OLD)
    assert write(db, OLD, "invoice:1", "first") == (True, "first")
    guard.install(db, NEW)
    assert write(db, NEW, "invoice:1", "second") == (False, "first")
    assert count(db) == 1


def write_and_fail(db: sqlite3.Connection) -> None:
    with guard.effect(db, OLD, "invoice:1"):
        db.execute("INSERT INTO invoices (order_id, cents, run, at_s) VALUES (1, 1, 'x', 0)")
        raise ZeroDivisionError


def test_an_effect_whose_block_fails_leaves_nothing_behind(db):
    guard.install(db, OLD)
    with pytest.raises(ZeroDivisionError):
        write_and_fail(db)
    assert count(db) == 0
    assert write(db, OLD, "invoice:1", "again") == (True, "again")


def test_the_guard_refuses_a_connection_that_begins_transactions_by_itself_or_has_one_open(db, tmp_path):
    with sqlite3.connect(tmp_path / "shop.sqlite") as other, pytest.raises(ValueError, match="isolation_level=None"):
        guard.install(other, OLD)
    other.close()
    with guard.transaction(db), pytest.raises(ValueError, match="no open transaction"):
        guard.install(db, OLD)


# -- overlaps ---------------------------------------------------------------------------------------------


class Told:
    """Records with times that are given."""

    def __init__(self, folder: Path) -> None:
        self._recorder, self.records = Recorder(folder, "w"), Records(folder)

    def run(self, run: str, job: str, begin: float, end: float | None) -> Told:
        told = {"run": run, "job": job, "kind": "k", "resource": "stock:TEA", "token": 1}
        self._recorder.write("begin", **{**told, "at": begin})
        if end is not None:
            self._recorder.write("end", run=run, how="ok", at=end)
        return self

    def overlaps(self, changed: dict[str, float] | None = None, dead_at: float = 0.0) -> int:
        self.records.read()
        found = overlaps(self.records, changed or {}, "w" if dead_at else "", dead_at)
        self._recorder.close()
        return found["stock"]


def test_runs_one_after_another_do_not_overlap(tmp_path):
    assert Told(tmp_path).run("a", "1", 1, 2).run("b", "2", 2, 3).overlaps() == 0


def test_two_runs_that_are_owners_at_once_overlap_whatever_they_change(tmp_path):
    assert Told(tmp_path).run("a", "1", 1, 3).run("b", "2", 2, 4).overlaps() == 1


def test_a_frozen_run_that_was_replaced_and_changes_nothing_more_does_not_overlap(tmp_path):
    assert Told(tmp_path).run("a", "1", 1, 9).run("b", "1", 5, 6).overlaps({"a": 2.0, "b": 5.5}) == 0


def test_a_frozen_run_that_was_replaced_and_writes_all_the_same_overlaps(tmp_path):
    assert Told(tmp_path).run("a", "1", 1, 9).run("b", "1", 5, 6).overlaps({"a": 8.0, "b": 5.5}) == 1


def test_a_frozen_run_holds_its_resource_until_it_is_replaced(tmp_path):
    told = Told(tmp_path).run("a", "1", 1, 9).run("c", "2", 3, 4).run("b", "1", 5, 6)
    assert told.overlaps() == 1


def test_a_killed_run_holds_its_resource_until_its_worker_died(tmp_path):
    assert Told(tmp_path).run("a", "1", 1, None).run("b", "2", 3, 4).overlaps(dead_at=2.0) == 0
