"""Which jobs a worker takes: its queues in order, with caps; and when a worker in a burst ends."""

from __future__ import annotations

import asyncio

import pytest

from fencepost import ArgumentsRefused, ConfigurationError, Retry, RetryPolicy, Worker
from tests.life.test_resources import Overlap
from tests.life.working import state_of, work_off, working
from tests.support import eventually


async def test_a_worker_serves_its_queues_only(app):
    @app.job(queue="billing")
    async def charge() -> None: ...

    @app.job(queue="mail")
    async def send() -> None: ...

    charged, sent = await charge.enqueue(), await send.enqueue()
    await work_off(app, "billing")
    assert [await state_of(charged), await state_of(sent)] == ["done", "queued"]


async def test_a_kind_whose_work_is_done_elsewhere_is_put_back_uncharged(app):
    """Its function only says what the arguments are."""
    ran: list[str] = []

    @app.job(queue="pictures", remote=True)
    async def thumbnail(url: str) -> None:
        ran.append(url)

    job = await thumbnail.enqueue(url="https://example.org/a.png")
    async with working(app, "pictures"):
        await eventually(lambda: is_put_back(job))
    record = await job.status()
    assert (record.state, record.attempts, record.crashes) == ("scheduled", 0, 0)
    assert ran == []
    with pytest.raises(ArgumentsRefused):
        await thumbnail.enqueue(url=5)


async def is_put_back(job) -> bool:
    return bool((await job.status()).releases == 1)


async def test_queues_are_served_in_the_order_they_are_named(app):
    order: list[str] = []

    @app.job()
    async def note(name: str) -> None:
        order.append(name)

    for queue in ("low", "high"):
        for n in range(3):
            await note.options(queue=queue).enqueue(f"{queue}{n}")
    await work_off(app, "high", "low", concurrency=1)
    assert order == ["high0", "high1", "high2", "low0", "low1", "low2"]


async def test_an_endless_stream_on_the_first_queue_does_not_starve_the_last(app):
    """report: taskforcesh/bullmq#2387"""
    served: list[str] = []

    @app.job()
    async def note(queue: str) -> None:
        served.append(queue)
        await note.options(queue=queue).enqueue(queue)  # each job brings the next

    for queue in ("first", "second", "last"):
        for _ in range(5):
            await note.options(queue=queue).enqueue(queue)
    async with working(app, "first", "second", "last", concurrency=1):
        await eventually(lambda: served.count("last") >= 5)
    assert served.count("first") > served.count("last")


@pytest.mark.parametrize("lanes", [1, 2, 4])
async def test_a_cap_bounds_the_slots_of_one_queue_and_keeps_the_rest_for_others(app, lanes):
    """report: hibiken/asynq#314"""
    slow, gate = Overlap(), asyncio.Event()

    @app.job(queue="slow")
    async def long_report(n: int) -> None:
        slow.inside += 1
        slow.most = max(slow.most, slow.inside)
        await gate.wait()
        slow.inside -= 1

    @app.job(queue="quick")
    async def quick() -> str:
        return "quick"

    jobs = await long_report.enqueue_many([{"n": n} for n in range(20)])
    async with working(app, ("slow", 2), "quick", concurrency=8, lanes=lanes):
        await eventually(lambda: slow.inside == 2)
        assert await (await quick.enqueue()).result(timeout=5) == "quick"
        gate.set()
        for job in jobs:
            await job.result(timeout=5)
    assert slow.most == 2


async def test_a_cap_holds_while_two_lanes_ask_at_the_same_time(app):
    slow = Overlap()

    @app.job(queue="slow")
    async def long_report(n: int) -> None:
        slow.inside += 1
        slow.most = max(slow.most, slow.inside)
        for _ in range(20):
            await asyncio.sleep(0)
        slow.inside -= 1

    @app.job(queue="quick")
    async def quick(n: int) -> None: ...

    await quick.enqueue_many([{"n": n} for n in range(400)])
    await long_report.enqueue_many([{"n": n} for n in range(100)])
    worker = await work_off(app, "quick", ("slow", 1), concurrency=8)
    assert (slow.most, worker.ended) == (1, 500)


async def test_concurrency_bounds_the_runs_of_a_worker(app):
    together, most = asyncio.Barrier(3), []

    @app.job()
    async def note(n: int) -> None:
        most.append(together.n_waiting)
        await together.wait()  # passes with three, and never with fewer

    await note.enqueue_many([{"n": n} for n in range(30)])
    worker = await work_off(app, concurrency=3)
    assert (max(most), worker.ended) == (2, 30)


async def test_an_idle_worker_starts_a_new_job_at_once(app):
    @app.job()
    async def note() -> None: ...

    async with working(app, poll_s=2.0) as worker:
        for _ in range(3):
            await eventually(lambda: not worker.runs and not worker.outcomes)
            await (await note.enqueue()).result(timeout=1)  # far below the poll


async def test_a_burst_ends_when_nothing_is_left(app):
    @app.job()
    async def note(n: int) -> None: ...

    await note.enqueue_many([{"n": n} for n in range(300)])
    worker = await work_off(app)
    assert (worker.ended, worker.drained) == (300, True)


@pytest.mark.parametrize("concurrency", [1, 2, 10])
async def test_a_burst_waits_for_a_retry_that_is_due_in_a_moment(app, concurrency):
    """But not for one that is due much later."""
    attempts = []

    @app.job(retry=RetryPolicy(attempts=4, base=0.15, jitter="none", cap=0.15))
    async def fetch(n: int) -> None:
        attempts.append(n)
        if attempts.count(n) < 3:
            raise OSError("not yet")

    @app.job()
    async def much_later() -> None:
        raise Retry(after=60)

    jobs = await fetch.enqueue_many([{"n": n} for n in range(5)])
    late = await much_later.enqueue()
    await work_off(app, concurrency=concurrency)
    assert {await state_of(job) for job in jobs} == {"done"}
    assert await state_of(late) == "scheduled"


async def test_a_burst_on_an_empty_queue_ends_at_once(app):
    assert (await work_off(app)).ended == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"queues": []},
        {"queues": ["no good"]},
        {"queues": ["a", ("a", 2)]},
        {"concurrency": 0},
        {"lease_s": 0.5},
        {"concurrency": "10"},
    ],
)
async def test_a_worker_that_cannot_work_is_refused_where_it_is_made(app, settings):
    with pytest.raises(ConfigurationError):
        Worker(app, **settings)


async def test_a_job_that_is_due_in_a_moment_does_not_wait_for_the_next_look_of_an_idle_worker(app, redis):
    """The worker is told at once that something will be due, and then waits just as long."""
    started = asyncio.Event()

    @app.job()
    async def remind() -> None:
        started.set()

    async with working(app, poll_s=2.0, lanes=1) as worker:
        await eventually(lambda: redis.info("clients")["blocked_clients"] == 1)
        job = await remind.options(delay="300ms").enqueue()
        await eventually(lambda: worker.lanes.due_in_s is not None, timeout=1)  # it looked long before its poll
        await asyncio.wait_for(started.wait(), 1)
        assert (await job.status()).attempts == 1


async def test_many_jobs_that_cannot_run_do_not_hide_those_behind_them(app):
    """One call parks a bounded number of them. The worker asks again at once, and a burst is not over."""
    order: list[int] = []

    @app.job(resource="stock")
    async def book(number: int) -> None: ...

    @app.job()
    async def note(number: int) -> None:
        order.append(number)

    async with app.lease("stock", ttl=30):
        await book.enqueue_many([{"number": n} for n in range(700)])
        jobs = await note.enqueue_many([{"number": n} for n in range(3)])
        worker = await work_off(app, concurrency=2)
        assert (order, worker.ended, len(jobs)) == ([0, 1, 2], 3, 3)


def test_a_worker_with_very_many_slots_asks_for_a_thousand_jobs_at_a_time(app):
    assert Worker(app, concurrency=10_000).lanes._batch == 1_000
