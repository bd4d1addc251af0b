"""A call that was cancelled takes its connection with it: no other call ever reads its reply."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from fencepost.driver import AsyncDriver, Call
from fencepost.store import RunKey
from tests.support.partition import Partition
from tests.support.proxy import HOLD, FaultProxy
from tests.support.waiting import eventually


def echo(text: str) -> Call[Any]:
    return Call("echo", None, (), ["ECHO", text], lambda reply: reply.decode())


@pytest.mark.timeout(60)
async def test_a_thousand_calls_cancelled_at_any_moment_leave_no_reply_to_others(partition: Partition):
    """report: redis/redis-py#2665"""
    driver, draw = AsyncDriver(partition.connections()), random.Random(51)
    run, nobody = partition.put("processing"), RunKey("nobody", "5", "n.1")
    cancelled = 0
    for turn in range(1000):
        call: Any = echo(f"lost-{turn}") if turn % 2 else partition.store.renew(30_000, "w1", [run])
        task = asyncio.ensure_future(driver.run(call))
        for _ in range(draw.randrange(8)):
            await asyncio.sleep(0)
        cancelled += task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if turn % 3:
            assert await driver.run(echo(f"mine-{turn}")) == f"mine-{turn}"
        else:
            answers = await driver.run(partition.store.renew(30_000, "w1", [nobody]))
            assert [answer.word for answer in answers] == ["GONE"], "a stray OK must not count as a renewal"
    await driver.close()
    assert cancelled > 200  # the others had their answer already


async def test_a_call_cancelled_while_its_reply_is_on_the_way_drops_its_connection(partition: Partition, server):
    with FaultProxy(server.socket) as proxy:
        driver = AsyncDriver(partition.connections(proxy.url))
        await driver.run(partition.store.renew(30_000, "w1", []))
        assert proxy.connections == 1
        proxy.plan.append(HOLD)
        run = partition.put("processing")
        task = asyncio.ensure_future(driver.run(partition.store.renew(30_000, "w1", [run])))
        await eventually(lambda: not proxy.plan)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.release()
        assert await driver.run(echo("mine")) == "mine"
        assert proxy.connections == 2
        await driver.close()


async def test_many_calls_at_once_each_get_their_own_reply(partition: Partition):
    driver = AsyncDriver(partition.connections())
    texts = [f"t{n}" for n in range(50)]
    assert await asyncio.gather(*(driver.run(echo(text)) for text in texts)) == texts
    await driver.close()


async def test_a_wait_that_is_cancelled_leaves_nothing_for_the_next_one(partition: Partition):
    """Its wake-up may go with it: a wake-up is only a hint. A later wait is not answered with it."""
    driver, bell = AsyncDriver(partition.connections()), partition.keys.bell("default")
    for _ in range(20):
        task = asyncio.ensure_future(driver.wait([bell], 5.0))
        await eventually(lambda: partition.redis.info("clients")["blocked_clients"] == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: partition.redis.info("clients")["blocked_clients"] == 0)
    partition.redis.lpush(bell, "1")
    assert await driver.wait([bell], 5.0) is True
    assert await driver.wait([bell], 0.01) is False
    await driver.close()
