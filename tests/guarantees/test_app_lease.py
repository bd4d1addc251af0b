"""`app.lease` as its users hold it: kept by a thread of its own, lost with a reason, never left behind."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator

import pytest

from fencepost import Fencepost, LeaseLost, RedisUnavailable, ResourceBusy
from fencepost.driver import Connections
from fencepost.scripts import load, names
from tests.guarantees.stage import LossyDriver, Stage
from tests.support import eventually, wait_until


@pytest.fixture
def app(live_stage: Stage) -> Iterator[Fencepost]:
    for name in names():
        live_stage.redis.script_load(load(name).text)
    one = Fencepost(live_stage.url, namespace=live_stage.namespace)
    yield one
    one.close_sync()


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to the next renewals of leases; see LossyDriver."""
    programme: list[str] = []

    def driver(connections: Connections, **settings: float) -> LossyDriver:
        one = LossyDriver(connections, give_up_s=settings["give_up_s"])
        one.programme = programme
        return one

    monkeypatch.setattr("fencepost.lease.SyncDriver", driver)
    return programme


@pytest.fixture
def away() -> Fencepost:
    """An application whose server is not there."""
    return Fencepost("redis://127.0.0.1:1/0", give_up=0.05)


def deadline(stage: Stage) -> float:
    return max(stage.look().leases.values(), default=0.0)


def renewed(stage: Stage, last: float) -> bool:
    return deadline(stage) > last


def test_a_lease_is_renewed_by_itself_and_given_back_on_leaving(live_stage: Stage, app: Fencepost):
    with app.lease("thing", ttl=1.0) as lease:
        first = deadline(live_stage)
        wait_until(lambda: deadline(live_stage) > first)
        lease.check()
        assert (lease.held, lease.token > 0) == (True, True)
    assert live_stage.holders("thing") == []
    assert lease.lost == ""


def test_one_lost_renewal_does_not_lose_the_lease(live_stage: Stage, app: Fencepost, renewals: list[str]):
    """Tried again within the TTL. report: redisson/redisson#775 (a)"""
    renewals += ["reply", "request"]
    with app.lease("thing", ttl=1.0) as lease:
        wait_until(lambda: not renewals)
        last = deadline(live_stage)
        wait_until(lambda: deadline(live_stage) > last)
        lease.check()
    assert lease.lost == ""


def test_a_lease_that_lapsed_does_not_keep_the_next_one_of_its_name_from_being_renewed(
    live_stage: Stage, app: Fencepost
):
    """Nothing is left over in the process. report: redisson/redisson#775 (b)"""
    with app.lease("thing", ttl=1.0) as old:
        live_stage.pass_time(1.2)
        wait_until(lambda: old.lost)
        with app.lease("thing", ttl=1.0) as new:
            assert new.token > old.token
            for _ in range(3):
                wait_until(functools.partial(renewed, live_stage, deadline(live_stage)))
            new.check()
        assert live_stage.holders("thing") == []


def test_the_holder_of_a_lost_lease_is_told_once_and_why(live_stage: Stage, app: Fencepost):
    """report: redisson/redisson#4698"""
    told: list[str] = []
    with app.lease("thing", ttl=1.0, on_lost=told.append) as lease:
        live_stage.pass_time(1.2)
        live_stage.acquire("thing", "the next one")
        wait_until(lambda: told)
        with pytest.raises(LeaseLost, match="thing"):
            lease.check()
    assert told == ["expired"]
    assert live_stage.holders("thing") == ["@the next one"]


@pytest.mark.slow
def test_a_holder_that_cannot_reach_redis_stops_trusting_its_lease_before_it_ends(
    live_stage: Stage, app: Fencepost, renewals: list[str]
):
    """By its own clock, from before the request was sent."""
    renewals += ["request"] * 1_000
    told: list[int] = []
    with app.lease("thing", ttl=1.0, on_lost=lambda why: told.append(live_stage.clock.now_ms())) as lease:
        until = deadline(live_stage)
        wait_until(lambda: told)
        assert told[0] < until
        assert lease.lost == "deadline"


def test_who_does_not_wait_is_told_who_holds_it(live_stage: Stage, app: Fencepost):
    live_stage.acquire("thing", "somebody")
    with pytest.raises(ResourceBusy, match="@somebody"), app.lease("thing"):
        raise AssertionError("two at once")
    assert live_stage.line("thing") == []


def test_who_waited_for_as_long_as_it_wanted_leaves_the_line(live_stage: Stage, app: Fencepost):
    live_stage.acquire("thing", "somebody")
    with pytest.raises(ResourceBusy), app.lease("thing", wait=0.05):
        raise AssertionError("two at once")
    assert live_stage.line("thing") == []
    assert list(live_stage.look().lease) == ["somebody"]


async def test_a_waiter_begins_when_the_holder_leaves(live_stage: Stage, app: Fencepost):
    """Woken by the script that frees the place, not by a poll."""
    order: list[str] = []

    async def second() -> None:
        async with app.lease("thing", wait=30.0):
            order.append("second")

    async with app.lease("thing"):
        task = asyncio.create_task(second())
        await eventually(lambda: live_stage.line("thing"))
        order.append("first")
    await asyncio.wait_for(task, 5.0)
    assert order == ["first", "second"]
    assert live_stage.holders("thing") == []
    await app.close()


async def test_a_waiter_that_is_cancelled_leaves_the_line(live_stage: Stage, app: Fencepost):
    _, token, _ = live_stage.acquire("thing", "somebody")
    task = asyncio.create_task(app.lease("thing", wait=30.0).__aenter__())
    await eventually(lambda: live_stage.line("thing"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert live_stage.line("thing") == []
    live_stage.release("somebody", token)
    assert (live_stage.holders("thing"), live_stage.look().lease) == ([], {})
    await app.close()


async def test_a_waiter_that_is_cancelled_just_as_it_is_served_gives_the_place_back(live_stage: Stage, app: Fencepost):
    """Between the grant and the news of it: nobody would ever leave that lease."""
    _, token, _ = live_stage.acquire("thing", "somebody")
    task = asyncio.create_task(app.lease("thing", wait=30.0).__aenter__())
    await eventually(lambda: live_stage.line("thing"))
    live_stage.release("somebody", token)  # blocks the loop: the waiter cannot have heard of it
    assert live_stage.holders("thing") != []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (live_stage.holders("thing"), live_stage.look().lease) == ([], {})
    await app.close()


async def test_a_waiter_that_is_cancelled_while_redis_is_away_is_cancelled_all_the_same(
    live_stage: Stage, app: Fencepost
):
    live_stage.acquire("thing", "somebody")
    task = asyncio.create_task(app.lease("thing", wait=30.0).__aenter__())
    await eventually(lambda: live_stage.line("thing"))
    await app.link.asynchronous.close()
    app.link.asynchronous._connections = Connections("redis://127.0.0.1:1/0")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


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


def test_fail_open_is_about_redis_and_not_about_the_others(live_stage: Stage, app: Fencepost):
    live_stage.acquire("thing", "somebody")
    with pytest.raises(ResourceBusy), app.lease("thing", when_redis_away="fail_open"):
        raise AssertionError("two at once")
