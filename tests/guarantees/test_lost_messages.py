"""A message is lost, the call is made again: one effect, one run, one answer."""

from __future__ import annotations

import random

import pytest

from fencepost import ArgumentsRefused, Fencepost, Job, RedisUnavailable
from tests.guarantees.stage import LossyDriver, Stage


@pytest.mark.parametrize("faults", [("reply",), ("request",), ("reply", "request", "reply")])
def test_an_enqueue_that_is_sent_again_stores_one_job(stage: Stage, faults: tuple[str, ...]):
    """T21"""
    with stage.faults(*faults):
        job_id = stage.job()
    assert [run.job_id for run in stage.worker("a").claim(10)] == [job_id]
    assert stage.stats()["enqueued:mail"] == 1


def test_an_enqueue_that_was_given_up_and_repeated_later_stores_one_job(stage: Stage):
    """T7, T19: the caller is told that the outcome is unknown; the id makes the repetition harmless."""
    with stage.faults("reply", give_up_s=0.0), pytest.raises(RedisUnavailable) as told:
        stage.job(id="order-1")
    assert told.value.executed is None
    with stage.faults("LOADING", give_up_s=0.0), pytest.raises(RedisUnavailable) as told:
        stage.job(id="order-2")
    assert told.value.executed is False
    assert stage.state("order-2") is None
    assert [stage.job(id="order-1"), stage.job(id="order-2")] == ["order-1", "order-2"]
    assert len(stage.worker("a").claim(10)) == 2


def test_with_a_third_of_all_messages_lost_every_job_starts_once(stage: Stage):
    """T22, T23: attempts = starts of handlers, whatever is repeated."""
    lots, a = random.Random(7), stage.worker("a")
    starts: dict[str, int] = {}
    programme = [lots.choice(["", "", "", "reply", "request", "reply"]) for _ in range(1_000)]
    with stage.faults() as driver:
        driver.programme = programme
        ids = [stage.job() for _ in range(60)]
        runs = a.claim(4)
        while runs:
            for run in runs:
                starts[run.job_id] = starts.get(run.job_id, 0) + 1
            served = a.serve(4, tuple(stage.outcome(run.key, "DONE") for run in runs))
            assert {word for word, _ in served.replies} <= {"OK", "REPLAY"}
            runs = served.jobs
        assert driver.sent > 100
        driver.programme = []
    assert starts == dict.fromkeys(ids, 1)
    assert {stage.record(job_id).attempts for job_id in ids} == {1}
    assert stage.stats()["done:mail"] == 60


def test_a_claim_whose_reply_nobody_waits_for_any_more_comes_back_by_its_lease(stage: Stage):
    """T7, T22: carried out after the client gave up. It counts as a crash, or a payload that kills would loop."""
    a, b = stage.worker("a"), stage.worker("b")
    job_id = stage.job()
    with stage.faults("reply", give_up_s=0.0), pytest.raises(RedisUnavailable):
        a.claim()
    assert stage.state(job_id) == "processing"
    assert b.claim() == []
    stage.outlive_lease()
    run = b.take()
    assert (run.attempt, run.crashes) == (1, 1)
    assert b.done(run) == "OK"


def test_a_finish_whose_reply_was_lost_is_told_so_and_hands_out_the_same_next_job(stage: Stage):
    """T23"""
    a = stage.worker("a")
    for _ in range(3):
        stage.job()
    run = a.take()
    outcome = (stage.outcome(run.key, "DONE"),)
    first = a.serve(1, outcome, nonce="n-lost")
    before = stage.matter()
    again = a.serve(1, outcome, nonce="n-lost")
    assert ([word for word, _ in first.replies], [word for word, _ in again.replies]) == (["OK"], ["REPLAY"])
    assert again.jobs == first.jobs
    assert stage.matter() == before
    assert len(stage.look().leases) == 1
    assert stage.stats()["done:mail"] == 1


def test_an_outcome_that_only_the_repetition_of_a_finish_may_write_is_written_in_full(stage: Stage):
    """Refused as lapsed at first, sent again in the grace after an outage; its claims are only replayed by then."""
    a = stage.worker("a")
    for _ in range(151):
        stage.job()
    assert len(stage.worker("dead").claim(150)) == 150
    run = a.take()
    stage.job()
    stage.clock.advance(2.5)
    outcome = (stage.outcome(run.key, "DONE"),)
    first = a.serve(1, outcome, nonce="n-lost")
    assert ([word for word, _ in first.replies], len(first.jobs)) == (["EXPIRED"], 1)
    stage.jump(10.0)
    again = a.serve(1, outcome, nonce="n-lost")
    assert ([word for word, _ in again.replies], again.jobs) == (["OK"], first.jobs)
    assert stage.stats()["done:mail"] == stage.events("done", run.job_id) == 1
    assert stage.look().recent == [run.job_id]


def test_a_batch_answers_item_by_item_and_its_repetition_adds_nothing(stage: Stage):
    """T27: 100 items, one a duplicate, one too big, one of a wrong type; the reply is lost half way.
    report: janbjorge/pgqueuer#678, taskforcesh/bullmq#3451"""
    app = Fencepost(stage.url, namespace=stage.namespace)
    app.link.synchronous = LossyDriver(app.link.connections, "reply", "request")

    @app.job(dedup="{number}")
    def count(number: int, text: str = "") -> None: ...

    items: list[dict[str, object]] = [{"number": number} for number in range(100)]
    items[17], items[40], items[80] = {"number": 3}, {"number": 40, "text": "x" * 70_000}, {"number": "eighty"}
    for repetition in (False, True):
        answers = count.enqueue_many_sync(items)
        assert [at for at, one in enumerate(answers) if isinstance(one, ArgumentsRefused)] == [40, 80]
        jobs = {at: one for at, one in enumerate(answers) if isinstance(one, Job)}
        # Within the first call the batch itself was sent twice; all but the real duplicate are known by their ids.
        assert [at for at, job in jobs.items() if job.duplicate] == (
            [at for at in range(100) if at not in (40, 80)] if repetition else [17]
        )
        assert jobs[17].id == jobs[3].id
        assert len({job.id for job in jobs.values()}) == 97
    assert stage.redis.zcard(stage.keys.ready("default")) == 97
    app.close_sync()


def test_the_script_cache_may_be_lost_between_any_two_calls(stage: Stage):
    """T15"""
    a = stage.worker("a")

    def flushed() -> None:
        stage.redis.script_flush()

    flushed()
    stage.job(resource="thing")
    flushed()
    waiting = stage.job(resource="thing")
    flushed()
    [run] = a.claim(5)
    flushed()
    assert a.renew(run) == "OK"
    flushed()
    assert a.checkpoint(run) == "OK"
    flushed()
    assert a.retry(run) == "OK"
    flushed()
    assert stage.cancel(waiting).word == "CANCELLED"
    flushed()
    assert stage.requeue(waiting)[0].word == "REQUEUED"
    flushed()
    word, token, _ = stage.acquire("other", "me")
    flushed()
    assert (word, stage.release("me", token).word) == ("HELD", "OK")
    flushed()
    assert len(a.claim(5)) == 1
