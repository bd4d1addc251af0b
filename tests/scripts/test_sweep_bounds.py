"""Taking back and bringing up what is due goes in bounded batches; nothing alive stands in the way of what is dead."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.job import JobSpec
from tests.support.partition import Partition

LONGEST_S = 0.05
"""What one call may keep the server busy for, in seconds of its processor: a loaded machine does not count."""


def fill(p: Partition, many: int, **options: Any) -> None:
    for at in range(0, many, 500):
        p.enqueue(*(JobSpec(id=f"j{n:05}", kind="mail", **options) for n in range(at, min(at + 500, many))))


def busy_s(p: Partition) -> float:
    """How long the server's main thread has worked so far, in seconds."""
    cpu = p.redis.info("cpu")
    name = "used_cpu_{}_main_thread" if "used_cpu_user_main_thread" in cpu else "used_cpu_{}"
    return float(cpu[name.format("user")]) + float(cpu[name.format("sys")])


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_twenty_thousand_jobs_in_flight_of_dead_workers_come_back_in_bounded_passes(partition: Partition):
    """The first thousand belong to a live worker; each pass gets beyond them. report: chrisguidry/docket#467"""
    fill(partition, 20_000)
    alive = [run.key for run in partition.claim(1000, worker="alive")]
    lost = [run.job_id for n in range(19) for run in partition.claim(1000, worker=f"dead{n}")]
    partition.redis.zadd(partition.keys.leases, {job_id: n + 1 for n, job_id in enumerate(lost)}, xx=True)  # long ago
    assert partition.redis.zcard(partition.keys.leases) == 20_000
    began, passes = busy_s(partition), 0
    while partition.stats().get("crashed:mail", 0) < 19_000:
        partition.sweep()
        passes += 1
        assert partition.stats()["crashed:mail"] <= 200 * passes, "a pass is bounded"
        assert passes <= 95
    assert partition.redis.zcard(partition.keys.ready("default")) == 19_000
    assert partition.redis.zcard(partition.keys.leases) == 1000
    assert (busy_s(partition) - began) / passes < LONGEST_S
    assert {answer.word for answer in partition.renew(*alive)} == {"OK"}


@pytest.mark.slow
def test_ten_thousand_due_jobs_come_up_in_bounded_passes(partition: Partition):
    fill(partition, 10_000, delay_ms=3_600_000)
    ids = partition.redis.zrange(partition.keys.later, 0, -1)
    partition.redis.zadd(partition.keys.later, {job_id: n + 1 for n, job_id in enumerate(ids)}, xx=True)
    began = busy_s(partition)
    for passes in range(1, 51):
        partition.sweep()
        assert partition.redis.zcard(partition.keys.ready("default")) == 200 * passes
    assert partition.redis.zcard(partition.keys.later) == 0
    assert (busy_s(partition) - began) / passes < LONGEST_S


def test_a_claim_that_hands_out_jobs_sweeps_a_smaller_batch(partition: Partition):
    fill(partition, 300)
    runs = partition.claim(300)
    partition.redis.zadd(partition.keys.leases, {run.job_id: 1 for run in runs}, xx=True)
    partition.claim(1)
    assert partition.stats()["crashed:mail"] == 100
    partition.sweep()
    assert partition.stats()["crashed:mail"] == 300


def test_a_resource_whose_line_is_full_of_leavers_is_handed_over_in_bounded_steps(partition: Partition):
    """Waiters that died without a word are passed by and counted; each step gets further."""
    _, token, _ = partition.acquire("thing", "holder")
    gone = {f"@gone{n}": n for n in range(700)}
    partition.redis.zadd(partition.keys.line("thing"), gone)
    last = partition.job(resource="thing")
    partition.claim()
    assert partition.state(last) == "waiting"
    partition.release("holder", token)
    assert partition.redis.zcard(partition.keys.line("thing")) == 201
    assert partition.acquire("thing", "next", wait_ms=60_000)[0] == "WAIT"
    assert partition.state(last) == "queued"
    assert partition.stats()["orphan:line"] == 700


def test_lists_of_what_ended_stay_within_their_bounds(partition: Partition):
    pipe = partition.redis.pipeline(transaction=False)
    pipe.rpush(partition.keys.recent, *(f"r{n}" for n in range(11_000)))
    pipe.zadd(partition.keys.dead, {f"d{n}": n for n in range(100_050)})
    pipe.zadd(partition.keys.workers, {f"w{n}": n for n in range(1_500)})
    pipe.execute()
    partition.put("done")
    partition.put("failed")
    partition.serve(0, upkeep="{}")
    assert partition.redis.llen(partition.keys.recent) <= 11_000
    assert partition.redis.zcard(partition.keys.dead) <= 100_000
    assert partition.redis.zcard(partition.keys.workers) <= 1_000


def test_a_list_of_the_dead_forgets_those_whose_record_is_over(partition: Partition):
    kept = partition.put("failed").job_id
    partition.redis.zadd(partition.keys.dead, {f"d{n}": n for n in range(50)})
    for _ in range(3):
        partition.serve(0, upkeep="{}")
    assert partition.redis.zrange(partition.keys.dead, 0, -1) == [kept.encode()]
