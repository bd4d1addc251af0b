"""How the tests of this folder run a worker: `working` beside the test, `work_off` until nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fencepost import Fencepost, Job, Run, Worker
from fencepost.clock import boottime_s, new_nonce
from fencepost.link import Link
from fencepost.store import Outcome, Request
from fencepost.worker.settle import with_notes
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


async def taken(app: Fencepost, link: Link | None = None, lease_s: float = 30.0) -> Run:
    """Claim the next job and return its run; nobody renews it or writes its outcome. link: its way to Redis."""
    store = app.link.store
    request = Request("by-hand", "lane0", new_nonce(), 1, round(lease_s * 1000), "", (("default", 1),))
    [claimed] = (await app.link.asynchronous.run(store.claim(request))).jobs
    handler = app.handlers[claimed.kind]
    return Run(claimed, handler, link or app.link, "by-hand", boottime_s() + lease_s * 0.9, lease_s)


async def ended(app: Fencepost, run: Run, word: str = "DONE", *values: Any) -> str:
    """Write an outcome for a run, with what it noted; return the server's word for it."""
    store = app.link.store
    request = Request("by-hand", "lane1", new_nonce(), 0, 30_000, "", ())
    outcome = with_notes(run, Outcome(*run.key, word, values or ("",)))
    return (await app.link.asynchronous.run(store.finish([outcome], request))).replies[0][0]


def lapsed(app: Fencepost, redis: Any, run: Run) -> None:
    """Let the lease of a run lie in the past, as if its worker had died; the next claim or outcome takes it back."""
    redis.zadd(app.link.store.keys.leases, {run.job_id: 1}, xx=True)


def told(app: Fencepost, redis: Any, *names: str) -> list[tuple[str, str]]:
    """(name, reason) of the events of these names, in order."""
    entries = redis.xrange(app.link.store.keys.events)
    lines = [line.split("\t") for _, fields in entries for line in fields[b"e"].decode().split("\n")]
    return [(line[0], line[6] if len(line) > 6 else "") for line in lines if line[0] in names]
