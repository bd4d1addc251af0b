"""A lease without a job: `app.lease(name, ttl)`, in code that has an event loop and in code that has none."""

from __future__ import annotations

import asyncio
import math
import threading
from functools import partial

import pytest

from fencepost import ConfigurationError, Fencepost, LeaseLost, RedisUnavailable, ResourceBusy
from fencepost.lease import Lease
from tests.life.test_resources import Overlap
from tests.life.working import reached, working
from tests.support import eventually, wait_until


async def test_one_holds_it_and_the_others_are_told_by_whom(app):
    async with app.lease("stock:42", ttl=2) as lease:
        assert (lease.held, lease.token > 0) == (True, True)
        with pytest.raises(ResourceBusy, match=r"stock:42"):
            async with app.lease("stock:42", ttl=2):
                pass
    assert not lease.held
    async with app.lease("stock:42", ttl=2) as again:
        assert again.token > lease.token


def test_a_script_without_an_event_loop_takes_it_too(app):
    with app.lease("stock:42", ttl=2) as lease:
        assert lease.held
        with pytest.raises(ResourceBusy), app.lease("stock:42", ttl=2):
            pass
    with app.lease("stock:42", ttl=2):
        pass


async def test_it_is_renewed_for_as_long_as_it_is_held(app, redis):
    slots = app.link.store.keys.slots("stock:42")
    async with app.lease("stock:42", ttl=1) as lease:
        first = redis.zrange(slots, 0, -1, withscores=True)[0][1]
        await eventually(lambda: redis.zrange(slots, 0, -1, withscores=True)[0][1] > first + 300)
        lease.check()


async def test_those_who_wait_are_served_in_order_and_never_together(app):
    inside = Overlap()

    async def book(n: int) -> None:
        async with app.lease("stock:42", ttl=2, wait=5):
            await inside.visit(n)

    async with app.lease("stock:42", ttl=2):
        waiters = []
        for n in range(5):
            waiters.append(asyncio.create_task(book(n)))
            await eventually(partial(line_of, app, n + 1))
    await asyncio.gather(*waiters)
    assert (inside.most, inside.order) == (1, [0, 1, 2, 3, 4])


async def line_of(app: Fencepost, length: int) -> bool:
    keys = app.link.store.keys
    line: int = await app.link.asynchronous.run(app.link.store.read(["ZCARD", keys.line("stock:42")], int))
    return line == length


async def test_who_waits_in_vain_leaves_the_line(app, redis):
    async with app.lease("stock:42", ttl=2):
        with pytest.raises(ResourceBusy):
            async with app.lease("stock:42", ttl=2, wait=0.1):
                pass
        assert redis.zcard(app.link.store.keys.line("stock:42")) == 0


def test_a_thread_that_waits_gets_it_when_it_is_given_back(app):
    with app.lease("stock:42", ttl=2):
        got = []

        def wait() -> None:
            with app.lease("stock:42", ttl=2, wait=5) as lease:
                got.append(lease.token)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: app.link.synchronous.run(app.link.store.read(["ZCARD", line_key(app)], int)) == 1)
        assert got == []
    thread.join(5)
    assert len(got) == 1


def line_key(app: Fencepost) -> str:
    return app.link.store.keys.line("stock:42")


async def test_a_limit_lets_that_many_in(app):
    async with app.lease("api", ttl=2, limit=2), app.lease("api", ttl=2, limit=2):
        with pytest.raises(ResourceBusy):
            async with app.lease("api", ttl=2, limit=2):
                pass


async def test_a_job_and_a_lease_on_one_resource_never_hold_it_together(app):
    @app.job(resource="stock:{sku}")
    async def book(sku: int) -> str:
        return "booked"

    async with working(app):
        async with app.lease("stock:42", ttl=2):
            job = await book.enqueue(42)
            await reached(job, "waiting")
        assert await job.result(timeout=5) == "booked"


async def test_a_waiter_that_is_cancelled_leaves_the_line(app, redis):
    async with app.lease("stock:42", ttl=2):
        waiter = asyncio.create_task(enter(app))
        await eventually(lambda: line_of(app, 1))
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert redis.zcard(line_key(app)) == 0


async def test_a_waiter_can_be_cancelled_at_any_step_of_its_way_into_the_line(app, redis):
    """While it connects, sends, reads or waits: a cancellation is never lost, and nothing stays behind."""
    async with app.lease("stock:42", ttl=10):
        for steps in range(60):
            waiter = asyncio.create_task(enter(app))
            for _ in range(steps):
                await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.wait({waiter}, timeout=2)
            assert waiter.cancelled(), steps
            await app.close()  # so that the next one has to connect again
        assert redis.zcard(line_key(app)) == 0


async def enter(app: Fencepost) -> None:
    async with app.lease("stock:42", ttl=30, wait=20):
        pass


async def test_a_waiter_that_is_cancelled_just_as_it_is_its_turn_gives_the_place_back(app, redis):
    async with app.lease("stock:42", ttl=2):
        waiter = asyncio.create_task(enter(app))
        await eventually(lambda: line_of(app, 1))
    waiter.cancel()  # the place was handed over while the holder left; the waiter has not read that yet
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert redis.zcard(app.link.store.keys.slots("stock:42")) == 0
    assert redis.zcard(app.link.store.keys.leases) == 0


async def test_a_holder_that_is_cancelled_inside_gives_it_back(app, redis):
    async def hold() -> None:
        async with app.lease("stock:42", ttl=30):
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    await eventually(lambda: redis.zcard(app.link.store.keys.slots("stock:42")) == 1)
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    assert redis.zcard(app.link.store.keys.slots("stock:42")) == 0


async def test_a_lost_lease_is_told_once_and_leaving_it_raises_nothing(app, clock):
    lost: list[str] = []
    async with app.lease("stock:42", ttl=2, on_lost=lost.append) as lease:
        clock.advance(2.1)
        async with app.lease("stock:42", ttl=2):  # its sweep takes the lapsed one back
            await eventually(lambda: lost)
            with pytest.raises(LeaseLost):
                lease.check()
    assert len(lost) == 1
    assert lost[0] == lease.lost


@pytest.mark.slow
async def test_a_holder_that_cannot_reach_redis_is_told_before_its_lease_ends(app, redis):
    """By its own clock, though the call that is on its way has not come back. report: redisson/redisson#4698"""
    lost: list[str] = []
    async with app.lease("stock:42", ttl=1, on_lost=lost.append) as lease:
        redis.client_pause(2_500, all=True)
        await eventually(lambda: lost, timeout=1.3)
        assert lost == ["deadline"]
        with pytest.raises(LeaseLost):
            lease.check()


async def test_many_short_leases_leave_no_connection_and_no_thread_behind(app, redis):
    async with app.lease("warm", ttl=2):
        pass
    before = redis.info("clients")["connected_clients"]
    for n in range(30):
        async with app.lease(f"stock:{n}", ttl=1) as lease:
            lease.check()
    await eventually(lambda: redis.info("clients")["connected_clients"] <= before + 2)
    await eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("fencepost-lease")])


@pytest.mark.slow
async def test_many_leases_that_were_renewed_leave_no_connection_behind(app, redis):
    async with app.lease("warm", ttl=2):
        pass
    before = redis.info("clients")["connected_clients"]
    leases = [app.lease(f"stock:{n}", ttl=1) for n in range(10)]
    for lease in leases:
        await lease.__aenter__()
    first = {lease.name: lease._until for lease in leases}
    await eventually(lambda: all(lease._until > first[lease.name] for lease in leases))
    for lease in leases:
        await lease.__aexit__(None, None, None)
    await eventually(lambda: redis.info("clients")["connected_clients"] <= before + 2)


async def test_without_redis_it_is_closed_unless_declared_open(new_server):
    server = new_server()
    app = Fencepost(server.url, namespace="own", give_up=0.1)
    await asyncio.to_thread(server.kill)
    with pytest.raises(RedisUnavailable):
        async with app.lease("stock:42", ttl=2):
            pass
    async with app.lease("stock:42", ttl=2, when_redis_away="fail_open") as lease:
        assert (lease.held, lease.token) == (False, 0)
    await app.close()


@pytest.mark.parametrize("wrong", [{"ttl": 0.5}, {"name": "a b"}, {"name": ""}, {"limit": 0}, {"when_redis_away": "x"}])
def test_a_lease_that_cannot_work_is_refused_where_it_is_made(app, wrong):
    with pytest.raises(ConfigurationError):
        app.lease(**({"name": "stock:42", "ttl": 2} | wrong))


async def test_one_object_is_one_holder_at_a_time(app):
    lease = app.lease("stock:42", ttl=2)
    async with lease:
        with pytest.raises(ConfigurationError):
            await lease.__aenter__()
    async with lease:
        lease.check()


def test_a_renewal_of_the_last_use_does_not_end_the_next_one(app, monkeypatch):
    """The object is left and entered again while a renewal is on its way: its answer is about the lease before."""
    began, go, answered = threading.Event(), threading.Event(), threading.Event()
    renew = Lease._renew
    told: list[str] = []

    def slow(self, run, patience_s):
        monkeypatch.setattr(Lease, "_renew", renew)
        began.set()
        go.wait(5)
        word = renew(self, run, 1.0)
        answered.set()
        return word

    monkeypatch.setattr(Lease, "_renew", slow)
    lease = app.lease("stock:42", ttl=1, on_lost=told.append)
    with lease:
        assert began.wait(5)
        beat = lease._heart
    with lease:
        go.set()
        assert answered.wait(5)
        beat.join(5)
        lease.check()
    assert (lease.lost, told) == ("", [])


@pytest.mark.parametrize("sync", [False, True])
async def test_after_a_late_answer_it_is_renewed_before_the_first_line_of_the_block(app, redis, sync):
    """The answer took longer than the lease: nobody knows when that began."""
    redis.client_pause(1200, all=True)
    if sync:

        def block() -> tuple[bool, str]:
            with app.lease("stock:42", ttl=1) as lease:
                lease.check()
                return lease.held, lease.lost

        assert await asyncio.to_thread(block) == (True, "")
        return
    async with app.lease("stock:42", ttl=1) as lease:
        lease.check()
        assert (lease.held, lease.lost) == (True, "")


async def test_a_place_that_was_gone_before_its_answer_came_is_not_entered(app, redis, monkeypatch):
    """The answer that it was ours is late, and the renewal says that it is not any more."""
    granted = Lease._granted

    def late(self, answer):
        found = granted(self, answer)
        self._until = 0.0
        redis.delete(app.link.store.keys.lease(self._nonce))
        return found

    monkeypatch.setattr(Lease, "_granted", late)
    entered = []
    with pytest.raises(LeaseLost, match="expired"):
        async with app.lease("stock:42", ttl=1):
            entered.append(True)
    assert entered == []
    redis.delete(app.link.store.keys.slots("stock:42"), app.link.store.keys.leases)


def test_one_may_wait_for_ever(app):
    assert app.lease("stock:42", ttl=2, wait=math.inf)._wait_s == math.inf


def test_an_interrupt_while_it_waits_leaves_the_line(app, redis, monkeypatch):
    """Ctrl-C in a script. Else the place would be handed to nobody, for a whole lease."""

    def interrupted(*_):
        raise KeyboardInterrupt

    line = app.link.store.keys.line("stock:42")
    with app.lease("stock:42", ttl=2):
        monkeypatch.setattr(app.link.synchronous, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            app.lease("stock:42", ttl=2, wait=60).__enter__()
        assert redis.exists(line) == 0
