"""Workers whose wall clock is wrong, and a server whose clock steps back: only the clock of Redis decides what is due,
what has lapsed and who is dead. report: resque/resque#1480"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.chaos.harness import Stage
from tests.support import wait_until
from tests.support.clock import OffsetFile

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


@pytest.mark.parametrize("minutes", [10, -10])
def test_a_worker_whose_clock_is_minutes_off_takes_nothing_too_early_and_from_nobody(
    stage: Stage, clock_shim: Path | str, minutes: int
):
    if isinstance(clock_shim, str):
        pytest.skip(clock_shim)
    stage.start(1, concurrency=1)
    long_one = stage.kinds.work.enqueue_sync("long", gate="go")
    stage.holder("long")
    offset = OffsetFile(stage.folder / "offset")
    offset.us = minutes * 60_000_000
    (wrong,) = stage.start(1, env={"LD_PRELOAD": str(clock_shim), "CLOCKSHIM_FILE": str(offset.path)})

    delayed = stage.kinds.work.options(delay=2.0).enqueue_sync("delayed")
    due_at = delayed.status_sync().due_at
    stage.done([delayed])
    record = delayed.status_sync()
    (run,) = stage.truth.runs("delayed")
    assert run.pid == wrong.pid
    assert due_at is not None
    assert record.claimed_at is not None
    assert 0 <= record.claimed_at - due_at < 1_500
    stage.open("go")
    stage.done([long_one])
    assert (len(stage.truth.runs("long")), long_one.status_sync().crashes) == (1, 0)
    offset.close()


def test_a_step_back_of_the_servers_clock_in_the_middle_of_leases_disturbs_nobody(stage: Stage, clock):
    """By an hour, as time synchronisation does it. Tokens go on rising; nothing is taken back or started twice."""
    clock.advance(3_600)
    stage.start(2, concurrency=2)
    jobs = [stage.kinds.work.enqueue_sync(f"job{n}", gate="go") for n in range(4)]
    wait_until(lambda: len(stage.truth.inside()) == 4)
    tokens = [run.token for run in stage.truth.runs()]
    clock.advance(-3_600)
    threading.Event().wait(3.0)  # two leases
    stage.open("go")
    after = [stage.kinds.work.enqueue_sync(f"after{n}") for n in range(4)]
    stage.done(jobs + after)
    assert [len(stage.truth.runs(f"job{n}")) for n in range(4)] == [1] * 4
    assert {job.status_sync().crashes for job in jobs} == {0}
    assert min(run.token for run in stage.truth.runs() if run.key.startswith("after")) > max(tokens)
    assert stage.alive()
