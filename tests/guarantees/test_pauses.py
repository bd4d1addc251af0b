"""A worker that was frozen past its lease and wakes up: nothing it still says changes anything."""

from __future__ import annotations

import pytest

from tests.guarantees.stage import Stage


def everything_it_could_say(worker, run) -> list[str]:
    answers = [worker.checkpoint(run, b'"half"', "progress"), worker.checkpoint(run, b'"half"')]
    answers += [worker.renew(run), worker.retry(run), worker.bury(run), worker.release(run)]
    return [*answers, worker.end(run, "CANCEL"), worker.done(run, b'"late"')]


def test_all_that_a_woken_worker_writes_after_the_other_is_done_is_refused(stage: Stage):
    """T1, S2. report: celery/celery#6090"""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    old = a.take()
    stage.outlive_lease()
    new = b.take()
    assert b.done(new, b'"the result of b"') == "OK"
    before = stage.matter()
    assert everything_it_could_say(a, old) == ["STALE"] * 8
    assert stage.matter() == before
    record = stage.record(old.job_id)
    assert (record.state, record.result, record.worker) == ("done", b'"the result of b"', "b")
    assert stage.refused() == 8
    assert stage.stats()["done:mail"] == 1


def test_a_worker_that_wakes_while_the_other_works_cannot_disturb_it(stage: Stage):
    """S2b: whichever ends first, only the owner's outcome counts. report: laravel/framework#32103"""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    old = a.take()
    stage.outlive_lease()
    new = b.take()
    assert everything_it_could_say(a, old) == ["STALE"] * 8
    assert stage.state(old.job_id) == "processing"
    assert b.renew(new) == "OK"
    assert b.done(new, b'"b"') == "OK"
    assert stage.record(old.job_id).result == b'"b"'
    assert [stage.events(name) for name in ("done", "failed", "retry_scheduled")] == [1, 0, 0]


def test_a_woken_run_that_fails_does_not_bring_the_finished_job_back(stage: Stage):
    """S2f"""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    old = a.take()
    stage.outlive_lease()
    assert b.done(b.take()) == "OK"
    assert [a.retry(old), a.bury(old)] == ["STALE", "STALE"]
    assert stage.state(old.job_id) == "done"
    assert b.claim() == []


def test_a_worker_that_wakes_before_anybody_took_its_job_is_refused_all_the_same(stage: Stage):
    """Taken back, not taken over: the answer says so, and the job runs again with a crash to its name."""
    a = stage.worker("a")
    stage.job()
    old = a.take()
    stage.outlive_lease()
    before = stage.matter()
    assert everything_it_could_say(a, old) == ["EXPIRED"] * 8
    assert stage.matter() == before
    record = stage.record(old.job_id)
    assert (record.state, record.attempts, record.crashes) == ("queued", 0, 1)
    assert record.token > int(old.token)


def test_a_job_under_a_live_lease_is_not_delivered_a_second_time(stage: Stage):
    """report: laravel/framework#32103: a second delivery judged "attempts used up" while the first run went on."""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    run = a.take()
    for _ in range(5):
        stage.pass_time(1.5)
        assert a.renew(run) == "OK"
        before = stage.matter()
        assert b.claim(10) == []
        assert stage.matter() == before
    assert a.done(run) == "OK"
    assert stage.events("done") == 1


def test_a_long_job_that_is_renewed_is_never_taken_away(stage: Stage):
    """T2, S3: five leases long, one run."""
    a = stage.worker("a")
    stage.job()
    run = a.take()
    for _ in range(10):
        stage.pass_time(1.0)
        assert a.renew(run) == "OK"
    assert a.done(run) == "OK"
    assert stage.stats().get("crashed:mail", 0) == 0
    assert stage.record(run.job_id).attempts == 1


@pytest.mark.parametrize("first", ["renewal", "sweep"])
def test_of_a_renewal_and_a_sweep_at_the_end_of_a_lease_the_first_decides(stage: Stage, first: str):
    """T28: no sweep acts on what it read before the renewal, no renewal brings back what was taken."""
    a = stage.worker("a")
    stage.job()
    run = a.take()
    stage.pass_time(1.9)
    if first == "renewal":
        assert a.renew(run) == "OK"
        stage.pass_time(0.2)
        assert stage.state(run.job_id) == "processing"
        assert a.done(run) == "OK"
    else:
        stage.pass_time(0.2)
        assert a.renew(run) == "EXPIRED"
        assert stage.state(run.job_id) == "queued"


def test_a_renewal_never_shortens_a_lease(stage: Stage):
    """Two heartbeats may overtake each other, and a worker may be configured anew."""
    a = stage.worker("a", lease_s=20.0)
    stage.job(resource="thing")
    run = a.take()
    before = stage.look()
    assert stage.renew(run.key, lease_ms=1_000)[0].word == "OK"
    after = stage.look()
    assert (after.leases, after.slots) == (before.leases, before.slots)


def test_a_late_heartbeat_does_not_prolong_the_lease_of_the_one_who_came_after(stage: Stage):
    """T28. report: sibson/redbeat#127"""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    old = a.take()
    stage.outlive_lease()
    new = b.take()
    deadline = stage.run(stage.store.lease_deadline(new.job_id))
    stage.pass_time(1.0)
    assert a.renew(old) == "STALE"
    assert stage.run(stage.store.lease_deadline(new.job_id)) == deadline


def test_a_woken_holder_cannot_give_back_the_place_of_the_next_one(stage: Stage):
    """report: rails/solid_queue#761: the slot was given back twice, and a limit of 1 let 11 in."""
    a, b = stage.worker("a"), stage.worker("b")
    for _ in range(10):
        stage.job(resource="thing")
        old = a.take()
        stage.outlive_lease()
        new = b.take()
        assert a.done(old) == "STALE"
        assert stage.holders("thing") == [new.nonce]
        assert b.done(new) == "OK"
    for _ in range(20):
        stage.job(resource="thing")
    runs = 0
    while together := a.claim(20):
        assert len(together) == 1
        assert b.claim(20) == []
        runs += a.done(together[0]) == "OK"
    assert runs == 20
    assert stage.stats()["refused:done"] == 10
