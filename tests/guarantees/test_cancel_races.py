"""Cancel against everything else: in whatever order they come, one end, and nobody changes it afterwards."""

from __future__ import annotations

import itertools
import threading

import pytest

from fencepost.driver import SyncDriver
from tests.guarantees.stage import Stage

STEPS = ("cancel", "finish", "lapse")


@pytest.mark.parametrize("order", list(itertools.permutations(STEPS)), ids="-".join)
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("outcome", ["DONE", "RETRY", "BURY"])
def test_cancel_finish_and_reclaim_in_any_order_give_one_end(stage: Stage, order, hard: bool, outcome: str):
    """T26: the first accepted end wins, whichever it is."""
    a, b = stage.worker("a"), stage.worker("b")
    stage.job()
    run = a.take()
    steps = {
        "cancel": lambda: stage.cancel(run.job_id, hard=hard),
        "finish": lambda: a.end(run, outcome),
        "lapse": stage.outlive_lease,
    }
    for name in order:
        steps[name]()
    for other in b.claim(5):
        assert b.done(other) == "OK"
    ends = [event for event in ("done", "failed", "cancelled") for _ in range(stage.events(event))]
    state = stage.state(run.job_id)
    assert ends == [state]
    before = stage.matter()
    assert a.end(run, "DONE") in ("STALE", "REPLAY")
    assert stage.cancel(run.job_id).word in ("ILLEGAL", "CANCELLED")
    assert stage.matter() == before
    if order[0] == "cancel":
        # Asked before anything else: only a handler that was through all the same may still end as it did.
        assert state == "cancelled" or (not hard and order[1] == "finish" and outcome in ("DONE", "BURY"))


def test_a_result_after_a_hard_cancel_is_refused_and_the_job_stays_cancelled(stage: Stage):
    """T26: from that instant the worker is dead."""
    a = stage.worker("a")
    stage.job(resource="thing", dedup="key")
    follower = stage.job(resource="thing")
    [run] = a.claim(2)
    assert stage.cancel(run.job_id, hard=True, reason="wrong order") == ("CANCELLED", "processing")
    assert [a.renew(run), a.checkpoint(run), a.done(run, b'"late"')] == ["STALE"] * 3
    record = stage.record(run.job_id)
    assert (record.state, record.reason, record.result) == ("cancelled", "wrong order", None)
    assert a.take().job_id == follower


def test_a_running_job_is_asked_to_stop_and_learns_it_with_its_next_heartbeat(stage: Stage):
    """report: rq/rq#2160"""
    a = stage.worker("a")
    stage.job()
    run = a.take()
    assert stage.cancel(run.job_id, reason="not needed") == ("ASKED", "processing")
    assert stage.renew(run.key) == [("CANCEL", "not needed")]
    assert a.end(run, "CANCEL", "not needed") == "OK"
    assert a.done(run) == "STALE"
    assert stage.record(run.job_id).reason == "not needed"


@pytest.mark.parametrize("comes_back_by", ["retry", "release", "crash"])
def test_a_job_that_was_asked_to_stop_does_not_come_back(stage: Stage, comes_back_by: str):
    a = stage.worker("a")
    stage.job()
    run = a.take()
    stage.cancel(run.job_id, reason="stop")
    {"retry": lambda: a.retry(run), "release": lambda: a.release(run), "crash": stage.outlive_lease}[comes_back_by]()
    assert (stage.state(run.job_id), stage.record(run.job_id).reason) == ("cancelled", "stop")
    assert a.claim() == []


@pytest.mark.slow
def test_a_cancel_that_races_with_the_pick_up_is_obeyed_or_asked_for_never_forgotten(stage: Stage):
    """Either no run at all, or a run that is asked to stop. report: rq/rq#2160, tobymao/saq#126"""
    rounds, barrier, claimed = 300, threading.Barrier(2), []
    ids = [stage.job(queue=f"q{n}") for n in range(rounds)]

    def work() -> None:
        driver = SyncDriver(stage.connections())
        for n in range(rounds):
            barrier.wait()
            claimed.append(driver.run(stage.store.claim(stage.request(1, queues=(f"q{n}",), nonce=f"n{n}"))).jobs)
        driver.close()

    thread = threading.Thread(target=work)
    thread.start()
    answers = []
    for job_id in ids:
        barrier.wait()
        answers.append(stage.cancel(job_id).word)
    thread.join()
    for job_id, answer, runs in zip(ids, answers, claimed, strict=True):
        if runs:
            assert (answer, stage.renew(runs[0].key)[0].word) == ("ASKED", "CANCEL")
        else:
            assert (answer, stage.state(job_id)) == ("CANCELLED", "cancelled")
    assert len(answers) == rounds
