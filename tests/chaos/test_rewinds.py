"""Redis loses the end of what it knew, again and again, while workers write to PostgreSQL under the guard.

FENCEPOST_CHAOS_REWINDS says how often, 200 without it. report: celery/kombu#337
"""

from __future__ import annotations

import os

import pytest

from fencepost.embedded import EmbeddedServer
from tests.chaos.harness import Stage
from tests.chaos.ledgers import ACCOUNTS, aof, rewind
from tests.chaos.truth import now_s
from tests.support import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
REWINDS = int(os.environ.get("FENCEPOST_CHAOS_REWINDS", "200"))
MOST_BYTES = 20_000


def grow_beyond(server: EmbeddedServer, size: int) -> None:
    """Wait until the workers have written so much, or for a second: after some rewinds all wait for a lease to end."""
    end = now_s() + 1.0
    wait_until(lambda: aof(server).stat().st_size > size or now_s() > end, 20)


def known(stage: Stage, job_id: str) -> bool:
    """Whether Redis itself has the job."""
    link = stage.kinds.app.link
    return link.synchronous.run(link.store.job(job_id)) is not None


def test_two_hundred_rewinds_double_no_effect_lose_no_durable_job_and_let_no_token_fall(shop, books, own_server):
    """T9, T11, T36 and S4b. Each rewind takes back claims, outcomes and whole jobs that had been acknowledged."""
    shop.start(3, lease_s=1.0, concurrency=4, poll_s=0.3)
    accepted: list[tuple[int, str]] = []
    lost, order = 0, 0
    for _ in range(REWINDS):
        begin = aof(own_server).stat().st_size
        for _ in range(4):
            order += 1
            job = shop.kinds.invoice.enqueue_sync(order_id=order, account=order % ACCOUNTS, ms=20)
            accepted.append((order, job.id))
        grow_beyond(own_server, begin + 4_000)
        rewind(own_server, shop.draw, MOST_BYTES)
        lost += sum(not known(shop, job_id) for _, job_id in accepted[-8:])
    assert lost > REWINDS / 4, "void: hardly any acknowledged job was lost"

    open_jobs = {job_id for _, job_id in accepted}

    def all_ended() -> bool:
        rows = books.rows("SELECT job_id FROM fencepost_jobs WHERE state = 'done'")
        open_jobs.difference_update(row[0] for row in rows)
        return not open_jobs

    try:
        wait_until(all_ended, 60)
    except AssertionError as error:
        left = books.rows(
            "SELECT job_id, state, reason, epoch, seq, attempts FROM fencepost_jobs WHERE state <> 'done'"
        )
        redis = {job_id: shop.kinds.app.get(job_id).status_sync() for job_id in open_jobs}
        raise AssertionError(f"{len(open_jobs)} left: {left}\n{redis}\n{shop.log()[-8000:]}") from error
    assert books.doubled() == []
    assert books.lost_updates() == []
    assert books.fallen() == []
    invoiced = {row[0] for row in books.rows("SELECT order_id FROM invoices")}
    assert {order for order, _ in accepted} <= invoiced
    [[rewinds]] = books.rows("SELECT sum(rewinds) FROM fencepost_cursors")
    assert rewinds > REWINDS / 4, "void: the archiver noticed hardly any rewind"
    assert shop.alive()
    books.proved()
