"""A run that takes longer than its kind's timeout is stopped where it can be, and is kept safe where it cannot."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fencepost import LeaseLost, RetryPolicy, Run
from tests.life.working import reached, state_of, work_off, working
from tests.support import eventually

ONCE = RetryPolicy(attempts=1)


async def test_an_async_handler_is_cancelled_and_its_attempt_is_charged(app):
    told = []

    @app.job(timeout=0.1, retry=ONCE)
    async def fetch(run: Run) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append(run.why)

    job = await fetch.enqueue()
    await work_off(app)
    record = await job.status()
    assert (told, record.state, record.reason, record.error_class) == (["timeout"], "failed", "exhausted", "TimedOut")
    assert "longer than its timeout of 0.1 s" in record.error


async def test_a_timeout_is_an_error_like_any_other_and_may_be_retried(app):
    runs = []

    @app.job(timeout=0.1, retry=RetryPolicy(attempts=3, base=0.01))
    async def fetch() -> str:
        runs.append(1)
        if len(runs) < 3:
            await asyncio.Event().wait()
        return "fetched"

    job = await fetch.enqueue()
    await work_off(app)
    assert (await job.result(), (await job.status()).attempts) == ("fetched", 3)


async def test_a_thread_learns_of_its_timeout_from_check(app):
    @app.job(timeout=0.1, retry=ONCE)
    def fetch(run: Run) -> None:
        while True:
            run.check()
            threading.Event().wait(0.005)

    job = await fetch.enqueue()
    await work_off(app)
    record = await job.status()
    assert (record.state, record.error_class) == ("failed", "TimedOut")


@pytest.mark.slow
async def test_a_thread_that_never_looks_keeps_lease_slot_and_resource_and_is_reported(app, redis, events, monkeypatch):
    """It cannot be killed. Were its job given to another, two would work on the resource at once."""
    monkeypatch.setattr("fencepost.worker.worker._STUCK_AFTER_S", 0.2)
    gate, began = threading.Event(), threading.Event()

    @app.job(timeout=0.1, resource="printer")
    def print_page(name: str) -> str:
        began.set()
        gate.wait()
        return name

    first, second = await print_page.enqueue("first"), await print_page.enqueue("second")
    async with working(app, lease_s=1.0), working(app, lease_s=1.0):
        await eventually(began.is_set)
        await eventually(lambda: events("stuck"))
        held = lambda: redis.zrange(app.link.store.keys.leases, 0, -1, withscores=True)  # noqa: E731
        before = held()
        await eventually(lambda: held()[0][1] > before[0][1])  # renewed, again and again
        assert [await state_of(first), await state_of(second)] == ["processing", "waiting"]
        assert events("stuck")[0]["thread"] is True
        gate.set()
        # It did its work as the owner, if late: that is better known than repeated.
        assert await first.result(timeout=5) == "first"
        assert await second.result(timeout=5) == "second"
    assert (await first.status()).attempts == 1


@pytest.mark.slow
async def test_the_slot_of_a_stuck_thread_is_not_counted_free(app, monkeypatch):
    monkeypatch.setattr("fencepost.worker.worker._STUCK_AFTER_S", 0.1)
    gate = threading.Event()

    @app.job(timeout=0.1, retry=ONCE)
    def hang() -> None:
        gate.wait()

    @app.job()
    async def note() -> None: ...

    await hang.enqueue()
    async with working(app, concurrency=1, lanes=1) as worker:
        await eventually(lambda: worker.stuck)
        job = await note.enqueue()
        await reached(job, "queued")
        assert (worker.free, [run.kind for run in worker.stuck]) == (0, ["hang"])
        gate.set()
        await job.result(timeout=5)
        await eventually(lambda: (worker.free, worker.stuck) == (1, []))


@pytest.mark.parametrize("why", ["timeout", "cancelled"])
async def test_a_handler_that_swallows_its_cancellation_is_reported_and_told_again(app, events, monkeypatch, why):
    """report: python-arq/arq#190"""
    monkeypatch.setattr("fencepost.worker.worker._STUCK_AFTER_S", 0.1)
    swallowed: list[int] = []

    @app.job(timeout=0.1 if why == "timeout" else 60, retry=ONCE)
    async def stubborn() -> None:
        while len(swallowed) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(1)

    job = await stubborn.enqueue()
    async with working(app, lease_s=1.0):
        await reached(job, "processing")
        if why == "cancelled":
            await job.cancel()
        await reached(job, "failed" if why == "timeout" else "cancelled")
    assert [(event["kind"], event["why"]) for event in events("stuck")] == [("stubborn", why)]


async def test_a_handler_that_goes_on_after_check_raised_is_stopped_all_the_same(app, events, monkeypatch):
    monkeypatch.setattr("fencepost.worker.worker._STUCK_AFTER_S", 0.1)

    @app.job(timeout=0.05, retry=ONCE)
    async def stubborn(run: Run) -> None:
        while not run.why:
            try:
                run.check()
            except LeaseLost:
                break
        await asyncio.Event().wait()

    job = await stubborn.enqueue()
    async with working(app):
        await reached(job, "failed")


async def test_a_handler_that_ends_in_time_is_not_touched(app):
    @app.job(timeout=5)
    async def fetch(run: Run) -> str:
        run.check()
        return "fetched"

    job = await fetch.enqueue()
    await work_off(app)
    assert await job.result() == "fetched"
