"""A dedup key lives exactly as long as the job that has it is not settled: not longer, not shorter."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from fencepost import Fencepost
from fencepost.job import JobSpec
from tests.guarantees.stage import Stage

KEY = "report:7"


def again(stage: Stage, **options: Any) -> tuple[str, str]:
    """Enqueue another job with the key: the answer, and the job that stands for it."""
    [(word, job_id, _)] = stage.enqueue(JobSpec(id=stage.name("again-"), kind="mail", dedup=KEY, **options))
    return word, job_id


def running(stage: Stage, **options: Any) -> Any:
    stage.job(dedup=KEY, **options)
    return stage.worker("a").take()


def crashed(stage: Stage, times: int) -> None:
    stage.job(dedup=KEY, max_crashes=times - 1)
    for _ in range(times):
        stage.worker("a").take()
        stage.outlive_lease()


def busy(stage: Stage, on_busy: str) -> None:
    stage.acquire("thing", "somebody")
    stage.job(dedup=KEY, resource="thing", on_busy=on_busy)
    assert stage.worker("a").claim() == []


def parked(stage: Stage) -> None:
    busy(stage, "wait")
    [job_id] = stage.line("thing")
    stage.cancel(job_id)


def asked(stage: Stage) -> None:
    run = running(stage)
    stage.cancel(run.job_id)
    assert stage.worker("a").retry(run) == "OK"


ENDS: dict[str, Callable[[Stage], Any]] = {
    "done": lambda s: s.worker("a").done(running(s)),
    "failed for good": lambda s: s.worker("a").bury(running(s)),
    "attempts used up": lambda s: s.worker("a").bury(running(s), "exhausted"),
    "payload unreadable": lambda s: s.worker("a").bury(running(s), "decode_error"),
    "unknown kind": lambda s: s.worker("a").bury(running(s), "unknown_kind"),
    "poison": lambda s: crashed(s, 2),
    "hard kill at its only attempt": lambda s: crashed(s, 1),
    "cancelled while queued": lambda s: s.cancel(s.job(dedup=KEY)),
    "cancelled while scheduled": lambda s: s.cancel(s.job(dedup=KEY, delay_ms=9_000)),
    "cancelled while waiting": parked,
    "cancelled by its handler": lambda s: s.worker("a").end(running(s), "CANCEL"),
    "cancelled hard while running": lambda s: s.cancel(running(s).job_id, hard=True),
    "asked to stop, then retried": asked,
    "skipped, resource busy": lambda s: busy(s, "skip"),
    "failed, resource busy": lambda s: busy(s, "fail"),
}


@pytest.mark.parametrize("end", list(ENDS))
def test_every_end_of_a_job_frees_its_key_in_the_same_step(stage: Stage, end: str):
    """T31. report: laravel/framework#49890, steinitzu/celery-singleton#29"""
    ENDS[end](stage)
    assert stage.look().dedup == {}
    assert again(stage)[0] == "QUEUED"


@pytest.mark.parametrize("back", ["retry", "retry later", "release", "crash", "put off", "requeued"])
def test_a_job_that_comes_back_keeps_its_key_and_is_not_its_own_duplicate(stage: Stage, back: str):
    """S5b. report: zoolutions/sidekiq-unique-jobs#861, #812"""
    a = stage.worker("a")
    if back == "put off":
        stage.acquire("thing", "somebody")
        job_id = stage.job(dedup=KEY, resource="thing", on_busy="later:1000")
        assert a.claim() == []
    else:
        run = running(stage)
        job_id = run.job_id
        {
            "retry": lambda: a.retry(run),
            "retry later": lambda: a.retry(run, 5.0),
            "release": lambda: a.release(run),
            "crash": stage.outlive_lease,
            "requeued": lambda: (a.bury(run), stage.requeue(job_id)),
        }[back]()
    assert again(stage) == ("DUPLICATE", job_id)
    stage.release("somebody", stage.look().lease.get("somebody", {}).get("token", "0"))
    stage.pass_time(6.0)
    assert a.done(a.take()) == "OK"
    assert stage.stats()["done:mail"] == 1
    assert again(stage)[0] == "QUEUED"


def test_a_paused_queue_does_not_outlive_the_key(stage: Stage):
    """T32: the key has no TTL while its job lives; a week in the queue changes nothing."""
    job_id = stage.job(dedup=KEY)
    stage.jump(7 * 86_400.0)
    assert again(stage) == ("DUPLICATE", job_id)
    stage.jump(400 * 86_400.0)
    assert again(stage, delay_ms=1_000) == ("DUPLICATE", job_id)
    assert len(stage.worker("a").claim(10)) == 1


@pytest.mark.parametrize("owner", ["gone", "done", "failed", "cancelled", "without the key"])
def test_a_key_that_leads_to_no_live_owner_heals_at_the_next_hit(stage: Stage, owner: str):
    """T31: rewound or half restored; the owner is looked at, not only the key."""
    a = stage.worker("a")
    if owner == "without the key":
        job_id = stage.job()
    else:
        run = running(stage)
        job_id = run.job_id
        a.end(run, {"failed": "BURY", "cancelled": "CANCEL"}.get(owner, "DONE"))
    if owner == "gone":
        stage.purge(job_id)
    stage.redis.set(stage.keys.dedup(KEY), job_id)
    word, newest = again(stage)
    assert (word, stage.look().dedup) == ("QUEUED", {KEY: newest})


def test_purging_an_old_job_leaves_the_key_with_the_newer_one(stage: Stage):
    """report: taskforcesh/bullmq#3232"""
    a = stage.worker("a")
    first = running(stage)
    a.bury(first)
    second = stage.job(dedup=KEY, delay_ms=3_600_000)
    assert stage.purge(first.job_id) == [("PURGED", "failed")]
    assert again(stage) == ("DUPLICATE", second)


def test_a_stale_end_does_not_free_the_key_of_a_later_job(stage: Stage):
    """Freeing is compare-and-delete on the owner. report: laravel/framework#59567"""
    a, b = stage.worker("a"), stage.worker("b")
    old = running(stage)
    stage.outlive_lease()
    b.done(b.take())
    second = stage.job(dedup=KEY)
    assert [a.bury(old), a.done(old)] == ["STALE", "STALE"]
    assert stage.cancel(old.job_id).word == "ILLEGAL"
    assert again(stage) == ("DUPLICATE", second)


def test_a_job_that_was_refused_by_a_resource_before_it_began_keeps_its_key_until_it_is_done(stage: Stage):
    """report: laravel/framework#59567 (second sequence)"""
    a = stage.worker("a")
    _, token, _ = stage.acquire("thing", "somebody")
    job_id = stage.job(dedup=KEY, resource="thing")
    assert a.claim() == []
    assert again(stage) == ("DUPLICATE", job_id)
    stage.release("somebody", token)
    run = a.take()
    assert again(stage) == ("DUPLICATE", job_id)
    assert a.done(run) == "OK"
    assert again(stage)[0] == "QUEUED"


def test_a_requeued_job_does_not_take_the_key_from_the_one_that_came_after_it(stage: Stage):
    first = running(stage)
    stage.worker("a").bury(first)
    second = stage.job(dedup=KEY)
    assert stage.requeue(first.job_id) == [("DUPLICATE", second)]
    assert stage.state(first.job_id) == "failed"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": "Zürich", "b": 1}, {"b": 1, "a": "Zürich"}, True),
        ({"a": "caf\u00e9", "b": 1}, {"a": "cafe\u0301", "b": 1}, True),
        ({"a": ["/tmp/ä", "/tmp/b"], "b": 1}, {"a": ["/tmp/b", "/tmp/ä"], "b": 1}, False),
        ({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 2, "x": 1}, "b": 1}, True),
        ({"a": 1, "b": 1}, {"a": "1", "b": 1}, False),
        ({"a": [1, 2], "b": 1}, {"a": (1, 2), "b": 1}, True),
    ],
    ids=["non-ASCII, other order", "NFC and NFD", "list of paths", "dict in other order", "1 and '1'", "tuple"],
)
def test_a_key_made_of_arguments_is_computed_once_and_freed_as_it_was_taken(stage: Stage, one, other, same: bool):
    """report: cameronmaske/celery-once#11"""
    app = Fencepost(stage.url, namespace=stage.namespace)

    @app.job(dedup=True)
    def work(a: Any, b: int) -> None: ...

    first = work.enqueue_sync(**one)
    assert work.enqueue_sync(**other).duplicate is same
    a = stage.worker("a")
    for run in a.claim(5):
        assert a.done(run) == "OK"
    assert stage.look().dedup == {}
    assert not work.enqueue_sync(**one).duplicate
    assert first.id
    app.close_sync()


def test_a_decimal_in_the_key_is_the_same_on_both_sides(stage: Stage):
    """report: cameronmaske/celery-once#11"""
    app = Fencepost(stage.url, namespace=stage.namespace)

    @app.job(dedup="price:{price}")
    def work(price: Decimal) -> None: ...

    first = work.enqueue_sync(price=Decimal("10.50"))
    assert work.enqueue_sync(price=Decimal("10.50")).id == first.id
    a = stage.worker("a")
    assert a.done(a.take()) == "OK"
    assert not work.enqueue_sync(price=Decimal("10.50")).duplicate
    app.close_sync()
