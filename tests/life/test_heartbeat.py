"""The heartbeat has a thread and a connection of its own: no handler can starve it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable

import pytest

from fencepost import Fencepost, Run, Worker
from tests.life.working import reached, working
from tests.support import eventually


def lease_of(app, redis, job) -> float:
    """The deadline of the job's lease; 0 without one."""
    return redis.zscore(app.link.store.keys.leases, job.id) or 0.0


@pytest.mark.slow
async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease_and_runs_once(app, url, events):
    """Three times its lease. An innocent job beside it keeps its lease too. report: taskforcesh/bullmq#3056"""
    starts, gate = [], asyncio.Event()

    @app.job()
    async def spin(run: Run) -> str:
        starts.append(run.attempt)
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            time.sleep(0.01)  # noqa: ASYNC251
        gate.set()
        return "spun"

    @app.job()
    async def innocent(run: Run) -> str:
        starts.append(run.attempt)
        await gate.wait()
        return "innocent"

    beside = await innocent.enqueue()
    end_rescuer = rescuer(url, app.namespace)
    try:
        async with working(app, lease_s=1.0):
            await reached(beside, "processing")
            job = await spin.enqueue()
            assert [await job.result(timeout=8), await beside.result(timeout=8)] == ["spun", "innocent"]
        for one in (job, beside):
            record = await one.status()
            assert (record.attempts, record.crashes) == (1, 0)
        assert starts == [1, 1]
    finally:
        await asyncio.to_thread(end_rescuer)
    assert events("loop_blocked")[0]["kind"] == "spin"


def rescuer(url: str, namespace: str) -> Callable[[], None]:
    """Another worker, on a thread and a loop of its own, that takes back whatever lapses. Returns how to end it."""
    running: queue.Queue[tuple[Worker, asyncio.AbstractEventLoop]] = queue.Queue()

    async def life() -> None:
        app = Fencepost(url, namespace=namespace)
        worker = Worker(app, ["another-queue"], lease_s=1.0, poll_s=0.1)
        running.put((worker, asyncio.get_running_loop()))
        await worker.run()
        await app.close()

    thread = threading.Thread(target=lambda: asyncio.run(life()))
    thread.start()
    worker, loop = running.get()

    def end() -> None:
        loop.call_soon_threadsafe(worker.stop)
        thread.join()

    return end


@pytest.mark.slow
async def test_handlers_that_hold_every_connection_hold_up_neither_heartbeat_nor_cancel(app, redis):
    """report: python-arq/arq#408"""
    inside, gate = [], asyncio.Event()

    @app.job()
    async def greedy(run: Run) -> None:
        inside.append(run.job_id)
        # Each call of the handler's own waits on the server, on a connection of the application.
        await asyncio.gather(
            *(app.link.asynchronous.wait([f"{{{app.namespace}:0}}:bell:none"], 1.5) for _ in range(20))
        )
        await gate.wait()

    first, second = await greedy.enqueue(), await greedy.enqueue()
    async with working(app, lease_s=1.0, concurrency=2):
        await eventually(lambda: len(inside) == 2)
        before = lease_of(app, redis, first)
        await eventually(lambda: lease_of(app, redis, first) > before + 300, timeout=1.0)
        began = time.monotonic()
        await second.cancel()
        await reached(second, "cancelled")
        assert time.monotonic() - began < 0.7  # two intervals
        gate.set()
        await first.result(timeout=5)


async def test_a_busy_worker_is_alive_and_a_stopped_one_is_not(app):
    @app.job()
    async def note() -> None: ...

    async with working(app) as worker:
        await (await note.enqueue()).result(timeout=5)
        assert worker.alive()
    await eventually(lambda: not worker.alive())


async def test_two_starts_on_one_host_and_process_are_two_workers(app):
    """What a restarted worker finds of its former self is an orphan. report: oban-bg/oban#862"""
    owners = []

    @app.job()
    async def note(run: Run) -> None:
        owners.append(run.worker_id)

    for _ in range(2):
        async with working(app):
            await (await note.enqueue()).result(timeout=5)
    host_and_pid = {owner.rsplit("-", 1)[0] for owner in owners}
    assert (len(set(owners)), len(host_and_pid)) == (2, 1)


async def test_whatever_goes_wrong_in_one_beat_the_next_one_comes(app, redis, events, monkeypatch):
    gate = asyncio.Event()

    @app.job()
    async def note() -> str:
        await gate.wait()
        return "noted"

    job = await note.enqueue()
    renew = app.link.store.renew
    broken: list[int] = []

    def breaks_once(*arguments):
        if not broken:
            broken.append(1)
            raise RuntimeError("dictionary changed size during iteration")
        return renew(*arguments)

    monkeypatch.setattr(app.link.store, "renew", breaks_once)
    async with working(app, lease_s=1.0):
        await reached(job, "processing")
        first = lease_of(app, redis, job)
        await eventually(lambda: lease_of(app, redis, job) > first + 300)
        gate.set()
        assert await job.result(timeout=5) == "noted"
    assert len(events("heartbeat_failed")) == 1


async def test_a_worker_that_was_idle_for_long_is_not_taken_for_blocked(app, events, monkeypatch):
    @app.job()
    async def note(run: Run) -> None:
        await asyncio.sleep(0)

    async with working(app) as worker:
        await eventually(lambda: worker._heartbeat)
        for _ in range(20):
            assert worker._heartbeat is not None
            worker._heartbeat.loop_moved_at -= 60  # a minute without a job
            job = await note.enqueue()
            await job.result(timeout=5)
    assert events("loop_blocked") == []
