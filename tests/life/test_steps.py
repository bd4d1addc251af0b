"""`run.step` calls a function once for a job; later attempts are handed what it returned."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencepost import (
    ArgumentsRefused,
    Fencepost,
    JobNotFound,
    LeaseExpired,
    LeaseLost,
    Permanent,
    RedisUnavailable,
    Retry,
    RetryPolicy,
    Run,
    StaleToken,
)
from fencepost.link import Link
from tests.life.working import ended, lapsed, taken, told, work_off
from tests.support.proxy import DROP_REPLY, FaultProxy

QUICK = RetryPolicy(attempts=3, base=0.01, jitter="none")


class Counted:
    """A function that counts its calls: the value that was given, or the number of the call."""

    def __init__(self, value: Any = ...) -> None:
        self.calls, self.value = 0, value

    def __call__(self) -> Any:
        self.calls += 1
        return self.calls if self.value is ... else self.value


def never() -> None:
    pytest.fail("it was begun")


@pytest.fixture
def invoice(app):
    @app.job()
    async def invoice(run: Run) -> None: ...

    return invoice


@pytest.fixture
async def lossy(app, server) -> AsyncIterator[tuple[FaultProxy, Link]]:
    """A way to Redis on which replies can be lost; whoever takes it does not try twice."""
    with FaultProxy(server.socket) as proxy:
        far = Fencepost(proxy.url, namespace=app.namespace)
        far.link.asynchronous.give_up_s = far.link.synchronous.give_up_s = 0.0
        yield proxy, far.link
        await far.close()


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_step_is_done_once_over_all_attempts(app, redis, asynchronous):
    calls, seen = [], []

    async def load(order: int, *, rows: int) -> dict:
        await asyncio.sleep(0)
        calls.append(order)
        return {"rows": rows}

    def count(order: int, *, rows: int) -> dict:
        calls.append(order)
        return {"rows": rows}

    @app.job(retry=QUICK)
    async def import_pages(run: Run) -> dict:
        found: dict = await (run.step("load", load, 7, rows=3) if asynchronous else run.step("load", count, 7, rows=3))
        seen.append(found)
        if run.attempt < 3:
            raise Retry(after=0.0)
        return found

    job = await import_pages.enqueue()
    await work_off(app)
    assert (calls, seen) == ([7], [{"rows": 3}] * 3)
    assert await job.result() == {"rows": 3}
    assert told(app, redis, "step") == [("step", "load")]
    assert (await job.status()).steps == {"load": b'{"rows":3}'}


@pytest.mark.parametrize("how", ["a crash", "a requeue", "a shutdown"])
async def test_a_step_outlives(app, redis, how):
    load, runs = Counted(), []

    @app.job(retry=QUICK)
    async def import_pages(run: Run) -> Any:
        runs.append(run.attempt)
        rows = await run.step("load", load)
        if len(runs) == 1 and how == "a crash":
            lapsed(app, redis, run)
        elif len(runs) == 1 and how == "a requeue":
            raise Permanent("no such customer")
        elif len(runs) == 1:
            run.why = "shutdown"
        return rows

    job = await import_pages.enqueue()
    await work_off(app)
    if how == "a requeue":
        await app.link.asynchronous.run(app.link.store.requeue([job.id], "ask"))
        await work_off(app)
    assert await job.result(timeout=5) == 1
    assert (load.calls, runs) == (1, [1, 1])


async def test_a_step_of_a_thread_is_done_once_too(app):
    calls = []

    def load(order: int, times: int) -> list:
        calls.append(order)
        return [order] * times

    @app.job(retry=QUICK)
    def import_pages(run: Run) -> list:
        rows = run.step_sync("load", load, 7, times=2)
        if run.attempt == 1:
            raise Retry(after=0.0)
        return rows

    job = await import_pages.enqueue()
    await work_off(app)
    assert (await job.result(), calls) == ([7, 7], [7])


@dataclasses.dataclass
class Page:
    number: int


@pytest.mark.parametrize(
    ("value", "seen"), [((1, 2), [1, 2]), (Page(3), {"number": 3}), (None, None), ("ü", "ü"), ([], [])]
)
async def test_the_first_attempt_sees_what_later_ones_will_see(app, value, seen):
    """Else a handler that works today fails on the day of its first retry."""
    load, found = Counted(value), []

    @app.job(retry=QUICK)
    async def import_pages(run: Run) -> None:
        found.append(await run.step("load", load))
        found.append(await run.step("load", load))
        if run.attempt == 1:
            raise Retry(after=0.0)

    await import_pages.enqueue()
    await work_off(app)
    assert (found, load.calls) == ([seen] * 4, 1)


async def test_what_a_step_hands_out_is_a_copy(app, invoice):
    await invoice.enqueue()
    run = await taken(app)
    first = await run.step("load", lambda: {"rows": [1]})
    first["rows"].append(2)
    assert await run.step("load", dict) == {"rows": [1]}


@pytest.mark.parametrize("value", ["x" * 65_535, float("nan"), object()])
async def test_a_result_that_is_too_large_or_no_json_is_refused_and_nothing_is_stored(app, redis, invoice, value):
    job = await invoice.enqueue()
    run = await taken(app)
    assert await run.step("fits", lambda: "x" * 65_534)
    for _ in range(2):
        with pytest.raises(ArgumentsRefused):
            await run.step("load", lambda: value)
        with pytest.raises(ArgumentsRefused):
            run.step_sync("load", lambda: value)
    assert (await job.status()).steps.keys() == {"fits"}
    assert told(app, redis, "step") == [("step", "fits")]


async def test_a_function_that_raised_is_called_again(app):
    calls = []

    def load() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("connection reset")
        return len(calls)

    @app.job(retry=QUICK)
    async def import_pages(run: Run) -> int:
        return await run.step("load", load)

    job = await import_pages.enqueue()
    await work_off(app)
    assert await job.result() == 2
    assert (await job.status()).attempts == 2


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "x" * 101, "\x00"])
async def test_a_name_that_is_none_is_refused(app, invoice, name):
    await invoice.enqueue()
    run = await taken(app)
    with pytest.raises(ArgumentsRefused, match="step"):
        await run.step(name, list)
    with pytest.raises(ArgumentsRefused, match="step"):
        run.step_sync(name, list)
    with pytest.raises(ArgumentsRefused, match="outside"):
        run.outside(name, "key")


@pytest.mark.parametrize(
    ("how", "error", "why"),
    [("cancelled", StaleToken, "stale"), ("lapsed", LeaseExpired, "expired"), ("gone", JobNotFound, "")],
)
async def test_the_result_of_a_run_that_is_not_the_owner_any_more_is_not_stored(app, redis, invoice, how, error, why):
    job = await invoice.enqueue()
    run = await taken(app)
    if how == "cancelled":
        await job.cancel(hard=True)
    elif how == "lapsed":
        lapsed(app, redis, run)
    else:
        redis.delete(app.link.store.keys.job(job.id))
        redis.delete(app.link.store.keys.leases)
    with pytest.raises(error):
        await run.step("load", list)
    with pytest.raises(LeaseLost if why else error):
        await run.step("load", list)
    assert run.why == why
    assert told(app, redis, "step") == []


@pytest.mark.parametrize("why", ["stale", "cancelled", "shutdown"])
async def test_a_run_that_has_to_stop_begins_no_step(app, invoice, why):
    await invoice.enqueue()
    run = await taken(app)
    assert await run.step("before", lambda: 1) == 1
    run.why = why
    with pytest.raises(LeaseLost, match=run.job_id):
        await run.step("load", never)
    with pytest.raises(LeaseLost, match=run.job_id):
        await asyncio.to_thread(run.step_sync, "load", never)
    assert await run.step("before", Counted(2)) == 1, "what is known is handed out all the same"


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_step_whose_storing_was_not_confirmed_is_stored_again_and_not_done_again(
    app, redis, lossy, invoice, asynchronous
):
    proxy, link = lossy
    job, load = await invoice.enqueue(), Counted()
    run = await taken(app, link)

    async def step() -> object:
        if asynchronous:
            return await run.step("load", load)
        return await asyncio.to_thread(run.step_sync, "load", load)

    proxy.plan.extend([DROP_REPLY] * 2)
    with pytest.raises(RedisUnavailable):
        await step()
    proxy.plan.clear()
    assert [await step(), await step()] == [1, 1]
    assert load.calls == 1
    assert (await job.status()).steps == {"load": b"1"}
    assert told(app, redis, "step") == [("step", "load")]
    assert await ended(app, run) == "OK"


async def test_a_first_run_asks_redis_for_nothing_and_a_later_one_once_for_each_step_it_finds(app, redis, invoice):
    await invoice.enqueue()

    async def reads(run: Run) -> Any:
        """How often a field was read; each write of a new value reads it once, in its script."""
        redis.config_resetstat()
        for name in ("a", "b", "a"):
            await run.step(name, list)
        return redis.info("commandstats").get("cmdstat_hget", {"calls": 0})["calls"]

    run = await taken(app)
    assert await reads(run) == 2
    assert await ended(app, run, "RETRY", 0, "Oops", "it broke") == "OK"
    assert await reads(await taken(app)) == 2
