"""The doctor compares settings that were made in different places: worker, kind, retry policy, resource."""

from __future__ import annotations

import pytest

from fencepost import Fencepost, RetryPolicy
from fencepost.doctor import WorkerSettings
from fencepost.doctor.kinds import kinds


@pytest.fixture
def judged():
    """Judge one kind: `judged(is_async=True, settings=WorkerSettings(...), **job_options)` -> {(check, level)}."""

    def judge(*, is_async=True, settings=None, **options):
        app = Fencepost("redis://nobody:1/0")

        async def asynchronous(order_id: int) -> None: ...
        def threaded(order_id: int) -> None: ...

        app.job(kind="k", **options)(asynchronous if is_async else threaded)
        found = kinds(app.handlers, settings or WorkerSettings())
        assert all(one.hint for one in found if one.level != "ok"), "each finding says what to do"
        return {(one.check, one.level) for one in found if one.level != "ok"}

    return judge


@pytest.mark.parametrize("is_async", [True, False])
def test_the_defaults_agree_with_each_other(judged, is_async):
    assert judged(is_async=is_async) == set()
    assert judged(is_async=is_async, resource="order:{order_id}", ordered=True, dedup=True) == set()


@pytest.mark.parametrize(
    ("settings", "check"),
    [
        ({"lease_s": 2.0}, "lease"),
        ({"grace_s": 0.0}, "grace"),
        ({"grace_s": 3_600.0}, "grace"),
    ],
)
def test_worker_settings_that_hurt_are_named(judged, settings, check):
    assert judged(settings=WorkerSettings(**settings)) == {(check, "warning")}


def test_a_thread_for_each_of_thousands_of_slots_is_named(judged):
    many = WorkerSettings(concurrency=5_000)
    assert judged(is_async=False, settings=many) == {("threads", "warning")}
    assert judged(is_async=True, settings=many) == set()


@pytest.mark.parametrize(
    ("options", "check"),
    [
        ({"timeout": "2h", "is_async": False}, "timeout of k"),
        ({"retry": RetryPolicy(attempts=1, transient=(OSError,))}, "retry of k"),
        ({"retry": RetryPolicy(attempts=1, when=lambda error: True)}, "retry of k"),
        ({"retry": RetryPolicy(attempts=1_000, cap=3_600.0)}, "retry of k"),
        ({"timeout": "10h"}, "retry of k"),
        ({"retention": "2s"}, "retention of k"),
        ({"failed_retention": "10m"}, "failed_retention of k"),
        ({"resource": "r:{order_id}", "on_busy": "later:200ms"}, "on_busy of k"),
        ({"resource": "r:{order_id}", "on_busy": "later:2d"}, "on_busy of k"),
        (
            {"resource": "r:{order_id}", "ordered": True, "retry": RetryPolicy(attempts=12, cap=3_600.0)},
            "ordered of k",
        ),
        ({"remote": True, "settings": WorkerSettings(queues=("default",))}, "queue of k"),
    ],
)
def test_relations_that_do_not_hold_are_named_with_the_kind(judged, options, check):
    assert judged(**options) == {(check, "warning")}


def test_a_remote_kind_whose_queue_no_worker_here_serves_is_well(judged):
    assert judged(remote=True, queue="elsewhere") == set()


def test_a_timeout_beyond_the_lease_is_well_and_the_reason_is_given():
    app = Fencepost("redis://nobody:1/0")

    @app.job(timeout="10m")
    async def report() -> None: ...

    [told] = [one for one in kinds(app.handlers, WorkerSettings()) if one.check == "timeout"]
    assert told.level == "ok"
    assert told.text == "report may run for longer than the lease of 30 s: the heartbeat renews it"


@pytest.mark.parametrize("other", ["stock:{sku}", "stock:{item_sku}"])
def test_kinds_that_disagree_on_the_limit_of_a_shared_resource_are_refused(other):
    app = Fencepost("redis://nobody:1/0")

    @app.job(resource="stock:{sku}")
    async def book(sku: str) -> None: ...

    @app.job(resource=other, limit=3)
    async def count(sku: str = "", item_sku: str = "") -> None: ...

    [told] = [one for one in kinds(app.handlers, WorkerSettings()) if one.level == "error"]
    assert told.check == "limit"
    assert "book 1, count 3" in told.text
