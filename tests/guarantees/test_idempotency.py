"""An idempotency key is about a request: the same one gets the same job, another one is a conflict."""

from __future__ import annotations

import pytest

from fencepost import Fencepost, IdempotencyConflict
from fencepost.job import JobSpec
from tests.guarantees.stage import Stage

HOUR_MS = 3_600_000


def ask(stage: Stage, print_: str = "one", **options) -> tuple[str, str, str]:
    spec = JobSpec(id=stage.name("asked-"), kind="mail", idem="k", fingerprint=print_, **options)
    return stage.enqueue(spec)[0]


@pytest.mark.parametrize("state", ["scheduled", "queued", "processing", "done", "failed", "cancelled"])
def test_the_same_request_gets_the_same_job_and_its_present_state(stage: Stage, state: str):
    """T33: written in the script that accepts the job, so there is no "in progress" to be stuck in."""
    a = stage.worker("a")
    _, job_id, _ = ask(stage, delay_ms=60_000 if state == "scheduled" else 0)
    if state in ("processing", "done", "failed"):
        run = a.take()
        if state != "processing":
            assert a.end(run, "DONE" if state == "done" else "BURY") == "OK"
    elif state == "cancelled":
        stage.cancel(job_id)
    before = stage.matter()
    assert ask(stage) == ("REPLAYED", job_id, state)
    assert ask(stage, "another")[:2] == ("CONFLICT", job_id)
    assert stage.matter() == before


def test_a_producer_that_dies_between_any_two_steps_leaves_no_key_without_a_job(stage: Stage):
    """T33: the request never came, or it was carried out: the next try works or is replayed."""
    with stage.faults("request"):
        word, first, _ = ask(stage)
    assert word == "QUEUED"
    with stage.faults("reply"):
        word, again, _ = ask(stage)
    assert (word, again) == ("REPLAYED", first)
    assert len(stage.worker("a").claim(10)) == 1


def test_a_key_lives_for_its_own_time_whatever_becomes_of_the_job(stage: Stage):
    """T34"""
    _, first, _ = ask(stage, idem_ttl_ms=HOUR_MS, retention_ms=60_000)
    a = stage.worker("a")
    a.done(a.take())
    stage.jump(3_500)
    assert stage.record(first) is None
    assert ask(stage) == ("REPLAYED", first, "")
    stage.jump(200)
    assert ask(stage)[0] == "QUEUED"


def test_a_request_that_met_a_duplicate_is_bound_to_the_job_that_stands_for_it(stage: Stage):
    owner = stage.job(dedup="d")
    assert ask(stage, dedup="d")[:2] == ("DUPLICATE", owner)
    a = stage.worker("a")
    a.done(a.take())
    assert ask(stage, dedup="d") == ("REPLAYED", owner, "done")


def test_a_full_queue_does_not_use_the_key_up(stage: Stage):
    stage.job()
    spec = JobSpec(id="x", kind="mail", idem="k", fingerprint="one")
    assert stage.enqueue(spec, queue_limit=1)[0][0] == "FULL"
    assert stage.enqueue(spec, queue_limit=2)[0][0] == "QUEUED"


def test_a_full_queue_takes_scheduled_jobs_and_does_not_count_them(stage: Stage):
    """The same batch sent again answers the same."""
    specs = [JobSpec(id=f"j{n}", kind="mail", delay_ms=9_000 if n < 3 else 0) for n in range(5)]
    words = [word for word, *_ in stage.enqueue(*specs, queue_limit=1)]
    assert words == ["SCHEDULED", "SCHEDULED", "SCHEDULED", "QUEUED", "FULL"]
    before = stage.matter()
    assert [word for word, *_ in stage.enqueue(*specs, queue_limit=1)] == words
    assert stage.matter() == before


def test_of_a_delay_and_a_moment_the_later_counts(stage: Stage):
    now = stage.clock.now_ms()
    early = stage.job(delay_ms=1_000, run_at_ms=now + 60_000)
    late = stage.job(delay_ms=90_000, run_at_ms=now + 60_000)
    past = stage.job(run_at_ms=now - 60_000)
    assert stage.record(early).due_at == now + 60_000
    assert stage.record(late).due_at >= now + 90_000
    assert stage.state(past) == "queued"


def test_the_request_counts_and_not_the_order_of_its_fields_nor_another_client(stage: Stage):
    """report: idempot-dev/idempot-js#191"""
    app = Fencepost(stage.url, namespace=stage.namespace)

    @app.job()
    def pay(order: int, how: dict[str, int]) -> None: ...

    @app.job()
    def refund(order: int, how: dict[str, int]) -> None: ...

    one = pay.options(idempotency_key="k", client="me")
    first = one.enqueue_sync(order=1, how={"a": 1, "b": 2})
    again = one.enqueue_sync(how={"b": 2, "a": 1}, order=1)
    assert (again.id, again.replayed) == (first.id, True)
    assert not pay.options(idempotency_key="k", client="you").enqueue_sync(order=2, how={}).replayed
    a = stage.worker("a")
    for state in ("queued", "processing", "done"):
        assert stage.state(first.id) == state
        for other in (lambda: one.enqueue_sync(order=2, how={}), lambda: _as(refund, order=1, how={"a": 1, "b": 2})):
            with pytest.raises(IdempotencyConflict, match=first.id):
                other()
        if state == "queued":
            runs = {run.job_id: run for run in a.claim(5)}
        elif state == "processing":
            a.done(runs[first.id])
    app.close_sync()


def _as(handler, **arguments) -> None:
    handler.options(idempotency_key="k", client="me").enqueue_sync(**arguments)
