"""Answers of Redis that get lost change nothing about an idempotent endpoint: one run, one answer."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from fastapi import Depends

from fencepost import Fencepost
from fencepost.embedded import EmbeddedServer
from fencepost.scripts import load, names
from tests.http.conftest import in_process
from tests.http.idempotent_shop import KEY, Shop, slug
from tests.support.partition import Partition
from tests.support.proxy import DROP_REPLY, DROP_REQUEST, PASS, RESET, Fault, FaultProxy


@pytest.fixture
def proxy(server: EmbeddedServer, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A faulty network in front of a server that knows all scripts; clients try again at once."""
    monkeypatch.setattr("fencepost.driver._FIRST_WAIT_S", 0.0005)
    for name in names():
        partition.redis.script_load(load(name).text)
    with FaultProxy(str(server.socket)) as one:
        yield one


@pytest.fixture
async def shop(proxy: FaultProxy, namespace: str) -> AsyncIterator[Shop]:
    """With POST /orders, which counts, behind the faulty network."""
    queue = Fencepost(proxy.url, namespace=namespace, give_up=0.2)
    shop = Shop(queue)

    @shop.router.post("/orders", dependencies=[Depends(shop.idempotent)])
    async def order() -> int:
        shop.calls.append("ran")
        return len(shop.calls)

    shop.include()
    yield shop
    await queue.close()


@pytest.fixture
async def ask(shop: Shop) -> AsyncIterator[httpx2.AsyncClient]:
    async with in_process(shop.served, headers=KEY) as one:
        yield one


@pytest.mark.parametrize("fault", [DROP_REPLY, DROP_REQUEST, RESET], ids=lambda fault: fault.name)
async def test_each_step_may_need_a_second_try(shop: Shop, ask, proxy: FaultProxy, partition: Partition, fault: Fault):
    proxy.plan.extend([fault, PASS] * 5)
    first = await ask.post("/orders")
    assert not proxy.plan, "begin, lease, look again, store, release: each was tried twice"
    again = await ask.post("/orders")
    assert (first.status_code, first.content) == (again.status_code, again.content) == (200, b"1")
    assert again.headers["idempotent-replayed"] == "true"
    assert shop.calls == ["ran"]
    assert not partition.dump().keys() & {"leases", "slots:answer:t:k-1"}


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_where_no_answer_comes_before_the_handler_its_caller_knows_that_it_did_not_run(
    shop: Shop, ask, proxy: FaultProxy, steps: int
):
    """Redis may well have bound the key and given the lease; the endpoint did nothing."""
    proxy.plan.extend([PASS] * steps + [DROP_REPLY] * 200)
    answer = await ask.post("/orders")
    assert (answer.status_code, slug(answer), answer.json()["changed"]) == (503, "redis-unavailable", "nothing")
    assert shop.calls == []


async def test_where_no_answer_comes_after_the_handler_its_caller_is_told_that_it_is_unknown(
    shop: Shop, ask, proxy: FaultProxy
):
    """Redis has the answer: the next try gets it."""
    proxy.plan.extend([PASS] * 3 + [DROP_REPLY] * 200)
    answer = await ask.post("/orders")
    assert (answer.status_code, slug(answer), answer.json()["changed"]) == (503, "redis-unavailable", "unknown")
    proxy.plan.clear()
    again = await ask.post("/orders")
    assert (again.content, again.headers["idempotent-replayed"]) == (b"1", "true")
    assert shop.calls == ["ran"]
