"""Redis forgets everything, the archiver dies, the ledger is away: nothing accepted is lost, nothing is doubled."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fencepost.embedded import EmbeddedServer
from fencepost.keys import Keys
from tests.chaos.harness import ROOT
from tests.chaos.ledgers import ACCOUNTS, Books, copied, stage_with_books, told
from tests.support import raw_client, wait_until
from tests.support.databases import DatabaseServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]
JOBS = 1_000


@contextmanager
def archiver(server: EmbeddedServer, books: Books) -> Iterator[None]:
    """`fencepost ledger run` as a process of its own, killed at the end of the block."""
    command = [sys.executable, "-m", "fencepost", "ledger", "run", "--url", server.url, "--namespace", "own"]
    process = subprocess.Popen(
        [*command, "--ledger", books.url], cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def grow(books: Books) -> None:
    """Wait until the ledger has more events than now."""
    before = len(copied(books, "own"))
    wait_until(lambda: len(copied(books, "own")) > before, 30)


def ended(books: Books, count: int) -> bool:
    return bool(books.rows("SELECT count(*) FROM fencepost_jobs WHERE state = 'done'")[0][0] >= count)


def quiet(client: Any) -> bool:
    """Whether all jobs have ended, so that nothing more is told."""
    keys = Keys("own")
    return not client.exists(keys.ready("default"), keys.leases, keys.later)


def caught_up(client: Any, books: Books) -> bool:
    """Whether the ledger has copied the last event there is."""
    [[seq]] = books.rows("SELECT seq FROM fencepost_cursors")
    return bool(seq == int(client.hget(Keys("own").meta, "seq")))


def test_flushall_in_the_middle_of_a_thousand_durable_jobs_loses_and_doubles_none(shop, books, own_server):
    """T16: everything is silently gone, and comes back from the ledger."""
    orders = [{"order_id": n, "account": n % ACCOUNTS, "ms": 2} for n in range(1, JOBS + 1)]
    jobs = shop.kinds.invoice.enqueue_many_sync(orders)
    assert all(job.state == "queued" for job in jobs)
    shop.start(2, concurrency=4, poll_s=0.3)
    wait_until(lambda: len(books.rows("SELECT 1 FROM invoices")) > JOBS // 10, 60)
    raw_client(own_server.url).flushall()
    assert len(books.rows("SELECT 1 FROM invoices")) < JOBS, "void: all were done already"
    wait_until(lambda: ended(books, JOBS), 180)
    assert books.doubled() == []
    assert books.lost_updates() == []
    assert len(books.rows("SELECT 1 FROM invoices")) == JOBS
    assert shop.alive()
    books.proved()


def test_an_archiver_that_is_killed_fifty_times_copies_every_event_once(shop, books, own_server):
    """T36: the ledger is the multiset of accepted transitions, wherever the copying stopped."""
    shop.start(1, concurrency=4, books=False)
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.is_set():
            number += 20
            shop.kinds.light.enqueue_many_sync([{"order_id": number + n} for n in range(20)])
            stop.wait(0.1)

    producer = threading.Thread(target=produce)
    producer.start()
    seen = 0
    try:
        for _ in range(50):
            with archiver(own_server, books):
                grow(books)
                stop.wait(shop.draw.random() * 0.05)
            seen += 1
    finally:
        stop.set()
        producer.join()
    assert seen == 50
    client = raw_client(own_server.url)
    with archiver(own_server, books):
        wait_until(lambda: quiet(client) and caught_up(client, books), 100)
    ledger, stream = copied(books, "own"), told(client, "own")
    assert max(ledger.values()) == 1
    numbers = sorted(event[0] for event in ledger)
    assert numbers == list(range(1, len(numbers) + 1)), "each number once, from the first to the last"
    first = min(event[0] for event in stream)  # Redis forgets what is copied, beyond 100,000 events
    assert Counter(event for event in ledger if event[0] >= first) == stream
    assert len(stream) > 500, "void: hardly anything happened"


def test_jobs_go_on_while_the_ledger_is_away_for_a_minute_and_it_catches_up(
    new_postgres: Callable[[], DatabaseServer], own_server: EmbeddedServer, tmp_path: Path
):
    """Nothing is dropped silently: what happened meanwhile stands in the stream and is copied afterwards."""
    database = new_postgres()
    books = Books(database.new_database())
    stage = stage_with_books(own_server, books, tmp_path / "away", 1)
    try:
        stage.start(1, concurrency=4)
        first = stage.kinds.light.enqueue_many_sync([{"order_id": n} for n in range(50)])
        stage.done(first)
        client = raw_client(own_server.url)
        wait_until(lambda: copied(books, "own") == told(client, "own"), 30)
        database.kill()
        meanwhile = []
        away_s = float(os.environ.get("FENCEPOST_CHAOS_AWAY", "60"))
        for n in range(20):
            meanwhile += stage.kinds.light.enqueue_many_sync([{"order_id": 100 + n * 50 + m} for m in range(50)])
            threading.Event().wait(away_s / 20)
        stage.done(meanwhile)
        assert stage.alive()
        database.start()
        wait_until(lambda: copied(books, "own") == told(client, "own"), 60)
        [[lost]] = books.rows("SELECT sum(lost) FROM fencepost_cursors")
        assert lost == 0
        assert "ledger_away" in stage.log()
    finally:
        stage.end()
        books.close()
        database.close()
