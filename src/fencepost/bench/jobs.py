"""The jobs of the benchmark, and a worker process of its own."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fencepost.app import Fencepost
from fencepost.worker import Worker

__all__ = ["NAMESPACE", "make_app", "run_loop", "work"]

NAMESPACE = "bench"


def make_app(url: str, starts: list[float] | None = None) -> Fencepost:
    """Return an application with the kinds noop, one_resource (a resource of its own for each job) and stamp.

    starts: receives, for each stamp job, the seconds from enqueue to start.
    """
    app = Fencepost(url, namespace=NAMESPACE)

    @app.job()
    async def noop(n: int, pad: str = "") -> None:
        return None

    @app.job(resource="bench:{n}")
    async def one_resource(n: int, pad: str = "") -> None:
        return None

    @app.job()
    async def stamp(sent: float) -> None:
        if starts is not None:
            starts.append(time.perf_counter() - sent)

    return app


def run_loop(main: Any) -> Any:
    """Run a coroutine on uvloop where it is installed, else on asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def work(url: str, concurrency: int) -> None:
    """A worker process that ends when the queue is empty; started by multiprocessing."""

    async def main() -> None:
        app = make_app(url)
        await Worker(app, concurrency=concurrency, burst=True).run()
        await app.close()

    run_loop(main())
