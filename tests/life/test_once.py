"""Dedup is about work, idempotency is about a request."""

from __future__ import annotations

import asyncio

import pytest

from fencepost import IdempotencyConflict, Permanent
from tests.life.working import reached, state_of, work_off, working


async def test_a_second_job_with_the_dedup_key_of_a_live_one_gets_that_one(app):
    @app.job(dedup="customer:{customer}")
    async def rebuild(customer: int, why: str) -> str:
        return why

    first = await rebuild.enqueue(7, why="order")
    second = await rebuild.enqueue(7, why="refund")
    other = await rebuild.enqueue(8, why="order")
    assert (second.id, second.duplicate, first.duplicate) == (first.id, True, False)
    assert other.id != first.id
    await work_off(app)
    assert await second.result() == "order"


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
async def test_the_dedup_key_is_free_again_once_the_job_is_settled(app, redis, end):
    @app.job(dedup=True)
    async def rebuild(customer: int) -> None:
        if end == "failed":
            raise Permanent("no such customer")

    first = await rebuild.enqueue(7)
    if end == "cancelled":
        await first.cancel()
    await work_off(app)
    assert await state_of(first) == end
    assert not list(redis.scan_iter(app.link.store.keys.dedup("*")))  # deleted, not left to be healed
    assert (await rebuild.enqueue(7)).id != first.id


async def test_dedup_by_all_arguments_knows_no_order_and_no_look_alikes(app):
    @app.job(dedup=True)
    async def rebuild(a: int | str, b: int = 0) -> None: ...

    first = await rebuild.enqueue(1, b=2)
    assert (await rebuild.enqueue(b=2, a=1)).duplicate
    assert not (await rebuild.enqueue("1", b=2)).duplicate
    assert (await first.status()).dedup


async def test_a_key_for_one_enqueue_and_none_for_another(app):
    @app.job(dedup="customer:{customer}")
    async def rebuild(customer: int) -> None: ...

    first = await rebuild.enqueue(7)
    assert not (await rebuild.options(dedup=False).enqueue(7)).duplicate
    assert not (await rebuild.options(dedup="nightly").enqueue(7)).duplicate
    assert (await rebuild.options(dedup="nightly").enqueue(8)).duplicate
    assert (await rebuild.enqueue(7)).id == first.id


async def test_of_many_producers_at_once_one_wins_and_all_learn_which(app):
    @app.job(dedup=True)
    async def rebuild(customer: int) -> None: ...

    jobs = await asyncio.gather(*(rebuild.enqueue(7) for _ in range(50)))
    assert len({job.id for job in jobs}) == 1
    assert sum(not job.duplicate for job in jobs) == 1


async def test_a_job_that_is_retried_keeps_its_dedup_key_until_it_is_settled(app):
    attempts = []

    @app.job(dedup=True)
    async def rebuild() -> None:
        attempts.append(1)
        raise OSError("not yet")

    first = await rebuild.enqueue()
    async with working(app):
        await reached(first, "scheduled")
    assert (await rebuild.enqueue()).id == first.id
    await first.cancel()
    assert not (await rebuild.enqueue()).duplicate


async def test_the_same_request_twice_is_one_job_and_the_second_answer_says_so(app):
    @app.job()
    async def charge(order: int) -> str:
        return "charged"

    first = await charge.options(idempotency_key="req-1").enqueue(order=42)
    again = await charge.options(idempotency_key="req-1").enqueue(order=42)
    assert (again.id, again.replayed, first.replayed) == (first.id, True, False)
    await work_off(app)
    late = await charge.options(idempotency_key="req-1").enqueue(order=42)
    assert (late.id, late.replayed, late.state) == (first.id, True, "done")
    assert await late.result() == "charged"


async def test_another_request_with_a_used_key_is_refused_and_names_the_job_of_the_first(app, redis):
    @app.job()
    async def charge(order: int) -> None: ...

    first = await charge.options(idempotency_key="req-1").enqueue(order=42)
    with pytest.raises(IdempotencyConflict) as refused:
        await charge.options(idempotency_key="req-1").enqueue(order=43)
    assert (refused.value.key.endswith("req-1"), refused.value.job_id) == (True, first.id)
    assert redis.zcard(app.link.store.keys.ready("default")) == 1


async def test_two_clients_may_use_the_same_key(app):
    @app.job()
    async def charge(order: int) -> None: ...

    first = await charge.options(idempotency_key="1", client="shop-a").enqueue(order=42)
    other = await charge.options(idempotency_key="1", client="shop-b").enqueue(order=43)
    assert first.id != other.id


async def test_an_idempotency_key_is_forgotten_after_its_time(app, clock):
    @app.job()
    async def charge(order: int) -> None: ...

    first = await charge.options(idempotency_key="req-1", idempotency_ttl=60).enqueue(order=42)
    clock.advance(61)
    assert (await charge.options(idempotency_key="req-1").enqueue(order=42)).id != first.id
    assert await state_of(first) == "queued"


async def test_dedup_keys_of_kinds_whose_names_have_a_colon_never_meet(app):
    """ "mail" + "welcome:42" and "mail:welcome" + "42": a false duplicate would be a lost job."""

    @app.job(kind="mail", dedup="{what}")
    async def mail(what: str) -> None: ...

    @app.job(kind="mail:welcome", dedup="{customer}")
    async def welcome(customer: int) -> None: ...

    first, second = await mail.enqueue("welcome:42"), await welcome.enqueue(42)
    assert (first.id != second.id, second.duplicate) == (True, False)
