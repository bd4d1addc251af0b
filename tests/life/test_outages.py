"""Redis goes away and comes back: the worker stays up, keeps what it has to say, and says it with its token."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fencepost import Fencepost, RedisUnavailable, Run
from fencepost.clock import boottime_s
from tests.life.working import LEASE_S, reached, state_of, working
from tests.support import eventually, raw_client


async def test_a_script_flush_between_any_two_calls_is_not_noticed(app, redis):
    """report: Openpanel-dev/groupmq#16"""

    @app.job()
    async def note(n: int) -> int:
        redis.script_flush()
        return n

    async with working(app, concurrency=1, lanes=1):
        for n in range(5):
            redis.script_flush()
            job = await note.enqueue(n)
            redis.script_flush()
            assert await job.result(timeout=5) == n


def test_a_script_flush_is_not_noticed_by_a_caller_without_an_event_loop(app, redis):
    """report: Openpanel-dev/groupmq#16"""

    @app.job()
    async def note() -> None: ...

    for _ in range(3):
        redis.script_flush()
        note.enqueue_sync()
    assert redis.zcard(app.link.store.keys.ready("default")) == 3


def cut_all(redis) -> None:
    """Close every connection of the server but this one."""
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def test_killed_connections_are_replaced_and_no_outcome_is_lost(app, redis):
    runs = []

    @app.job()
    async def note(n: int) -> int:
        runs.append(n)
        cut_all(redis)
        return n

    async with working(app, concurrency=2) as worker:
        jobs = [await note.enqueue(n) for n in range(20)]
        assert [await job.result(timeout=10) for job in jobs] == list(range(20))
        assert worker.refused == 0
    assert sorted(runs) == list(range(20))


async def test_an_idle_worker_whose_connections_were_killed_hears_the_next_job(app, redis):
    @app.job()
    async def note() -> str:
        return "heard"

    async with working(app, poll_s=2.0) as worker:
        await (await note.enqueue()).result(timeout=5)
        await eventually(lambda: not worker.runs and not worker.outcomes)
        cut_all(redis)
        assert await (await note.enqueue()).result(timeout=3) == "heard"


@pytest.mark.slow
async def test_a_paused_server_delays_and_loses_nothing(app, redis):
    runs, gate = [], asyncio.Event()

    @app.job()
    async def note(n: int) -> int:
        runs.append(n)
        await gate.wait()
        return n

    async with working(app, lease_s=3.0) as worker:
        jobs = [await note.enqueue(n) for n in range(5)]
        await eventually(lambda: len(runs) == 5)
        redis.client_pause(1_000, all=True)
        gate.set()
        assert [await job.result(timeout=10) for job in jobs] == list(range(5))
    assert (sorted(runs), worker.refused) == (list(range(5)), 0)


@pytest.fixture
async def own(new_server):
    """An application on a server of this test's own, which it may kill."""
    server = new_server()
    application = Fencepost(server.url, namespace="own", lease=LEASE_S)
    yield application, server
    await application.close()


@pytest.mark.slow
async def test_an_outcome_outlives_a_restart_of_redis_and_is_written_once(own):
    app, server = own
    runs, gate, began = [], asyncio.Event(), asyncio.Event()

    @app.job(resource="printer")
    async def print_page(run: Run) -> str:
        runs.append(run.token)
        began.set()
        await gate.wait()
        return "printed"

    job = await print_page.enqueue()
    async with working(app, lease_s=5.0) as worker:
        await began.wait()
        await asyncio.to_thread(server.kill)
        gate.set()
        await eventually(lambda: not worker.runs)  # ended while there is nobody to tell
        await asyncio.to_thread(server.restart)
        assert await job.result(timeout=10) == "printed"
        record = await job.status()
    assert (len(runs), record.token, record.attempts, record.crashes) == (1, runs[0], 1, 0)


@pytest.mark.slow
async def test_queued_running_and_delayed_jobs_are_all_there_after_a_restart(own):
    """report: celery/kombu#533"""
    app, server = own
    gate, began = asyncio.Event(), asyncio.Event()

    @app.job()
    async def note(n: int) -> int:
        began.set()
        await gate.wait()
        return n

    async with working(app, lease_s=5.0, concurrency=2):
        jobs = [await note.enqueue(n) for n in range(6)]
        later = await note.options(delay=2).enqueue(6)
        await began.wait()
        await asyncio.to_thread(server.kill)
        late = asyncio.create_task(note.enqueue(7))  # asked for while Redis is away
        gate.set()
        await asyncio.to_thread(server.restart)
        jobs += [later, await late]
        assert [await job.result(timeout=10) for job in jobs] == list(range(8))
        assert {(await job.status()).attempts for job in jobs} == {1}


@pytest.mark.slow
async def test_a_run_that_cannot_be_renewed_is_stopped_at_its_local_deadline(own, events):
    """The handler learns it before the lease ends on the server, though nobody can be asked."""
    app, server = own
    told: list[str] = []
    began = threading.Event()

    @app.job()
    async def invoice(run: Run) -> str:
        began.set()
        if run.attempt == 1 and not told:
            try:
                await asyncio.Event().wait()
            finally:
                told.append(run.why)
        return "written"

    job = await invoice.enqueue()
    async with working(app, lease_s=1.0):
        await eventually(began.is_set)
        await asyncio.to_thread(server.kill)
        await eventually(lambda: told, timeout=3)
        assert told == ["deadline"]
        assert events("renew_failed")
        await asyncio.to_thread(server.restart)
        assert await job.result(timeout=10) == "written"
    assert (await job.status()).crashes == 1


async def test_an_enqueue_that_gets_no_answer_says_whether_it_may_have_happened(new_server):
    server = new_server()
    app = Fencepost(server.url, namespace="own", give_up=0.2)

    @app.job()
    async def note() -> None: ...

    await note.enqueue()
    await asyncio.to_thread(server.kill)
    with pytest.raises(RedisUnavailable) as away:
        await note.enqueue()
    assert away.value.what == "enqueue"
    with pytest.raises(RedisUnavailable) as away:  # by now no connection can be made at all
        await note.enqueue()
    assert away.value.executed is False
    await app.close()


async def test_an_enqueue_repeated_with_its_job_id_after_a_restart_is_one_job(own):
    app, server = own

    @app.job()
    async def note(n: int) -> int:
        return n

    first = await note.options(job_id="note-1").enqueue(1)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.restart)
    again = await note.options(job_id="note-1").enqueue(1)
    async with working(app):
        await again.result(timeout=5)
    await reached(first, "done")
    assert (await state_of(again), (await first.status()).attempts) == ("done", 1)


async def test_a_full_server_takes_no_new_job_and_workers_finish_the_old_ones(own):
    """report: taskforcesh/bullmq#1046"""
    app, server = own

    @app.job(resource="printer")
    async def print_page(n: int) -> int:
        return n

    jobs = [await print_page.enqueue(n) for n in range(5)]
    client = raw_client(server.url)
    client.config_set("maxmemory", "1mb")
    with pytest.raises(RedisUnavailable) as full:
        await print_page.enqueue(5)
    assert (full.value.executed, client.zcard(app.link.store.keys.ready("default"))) == (False, 5)
    async with working(app):
        assert [await job.result(timeout=5) for job in jobs] == list(range(5))
        client.config_set("maxmemory", "0")
        assert await (await print_page.enqueue(5)).result(timeout=5) == 5
    client.close()


def test_waiting_for_a_result_takes_no_longer_than_was_asked_for_though_redis_is_away(new_server):
    server = new_server()
    app = Fencepost(server.url, give_up=15.0)
    job = app.get("01a22efe-de54-7e91-9e04-9556fdd53580")
    server.kill()
    began = boottime_s()
    with pytest.raises(RedisUnavailable):
        job.result_sync(timeout=0.3)
    assert boottime_s() - began < 5, "it waited as long as a call without a limit"
    app.close_sync()
