"""The parts of the demo: its orders, its jams, what it makes of the ledger, and how it counts overlaps."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fencepost import Fencepost, Run, Worker
from fencepost.demo import shop
from fencepost.demo.books import LedgerSays, balance, open_books, writable
from fencepost.demo.command import command
from fencepost.demo.faults import Faults
from fencepost.demo.jam import Jam, block
from fencepost.demo.measure import Measured, QueueSays, measure, overlaps
from fencepost.demo.orders import read_orders
from fencepost.demo.records import Note, Recorder, Records
from fencepost.demo.stage import NAMESPACE, Stage
from fencepost.embedded import EmbeddedServer
from fencepost.errors import ConfigurationError
from tests.support import wait_until

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


# -- jams -------------------------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stage with a shop of 20 orders and an empty ledger."""
    made = Stage(str(tmp_path))
    made.set_up()
    shop.create(made.database, read_orders(None, 20))
    open_books(made)
    return made


@pytest.fixture
def note(stage: Stage) -> Iterator[Note]:
    recorder = Recorder(stage.records, "worker1")
    recorder.write("begin", run="r", job="7", kind="k", resource="", token=1)
    yield Note(recorder, "r")
    recorder.close()


@pytest.mark.parametrize("who", ["worker1", "7"])
def test_a_run_stands_still_at_a_jammed_place_and_nowhere_else(stage, note, who):
    jam, seen = Jam(stage, "worker1"), Records(stage.records)
    assert not jam.here(note, "7", "invoice")
    file = block(stage, who, ["invoice", "after mail"])
    assert not jam.here(note, "7", "stock")
    assert not Jam(stage, "worker2").here(note, "8", "invoice"), "another job in another worker"
    stood: list[bool] = []
    run = threading.Thread(target=lambda: stood.append(jam.here(note, "7", "after mail")))
    run.start()

    def stands() -> bool:
        seen.read()
        return seen.runs["r"].place == "after mail"

    wait_until(stands, 5)
    assert not stood
    file.unlink()
    run.join(5)
    assert stood == [True]


@pytest.mark.parametrize("name", ["shop.sqlite", "ledger.sqlite"])
def test_somebody_who_stands_still_inside_a_transaction_is_noticed(stage, name):
    assert writable(stage)
    frozen = sqlite3.connect(Path(stage.folder, name), isolation_level=None)
    frozen.execute("BEGIN IMMEDIATE")
    assert not writable(stage)
    frozen.close()
    assert writable(stage)


# -- the ledger -------------------------------------------------------------------------------------------


@pytest.fixture
def played(stage: Stage, new_server: Callable[..., EmbeddedServer]) -> Stage:
    """A stage where one durable job has written one invoice, and nobody has copied its events yet."""
    stage = replace(stage, redis_url=new_server().url)
    opened = shop.Shop(stage.database)
    app = Fencepost(stage.redis_url, namespace=NAMESPACE, ledger=stage.ledger)

    @app.job(durability="ledger")
    def invoice(run: Run) -> None:
        with run.guarded(opened.sessions, "invoice") as effect:
            effect.result = opened.write_invoice(effect.session, 1, 1, run.nonce)

    async def play() -> None:
        await invoice.enqueue()
        await Worker(app, burst=True, books=False).run()
        await app.close()

    asyncio.run(play())
    opened.close()
    return stage


def test_the_ledger_is_copied_to_the_end_and_says_what_happened(played):
    says = balance(played)
    assert (says.ok, says.findings, says.lost) == (True, [], 0)
    assert (says.durable, says.completions, says.effects, says.found, says.refusals) == (1, 1, 1, 0, 0)
    assert says.events >= 4, "enqueued, acquired, effect, done"
    assert balance(played) == says, "copied twice, an event is there once"


def test_a_ledger_that_was_tampered_with_is_found_out(played):
    assert balance(played).ok
    with sqlite3.connect(Path(played.folder, "ledger.sqlite")) as db:
        db.execute("DELETE FROM fencepost_events WHERE name = 'acquired'")
    db.close()
    says = balance(played)
    assert not says.ok
    assert says.findings


def measured(stage: Stage, says: LedgerSays | None) -> Measured:
    """What is measured where nothing has happened, with the word of a ledger."""
    return measure(
        stage, read_orders(None, 20), Records(stage.records), [], Faults(), QueueSays({}, 0, says), 1.0
    )  # fmt: skip


def test_the_books_agree_only_if_the_ledger_is_sound_and_says_what_the_handlers_say(stage):
    wanted = measured(stage, None).sql_effects
    says = LedgerSays(ok=True, events=9, lost=0, durable=20, completions=0, effects=wanted, found=1, refusals=2)
    assert measured(stage, says).books_agree
    assert not measured(stage, None).books_agree
    others: list[dict[str, Any]] = [
        {"ok": False}, {"lost": 1}, {"durable": 19}, {"completions": 1}, {"effects": wanted - 1}
    ]  # fmt: skip
    for other in others:
        assert not measured(stage, replace(says, **other)).books_agree, other


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
