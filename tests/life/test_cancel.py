"""Cancel a job: before it begins it never runs; while it runs it is told and ends as cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial

import pytest

from fencepost import JobCancelled, LeaseLost, Run
from fencepost.errors import IllegalTransition
from tests.life.working import reached, state_of, work_off, working
from tests.support import eventually


async def test_a_queued_job_that_is_cancelled_never_runs(app):
    ran = []

    @app.job()
    async def invoice() -> None:
        ran.append(1)

    job = await invoice.enqueue()
    assert await job.cancel(reason="order withdrawn") == "cancelled"
    await work_off(app)
    with pytest.raises(JobCancelled) as cancelled:
        await job.result()
    assert (cancelled.value.reason, ran) == ("order withdrawn", [])


async def test_a_scheduled_and_a_waiting_job_can_be_cancelled(app):
    gate = asyncio.Event()

    @app.job(resource="printer")
    async def print_page() -> None:
        await gate.wait()

    later = await print_page.options(delay=60).enqueue()
    assert await later.cancel() == "cancelled"
    first, second = await print_page.enqueue(), await print_page.enqueue()
    async with working(app):
        await reached(second, "waiting")
        assert await second.cancel() == "cancelled"
        gate.set()
        await first.result(timeout=5)
    assert await state_of(second) == "cancelled"


async def test_a_running_async_handler_is_cancelled_and_may_tidy_up(app):
    tidied, began = [], asyncio.Event()

    @app.job()
    async def long_report(run: Run) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            tidied.append(run.why)

    job = await long_report.enqueue()
    async with working(app, lease_s=1.0):
        await began.wait()
        assert await job.cancel() == "asked"
        await reached(job, "cancelled")
    assert tidied == ["cancelled"]
    assert (await job.status()).result is None


async def test_a_running_thread_learns_it_from_check(app):
    began, why = threading.Event(), []

    @app.job()
    def long_report(run: Run) -> str:
        began.set()
        try:
            while True:
                run.check()
                threading.Event().wait(0.01)
        except LeaseLost as lost:
            why.append(lost.why)
            raise

    job = await long_report.enqueue()
    async with working(app, lease_s=1.0):
        await eventually(began.is_set)
        await job.cancel()
        await reached(job, "cancelled")
    assert why == ["cancelled"]


async def test_a_handler_that_swallows_its_cancellation_ends_as_cancelled_all_the_same(app):
    """Never cancelled and done. report: rq/rq#2160"""
    began = asyncio.Event()

    @app.job()
    async def stubborn() -> str:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done anyway"

    job = await stubborn.enqueue()
    async with working(app, lease_s=1.0):
        await began.wait()
        await job.cancel()
        await reached(job, "cancelled")
    assert (await job.status()).result is None


async def test_a_hard_cancel_takes_the_job_at_once_and_the_late_result_is_refused(app, events):
    began, gate = asyncio.Event(), asyncio.Event()

    @app.job(resource="printer")
    async def print_page(name: str) -> str:
        began.set()
        await gate.wait()
        return name

    job = await print_page.enqueue("first")
    async with working(app, lease_s=30.0) as worker:
        await began.wait()
        assert await job.cancel(hard=True) == "cancelled"
        follower = await print_page.enqueue("second")
        await reached(follower, "processing")
        gate.set()
        assert await follower.result(timeout=5) == "second"
        await eventually(lambda: worker.refused == 1)
    assert await state_of(job) == "cancelled"
    assert events("refused_stale")[0]["job_id"] == job.id


async def test_a_job_that_has_ended_cannot_be_cancelled(app):
    @app.job()
    async def invoice() -> str:
        return "written"

    job = await invoice.enqueue()
    await work_off(app)
    with pytest.raises(IllegalTransition):
        await job.cancel()
    assert await job.result() == "written"


async def test_a_cancel_that_races_with_the_start_has_one_winner(app):
    """Either no line of the handler ran, or it ran and the job ends once. report: rq/rq#2160"""
    ran: set[str] = set()

    @app.job()
    async def invoice(run: Run) -> None:
        ran.add(run.job_id)

    async with working(app):
        for turn in range(100):
            job = await invoice.enqueue()
            for _ in range(turn % 7):
                await asyncio.sleep(0)
            try:
                answer = await job.cancel()
            except IllegalTransition:
                answer = "too late"
            await eventually(partial(ended, job))
            state = await state_of(job)
            assert (answer, state, job.id in ran) in {
                ("cancelled", "cancelled", False),
                ("asked", "cancelled", True),
                ("asked", "done", True),
                ("too late", "done", True),
            }


async def ended(job) -> bool:
    return await state_of(job) in ("done", "cancelled")


async def test_a_run_that_is_told_to_stop_before_its_first_step_gives_its_slot_back(app, monkeypatch):
    """The task is cancelled before its body is entered, so nothing inside it can say that it ended."""

    @app.job()
    async def invoice() -> None: ...

    async with working(app, concurrency=1, lanes=1) as worker:
        start = worker.start_run

        def start_and_cancel(claimed, *rest):
            taken = start(claimed, *rest)
            for run in list(worker.runs.values()):
                worker.lose(run, "cancelled")
            monkeypatch.undo()
            return taken

        monkeypatch.setattr(worker, "start_run", start_and_cancel)
        first = await invoice.enqueue()
        await reached(first, "cancelled")
        await (await invoice.enqueue()).result(timeout=5)
        assert not worker.runs


async def test_a_reason_that_is_long_or_no_text_to_send_is_cut_and_escaped(app):
    @app.job()
    async def invoice() -> None: ...

    job = await invoice.enqueue()
    assert await job.cancel(reason="\udcff" * 5_000) == "cancelled"
    reason = (await job.status()).reason or ""
    assert (reason.startswith("\\udcff"), len(reason) <= 1_000) == (True, True)
