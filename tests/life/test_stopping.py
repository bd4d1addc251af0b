"""A worker that is told to stop claims nothing more, lets runs end within the grace, and hands the rest back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fencepost import Run, Worker
from tests.life.working import LEASE_S, reached, state_of, work_off
from tests.support import eventually


def started(app, **settings) -> tuple[Worker, asyncio.Task[None]]:
    worker = Worker(app, **{"lease_s": LEASE_S, "concurrency": 10, "poll_s": 0.2} | settings)
    return worker, asyncio.create_task(worker.run())


async def test_a_job_that_ends_within_the_grace_is_done(app):
    began, gate = asyncio.Event(), asyncio.Event()

    @app.job()
    async def invoice() -> str:
        began.set()
        await gate.wait()
        return "written"

    job = await invoice.enqueue()
    worker, life = started(app, grace_s=5.0)
    await began.wait()
    worker.stop()
    gate.set()
    await life
    assert (await job.result(), (await job.status()).attempts) == ("written", 1)


async def test_after_stop_nothing_new_is_claimed(app):
    began, gate = asyncio.Event(), asyncio.Event()

    @app.job()
    async def invoice() -> None:
        began.set()
        await gate.wait()

    await invoice.enqueue()
    worker, life = started(app, grace_s=5.0)
    await began.wait()
    worker.stop()
    late = await invoice.enqueue()
    gate.set()
    await life
    assert (await state_of(late), worker.ended) == ("queued", 1)


async def test_what_does_not_end_in_the_grace_is_handed_back_at_once_and_no_attempt_is_charged(app, redis):
    """report: python-arq/arq#190"""
    told: list[str] = []
    began = asyncio.Event()

    @app.job(resource="printer")
    async def print_page(run: Run) -> str:
        began.set()
        try:
            await asyncio.sleep(60 if run.claimed.attempt == 1 and not told else 0)
        finally:
            told.append(run.why)
        return "printed"

    job = await print_page.enqueue()
    worker, life = started(app, grace_s=0.1)
    await began.wait()
    worker.stop()
    await life
    record = await job.status()
    assert (told, record.state) == (["shutdown"], "queued")
    assert (record.attempts, record.crashes, record.releases) == (0, 0, 1)
    assert redis.zcard(app.link.store.keys.leases) == 0
    assert redis.zcard(app.link.store.keys.slots("printer")) == 0
    await work_off(app)
    assert await job.result() == "printed"


async def test_stop_now_allows_no_grace(app):
    began = asyncio.Event()

    @app.job()
    async def invoice() -> None:
        began.set()
        await asyncio.Event().wait()

    job = await invoice.enqueue()
    worker, life = started(app, grace_s=60.0)
    await began.wait()
    worker.stop()
    worker.stop(now=True)
    await asyncio.wait_for(life, 2)
    assert await state_of(job) == "queued"


async def test_a_handler_that_catches_every_ordinary_exception_is_handed_back_too(app):
    """report: python-arq/arq#190"""
    began = asyncio.Event()

    @app.job()
    async def invoice() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except Exception:  # noqa: BLE001
            return "swallowed"
        return "never"

    job = await invoice.enqueue()
    worker, life = started(app, grace_s=0.0)
    await began.wait()
    worker.stop()
    await life
    assert ((await job.status()).attempts, await state_of(job)) == (0, "queued")


async def test_a_handler_that_swallows_its_cancellation_is_handed_back_not_done(app):
    """report: python-arq/arq#190"""
    began = asyncio.Event()

    @app.job()
    async def invoice() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "swallowed"
        return "never"

    job = await invoice.enqueue()
    worker, life = started(app, grace_s=0.0)
    await began.wait()
    worker.stop()
    await life
    assert ((await job.status()).releases, await state_of(job)) == (1, "queued")


async def test_a_thread_that_listens_is_handed_back(app):
    began = threading.Event()

    @app.job()
    def invoice(run: Run) -> None:
        began.set()
        while True:
            run.check()
            threading.Event().wait(0.005)

    job = await invoice.enqueue()
    worker, life = started(app, grace_s=0.0)
    await eventually(began.is_set)
    worker.stop()
    await life
    assert ((await job.status()).attempts, await state_of(job)) == (0, "queued")


async def test_the_lease_is_renewed_through_the_grace(app, redis):
    began, gate = asyncio.Event(), asyncio.Event()

    @app.job()
    async def invoice() -> str:
        began.set()
        await gate.wait()
        return "written"

    job = await invoice.enqueue()
    worker, life = started(app, lease_s=1.0, grace_s=5.0)
    await began.wait()
    worker.stop()
    first = redis.zscore(app.link.store.keys.leases, job.id)
    await eventually(lambda: redis.zscore(app.link.store.keys.leases, job.id) > first + 500)
    gate.set()
    await life
    assert (await job.status()).crashes == 0


async def test_an_idle_worker_stops_at_once(app):
    worker, life = started(app, poll_s=2.0)
    await eventually(lambda: worker._heartbeat and worker._heartbeat.is_alive())
    worker.stop()
    await asyncio.wait_for(life, 1)


async def test_a_worker_told_to_stop_before_it_runs_does_not_begin(app):
    @app.job()
    async def invoice() -> None: ...

    job = await invoice.enqueue()
    worker = Worker(app)
    worker.stop()
    await asyncio.wait_for(worker.run(), 1)
    assert await state_of(job) == "queued"


async def test_a_stopped_worker_leaves_no_thread_and_no_connection_behind(app, redis):
    @app.job()
    def invoice() -> None: ...

    job = await invoice.enqueue()
    before = redis.info("clients")["connected_clients"]
    worker, life = started(app)
    await reached(job, "done")
    worker.stop()
    await life
    await eventually(lambda: redis.info("clients")["connected_clients"] <= before)
    await eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("fencepost-")])


async def test_jobs_that_were_claimed_as_the_worker_was_told_to_stop_are_handed_back_unstarted(app, redis):
    """The answer of its last claim comes late. Nothing may be left to run out. report: laravel/framework#22939"""
    ran = []

    @app.job()
    async def invoice() -> None:
        ran.append(1)
        await asyncio.Event().wait()

    jobs = [await invoice.enqueue() for _ in range(3)]
    redis.client_pause(500, all=False)
    worker, life = started(app, grace_s=0.0, doctor=False)  # it would wait for the server too
    await eventually(lambda: worker.lanes.in_flight)
    worker.stop()
    await asyncio.wait_for(life, 5)
    records = [await job.status() for job in jobs]
    assert [(record.state, record.attempts, record.crashes) for record in records] == [("queued", 0, 0)] * 3
    assert (ran, redis.zcard(app.link.store.keys.leases)) == ([], 0)


async def test_a_thread_that_listens_has_ended_before_its_job_is_handed_back(app, redis):
    """Else another worker would begin while it tidies up."""
    began, ended_while = threading.Event(), []

    @app.job()
    def invoice(run: Run) -> None:
        began.set()
        while not run.why:
            threading.Event().wait(0.005)
        threading.Event().wait(0.1)  # it tidies up
        ended_while.append(redis.hget(app.link.store.keys.job(run.job_id), "state"))

    job = await invoice.enqueue()
    worker, life = started(app, grace_s=0.0)
    await eventually(began.is_set)
    worker.stop()
    await life
    assert (ended_while, await state_of(job)) == ([b"processing"], "queued")


async def test_a_worker_whose_watcher_breaks_says_so(app, events):
    async def broken() -> None:
        raise RuntimeError("the watcher broke")

    worker = Worker(app, lease_s=LEASE_S)
    worker.lanes._watch = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the watcher broke"):
        await asyncio.wait_for(worker.run(), 5)
    assert events("worker_failed")


async def test_a_thread_that_cannot_hear_of_the_shutdown_and_ends_its_work_is_done(app):
    """It has no run to ask. Its lease was kept until it returned; handed back, its effects would happen twice."""
    began, go = threading.Event(), threading.Event()

    @app.job()
    def invoice() -> str:
        began.set()
        go.wait(5)
        return "written"

    job = await invoice.enqueue()
    worker, life = started(app, grace_s=0.0)
    await eventually(began.is_set)
    worker.stop()
    await eventually(lambda: [run for run in worker.runs.values() if run.why == "shutdown"])
    go.set()
    await life
    record = await job.status()
    assert (record.state, record.result, record.releases) == ("done", b'"written"', 0)
