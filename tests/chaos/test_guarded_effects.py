"""A worker dies or stands still around its commit: what stands in SQL stands once, and the job ends."""

from __future__ import annotations

import pytest

from fencepost.ledger import Ledger
from tests.support import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(90)]


def test_a_worker_killed_between_commit_and_finish_leaves_one_effect_and_the_job_is_done(shop, books):
    """T23. The second run finds the effect and hands out the stored result. report: resque/resque#1480"""
    shop.start(2)
    job = shop.kinds.invoice.enqueue_sync(order_id=1, account=1, after="never")
    wait_until(lambda: shop.truth.of("committed"), 20)
    shop.kill(shop.holder("order1"))
    shop.open("never")
    shop.done([job])
    assert [line["first"] for line in shop.truth.of("committed")] == [True, False], "void: it was not run again"
    [[number, token]] = books.rows("SELECT number, token FROM invoices")
    assert job.result_sync() == number
    assert token == shop.truth.of("committed")[0]["token"], "the effect is the first run's"
    assert books.lost_updates() == []


def test_a_worker_frozen_inside_its_transaction_blocks_nobody_for_longer_than_its_lease(shop, books):
    """T45. PostgreSQL ends the idle transaction; the second holder goes on; the woken one's commit fails."""
    shop.start(2)
    job = shop.kinds.invoice.enqueue_sync(order_id=2, account=2, gate="go")
    frozen = shop.holder("order2")
    wait_until(lambda: books.rows("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"), 20)
    shop.freeze(frozen)
    shop.open("go")
    shop.done([job], 30)
    assert len(shop.truth.runs("order2")) == 2, "void: nobody else took it"
    shop.wake(frozen)
    wait_until(lambda: not shop.truth.inside(), 20)
    first, second = shop.truth.runs("order2")
    assert (first.how, second.how) != ("returned", "returned")
    [[number, token]] = books.rows("SELECT number, token FROM invoices")
    assert (token, job.result_sync()) == (second.token, number)
    assert books.lost_updates() == []


def test_a_woken_worker_that_will_not_hear_is_refused_by_sql_and_the_refusal_is_told(shop, books):
    """The headline: stale at the SQL side, rolled back, counted, and in the ledger with the winner's token."""
    shop.start(2)
    job = shop.kinds.stubborn.enqueue_sync(order_id=3, account=3, gate="go")
    wait_until(lambda: shop.truth.of("installed"), 20)
    frozen = shop.holder("order3")
    shop.freeze(frozen)
    wait_until(lambda: len(shop.truth.of("installed")) == 2, 20)
    shop.wake(frozen)
    wait_until(lambda: f"lost job_id={job.id}" in shop.log(), 20)  # told, and it will not listen
    shop.open("go")
    wait_until(lambda: len(shop.truth.inside()) == 1, 20)
    shop.open("owner")
    shop.done([job], 30)
    wait_until(lambda: not shop.truth.inside(), 20)
    [[token]] = books.rows("SELECT token FROM invoices")
    first, second = shop.truth.runs("order3")
    assert first.how == "stale"
    assert (token, second.token, second.how) == (second.token, max(first.token, second.token), "returned")
    ledger = Ledger(books.url, "own")
    wait_until(lambda: (row := ledger.job(job.id)) is not None and row.state == "done", 20)
    wait_until(lambda: "effect" in {event.name for event in ledger.history(job.id)}, 20)

    def refused() -> set[str]:
        return {event.reason for event in ledger.history(job.id) if event.name == "refused_stale"}

    wait_until(lambda: f"verify stale newest {second.token}" in refused(), 20)
    ledger.close()
    books.proved()
