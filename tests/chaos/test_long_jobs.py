"""Healthy workers on jobs that are longer than any lease: S3, S3b and S6c; and S6, many jobs on one resource."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import pytest
import redis as redis_py

from tests.chaos.harness import Stage
from tests.support import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


def test_s3_jobs_of_four_leases_run_once_async_threaded_and_blocking_the_loop(stage: Stage):
    """Three kinds of handler beside each other, one of which keeps the event loop busy; another worker is idle."""
    stage.start(2, concurrency=3, lease_s=1.0, poll_s=0.3)
    kinds = stage.kinds
    jobs = [kind.enqueue_sync(kind.kind, ms=4_000) for kind in (kinds.work, kinds.work_in_thread, kinds.block)]
    stage.done(jobs)

    for job, key in zip(jobs, ("work", "work_in_thread", "block"), strict=True):
        (run,) = stage.truth.runs(key)
        assert run.ended_at is not None
        assert run.ended_at - run.began_at > 3.9, "void: the job was not longer than its lease"
        record = job.status_sync()
        assert (record.attempts, record.crashes, record.state) == (1, 0, "done")
    assert stage.alive()


def test_s6c_work_longer_than_the_lease_of_its_lock_lets_no_other_in(stage: Stage):
    stage.start(3, concurrency=1, lease_s=1.0, poll_s=0.3)
    jobs = [stage.kinds.book.enqueue_sync("a", n, ms=2_500) for n in range(2)]
    stage.done(jobs)
    assert stage.truth.overlaps("stock:a") == []
    assert [line["n"] for line in stage.truth.of("booked")] == [0, 1]
    assert {job.status_sync().crashes for job in jobs} == {0}


def commands(redis: redis_py.Redis) -> int:
    """Round trips the server has answered so far: scripts and blocking pops, which is all that workers send."""
    stats: Any = redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "blpop"))


def test_s6_twenty_jobs_on_one_resource_and_four_workers(stage: Stage, redis):
    """No overlap, order kept, waiting costs next to nothing, the next starts at once, and all are done."""
    stage.start(4, concurrency=1, lease_s=2.0)
    jobs = [
        stage.kinds.book.enqueue_sync("a", n, ms=0 if n == 0 else 60, gate="go" if n == 0 else "") for n in range(20)
    ]
    stage.holder("stock:a")
    wait_until(lambda: [job.status_sync().state for job in jobs].count("waiting") == 19)

    before, began = commands(redis), time.monotonic()
    wait_until(lambda: time.monotonic() - began > 3)  # nineteen wait, one works, and nothing else happens
    a_second = (commands(redis) - before) / (time.monotonic() - began)
    stage.open("go")
    stage.done(jobs)

    runs = stage.truth.runs("stock:a")
    assert [line["n"] for line in stage.truth.of("booked")] == list(range(20))
    assert stage.truth.overlaps("stock:a") == []
    assert {(job.status_sync().attempts, job.status_sync().releases) for job in jobs} == {(1, 0)}
    gaps = [later.began_at - (earlier.ended_at or 0.0) for earlier, later in itertools.pairwise(runs)]
    assert statistics.median(gaps) < 0.05
    # Three idle workers look once a second (a pop and a claim each), the busy one sweeps and renews.
    assert a_second < 14, f"{a_second:.1f} commands a second while all wait"
    assert stage.alive()
