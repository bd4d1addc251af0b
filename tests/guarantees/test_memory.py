"""What is over leaves nothing behind: after the retention the partition is as small as before."""

from __future__ import annotations

from fencepost.codec import error_text
from fencepost.job import JobSpec
from tests.guarantees.stage import Stage

DAY_S = 86_400.0
CONSTANT = {"meta", "stats", "events", "recent", "workers"}


def huge_error() -> str:
    """What a worker makes of a traceback of a megabyte."""
    try:
        raise ValueError("é" * 1_000_000)
    except ValueError as error:
        return error_text(error)


def test_the_text_of_an_error_is_capped():
    assert len(huge_error().encode()) <= 9 * 1024


def test_after_the_retention_no_job_no_key_and_no_index_entry_is_left(stage: Stage):
    """I19. report: zoolutions/sidekiq-unique-jobs#359, #653"""
    a, error, rounds = stage.worker("a"), huge_error(), 20
    for n in range(rounds):
        stage.enqueue(
            *(JobSpec(id=f"u{n}-{m}", kind="mail", dedup=f"d{n}-{m}", resource=f"r{n}-{m}") for m in range(40)),
            *(JobSpec(id=f"f{n}-{m}", kind="mail", idem=f"i{n}-{m}", fingerprint="p") for m in range(10)),
        )
        runs = a.claim(100)
        assert len(runs) == 50
        a.serve(0, tuple(stage.outcome(run.key, "DONE") for run in runs if run.job_id[0] == "u"))
        bury = ("permanent", "ValueError", error)
        a.serve(0, tuple(stage.outcome(run.key, "BURY", *bury) for run in runs if run.job_id[0] == "f"))
    shot = stage.look()
    assert (shot.dedup, shot.slots, shot.line, shot.leases, shot.ready) == ({}, {}, {}, {}, {})
    assert (len(shot.job), len(shot.dead), len(shot.recent)) == (50 * rounds, 10 * rounds, 40 * rounds)
    assert all(shot.ttl[f"job:{job_id}"] > 0 for job_id in shot.job)
    assert int(stage.redis.memory_usage(stage.keys.job("f0-0"), samples=0)) < 12_000

    stage.jump(1.1 * DAY_S)
    a.sweep()
    assert set(stage.look().job) == {job_id for job_id in shot.job if job_id[0] == "f"}
    stage.jump(7 * DAY_S)
    for _ in range(10 * rounds // 20 + 1):
        a.sweep()
    left = stage.look()
    assert (left.job, left.dead, left.idem) == ({}, {}, {})
    assert {name for name in left.ttl if not name.startswith("worker:")} <= CONSTANT
    assert sum(int(stage.redis.memory_usage(key, samples=0)) for key in stage.redis.keys("*")) < 400_000


def test_a_resource_that_nobody_uses_any_more_takes_no_memory(stage: Stage):
    a = stage.worker("a")
    for n in range(50):
        stage.job(resource=f"r{n}")
        stage.job(resource=f"r{n}")
    while runs := a.claim(200):
        for run in runs:
            a.done(run)
    assert [key for key in stage.redis.keys("*") if b"slots:" in key or b"line:" in key] == []
