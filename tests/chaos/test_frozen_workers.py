"""Workers that are stopped past their lease and woken: S2, S2b and S2f of the ten failures."""

from __future__ import annotations

from typing import Any

import pytest
import redis as redis_py

from fencepost.keys import Keys
from tests.chaos import guard
from tests.chaos.harness import LEASE_S, STARTS_S, SWEEP_S, Stage
from tests.support import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


def refusals(redis: redis_py.Redis, namespace: str) -> dict[str, int]:
    """The counters of refused writes, by verb."""
    found: Any = redis.hgetall(Keys(namespace).stats)
    return {
        name.decode().removeprefix("refused:"): int(value)
        for name, value in found.items()
        if name.startswith(b"refused:")
    }


@pytest.mark.parametrize("says", ["a result", "an error"])
@pytest.mark.parametrize("woken", ["after the owner is done", "while the owner works"])
def test_s2_whatever_a_woken_worker_says_of_a_job_it_lost_is_refused(stage: Stage, redis, namespace, says, woken):
    """Its handler blocks the event loop, so that nobody can tell it before it has sent its outcome."""
    works_on = woken.startswith("while")
    stage.start(2, concurrency=1)
    job = stage.kinds.block.enqueue_sync(
        "order7", gate="go", ms=2_000 if works_on else 0, fail="yes" if says == "an error" else ""
    )
    victim = stage.holder("order7")
    stage.freeze(victim)
    wait_until(lambda: len(stage.truth.runs("order7")) == 2, LEASE_S + SWEEP_S + 3)
    if not works_on:
        stage.done([job])
    stage.open("go")
    stage.wake(victim)
    wait_until(lambda: len(stage.truth.inside(victim.pid)) == 0)
    wait_until(lambda: refusals(redis, namespace))
    if works_on:
        assert job.status_sync().state == "processing", "void: the owner was done before the woken worker spoke"
    stage.done([job])

    old, owner = stage.truth.runs("order7")
    record = job.status_sync()
    assert (record.state, job.result_sync(), record.token) == ("done", f"token {owner.token}", owner.token)
    assert (record.attempts, record.crashes, record.error) == (1, 1, None)
    assert old.pid == victim.pid
    verb = "done" if says == "a result" else "retry"
    assert refusals(redis, namespace).get(verb) == 1
    # The woken worker lives and works on.
    after = [stage.kinds.work.enqueue_sync(f"after{n}", ms=100) for n in range(4)]
    stage.done(after)
    assert {run.pid for run in stage.truth.runs() if run.key.startswith("after")} == {one.pid for one in stage.workers}
    assert stage.alive()


def test_s2_no_write_of_a_woken_run_is_accepted_by_redis_or_by_the_database(stage: Stage, redis, namespace):
    """Checkpoint, progress, its own check and a guarded effect: all four are tried, while the owner is at work."""
    stage.start(2, concurrency=1)
    job = stage.kinds.late_writer.enqueue_sync("order7", gate="go")
    wait_until(lambda: stage.truth.of("installed"), STARTS_S)  # frozen earlier, it would hold the database's lock
    victim = stage.holder("order7")
    stage.freeze(victim)
    wait_until(lambda: stage.truth.of("effect"), LEASE_S + SWEEP_S + 3)
    stage.open("go")
    stage.wake(victim)
    wait_until(lambda: len(stage.truth.of("write")) == 4)
    stage.open("owner")
    stage.done([job])

    answers = {line["name"]: line["answer"] for line in stage.truth.of("write")}
    assert answers.pop("effect") == "refused"
    assert answers == {"checkpoint": "StaleToken", "progress": "StaleToken", "check": "LeaseLost"}
    record = job.status_sync()
    assert (record.state, job.result_sync(), record.checkpoint) == ("done", "the owner's", b'"the owner\'s"')
    assert record.progress is None
    assert guard.effects(stage.shop) == [("order7", record.token, "the owner's")]
    assert refusals(redis, namespace)["checkpoint"] == 2
    assert stage.alive()


def test_s2_a_woken_async_handler_is_told_and_writes_nothing(stage: Stage, redis, namespace):
    """Its loop is free, so it learns by its own clock, before anybody has to refuse anything."""
    stage.start(2, concurrency=1)
    job = stage.kinds.work.enqueue_sync("order7", gate="go")
    victim = stage.holder("order7")
    stage.freeze(victim)
    wait_until(lambda: len(stage.truth.runs("order7")) == 2, LEASE_S + SWEEP_S + 3)
    stage.wake(victim)
    wait_until(lambda: stage.truth.inside(victim.pid) == [])
    stage.open("go")
    stage.done([job])

    old, owner = stage.truth.runs("order7")
    assert old.how in ("deadline", "stale")
    assert (owner.how, job.result_sync()) == ("returned", f"token {owner.token}")
    assert refusals(redis, namespace).get("done") is None
