"""Only the server's time counts, and it never goes back; a gap in it takes nobody's lease."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from fencepost import ConfigurationError, Fencepost
from fencepost.store import Claimed, RunKey
from tests.guarantees.stage import LEASE_S, Stage


def deadline(stage: Stage, run: Claimed) -> int:
    """When the lease of a run ends, server ms."""
    until = stage.run(stage.store.lease_deadline(run.job_id))
    assert until is not None
    return until


@pytest.mark.parametrize("gap_s", [5.0, 60.0, 7 * 86_400.0])
def test_after_an_outage_or_a_clock_step_live_workers_renew_before_anything_is_taken_back(stage: Stage, gap_s: float):
    """T4, T5, S10: an absolute deadline lapses while nobody can renew; nobody died of it."""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    run = a.take()
    stage.jump(gap_s)
    assert b.claim(10) == []
    assert a.renew(run) == "OK"
    stage.pass_time(LEASE_S - 0.1)
    assert a.renew(run) == "OK"
    stage.pass_time(LEASE_S - 0.1)
    assert a.done(run) == "OK"
    assert stage.stats().get("crashed:mail", 0) == 0


def test_after_the_grace_the_jobs_of_the_dead_come_back(stage: Stage):
    """T5, L1: one lease of grace, then one sweep."""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    dead = a.take()
    stage.jump(60.0)
    b.sweep()
    stage.pass_time(LEASE_S - 0.5)
    assert b.claim(1) == []
    stage.pass_time(0.6)
    run = b.take()
    assert (run.job_id, run.crashes) == (dead.job_id, 1)
    assert a.done(dead) == "STALE"
    assert b.done(run) == "OK"


def test_a_finish_that_waited_out_the_outage_is_accepted(stage: Stage):
    """S4, S10: the worker keeps the outcome and writes it with its token when Redis is back."""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    run = a.take()
    stage.jump(10.0)
    b.sweep()
    assert a.done(run, b'"kept"') == "OK"
    assert stage.record(run.job_id).result == b'"kept"'


@pytest.mark.parametrize("back_s", [1.0, 600.0, 86_400.0])
def test_when_the_clock_goes_back_leases_hold_tokens_rise_and_nothing_is_done_twice(stage: Stage, back_s: float):
    """T4: -10 min once gave a lease of 2 s a life of 661 s; here time stands still until the clock catches up."""
    a, b = stage.worker("a"), stage.worker("b")
    for _ in range(2):
        stage.job()
    first = a.take()
    until = deadline(stage, first)
    stage.clock.advance(-back_s)
    second = b.take()
    assert int(second.token) > int(first.token)
    assert until <= deadline(stage, second) <= until + 100
    assert a.renew(first) == "OK"
    assert deadline(stage, first) >= until
    assert (a.done(first), b.done(second)) == ("OK", "OK")
    third = stage.job()
    stage.clock.advance(back_s)
    assert a.take().job_id == third


def test_a_token_outlives_the_loss_of_its_counter(stage: Stage):
    """T11: it starts from the server's clock, so a rewound or lost counter does not repeat one."""
    a = stage.worker("a")
    for _ in range(2):
        stage.job()
    first = a.take()
    stage.redis.hdel(stage.keys.meta, "token")
    second = a.take()
    assert int(second.token) > int(first.token)


def test_a_token_that_a_rewound_server_gave_out_twice_belongs_to_the_newer_nonce(stage: Stage):
    """T11: the number alone proves nothing; equal token and other nonce is refused, and the other way round."""
    a = stage.worker("a")
    stage.job()
    old = a.take()
    stage.redis.hset(
        stage.keys.job(old.job_id), "nonce", "other.1"
    )  # as if the claim had been lost, and made anew by b
    assert [a.done(old), a.renew(old), a.checkpoint(old)] == ["STALE"] * 3
    for key in (RunKey(old.job_id, str(int(old.token) + 1), "other.1"), RunKey(old.job_id, old.token, "")):
        assert a.end(key, "DONE") == "STALE"
    assert a.end(RunKey(old.job_id, old.token, "other.1"), "DONE") == "OK"


def test_a_delayed_job_is_not_leased_before_it_is_due(stage: Stage):
    """Delay above the lease, idle workers polling: one run, at the due time. report: celery/kombu#337"""
    workers = [stage.worker(name) for name in ("a", "b", "c")]
    job_id = stage.job(delay_ms=7_000)
    due = stage.record(job_id).created_at + 7_000
    while stage.clock.now_ms() < due - 600:
        assert all(worker.claim(5) == [] for worker in workers)
        shot = stage.look()
        assert (list(shot.later), shot.ready, shot.leases) == ([job_id], {}, {})
        stage.pass_time(0.5)
    stage.clock.advance_to(due)
    runs = [run for worker in workers for run in worker.claim(5)]
    assert [run.job_id for run in runs] == [job_id]
    assert stage.record(job_id).attempts == 1


def test_the_clocks_of_workers_decide_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """Ten minutes fast, ten minutes slow: nobody is judged dead, nothing is early. report: resque/resque#1480"""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    run = a.take()
    real, real_ns = time.time, time.time_ns
    for off_s in (600, -600):
        monkeypatch.setattr(time, "time", lambda off_s=off_s: real() + off_s)
        monkeypatch.setattr(time, "time_ns", lambda off_s=off_s: real_ns() + off_s * 1_000_000_000)
        now = stage.clock.now_ms()
        later = stage.job(delay_ms=60_000)
        assert 60_000 <= stage.record(later).due_at - now < 61_000
        assert b.claim(10) == []
        assert a.renew(run) == "OK"
        assert abs(deadline(stage, run) - now - LEASE_S * 1000) < 1_000
    assert a.done(run) == "OK"
    assert stage.stats().get("crashed:mail", 0) == 0


def test_a_step_back_in_the_middle_of_a_lease_leaves_a_due_job_due(stage: Stage):
    """report: resque/resque#1480"""
    a = stage.worker("a")
    stage.job()
    run = a.take()
    job_id = stage.job(delay_ms=60_000)
    stage.clock.advance(-5.0)
    assert a.renew(run) == "OK"
    due = stage.record(job_id).due_at
    stage.clock.advance_to(due - 500)
    a.sweep()
    assert stage.state(job_id) == "scheduled"
    stage.clock.advance_to(due)
    a.sweep()
    assert stage.state(job_id) == "queued"


@pytest.mark.parametrize("zone", ["UTC", "Asia/Jakarta", "America/St_Johns"])
def test_an_aware_moment_means_the_same_in_every_time_zone_of_a_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, zone: str
):
    """report: python-arq/arq#185"""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        app = Fencepost(stage.url, namespace=stage.namespace)

        @app.job()
        def mail() -> None: ...

        moment = datetime.now(UTC) + timedelta(seconds=30)
        for name in ("UTC", "Asia/Jakarta", "America/New_York"):
            job = mail.options(run_at=moment.astimezone(ZoneInfo(name))).enqueue_sync()
            assert abs(stage.record(job.id).due_at - moment.timestamp() * 1000) <= 1
        with pytest.raises(ConfigurationError, match="no time zone"):
            mail.options(run_at=datetime.now() + timedelta(seconds=30)).enqueue_sync()  # noqa: DTZ005
        app.close_sync()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_flushed_server_begins_anew_and_refuses_the_runs_of_before(stage: Stage):
    """T16, as far as it goes without a ledger: nothing of the past is accepted, tokens go on rising."""
    a = stage.worker("a")
    stage.job()
    old = a.take()
    before = stage.look().meta["incarnation"]
    stage.clock.advance(1.0)
    stage.redis.delete(*stage.redis.keys(stage.keys.prefix + "*"))
    assert [a.done(old), a.renew(old), a.checkpoint(old)] == ["GONE"] * 3
    again = stage.job(id=old.job_id)
    new = a.take()
    assert (again, int(new.token) > int(old.token)) == (old.job_id, True)
    assert a.done(old) == "STALE"
    assert a.done(new) == "OK"
    assert stage.look().meta["incarnation"] > before
