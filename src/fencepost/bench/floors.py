"""The floors: what this machine, this server and this client can do at best, without a job queue."""

from __future__ import annotations

import time

import redis

from fencepost.driver import AsyncDriver, Call, Connections, SyncDriver

__all__ = ["evalsha_pipelined", "python_loop_ns", "round_trips_async", "round_trips_sync"]


def python_loop_ns() -> float:
    """Nanoseconds for one turn of a Python loop with an addition: the speed of this interpreter, here and now."""
    turns, total = 2_000_000, 0
    began = time.perf_counter()
    for n in range(turns):
        total += n
    return (time.perf_counter() - began) / turns * 1e9


def evalsha_pipelined(client: redis.Redis, calls: int) -> tuple[float, float]:
    """Trivial EVALSHA in pipelines of 100: calls a second, and the server's CPU microseconds for each."""
    sha = client.script_load("return 1")
    before = _cpu_s(client)
    began = time.perf_counter()
    for _ in range(calls // 100):
        pipeline = client.pipeline(transaction=False)
        for _ in range(100):
            pipeline.evalsha(sha, 0)
        pipeline.execute()
    seconds = time.perf_counter() - began
    return calls / seconds, (_cpu_s(client) - before) / calls * 1e6


def round_trips_sync(url: str, calls: int) -> float:
    """PING after PING through our synchronous driver: round trips a second."""
    driver = SyncDriver(Connections(url))
    ping: Call[bytes] = Call("ping", None, (), ["PING"], bytes)
    driver.run(ping)
    began = time.perf_counter()
    for _ in range(calls):
        driver.run(ping)
    seconds = time.perf_counter() - began
    driver.close()
    return calls / seconds


async def round_trips_async(url: str, calls: int) -> float:
    """The same through the asynchronous driver."""
    driver = AsyncDriver(Connections(url))
    ping: Call[bytes] = Call("ping", None, (), ["PING"], bytes)
    await driver.run(ping)
    began = time.perf_counter()
    for _ in range(calls):
        await driver.run(ping)
    seconds = time.perf_counter() - began
    await driver.close()
    return calls / seconds


def _cpu_s(client: redis.Redis) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
