"""A run that lost its lease is told why, at once, and nothing of it is written any more."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from fencepost import Fencepost, LeaseExpired, LeaseLost, Permanent, Retry, Run, Snooze, StaleToken, Worker
from fencepost.clock import boottime_s
from fencepost.worker import heartbeat
from tests.life.working import reached, state_of, work_off, working
from tests.support import eventually


class _Silent(heartbeat.Heartbeat):
    def run(self) -> None:
        self._halt.wait()
        self._driver.close()


class CutOff(Worker):
    """A worker with one slot whose heartbeat never beats. blind: nor does it look at its clock, as if frozen."""

    def __init__(self, app: Fencepost, lease_s: float, *, blind: bool) -> None:
        super().__init__(app, ["default"], concurrency=1, lanes=1, lease_s=lease_s)
        self.blind = blind

    def _scan(self) -> None:
        if not self.blind:
            super()._scan()


@pytest.fixture
async def cut_off(app, monkeypatch):
    """Start a worker that is cut off: `cut_off(lease_s, blind)`. It is ended after the test."""
    started: list[tuple[Worker, asyncio.Task[None]]] = []

    async def start(lease_s: float = 2.0, *, blind: bool = True) -> Worker:
        worker = CutOff(app, lease_s, blind=blind)
        with monkeypatch.context() as patch:
            patch.setattr("fencepost.worker.worker.Heartbeat", _Silent)
            started.append((worker, asyncio.create_task(worker.run())))
            await eventually(lambda: worker._heartbeat)
        return worker

    yield start
    for worker, life in started:
        worker.stop(now=True)
        await life


async def taken_back(app, clock) -> None:
    """Let leases of 2 s run out by the clock of the server, and a sweep take them back."""
    clock.advance(2.1)
    await work_off(app, "another-queue")


async def test_at_the_local_deadline_an_async_handler_is_cancelled(app, cut_off, events):
    """Nothing renews this lease, and the worker does not wait for anybody to tell it. report: redisson/redisson#4698"""
    told, gate = [], asyncio.Event()

    @app.job()
    async def invoice(run: Run) -> str:
        try:
            await gate.wait()
        finally:
            told.append(run.why)
            gate.set()
        return "written"

    job = await invoice.enqueue()
    await cut_off(1.0, blind=False)
    await reached(job, "processing")
    await eventually(lambda: told)
    assert told == ["deadline"]
    assert events("lost")[0]["why"] == "deadline"
    assert await state_of(job) == "processing"  # nothing was written: the server takes it back in its own time


async def test_check_raises_before_the_lease_ends_on_the_server(app, cut_off):
    """report: redisson/redisson#4698"""
    told: list[tuple[str, float]] = []
    claimed = threading.Event()

    @app.job()
    def invoice(run: Run) -> None:
        began = run.deadline_s
        claimed.set()
        try:
            while True:
                run.check()
                threading.Event().wait(0.01)
        except LeaseLost as lost:
            told.append((lost.why, boottime_s() - began))
            raise

    job = await invoice.enqueue()
    await cut_off(1.0, blind=False)
    await eventually(lambda: told)
    why, late_s = told[0]
    assert why == "deadline"
    assert late_s < 0.1  # the lease itself goes on for a tenth of its length
    assert await state_of(job) == "processing"


async def test_a_result_that_comes_after_a_takeover_is_refused_and_counted(app, cut_off, clock, events, redis):
    gates = [asyncio.Event(), asyncio.Event()]
    began = []

    @app.job()
    async def invoice(run: Run) -> str:
        began.append(run.token)
        await gates[len(began) - 1].wait()
        return f"run {run.token}"

    job = await invoice.enqueue()
    old = await cut_off()
    await eventually(lambda: began)
    await taken_back(app, clock)
    async with working(app):
        await eventually(lambda: len(began) == 2)
        gates[0].set()
        await eventually(lambda: old.refused == 1)
        assert await state_of(job) == "processing"
        gates[1].set()
        assert await job.result(timeout=5) == f"run {began[1]}"
    (refused,) = events("refused_stale")
    assert (refused["verb"], refused["answer"], refused["newest_token"]) == ("done", "stale", str(began[1]))
    assert redis.hget(app.link.store.keys.stats, "refused:done") == b"1"


@pytest.mark.parametrize("ends_first", ["old", "new"])
@pytest.mark.parametrize("how", ["raises", "snoozes", "retries", "buries"])
async def test_whatever_the_old_run_says_and_whenever_only_the_owner_counts(app, cut_off, clock, ends_first, how):
    gates, runs = [asyncio.Event(), asyncio.Event()], []

    @app.job()
    async def invoice(run: Run) -> str | Snooze:
        runs.append(run.token)
        mine = len(runs)
        await gates[mine - 1].wait()
        if mine == 2:
            return "the owner's"
        if how == "snoozes":
            return Snooze(0)
        raise {"raises": OSError("late"), "retries": Retry(after=0), "buries": Permanent("late")}[how]

    job = await invoice.enqueue()
    old = await cut_off()
    await eventually(lambda: runs)
    await taken_back(app, clock)
    async with working(app):
        await eventually(lambda: len(runs) == 2)
        if ends_first == "old":
            gates[0].set()
            await eventually(lambda: old.refused == 1)
            gates[1].set()
            await job.result(timeout=5)
        else:
            gates[1].set()
            await job.result(timeout=5)
            gates[0].set()
            await eventually(lambda: old.refused == 1)
    record = await job.status()
    assert (record.state, await job.result(), len(runs)) == ("done", "the owner's", 2)
    assert (record.crashes, record.error) == (1, None)


async def test_checkpoint_and_progress_of_the_old_run_are_refused(app, cut_off, clock):
    refused, gate, runs = [], asyncio.Event(), []

    @app.job()
    async def import_pages(run: Run) -> None:
        runs.append(1)
        if len(runs) == 2:
            await run.checkpoint("the owner's")
            return
        await gate.wait()
        for write in (partial(run.checkpoint, "late"), partial(run.progress, 0.9)):
            with pytest.raises(StaleToken) as error:
                await write()
            refused.append(error.value)

    job = await import_pages.enqueue()
    await cut_off()
    await eventually(lambda: runs)
    await taken_back(app, clock)
    await work_off(app)
    gate.set()
    await eventually(lambda: len(refused) == 2)
    record = await job.status()
    assert (record.state, record.checkpoint, record.progress) == ("done", b'"the owner\'s"', None)
    assert refused[0].newest == record.token


async def test_a_lease_that_ran_out_but_was_not_taken_yet_has_an_error_of_its_own(app, cut_off, clock):
    refused, gate = [], asyncio.Event()

    @app.job()
    async def import_pages(run: Run) -> None:
        await gate.wait()
        try:
            await run.checkpoint("late")
        except LeaseExpired as error:
            refused.append(error)
            raise

    await import_pages.enqueue()
    worker = await cut_off()
    await eventually(lambda: worker.runs)
    clock.advance(2.1)
    gate.set()
    await eventually(lambda: refused)
    await eventually(lambda: not worker.runs)


async def test_the_heartbeat_learns_of_a_takeover_and_cancels_the_handler(app, clock, events):
    """Two workers alive: the first was cut off, not dead. The answer to its next renewal tells it."""
    told, runs = [], []

    @app.job()
    async def invoice(run: Run) -> str:
        runs.append(1)
        if len(runs) == 2:
            return "the owner's"
        try:
            await asyncio.Event().wait()
        finally:
            told.append(run.why)
        return "never"

    job = await invoice.enqueue()
    async with working(app, concurrency=1, lanes=1, lease_s=2.0):
        await reached(job, "processing")
        await taken_back(app, clock)
        async with working(app):
            await eventually(lambda: told)
    assert told[0] in ("stale", "expired")
    assert await job.result() == "the owner's"
    assert events("lost")[0]["why"] == told[0]


async def test_a_long_job_of_a_healthy_worker_is_renewed_and_runs_once(app, redis):
    runs = []

    @app.job()
    async def invoice() -> None:
        runs.append(1)
        before = redis.zrange(app.link.store.keys.leases, 0, -1, withscores=True)[0][1]
        await eventually(lambda: redis.zrange(app.link.store.keys.leases, 0, -1, withscores=True)[0][1] > before + 900)

    job = await invoice.enqueue()
    async with working(app, lease_s=1.0), working(app, lease_s=1.0):
        await job.result(timeout=5)
    assert (runs, (await job.status()).crashes) == ([1], 0)


async def test_an_answer_that_was_longer_on_its_way_than_the_lease_starts_nothing_that_is_not_ours(app, redis, events):
    """The claim waits behind a stopped server; when its answer comes, the trusted part of the lease may be over."""
    runs = []

    @app.job()
    async def invoice(run: Run) -> str:
        runs.append(run.why)
        run.check()
        return "written"

    job = await invoice.enqueue()
    redis.client_pause(1_300, all=False)  # stops writes, and so the scripts
    async with working(app, lease_s=1.0, doctor=False) as worker:
        await eventually(lambda: worker.lanes.in_flight)
        assert await job.result(timeout=5) == "written"
    record = await job.status()
    assert (runs, record.attempts, record.crashes) == ([""], 1, 0)
    assert events("lost") == []
