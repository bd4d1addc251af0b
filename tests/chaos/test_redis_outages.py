"""Redis is killed or paused under working workers: S4 and S10 of the ten failures."""

from __future__ import annotations

import threading

import pytest
import redis as redis_py

from fencepost import Job
from fencepost.embedded import EmbeddedServer
from tests.chaos.harness import Stage
from tests.support import raw_client, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]
DOWN_S = 3.0


def after(seconds: float) -> None:
    """Let time pass in which nothing can be asked."""
    threading.Event().wait(seconds)


def produce(stage: Stage, jobs: list[Job[str]], stop: threading.Event) -> None:
    """Go on enqueueing through the outage, as a shop would."""
    while not stop.is_set():
        jobs.append(stage.kinds.work.enqueue_sync(f"during{len(jobs)}", ms=10))
        stop.wait(0.02)


@pytest.mark.parametrize("lease_s", [8.0, 1.5])
def test_s4_redis_is_killed_for_three_seconds_under_queued_running_and_new_jobs(
    own_stage: Stage, own_server: EmbeddedServer, lease_s: float
):
    """With a lease longer than the outage everything runs once; with a shorter one again, never at the same time."""
    stage, stop = own_stage, threading.Event()
    during: list[Job[str]] = []
    stage.start(2, concurrency=2, lease_s=lease_s)
    jobs = [stage.kinds.work.enqueue_sync(f"job{n}", gate="go" if n < 4 else "", ms=50) for n in range(12)]
    wait_until(lambda: len(stage.truth.inside()) == 4)
    producer = threading.Thread(target=produce, args=(stage, during, stop))
    producer.start()
    wait_until(lambda: len(during) > 3)

    own_server.kill()
    assert len(stage.truth.inside()) == 4, "void: nothing was running"
    stage.open("go")  # they end while nobody can be told
    after(DOWN_S)
    assert stage.alive()
    own_server.restart()
    stop.set()
    producer.join()
    stage.done(jobs + during)

    runs = {key: stage.truth.runs(key) for key in {run.key for run in stage.truth.runs()}}
    assert len(runs) == len(jobs) + len(during)
    assert all(stage.truth.overlaps(key) == [] for key in runs)
    if lease_s > DOWN_S:
        assert {len(one) for one in runs.values()} == {1}
        assert {job.status_sync().crashes for job in jobs} == {0}
    for job, key in zip(jobs[:4], ("job0", "job1", "job2", "job3"), strict=True):
        assert job.result_sync() == f"token {runs[key][-1].token}"
    assert stage.alive()


def cut_all(redis: redis_py.Redis) -> None:
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@pytest.mark.parametrize(("lease_s", "pause_s"), [(10.0, 4.0), (2.0, 5.0)])
def test_s10_a_paused_server_and_then_killed_connections(
    own_stage: Stage, own_server: EmbeddedServer, lease_s: float, pause_s: float
):
    """What ended in the pause is kept and written. With the short lease, what goes on beyond it is stopped and runs
    again; nobody takes over what a live worker had no chance to renew."""
    stage, redis = own_stage, raw_client(own_server.url)
    stage.start(2, concurrency=4, lease_s=lease_s)
    ends = [stage.kinds.work.enqueue_sync(f"ends{n}", gate="go") for n in range(4)]
    goes_on = [stage.kinds.work.enqueue_sync(f"goes_on{n}", gate="later") for n in range(4)]
    wait_until(lambda: len(stage.truth.inside()) == 8)

    redis.client_pause(round(pause_s * 1_000), all=True)
    stage.open("go")
    wait_until(lambda: len(stage.truth.inside()) <= 4)
    assert len(stage.truth.inside()) == 4, "void: the pause did not catch the others at work"
    after(pause_s)
    cut_all(redis)
    if lease_s > pause_s:
        stage.open("later")
        stage.done(ends + goes_on)
    else:
        stage.done(ends)
        wait_until(lambda: len([run for run in stage.truth.inside() if run.key.startswith("goes_on")]) == 4, 10)
        stage.open("later")
        stage.done(goes_on)

    for n, job in enumerate(ends):
        (run,) = stage.truth.runs(f"ends{n}")
        assert (job.result_sync(), run.how) == (f"token {run.token}", "returned")
    for n, job in enumerate(goes_on):
        runs = stage.truth.runs(f"goes_on{n}")
        assert [run.how for run in runs] == ["returned"] if lease_s > pause_s else ["deadline", "returned"]
        assert stage.truth.overlaps(f"goes_on{n}") == []
        assert job.result_sync() == f"token {runs[-1].token}"
    assert stage.alive()
    redis.close()
