"""Progress and checkpoints that come faster than they can be written cost no more than the server can bear."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fencepost import RedisUnavailable, Run, StaleToken
from fencepost.worker.progress import Coalesced
from tests.life.working import taken


@pytest.fixture
async def job(app):
    @app.job()
    async def import_pages(run: Run) -> None: ...

    return await import_pages.enqueue()


@pytest.fixture
def moment(monkeypatch) -> list[float]:
    """The clock by which a run judges what comes too soon; it stands still."""
    from fencepost.clock import boottime_s

    at = [boottime_s()]
    monkeypatch.setattr("fencepost.worker.run.boottime_s", lambda: at[0])
    return at


def counted(app, monkeypatch) -> list[bytes]:
    """The values that are sent from now on, one for each script call."""
    sent: list[bytes] = []
    checkpoint = app.link.store.checkpoint

    def noting(run: Any, worker: str, field: str, value: bytes, *rest: Any) -> Any:
        sent.append(value)
        return checkpoint(run, worker, field, value, *rest)

    monkeypatch.setattr(app.link.store, "checkpoint", noting)
    return sent


def fraction_of(record: Any) -> Any:
    return json.loads(record.progress)["fraction"]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_progress_goes_out_ten_times_a_second_and_its_end_always(app, job, moment, monkeypatch, asynchronous):
    run = await taken(app)
    sent = counted(app, monkeypatch)
    for tick in range(1_000):
        moment[0] += 0.001
        if asynchronous:
            await run.progress(tick / 1_000)
        else:
            run.progress_sync(tick / 1_000)
    assert 9 <= len(sent) <= 10
    assert fraction_of(await job.status()) == pytest.approx(0.9, abs=0.05)
    for _ in range(2):
        await run.progress(1.0, "done")
    assert len(sent) <= 12
    assert fraction_of(await job.status()) == 1.0


async def test_progress_that_is_left_out_is_judged_all_the_same(app, job, moment):
    run = await taken(app)
    await run.progress(0.1)
    bad: Any
    for bad in (-0.1, 1.1, "half"):
        with pytest.raises(ValueError, match="progress"):
            await run.progress(bad)
    assert fraction_of(await job.status()) == 0.1


async def test_many_checkpoints_at_a_time_cost_two_calls_and_the_newest_is_kept(app, job, monkeypatch):
    run = await taken(app)
    sent = counted(app, monkeypatch)
    await asyncio.gather(*(run.checkpoint(page) for page in range(200)))
    assert sent == [b"0", b"199"]
    assert (await job.status()).checkpoint == b"199"
    assert run.last_checkpoint == 199
    await run.checkpoint(200)
    assert (sent[2:], run.last_checkpoint) == ([b"200"], 200)


async def test_checkpoints_one_after_the_other_are_all_written(app, job, monkeypatch):
    run = await taken(app)
    sent = counted(app, monkeypatch)
    for page in range(5):
        await run.checkpoint(page)
        assert (await job.status()).checkpoint == b"%d" % page
    assert len(sent) == 5


async def test_a_refusal_reaches_everybody_who_waited(app, job):
    run = await taken(app)
    await job.cancel(hard=True)
    answers = await asyncio.gather(*(run.checkpoint(page) for page in range(50)), return_exceptions=True)
    assert {type(one) for one in answers} == {StaleToken}
    assert run.why == "stale"


async def test_a_writer_that_is_cancelled_takes_nobody_with_it(app, job):
    run = await taken(app)
    first = asyncio.create_task(run.checkpoint("first"))
    await asyncio.sleep(0)
    others = [asyncio.create_task(run.checkpoint(page)) for page in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    others[0].cancel()
    done = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(one) for one in done[:2]] == [asyncio.CancelledError] * 2
    assert done[2:] == [None] * 4
    assert (await job.status()).checkpoint == b"4"
    await run.checkpoint("next")
    assert (await job.status()).checkpoint == b'"next"'


class Writes:
    """A slow place to write to: each write waits until the test says how it ends."""

    def __init__(self) -> None:
        self.open: list[tuple[bytes, asyncio.Future[None]]] = []

    async def __call__(self, raw: bytes) -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open.append((raw, end))
        await end


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_write_is_on_its_way_at_a_time_and_each_error_goes_to_those_it_belongs_to():
    writes = Writes()
    coalesced = Coalesced(writes)
    waves = []
    for wave in range(3):
        waves.append([asyncio.create_task(coalesced.put(b"%d%d" % (wave, n))) for n in range(3)])
        await settle()
        assert len(writes.open) == 1
        if wave == 0:
            continue
        (raw, end) = writes.open.pop()
        assert raw == (b"00" if wave == 1 else b"12")
        if wave == 1:
            end.set_exception(RedisUnavailable("checkpoint", "reset", None))
        else:
            end.set_exception(StaleToken("j", 1, 2))
        await settle()
    [(raw, end)] = writes.open
    assert raw == b"22"
    end.set_result(None)
    answers = [[type(one) for one in await asyncio.gather(*wave, return_exceptions=True)] for wave in waves]
    assert answers[0] == [RedisUnavailable, StaleToken, StaleToken]
    assert answers[1] == [StaleToken] * 3
    assert answers[2] == [type(None)] * 3
    last = asyncio.create_task(coalesced.put(b"alone"))
    await settle()
    assert [raw for raw, _ in writes.open[1:]] == [b"alone"]
    writes.open[1][1].set_result(None)
    await last
