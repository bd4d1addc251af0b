"""Only the address of a client that is given is used: how it decodes, retries and times out is our own business."""

from __future__ import annotations

from typing import Any

import pytest
import redis as redis_py
import redis.asyncio as redis_asyncio
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from fencepost import Fencepost
from fencepost.driver import Connections, SyncDriver
from fencepost.job import JobSpec
from tests.support.partition import Partition

ODD = b'\x9c\xff\x00"\xc3\x28'


def clients(p: Partition) -> dict[str, Any]:
    """Clients as users make them; each for the restricted user of the test."""
    as_whom: dict[str, Any] = {"username": p.user, "password": "any"}
    return {
        "plain": redis_py.Redis.from_url(p.url, **as_whom),
        "decoding": redis_py.Redis.from_url(p.url, decode_responses=True, **as_whom),
        "decoding latin-1": redis_py.Redis.from_url(p.url, decode_responses=True, encoding="latin-1", **as_whom),
        "RESP3": redis_py.Redis.from_url(p.url, protocol=3, decode_responses=True, **as_whom),
        "retrying": redis_py.Redis.from_url(p.url, retry=Retry(ExponentialBackoff(), 10), **as_whom),
        "asynchronous": redis_asyncio.Redis.from_url(p.url, decode_responses=True, **as_whom),
    }


SORTS = ("plain", "decoding", "decoding latin-1", "RESP3", "retrying", "asynchronous")


@pytest.mark.parametrize("sort", SORTS)
def test_every_client_gives_the_same_answers_byte_for_byte(partition: Partition, sort: str):
    """report: rq/rq#1188"""
    p = partition
    driver = SyncDriver(Connections(clients(p)[sort]))
    spec = JobSpec(id="jöb", kind="mail", payload=ODD, resource="thing:ü")
    assert driver.run(p.store.enqueue([spec])) == [("QUEUED", "jöb", "queued")]
    [run] = driver.run(p.store.claim(p.request(1))).jobs
    assert (run.job_id, run.payload, run.resource) == ("jöb", ODD, "thing:ü")
    assert driver.run(p.store.renew(30_000, "w1", [run.key])) == [("OK", "")]
    assert driver.run(p.store.checkpoint(run.key, "w1", "checkpoint", ODD)) == ("OK", "")
    assert driver.run(p.store.checkpoint(run.key._replace(nonce="x"), "w1", "checkpoint", b"")) == ("STALE", run.token)
    word, token, _ = driver.run(p.store.acquire("alone", "n", "somebody", 30_000))
    assert word == "HELD"
    assert driver.run(p.store.release("n", token, "somebody")) == ("OK", "")
    served = driver.run(p.finishing(run.key, "DONE", ODD))
    assert served.replies == [("OK", "")]
    record = p.record("jöb")
    assert (record.state, record.payload, record.result, record.checkpoint) == ("done", ODD, ODD, ODD)
    driver.close()


@pytest.mark.parametrize("sort", SORTS)
async def test_an_application_may_be_given_any_client(partition: Partition, sort: str):
    app = Fencepost(clients(partition)[sort], namespace=partition.namespace)

    @app.job()
    async def greet(name: str) -> str:
        return f"hello {name}"

    job = await greet.enqueue(name="Zoë")
    assert (await job.status()).payload == '{"name":"Zoë"}'.encode()
    async with app.lease("stock", ttl=5.0) as lease:
        assert lease.token > 0
    assert await job.cancel() == "cancelled"
    await app.close()


def test_the_clients_own_retries_and_pool_are_left_alone(partition: Partition):
    client = clients(partition)["retrying"]
    driver = SyncDriver(Connections(client))
    driver.run(partition.store.enqueue([JobSpec(id="j", kind="mail")]))
    connection = Connections(client).make_sync()
    assert connection.retry.get_retries() == 0
    assert connection.retry_on_timeout is False
    assert client.get_retry().get_retries() == 10
    driver.close()
