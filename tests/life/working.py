"""How the tests of this folder run a worker: `working` beside the test, `work_off` until nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fencepost import Fencepost, Job, Worker
from tests.support import eventually

LEASE_S = 2.0


@asynccontextmanager
async def working(app: Fencepost, *queues: str | tuple[str, int], **settings: Any) -> AsyncIterator[Worker]:
    """Run a worker while the block lasts; what still runs at its end is told to stop at once."""
    worker = Worker(app, queues or ("default",), **{"lease_s": LEASE_S, "concurrency": 10, "poll_s": 0.2} | settings)
    life = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop(now=True)
        await life


async def work_off(app: Fencepost, *queues: str | tuple[str, int], **settings: Any) -> Worker:
    """Run a worker in burst mode: it ends by itself when no job is left."""
    settings = {"lease_s": LEASE_S, "concurrency": 10, "poll_s": 0.05, "burst": True} | settings
    worker = Worker(app, queues or ("default",), **settings)
    await asyncio.wait_for(worker.run(), 10)
    return worker


async def state_of(job: Job[Any]) -> str:
    """Return the state of a job as it is now."""
    return (await job.status()).state


async def reached(job: Job[Any], state: str, timeout: float = 5.0) -> None:
    """Wait until the job is in a state."""

    async def there() -> bool:
        return await state_of(job) == state

    await eventually(there, timeout)
