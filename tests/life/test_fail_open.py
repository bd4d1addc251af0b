"""A kind says what its runs do while Redis cannot be asked: stop (fail closed, the default) or go on (fail open)."""

from __future__ import annotations

import asyncio

import pytest

from fencepost import Fencepost, LeaseLost, Run
from tests.life.working import working
from tests.support import eventually

LEASE_S = 1.0


@pytest.mark.parametrize("policy", ["fail_closed", "fail_open"])
async def test_a_run_whose_lease_cannot_be_renewed_stops_or_goes_on_as_declared(new_server, namespace, policy):
    server = new_server()
    app = Fencepost(server.url, namespace=namespace, lease=LEASE_S)
    inside, seen, go_on = asyncio.Event(), [], asyncio.Event()

    @app.job(resource="stock:{sku}", when_redis_away=policy)
    async def book(run: Run, sku: str) -> str:
        inside.set()
        try:
            await go_on.wait()
            run.check()
        except (asyncio.CancelledError, LeaseLost):
            seen.append(run.why)
            raise
        seen.append("went on")
        return "booked"

    async with working(app, concurrency=1) as worker:
        job = await book.enqueue(sku="42")
        await asyncio.wait_for(inside.wait(), 5)
        run = next(iter(worker.runs.values()))
        server.kill()
        if policy == "fail_closed":
            await eventually(lambda: seen == ["deadline"], timeout=5)
            server.restart()
        else:
            began = run.deadline_s
            await eventually(lambda: run.deadline_s > began + LEASE_S, timeout=8)  # longer than any lease it ever had
            go_on.set()
            await eventually(lambda: seen == ["went on"], timeout=5)
            server.restart()
            # Its outcome is checked like any other: accepted if nobody took the job back, else the job runs again.
            assert await job.result(timeout=10) == "booked"
            assert "deadline" not in seen
    await app.close()
