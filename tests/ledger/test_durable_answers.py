"""What a caller hears of a job whose result is gone, and while Redis is away: never that there is no such job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis as redis_py

from fencepost import Fencepost, JobNotFound, RedisUnavailable, ResultExpired
from fencepost.driver import SyncDriver
from fencepost.embedded import EmbeddedServer
from fencepost.ledger import Archiver, Ledger
from fencepost.ledger.reconcile import Reconciler
from tests.life.working import work_off, working
from tests.support.clock import MovedClock
from tests.support.partition import Partition


@pytest.fixture
async def app(url: str, namespace: str, ledger_url: str) -> AsyncIterator[Fencepost]:
    """An application with this test's ledger."""
    one = Fencepost(url, namespace=namespace, ledger=ledger_url)
    yield one
    await one.close()


@pytest.fixture
async def own(
    namespace: str, ledger_url: str, new_server: Callable[..., EmbeddedServer]
) -> AsyncIterator[tuple[Fencepost, EmbeddedServer]]:
    """An application with this test's ledger, on a server that the test may kill."""
    server = new_server()
    one = Fencepost(server.url, namespace=namespace, ledger=ledger_url, give_up=0.3)
    yield one, server
    await one.close()


class TestAfterItsRetention:
    @pytest.mark.parametrize("durability", ["ledger", "redis"])
    async def test_a_done_job_whose_result_is_gone_says_so_and_not_that_there_is_no_such_job(
        self, app: Fencepost, ledger: Ledger, redis: redis_py.Redis, partition: Partition, clock: MovedClock,
        durability: Any,
    ):  # fmt: skip
        """report: celery/celery#4450"""

        @app.job(kind="mail", retention="1s", durability=durability)
        async def mail(number: int) -> int:
            return number

        job = await mail.enqueue(number=7)
        await work_off(app)
        assert await job.result() == 7
        clock.advance(2)
        assert not redis.exists(partition.keys.job(job.id))
        Archiver(ledger, partition.store, partition.driver).copy_all()  # what a worker does all the time
        assert (await job.status()).state == "done"
        for _ in range(2):
            with pytest.raises(ResultExpired, match="is done, and its result is gone"):
                await job.result(timeout=1)
            with pytest.raises(ResultExpired):
                app.get(job.id).result_sync(timeout=1)
        with pytest.raises(JobNotFound):
            await app.get("unknown").result(timeout=1)
        assert await ended_once(ledger, job.id)


async def ended_once(ledger: Ledger, job_id: str) -> bool:
    """Whether the ledger was told of exactly one end."""
    history = await asyncio.to_thread(ledger.history, job_id)
    return [one.name for one in history if one.name in ("done", "failed", "cancelled")] == ["done"]


class TestAnOutage:
    async def test_it_fails_no_job_and_none_is_called_unknown_for_it(
        self, ledger: Ledger, own: tuple[Fencepost, EmbeddedServer]
    ):
        """Jobs in every stage while Redis is killed: whoever asks hears that Redis is away, and all end well."""
        app, server = own
        began, gate, runs = asyncio.Event(), asyncio.Event(), []

        @app.job(kind="mail", durability="ledger")
        async def mail(number: int) -> int:
            runs.append(number)
            if number == 2:
                began.set()
                await gate.wait()
            return number

        done = await mail.enqueue(number=1)
        await work_off(app)
        async with working(app, concurrency=1, lease_s=30.0) as worker:
            running = await mail.enqueue(number=2)
            await began.wait()
            waiting = await mail.enqueue(number=3)
            await asyncio.to_thread(server.kill)
            accepted = await mail.enqueue(number=4)  # the ledger has it; Redis hears of it later
            for job in (done, running, waiting, accepted):
                with pytest.raises(RedisUnavailable):
                    await job.status()
                with pytest.raises(RedisUnavailable):
                    await job.result(timeout=0.3)
                with pytest.raises(RedisUnavailable):
                    await asyncio.to_thread(app.get(job.id).status_sync)
            gate.set()
            await asyncio.to_thread(server.restart)
            assert [await job.result(timeout=15) for job in (done, running, waiting)] == [1, 2, 3]
            assert worker.refused == 0
            driver = SyncDriver(app.link.connections)
            counts = Reconciler(ledger, app.link.store, driver, quiet_s=0).run().counts
            assert set(counts) <= {"lost"}, "the worker's own archiver may have brought it already"
            assert await accepted.result(timeout=15) == 4
            driver.close()
        assert runs == [1, 2, 3, 4]
        for job in (done, running, waiting, accepted):
            record = await job.status()
            assert (record.state, record.attempts, record.crashes) == ("done", 1, 0)
