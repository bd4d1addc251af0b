"""`app.lease` as its users hold it: kept by a thread of its own, lost with a reason, never left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from fencepost import Fencepost, LeaseLost, RedisUnavailable, ResourceBusy
from fencepost.scripts import load, names
from tests.guarantees.stage import LossyDriver, Stage
from tests.support import eventually, wait_until


@pytest.fixture
def app(stage: Stage) -> Iterator[Fencepost]:
    for name in names():
        stage.redis.script_load(load(name).text)
    one = Fencepost(stage.url, namespace=stage.namespace)
    yield one
    one.close_sync()


@pytest.fixture
def away() -> Fencepost:
    """An application whose server is not there."""
    return Fencepost("redis://127.0.0.1:1/0", give_up=0.05)


def deadline(stage: Stage) -> float:
    return max(stage.look().leases.values(), default=0.0)


def test_a_lease_is_renewed_by_itself_and_given_back_on_leaving(stage: Stage, app: Fencepost):
    with app.lease("thing", ttl=1.0) as lease:
        first = deadline(stage)
        wait_until(lambda: deadline(stage) > first)
        lease.check()
        assert (lease.held, lease.token > 0) == (True, True)
    assert stage.holders("thing") == []
    assert lease.lost == ""


def test_one_lost_renewal_does_not_lose_the_lease(stage: Stage, app: Fencepost):
    """Tried again within the TTL. report: redisson/redisson#775 (a)"""
    driver = app.link.synchronous = LossyDriver(app.link.connections, "", "reply", "request")
    with app.lease("thing", ttl=1.0) as lease:
        first = deadline(stage)
        wait_until(lambda: not driver.programme and driver.sent >= 5)
        lease.check()
        assert deadline(stage) > first
    assert lease.lost == ""


def test_a_lease_that_lapsed_does_not_keep_the_next_one_of_its_name_from_being_renewed(stage: Stage, app: Fencepost):
    """Nothing is left over in the process. report: redisson/redisson#775 (b)"""
    with app.lease("thing", ttl=1.0) as old:
        stage.pass_time(1.2)
        wait_until(lambda: old.lost)
        with app.lease("thing", ttl=1.0) as new:
            assert new.token > old.token
            for _ in range(3):
                last = deadline(stage)
                wait_until(lambda last=last: deadline(stage) > last)
            new.check()
        assert stage.holders("thing") == []


def test_the_holder_of_a_lost_lease_is_told_once_and_why(stage: Stage, app: Fencepost):
    """report: redisson/redisson#4698"""
    told: list[str] = []
    with app.lease("thing", ttl=1.0, on_lost=told.append) as lease:
        stage.pass_time(1.2)
        stage.acquire("thing", "the next one")
        wait_until(lambda: told)
        with pytest.raises(LeaseLost, match="thing"):
            lease.check()
    assert told == ["expired"]
    assert stage.holders("thing") == ["@the next one"]


@pytest.mark.slow
def test_a_holder_that_cannot_reach_redis_stops_trusting_its_lease_before_it_ends(stage: Stage, app: Fencepost):
    """By its own clock, from before the request was sent."""
    app.link.synchronous = LossyDriver(app.link.connections, "", *["request"] * 200)
    told = threading.Event()
    with app.lease("thing", ttl=1.0, on_lost=lambda why: told.set()) as lease:
        until = deadline(stage)
        assert told.wait(3.0)
        assert stage.clock.now_ms() < until
        assert lease.lost == "deadline"
        app.link.synchronous = LossyDriver(app.link.connections)


def test_who_does_not_wait_is_told_who_holds_it(stage: Stage, app: Fencepost):
    stage.acquire("thing", "somebody")
    with pytest.raises(ResourceBusy, match="@somebody"), app.lease("thing"):
        raise AssertionError("two at once")
    assert stage.line("thing") == []


def test_who_waited_for_as_long_as_it_wanted_leaves_the_line(stage: Stage, app: Fencepost):
    stage.acquire("thing", "somebody")
    with pytest.raises(ResourceBusy), app.lease("thing", wait=0.05):
        raise AssertionError("two at once")
    assert stage.line("thing") == []
    assert list(stage.look().lease) == ["somebody"]


async def test_a_waiter_begins_when_the_holder_leaves(stage: Stage, app: Fencepost):
    """Woken by the script that frees the place, not by a poll."""
    order: list[str] = []

    async def second() -> None:
        async with app.lease("thing", wait=30.0):
            order.append("second")

    async with app.lease("thing"):
        task = asyncio.create_task(second())
        await eventually(lambda: stage.line("thing"))
        order.append("first")
    await asyncio.wait_for(task, 5.0)
    assert order == ["first", "second"]
    assert stage.holders("thing") == []
    await app.close()


async def test_a_waiter_that_is_cancelled_leaves_the_line(stage: Stage, app: Fencepost):
    _, token, _ = stage.acquire("thing", "somebody")
    task = asyncio.create_task(app.lease("thing", wait=30.0).__aenter__())
    await eventually(lambda: stage.line("thing"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.line("thing") == []
    stage.release("somebody", token)
    assert (stage.holders("thing"), stage.look().lease) == ([], {})
    await app.close()


async def test_a_waiter_that_is_cancelled_just_as_it_is_served_gives_the_place_back(stage: Stage, app: Fencepost):
    """Between the grant and the news of it: nobody would ever leave that lease."""
    _, token, _ = stage.acquire("thing", "somebody")
    task = asyncio.create_task(app.lease("thing", wait=30.0).__aenter__())
    await eventually(lambda: stage.line("thing"))
    stage.release("somebody", token)  # blocks the loop: the waiter cannot have heard of it
    assert stage.holders("thing") != []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (stage.holders("thing"), stage.look().lease) == ([], {})
    await app.close()


async def test_a_waiter_that_is_cancelled_while_redis_is_away_is_cancelled_all_the_same(stage: Stage, app: Fencepost):
    stage.acquire("thing", "somebody")
    task = asyncio.create_task(app.lease("thing", wait=30.0).__aenter__())
    await eventually(lambda: stage.line("thing"))
    app.link.asynchronous._connections = away_connections = Fencepost("redis://127.0.0.1:1/0").link.connections
    await app.link.asynchronous.close()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert away_connections
    stage.jump(6.0)


async def test_without_redis_a_lease_is_refused_or_left_out_as_declared(away: Fencepost):
    """fail_closed is the default. report: sibson/redbeat#208: an error in acquire was taken for success"""
    with pytest.raises(RedisUnavailable):
        async with away.lease("thing"):
            raise AssertionError("it does not hold the lease")
    with pytest.raises(RedisUnavailable), away.lease("thing"):
        raise AssertionError("it does not hold the lease")
    async with away.lease("thing", when_redis_away="fail_open") as lease:
        assert (lease.held, lease.token) == (False, 0)
    with away.lease("thing", when_redis_away="fail_open") as lease:
        lease.check()
        assert not lease.held
    await away.close()


def test_fail_open_is_about_redis_and_not_about_the_others(stage: Stage, app: Fencepost):
    stage.acquire("thing", "somebody")
    with pytest.raises(ResourceBusy), app.lease("thing", when_redis_away="fail_open"):
        raise AssertionError("two at once")
