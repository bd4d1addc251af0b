"""Taking back and bringing up what is due goes in bounded batches; nothing alive stands in the way of what is dead."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.job import JobSpec
from tests.support.clock import MovedClock
from tests.support.partition import Partition

LONGEST_US = 50_000
OUTLIERS = 2
"""How many calls may be longer, because the machine gave the server no time."""


def fill(p: Partition, many: int, **options: Any) -> None:
    for at in range(0, many, 500):
        p.enqueue(*(JobSpec(id=f"j{n:05}", kind="mail", **options) for n in range(at, min(at + 500, many))))


def slow_calls(p: Partition) -> list[int]:
    """Script calls that held the server for longer than LONGEST_US, in µs, by its own measure."""
    calls = [one["duration"] for one in p.redis.slowlog_get(128) if one["command"].startswith(b"EVAL")]
    return calls if len(calls) > OUTLIERS else []


@pytest.fixture
def slow_log(redis):
    """The server's slow log, empty, with a line for each call longer than LONGEST_US."""
    usual = redis.config_get("slowlog-log-slower-than")
    redis.config_set("slowlog-log-slower-than", LONGEST_US)
    redis.slowlog_reset()
    yield
    redis.config_set("slowlog-log-slower-than", usual["slowlog-log-slower-than"])


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_twenty_thousand_jobs_in_flight_of_dead_workers_come_back_in_bounded_passes(
    partition: Partition, clock: MovedClock, slow_log: None
):
    """The first thousand belong to a live worker; each pass gets beyond them. report: chrisguidry/docket#467"""
    fill(partition, 20_000)
    alive = [run.key for run in partition.claim(1000, worker="alive", lease_ms=4_000)]
    for n in range(19):
        assert len(partition.claim(1000, worker=f"dead{n}", lease_ms=2_000)) == 1000
    partition.renew(*alive, lease_ms=60_000)
    clock.advance(2.1)
    partition.redis.slowlog_reset()
    passes = 0
    while partition.stats().get("crashed:mail", 0) < 19_000:
        partition.sweep()
        passes += 1
        assert partition.stats()["crashed:mail"] <= 200 * passes, "a pass is bounded"
        assert passes <= 95
    assert partition.redis.zcard(partition.keys.ready("default")) == 19_000
    assert partition.redis.zcard(partition.keys.leases) == 1000
    assert {answer.word for answer in partition.renew(*alive)} == {"OK"}
    assert slow_calls(partition) == []


@pytest.mark.slow
def test_ten_thousand_due_jobs_come_up_in_bounded_passes(partition: Partition, clock: MovedClock, slow_log: None):
    fill(partition, 10_000, delay_ms=2_000)
    partition.sweep()
    clock.advance(2.5)
    for passes in range(1, 51):
        partition.sweep()
        assert partition.redis.zcard(partition.keys.ready("default")) == 200 * passes
    assert partition.redis.zcard(partition.keys.later) == 0
    assert slow_calls(partition) == []


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
