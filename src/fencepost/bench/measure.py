"""The measurements. Each starts from an empty database and returns plain figures by name."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from typing import Any

from fencepost.bench.jobs import make_app, run_loop, work
from fencepost.bench.server import Meter
from fencepost.worker import Worker

__all__ = ["bulk", "callers", "idle", "latency", "memory", "one_by_one", "process", "two_workers"]

Figures = dict[str, float]


def one_by_one(url: str, meter: Meter, jobs: int) -> Figures:
    """enqueue_sync, one after another."""
    meter.forget()
    noop = make_app(url).handler("noop")
    noop.enqueue_sync(n=0)
    began = time.perf_counter()
    for n in range(jobs):
        noop.enqueue_sync(n=n)
    return {"enqueue_sync_per_s": jobs / (time.perf_counter() - began)}


async def callers(url: str, meter: Meter, jobs: int, concurrent: int = 100) -> Figures:
    """enqueue from many callers of one event loop at once: calls are sent together."""
    meter.forget()
    app = make_app(url)
    noop = app.handler("noop")

    async def caller(count: int) -> None:
        for n in range(count):
            await noop.enqueue(n=n)

    began = time.perf_counter()
    await asyncio.gather(*(caller(jobs // concurrent) for _ in range(concurrent)))
    seconds = time.perf_counter() - began
    used = meter.lap()
    await app.close()
    return {"enqueue_100_callers_per_s": jobs / seconds, "enqueue_100_callers_round_trips_per_job": used.sent / jobs}


async def bulk(url: str, meter: Meter, jobs: int) -> Figures:
    """enqueue_many."""
    meter.forget()
    app = make_app(url)
    items = [{"n": n} for n in range(jobs)]
    cpu, began = time.process_time(), time.perf_counter()
    await app.handler("noop").enqueue_many(items)
    seconds, used = time.perf_counter() - began, meter.lap()
    await app.close()
    return {
        "enqueue_bulk_per_s": jobs / seconds,
        "enqueue_bulk_client_cpu_us": (time.process_time() - cpu) / jobs * 1e6,
        "enqueue_bulk_redis_cpu_us": used.cpu_s / jobs * 1e6,
        "enqueue_bulk_commands_per_job": used.executed / jobs,
    }


async def process(url: str, meter: Meter, jobs: int, concurrency: int, kind: str = "noop") -> Figures:
    """One worker in this process, no-op jobs, everything on: lease, fence, heartbeat, counters, events."""
    meter.forget()
    app = make_app(url)
    await app.handler(kind).enqueue_many([{"n": n} for n in range(jobs)])
    worker = Worker(app, concurrency=concurrency, burst=True)
    meter.lap()
    cpu, began = time.process_time(), time.perf_counter()
    await worker.run()
    seconds, cpu_s, used = time.perf_counter() - began, time.process_time() - cpu, meter.lap()
    await app.close()
    name = f"process_c{concurrency}" + ("" if kind == "noop" else "_resource")
    assert worker.ended == jobs, (worker.ended, jobs)
    return {
        f"{name}_per_s": jobs / seconds,
        f"{name}_worker_cpu_us": cpu_s / jobs * 1e6,
        f"{name}_redis_cpu_us": used.cpu_s / jobs * 1e6,
        f"{name}_round_trips_per_job": worker.driver.round_trips / jobs,
        f"{name}_commands_per_job": used.executed / jobs,
    }


def two_workers(url: str, meter: Meter, jobs: int) -> Figures:
    """Two worker processes at 100 slots each. The clock starts with the first job done: start-up is not counted."""
    meter.forget()
    app = make_app(url)
    app.handler("noop").enqueue_many_sync([{"n": n} for n in range(jobs)])
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(url, 100)) for _ in range(2)]
    for process in processes:
        process.start()
    stats = app.link.store.keys.stats

    def done() -> int:
        return int(meter.redis.hget(stats, "done:noop") or 0)

    first = _until(done, 1)
    first_count = done()
    last = _until(done, jobs)
    for process in processes:
        process.join(30)
    app.close_sync()
    return {"process_2_workers_per_s": (jobs - first_count) / (last - first)}


def _until(done: Any, least: int) -> float:
    end = time.perf_counter() + 60
    while done() < least and time.perf_counter() < end:
        time.sleep(0.002)
    return time.perf_counter()


async def latency(url: str, meter: Meter, seconds: float, rate: float = 50.0) -> Figures:
    """From the call of enqueue to the first line of the handler, at a steady rate; worker and caller in one process."""
    meter.forget()
    starts: list[float] = []
    app = make_app(url, starts)
    worker = Worker(app, concurrency=10)
    running = asyncio.create_task(worker.run())
    stamp = app.handler("stamp")
    await stamp.enqueue(sent=time.perf_counter())
    await asyncio.sleep(0.5)
    starts.clear()
    wanted = int(seconds * rate)
    began = time.perf_counter()
    for n in range(wanted):
        await asyncio.sleep(max(0.0, began + n / rate - time.perf_counter()))
        await stamp.enqueue(sent=time.perf_counter())
    await asyncio.sleep(1.0)
    assert len(starts) == wanted, (len(starts), wanted)
    worker.stop()
    await running
    await app.close()
    starts.sort()
    return {
        "latency_p50_ms": starts[len(starts) // 2] * 1000,
        "latency_p99_ms": starts[int(len(starts) * 0.99)] * 1000,
    }


async def idle(url: str, meter: Meter, seconds: float = 4.0) -> Figures:
    """Commands a second of a worker that has nothing to do."""
    meter.forget()
    app = make_app(url)
    worker = Worker(app, concurrency=10)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(1.5)
    meter.lap()
    await asyncio.sleep(seconds)
    used = meter.lap()
    worker.stop()
    await running
    await app.close()
    return {"idle_requests_per_s": used.sent / seconds}


def memory(url: str, meter: Meter, jobs: int) -> Figures:
    """Bytes of Redis memory for a waiting job with a payload of 200 bytes."""
    meter.forget()
    app = make_app(url)
    before = meter.memory()
    app.handler("noop").enqueue_many_sync([{"n": n, "pad": "x" * 178} for n in range(jobs)])
    used = meter.memory() - before
    app.close_sync()
    return {"waiting_job_bytes": used / jobs}


def environment() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"cpus": os.cpu_count(), "loop": _loop_name()}


def _loop_name() -> str:
    async def name() -> str:
        return type(asyncio.get_running_loop()).__module__

    return str(run_loop(name()))
