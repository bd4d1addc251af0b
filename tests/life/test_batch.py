"""Enqueue many jobs in one call: an answer for each, in the order they were given."""

from __future__ import annotations

import asyncio
from typing import Any

from fencepost import ArgumentsRefused, Fencepost, IdempotencyConflict, Job, QueueFull
from tests.life.working import work_off


async def test_each_item_of_a_batch_has_its_own_outcome_in_order(app):
    @app.job(dedup="sku:{sku}")
    async def sync_stock(sku: str, count: int) -> int:
        return count

    items = [
        {"sku": "a", "count": 1},
        {"sku": "b", "count": "two"},  # a bad payload
        {"sku": "a", "count": 3},  # a duplicate of the first
        {"sku": "c", "count": 4, "note": "x" * 70_000},  # too much, and unknown
        {"sku": "d" * 70_000, "count": 5},  # oversize
        {"sku": "e", "count": 6},
    ]
    answers = await sync_stock.enqueue_many(items)

    assert [type(answer) for answer in answers] == [Job, ArgumentsRefused, Job, ArgumentsRefused, ArgumentsRefused, Job]
    first, bad, duplicate, _, oversize, last = answers
    assert (bad.path, oversize.path) == ("count", "sku")
    assert "65536 are allowed" in str(oversize)
    assert (duplicate.id, duplicate.duplicate) == (first.id, True)
    worker = await work_off(app)
    assert worker.ended == 2
    assert [await first.result(), await last.result()] == [1, 6]


def test_a_batch_without_an_event_loop_answers_the_same_way(app):
    @app.job()
    async def note(n: int) -> None: ...

    answers = note.enqueue_many_sync([{"n": 1}, {"n": None}, {"n": 3}])
    assert [type(answer) for answer in answers] == [Job, ArgumentsRefused, Job]


async def test_a_batch_larger_than_one_call_keeps_its_order(app, redis):
    @app.job()
    async def note(n: int) -> None: ...

    jobs = await note.enqueue_many({"n": n} for n in range(1_234))
    records = await asyncio.gather(*(jobs[n].status() for n in (0, 499, 500, 1_000, 1_233)))
    assert [record.payload for record in records] == [b'{"n":%d}' % n for n in (0, 499, 500, 1_000, 1_233)]
    assert redis.zcard(app.link.store.keys.ready("default")) == 1_234


async def test_jobs_of_several_kinds_and_options_go_in_one_call(app):
    @app.job()
    async def invoice(n: int) -> str:
        return f"invoice {n}"

    @app.job(queue="mail")
    async def mail(n: int) -> str:
        return f"mail {n}"

    first, second, conflict = await app.enqueue_many(
        [
            invoice.options(idempotency_key="k").prepare(1),
            mail.prepare(2),
            invoice.options(idempotency_key="k").prepare(3),
        ]
    )
    assert isinstance(conflict, IdempotencyConflict)
    await work_off(app, "default", "mail")
    assert [await first.result(), await second.result()] == ["invoice 1", "mail 2"]


async def test_a_full_queue_takes_the_first_of_a_batch_and_refuses_the_rest(url, namespace):
    app = Fencepost(url, namespace=namespace, queue_limit=2)

    @app.job()
    async def note(n: int) -> None: ...

    answers = await note.enqueue_many([{"n": n} for n in range(4)])
    assert [type(answer) for answer in answers] == [Job, Job, QueueFull, QueueFull]
    await app.close()


async def test_many_callers_at_once_share_a_call(app):
    @app.job()
    async def note(n: int) -> None: ...

    before = app.link.asynchronous.round_trips
    jobs = await asyncio.gather(*(note.enqueue(n) for n in range(100)))
    assert len({job.id for job in jobs}) == 100
    assert app.link.asynchronous.round_trips - before <= 4


async def test_one_bad_call_among_many_at_once_does_not_touch_the_others(app):
    @app.job()
    async def note(n: int) -> None: ...

    answers: Any = await asyncio.gather(
        note.options(idempotency_key="k").enqueue(1),
        note.options(idempotency_key="k").enqueue(2),
        note.enqueue(3),
        return_exceptions=True,
    )
    first, bad, last = answers
    assert isinstance(bad, IdempotencyConflict)
    assert bad.job_id == first.id
    assert last.state == "queued"


async def test_a_caller_that_is_cancelled_does_not_take_the_others_with_it(app):
    @app.job()
    async def note(n: int) -> None: ...

    one, two = asyncio.ensure_future(note.enqueue(1)), asyncio.ensure_future(note.enqueue(2))
    await asyncio.sleep(0)
    one.cancel()
    assert (await two).state == "queued"
    assert one.cancelled()
