"""A handler that fails runs again, later and later, and at last is kept as a dead letter."""

from __future__ import annotations

import asyncio

import pytest

from fencepost import JobFailed, Permanent, Retry, RetryPolicy, Snooze
from tests.life.working import reached, work_off, working
from tests.support import eventually

QUICK = RetryPolicy(attempts=3, base=0.01, jitter="none")


def dead_letters(app, redis) -> list[str]:
    return [one.decode() for one in redis.zrange(app.link.store.keys.dead, 0, -1)]


async def test_a_job_that_fails_once_is_done_with_the_second_attempt(app):
    attempts = []

    @app.job(retry=QUICK)
    async def fetch() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("connection reset")
        return "fetched"

    job = await fetch.enqueue()
    await work_off(app)
    assert await job.result() == "fetched"
    assert ((await job.status()).attempts, len(attempts)) == (2, 2)


async def test_between_two_attempts_the_job_shows_its_error_and_when_it_is_due(app):
    @app.job(retry=RetryPolicy(base=60, jitter="none"))
    async def fetch() -> None:
        raise OSError("connection reset")

    job = await fetch.enqueue()
    async with working(app):
        await reached(job, "scheduled")
    record = await job.status()
    assert record.error_class == "OSError"
    assert "connection reset" in record.error
    assert 59_000 <= record.due_at - record.updated_at <= 61_000


async def test_the_waits_grow_up_to_the_cap_and_the_limit_is_never_exceeded(app, clock):
    """The server's clock is moved to each due time; the waits are read from the job."""
    runs = []

    @app.job(retry=RetryPolicy(attempts=6, base=10.0, cap=60.0, jitter="none"))
    async def fetch() -> None:
        runs.append(1)
        raise OSError("down")

    job, waits = await fetch.enqueue(), []
    for attempt in range(1, 6):
        await work_off(app)
        record = await job.status()
        assert (record.state, record.attempts) == ("scheduled", attempt)
        waits.append(round((record.due_at - record.updated_at) / 1000))
        clock.advance_to(record.due_at)
    await work_off(app)
    assert waits == [10, 20, 40, 60, 60]
    with pytest.raises(JobFailed) as failed:
        await job.result()
    assert (failed.value.reason, len(runs)) == ("exhausted", 6)


async def test_an_exhausted_job_is_a_dead_letter_with_its_error(app, redis):
    @app.job(retry=QUICK)
    async def fetch(page: int) -> None:
        raise OSError(f"page {page} is gone")

    job = await fetch.enqueue(7)
    await work_off(app)
    record = await job.status()
    assert (record.state, record.reason, record.attempts) == ("failed", "exhausted", 3)
    assert "page 7 is gone" in record.error
    assert "Traceback" in record.error
    assert dead_letters(app, redis) == [job.id]


async def test_permanent_ends_the_job_at_once(app, redis):
    @app.job()
    async def invoice() -> None:
        raise Permanent("the order was deleted")

    job = await invoice.enqueue()
    await work_off(app)
    record = await job.status()
    assert (record.state, record.reason, record.attempts) == ("failed", "permanent", 1)
    assert dead_letters(app, redis) == [job.id]


class OrderGone(Exception): ...


class OrderLocked(OrderGone): ...


@pytest.mark.parametrize(
    ("error", "reason", "attempts"),
    [(OrderGone, "permanent", 1), (OrderLocked, "exhausted", 3), (OSError, "exhausted", 3), (KeyError, "permanent", 1)],
)
async def test_the_policy_tells_transient_from_permanent_errors(app, error, reason, attempts):
    @app.job(
        retry=RetryPolicy(
            attempts=3,
            base=0.01,
            permanent=(OrderGone,),
            transient=(OrderLocked,),
            when=lambda error: False if isinstance(error, KeyError) else None,
        )
    )
    async def invoice() -> None:
        raise error("x")

    job = await invoice.enqueue()
    await work_off(app)
    record = await job.status()
    assert (record.reason, record.attempts) == (reason, attempts)


async def test_retry_after_says_when_and_counts_as_an_attempt(app):
    @app.job()
    async def fetch() -> None:
        raise Retry(after=120, reason="rate limit")

    job = await fetch.enqueue()
    async with working(app):
        await reached(job, "scheduled")
    record = await job.status()
    assert record.attempts == 1
    assert 119_000 <= record.due_at - record.updated_at <= 121_000


async def test_a_snooze_puts_the_job_off_and_charges_no_attempt(app):
    asked = []

    @app.job(retry=RetryPolicy(attempts=1))
    async def poll() -> str | Snooze:
        asked.append(1)
        return Snooze(0.01) if len(asked) < 4 else "ready"

    job = await poll.enqueue()
    await work_off(app)
    assert await job.result() == "ready"
    record = await job.status()
    assert (record.attempts, record.releases, len(asked)) == (1, 3, 4)


async def test_a_sync_handler_is_retried_the_same_way(app):
    attempts = []

    @app.job(retry=QUICK)
    def fetch() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("connection reset")
        return "fetched"

    job = await fetch.enqueue()
    await work_off(app)
    assert (await job.result(), (await job.status()).attempts) == ("fetched", 3)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_a_handler_that_raises_what_ends_a_program_fails_its_job_only(app, error):
    @app.job(retry=RetryPolicy(attempts=1))
    async def leave() -> None:
        raise error

    @app.job()
    async def stay() -> str:
        return "still here"

    async with working(app):
        left = await leave.enqueue()
        with pytest.raises(JobFailed, match=type(error).__name__):
            await left.result(timeout=5)
        assert await (await stay.enqueue()).result(timeout=5) == "still here"


async def test_an_error_that_cannot_even_be_written_is_stored_all_the_same(app):
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    @app.job(retry=RetryPolicy(attempts=1))
    async def fetch() -> None:
        raise Hostile

    job = await fetch.enqueue()
    await work_off(app)
    assert (await job.status()).error_class == "Hostile"


async def test_a_job_whose_worker_dies_each_time_is_buried_as_poison(app, redis, clock):
    """Each worker is cut off as if killed: its lease is not renewed and nothing is written."""
    keys = app.link.store.keys
    starts = []

    @app.job(max_crashes=2)
    async def crash() -> None:
        starts.append(1)
        await asyncio.Event().wait()

    job = await crash.enqueue()
    for death in range(1, 4):
        async with working(app, concurrency=1) as worker:
            await reached(job, "processing")
            assert worker._heartbeat is not None
            worker._heartbeat.stop()
            clock.advance(2.1)
            async with working(app, "another-queue"):
                await crashed(job, death)
    record = await job.status()
    assert (record.state, record.reason, record.crashes, len(starts)) == ("failed", "poison", 3, 3)
    assert "the lease ran out 3 times" in record.error
    assert dead_letters(app, redis) == [job.id]
    assert redis.zcard(keys.leases) == 0


async def crashed(job, times: int) -> None:
    async def there() -> bool:
        return bool((await job.status()).crashes == times)

    await eventually(there)


async def test_a_job_that_snoozes_for_no_time_lets_the_others_pass(app):
    """It gave its turn away, so it goes behind what waits, and not first in its queue again."""
    order: list[str] = []

    @app.job()
    async def waits() -> Snooze | None:
        order.append("waits")
        return None if "other" in order or len(order) > 50 else Snooze(0)

    @app.job()
    async def other() -> None:
        order.append("other")

    await waits.enqueue()
    await other.enqueue()
    await work_off(app, concurrency=1, lanes=1)
    assert order[:3] == ["waits", "other", "waits"]
