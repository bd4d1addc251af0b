"""A resource is what must not be worked on twice at once. Waiting for it costs no attempt."""

from __future__ import annotations

import asyncio

import pytest

from fencepost import ConfigurationError, JobCancelled, JobFailed, ResourceRule, Retry
from tests.life.working import reached, state_of, work_off, working
from tests.support import eventually


class Overlap:
    """Counts who is inside together, and keeps the order in which they came."""

    def __init__(self) -> None:
        self.inside, self.most = 0, 0
        self.order: list[object] = []

    async def visit(self, who: object) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.order.append(who)
        for _ in range(5):
            await asyncio.sleep(0)
        self.inside -= 1


async def test_jobs_of_one_resource_run_one_after_another_in_their_order(app):
    stock, elsewhere = Overlap(), Overlap()

    @app.job(resource="stock:{sku}")
    async def book(sku: str, n: int) -> None:
        await (stock if sku == "a" else elsewhere).visit(n)

    jobs = await book.enqueue_many([{"sku": "a", "n": n} for n in range(20)])
    await book.enqueue_many([{"sku": f"b{n}", "n": n} for n in range(20)])
    await work_off(app)
    assert (stock.most, stock.order) == (1, list(range(20)))
    assert elsewhere.most > 1
    records = await asyncio.gather(*(job.status() for job in jobs))
    assert {(record.attempts, record.releases, record.crashes) for record in records} == {(1, 0, 0)}


async def test_one_who_waits_is_in_the_state_waiting(app):
    gate = asyncio.Event()

    @app.job(resource="stock:{sku}")
    async def book(sku: str) -> None:
        await gate.wait()

    first, second = await book.enqueue("a"), await book.enqueue("a")
    async with working(app):
        await reached(second, "waiting")
        assert await state_of(first) == "processing"
        gate.set()
        await second.result(timeout=5)


async def test_two_kinds_on_two_queues_share_a_resource_by_its_name(app):
    account = Overlap()

    @app.job(queue="in", resource="account:{id}")
    async def deposit(id: int) -> None:
        await account.visit("deposit")

    @app.job(queue="out", resource="account:{id}")
    async def withdraw(id: int) -> None:
        await account.visit("withdraw")

    for _ in range(5):
        await deposit.enqueue(1)
        await withdraw.enqueue(1)
    await work_off(app, "in", "out")
    assert (account.most, len(account.order)) == (1, 10)


async def test_a_limit_lets_that_many_in_together(app):
    api = Overlap()

    @app.job(resource="api:{name}", limit=3)
    async def ask(name: str) -> None:
        await api.visit(name)

    await ask.enqueue_many([{"name": "maps"}] * 20)
    await work_off(app)
    assert (api.most, len(api.order)) == (3, 20)


async def test_skip_ends_the_later_job_as_cancelled(app):
    gate = asyncio.Event()

    @app.job(resource="report", on_busy="skip")
    async def report() -> None:
        await gate.wait()

    first = await report.enqueue()
    async with working(app):
        await reached(first, "processing")
        second = await report.enqueue()
        with pytest.raises(JobCancelled) as skipped:
            await second.result(timeout=5)
        gate.set()
        await first.result(timeout=5)
    assert skipped.value.reason == "busy"


async def test_fail_ends_the_later_job_as_failed(app):
    gate = asyncio.Event()

    @app.job(resource="report", on_busy="fail")
    async def report() -> None:
        await gate.wait()

    first = await report.enqueue()
    async with working(app):
        await reached(first, "processing")
        second = await report.enqueue()
        with pytest.raises(JobFailed) as failed:
            await second.result(timeout=5)
        gate.set()
        await first.result(timeout=5)
    assert failed.value.reason == "busy"


async def test_later_puts_the_job_off_and_charges_no_attempt(app):
    gate = asyncio.Event()

    @app.job(resource=ResourceRule("report", on_busy="later:100ms"))
    async def report() -> str:
        await gate.wait()
        return "written"

    first = await report.enqueue()
    async with working(app, poll_s=0.05):
        await reached(first, "processing")
        second = await report.enqueue()
        await reached(second, "scheduled")
        gate.set()
        assert await second.result(timeout=5) == "written"
    record = await second.status()
    assert (record.attempts, record.releases >= 1) == (1, True)


async def test_waiters_are_served_by_priority_then_by_arrival(app):
    order, gate = [], asyncio.Event()

    @app.job(resource="printer")
    async def print_page(name: str) -> None:
        order.append(name)
        await gate.wait()

    first = await print_page.enqueue("first")
    async with working(app):
        await reached(first, "processing")
        plain = await print_page.enqueue("plain")
        urgent = await print_page.options(priority=5).enqueue("urgent")
        await reached(plain, "waiting")
        await reached(urgent, "waiting")
        gate.set()
        await plain.result(timeout=5)
    assert order == ["first", "urgent", "plain"]


@pytest.mark.parametrize(("ordered", "expected"), [(True, ["a", "a", "b"]), (False, ["a", "b", "a"])])
async def test_a_retry_keeps_its_place_in_the_line_where_order_is_asked_for(app, ordered, expected):
    order: list[str] = []

    @app.job(resource="ledger", ordered=ordered)
    async def post(name: str) -> None:
        order.append(name)
        if order == ["a"]:
            raise Retry(after=0.1)

    await post.enqueue("a")
    await post.enqueue("b")
    await work_off(app)
    assert order == expected


async def test_waiting_for_a_resource_leaves_the_slots_to_others(app):
    gate = asyncio.Event()

    @app.job(resource="slow")
    async def slow() -> None:
        await gate.wait()

    @app.job()
    async def quick() -> str:
        return "quick"

    slow_ones = await slow.enqueue_many([{}] * 10)
    async with working(app, concurrency=2):
        job = await quick.enqueue()
        assert await job.result(timeout=5) == "quick"
        gate.set()
        await eventually(lambda: all_done(slow_ones))


async def all_done(jobs: list) -> bool:
    return {await state_of(job) for job in jobs} == {"done"}


@pytest.mark.parametrize("said", [{"limit": 3}, {"on_busy": "skip"}, {"ordered": True}])
@pytest.mark.parametrize("resource", [None, ResourceRule("stock:{sku}")])
def test_how_a_resource_is_shared_is_refused_where_it_would_be_ignored(app, said, resource):
    with pytest.raises(ConfigurationError, match="resource"):

        @app.job(resource=resource, **said)
        async def book(sku: str) -> None: ...
