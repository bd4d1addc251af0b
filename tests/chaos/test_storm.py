"""Everything at once: workers are killed, stopped and replaced at random moments, while jobs of every sort come in.

Seeded: FENCEPOST_CHAOS_SEED=7 pytest tests/chaos/test_storm.py plays another storm. report: laravel/framework#22939
"""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from typing import Any

import pytest

from fencepost import Job
from fencepost.keys import Keys
from tests.chaos import guard
from tests.chaos.harness import Stage
from tests.chaos.truth import now_s
from tests.support import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(90)]
JOBS = 1_500
WORKER: dict[str, Any] = {"concurrency": 4, "poll_s": 0.3, "lease_s": 1.0, "grace_s": 0.2}


def produce(stage: Stage, jobs: list[Job]) -> None:
    """Enqueue steadily: plain jobs, jobs that share ten resources, delayed ones, and guarded effects."""
    kinds, draw = stage.kinds, random.Random(f"{stage.seed} producer")
    for n in range(JOBS):
        sort = draw.random()
        if sort < 0.5:
            jobs.append(kinds.work.enqueue_sync(f"plain{n}", ms=draw.randrange(80)))
        elif sort < 0.8:
            jobs.append(kinds.book.enqueue_sync(f"{draw.randrange(10)}", n, ms=draw.randrange(40)))
        elif sort < 0.9:
            jobs.append(kinds.work.options(delay=draw.random() * 3).enqueue_sync(f"later{n}"))
        else:
            jobs.append(kinds.charge.enqueue_sync(f"effect{n}", gate=""))
        threading.Event().wait(0.004)


def strike(stage: Stage, how: str, frozen: set[int]) -> None:
    """Do something bad to a worker that is inside a run and, if it ended by it, start another."""
    victim = stage.holder()
    if how == "freeze":
        frozen.update(run.token for run in stage.freeze(victim, may_miss=True))
        threading.Event().wait(2.0)  # longer than the lease
        stage.wake(victim)
    else:
        stage.dead[victim.pid] = now_s()
        victim.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
        stage.start(1, **WORKER)


def test_no_job_is_lost_or_doubled_in_a_storm(stage: Stage, redis, namespace):
    stage.start(3, **WORKER)
    jobs: list[Job] = []
    producer = threading.Thread(target=produce, args=(stage, jobs))
    producer.start()
    frozen: set[int] = set()  # tokens of runs that were inside a worker while it was stopped
    strikes = ["kill", "term", "freeze"] * 2
    stage.draw.shuffle(strikes)
    for how in strikes:
        assert producer.is_alive(), "void: the storm came after the work"
        strike(stage, how, frozen)
    producer.join()
    stage.done(jobs, timeout=40)

    again = [key for key, runs in Counter(run.job for run in stage.truth.runs()).items() if runs > 1]
    assert again, "void: no fault hit a run"
    for sku in range(10):
        # What was inside a stopped process nobody could end. It writes nothing any more, which other tests show.
        overlaps = stage.truth.overlaps(f"stock:{sku}", stage.dead)
        assert [pair for pair in overlaps if pair[0].token not in frozen] == []
    charged = {key for key, _, _ in guard.effects(stage.shop)}
    assert charged == {f"charge:{run.key}" for run in stage.truth.runs() if run.key.startswith("effect")}
    # Every job is accounted for, and no list holds anything any more.
    keys = Keys(namespace)
    wait_until(lambda: redis.zcard(keys.leases) == 0)
    assert redis.zcard(keys.ready("default")) == redis.zcard(keys.later) == redis.zcard(keys.dead) == 0
    assert not list(redis.scan_iter(f"{keys.prefix}slots:*")) + list(redis.scan_iter(f"{keys.prefix}line:*"))
    assert len(list(redis.scan_iter(f"{keys.prefix}job:*", count=1000))) == JOBS
