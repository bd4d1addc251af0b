"""Rival producers, jobs that always fail, and workers that are told to stop: S5, S8 and S9 of the ten failures."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess

import pytest

from fencepost.keys import Keys
from tests.chaos.harness import STARTS_S, Stage
from tests.support import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


def race(stage: Stage, turn: int) -> list[dict[str, tuple[str, bool]]]:
    """Two processes enqueue the same hundred jobs at once, one from the first and one from the last: they meet."""
    gate, keys = f"go{turn}", [f"order{turn}.{n}" for n in range(100)]
    rivals = [
        stage.run("tests.chaos.produce", gate, ",".join(order), name, stdout=subprocess.PIPE)
        for name, order in (("a", keys), ("b", keys[::-1]))
    ]
    wait_until(lambda: all((stage.folder / f"{gate}.{name}").exists() for name in "ab"), STARTS_S)
    stage.open(gate)
    return [json.loads(rival.communicate()[0]) for rival in rivals]


def test_s5_of_two_producers_of_one_job_one_wins_and_the_other_gets_the_winners_id(stage: Stage, redis, namespace):
    wins = [0, 0]
    for turn in range(5):  # on a busy machine one may be done before the other is awake
        answers = race(stage, turn)
        wins = [sum(not duplicate for _, duplicate in answer.values()) for answer in answers]
        if min(wins) > 0:
            break
    assert min(wins) > 0, f"void: the two did not race, they won {wins}"
    a, b = answers
    assert {key: job_id for key, (job_id, _) in a.items()} == {key: job_id for key, (job_id, _) in b.items()}
    assert all(a[key][1] + b[key][1] == 1 for key in a)
    stage.start(2, concurrency=10)
    stage.done([stage.kinds.app.get(job_id) for job_id, _ in a.values()])
    assert all(len(stage.truth.runs(key)) == 1 for key in a)


def test_s8_a_job_that_always_fails_stops_at_its_limit_and_a_permanent_error_at_once(stage: Stage, redis, namespace):
    stage.start(2, poll_s=0.2)
    fails = stage.kinds.always_fails
    transient, permanent = fails.enqueue_sync("transient", False), fails.enqueue_sync("permanent", True)
    wait_until(lambda: {job.status_sync().state for job in (transient, permanent)} == {"failed"}, 20)

    runs = stage.truth.runs("transient")
    assert [run.attempt for run in runs] == [1, 2, 3, 4]
    assert stage.truth.overlaps("transient") == []
    assert [run.attempt for run in stage.truth.runs("permanent")] == [1]
    assert (transient.status_sync().reason, permanent.status_sync().reason) == ("exhausted", "permanent")
    waits = [later.began_at - (earlier.ended_at or 0.0) for earlier, later in itertools.pairwise(runs)]
    for wait_s, longest_s in zip(waits, (0.2, 0.4, 0.6), strict=True):  # base 0.2 s, cap 0.6 s, full jitter
        assert wait_s < longest_s + 0.2 + 0.5
    assert {one.decode() for one in redis.zrange(Keys(namespace).dead, 0, -1)} == {transient.id, permanent.id}


def test_s9_sigterm_lets_jobs_end_within_the_grace_and_hands_the_others_back_with_no_attempt(stage: Stage):
    """The grace is longer than the lease: what runs is renewed through it."""
    (leaving,) = stage.start(1, concurrency=2, grace_s=2.5, lease_s=1.0)
    quick, slow = stage.kinds.work.enqueue_sync("quick", gate="go"), stage.kinds.work.enqueue_sync("slow", gate="later")
    wait_until(lambda: len(stage.truth.inside(leaving.pid)) == 2)
    stage.start(1, concurrency=2, lease_s=1.0)
    leaving.send_signal(signal.SIGTERM)
    assert len(stage.truth.inside(leaving.pid)) == 2, "void: nothing was running"
    late = stage.kinds.work.enqueue_sync("late")  # it is not claimed by the one that leaves
    stage.done([late])
    stage.open("go")
    stage.done([quick])
    assert leaving.wait(10) == 0
    stage.dead[leaving.pid] = 0.0
    wait_until(lambda: len(stage.truth.runs("slow")) == 2, 2)
    stage.open("later")
    stage.done([slow])

    first, second = stage.truth.runs("slow")
    assert (first.how, second.how, first.pid == leaving.pid) == ("shutdown", "returned", True)
    assert first.ended_at is not None
    assert second.began_at - first.ended_at < 0.5  # handed back at once, not when the lease has run out
    record = slow.status_sync()
    assert (record.attempts, record.crashes, record.releases) == (1, 0, 1)
    assert [run.pid == leaving.pid for run in (*stage.truth.runs("quick"), *stage.truth.runs("late"))] == [True, False]
    assert quick.status_sync().crashes == 0
    assert "Traceback" not in stage.log()
