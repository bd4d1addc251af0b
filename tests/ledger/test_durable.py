"""Durable jobs: in SQL before the caller has an answer, whatever Redis does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import redis as redis_py
from sqlalchemy import func, select

from fencepost import (
    ArgumentsRefused,
    ConfigurationError,
    Fencepost,
    IdempotencyConflict,
    Job,
    JobNotFound,
    LedgerUnavailable,
    QueueFull,
    RedisUnavailable,
    ResultExpired,
)
from fencepost.embedded import EmbeddedServer
from fencepost.ledger import Archiver, Ledger
from fencepost.ledger.reconcile import Reconciler
from fencepost.sql.tables import jobs
from tests.support import eventually
from tests.support.partition import Partition
from tests.support.proxy import DROP_REPLY, DROP_REQUEST, HOLD, RESET, FaultProxy

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def apps(url: str, namespace: str, ledger_url: str) -> Iterator[Any]:
    """Make applications on this test's ledger: `apps(url)` with a kind `invoice` that is durable."""
    made: list[Fencepost] = []

    def make(where: str = url, ledger: str = ledger_url, **settings: Any) -> Fencepost:
        chosen: dict[str, Any] = {"ledger": ledger, "give_up": 1.0} | settings
        app = Fencepost(where, namespace=namespace, **chosen)

        @app.job(kind="invoice", durability="ledger")
        def _(order_id: Any) -> None: ...

        made.append(app)
        return app

    yield make
    for app in made:
        app.close_sync()


@pytest.fixture
def app(apps: Any) -> Fencepost:
    one: Fencepost = apps()
    return one


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[FaultProxy]:
    with FaultProxy(str(server.socket)) as one:
        yield one


def rows(ledger: Ledger) -> dict[str, str]:
    """The state of each job in the ledger."""
    with ledger.reading("test") as connection:
        found = connection.execute(select(jobs.c.job_id, jobs.c.state).where(jobs.c.namespace == ledger.namespace))
        return {row.job_id: row.state for row in found}


def reconcile(ledger: Ledger, partition: Partition) -> dict[str, int]:
    return Reconciler(ledger, partition.store, partition.driver, quiet_s=0).run().counts


class TestTheOrder:
    async def test_the_ledger_has_the_job_before_redis_answers(self, apps: Any, ledger: Ledger, proxy: FaultProxy):
        app = apps(proxy.url)
        await app.handler("invoice").enqueue(order_id=0)  # from here on the server knows the script
        proxy.plan.append(HOLD)
        task = asyncio.create_task(app.handler("invoice").options(job_id="one").enqueue(order_id=1))
        await eventually(lambda: rows(ledger).get("one") == "accepted")
        assert not task.done()
        proxy.release()
        job = await task
        assert (job.id, job.state) == ("one", "queued")
        await app.close()

    async def test_what_is_enqueued_together_is_written_together(self, app: Fencepost, ledger: Ledger):
        accepted = await asyncio.gather(*(app.handler("invoice").enqueue(order_id=number) for number in range(50)))
        assert set(rows(ledger)) == {job.id for job in accepted}
        with ledger.reading("test") as connection:  # one instant a transaction
            instants = connection.execute(select(func.count(jobs.c.created_at_ms.distinct()))).scalar_one()
        assert instants <= 3
        await app.close()

    def test_without_a_ledger_durability_is_refused_when_it_is_declared(self, url: str):
        with pytest.raises(ConfigurationError, match="the application has no ledger"):
            Fencepost(url).job(kind="invoice", durability="ledger")(lambda: None)
        handler = Fencepost(url).job(kind="invoice")(lambda: None)
        with pytest.raises(ConfigurationError, match=r"the application has no ledger.*Write Fencepost"):
            handler.options(durability="ledger").enqueue_sync()
        with pytest.raises(ConfigurationError, match="'disk' is unknown"):
            handler.options(durability="disk").enqueue_sync()  # type: ignore[arg-type]


class TestRedisAway:
    def test_the_job_is_accepted_all_the_same_and_brought_later(
        self, apps: Any, ledger: Ledger, partition: Partition, caplog: pytest.LogCaptureFixture
    ):
        app, began = apps(NOWHERE, give_up=30.0), time.monotonic()
        job = app.handler("invoice").enqueue_sync(order_id=1)
        later = app.handler("invoice").options(delay=60).enqueue_sync(order_id=2)
        assert time.monotonic() - began < 10  # it need not wait for Redis as long as other jobs do
        assert (job.state, later.state) == ("queued", "scheduled")
        assert rows(ledger) == {job.id: "accepted", later.id: "accepted"}
        assert [record.fields["jobs"] for record in caplog.records if "enqueue_deferred" in record.message] == [1, 1]  # type: ignore[attr-defined]
        assert reconcile(ledger, partition) == {"lost": 2}
        assert (partition.state(job.id), partition.state(later.id)) == ("queued", "scheduled")

    def test_a_call_whose_reply_was_lost_for_good_is_one_job(
        self, apps: Any, ledger: Ledger, partition: Partition, proxy: FaultProxy
    ):
        app = apps(proxy.url)
        app.handler("invoice").enqueue_sync(order_id=0)
        proxy.plan += [DROP_REPLY] * 50
        job = app.handler("invoice").enqueue_sync(order_id=1)
        assert job.state == "queued"
        assert reconcile(ledger, partition) == {}
        assert partition.stats()["enqueued:invoice"] == 2

    def test_a_job_that_is_not_durable_says_that_redis_is_away(self, apps: Any, ledger: Ledger):
        with pytest.raises(RedisUnavailable):
            apps(NOWHERE, give_up=0.1).handler("invoice").options(durability="redis").enqueue_sync(order_id=1)
        assert rows(ledger) == {}


class TestSqlAway:
    @pytest.mark.parametrize(
        "where", ["sqlite:////nowhere/at/all.sqlite", "postgresql+psycopg://postgres@127.0.0.1:1/none"]
    )
    async def test_a_durable_job_is_refused_and_nothing_is_enqueued(
        self, apps: Any, redis: redis_py.Redis, partition: Partition, where: str
    ):
        app = apps(ledger=where)
        with pytest.raises(LedgerUnavailable, match="Nothing was changed"):
            await app.handler("invoice").enqueue(order_id=1)
        with pytest.raises(LedgerUnavailable, match="Nothing was changed"):
            app.handler("invoice").enqueue_sync(order_id=1)
        answers = await app.enqueue_many(
            [
                app.handler("invoice").prepare(order_id=1),
                app.handler("invoice").options(durability="redis").prepare(order_id=2),
            ]
        )
        assert [type(one).__name__ for one in answers] == ["LedgerUnavailable", "Job"]
        assert redis.zcard(partition.keys.ready("default")) == 1
        await app.close()


class TestRefused:
    def test_what_redis_did_not_take_is_not_in_the_ledger_either(self, apps: Any, ledger: Ledger, partition: Partition):
        app = apps(queue_limit=2)
        request = app.handler("invoice").options(idempotency_key="request-1")
        first = request.enqueue_sync(order_id=1)
        assert request.enqueue_sync(order_id=1).replayed
        with pytest.raises(IdempotencyConflict):
            request.enqueue_sync(order_id=2)
        work = app.handler("invoice").options(dedup="order-1")
        second = work.enqueue_sync(order_id=1)
        assert work.enqueue_sync(order_id=1).duplicate
        with pytest.raises(QueueFull):
            app.handler("invoice").enqueue_sync(order_id=3)
        assert set(rows(ledger)) == {first.id, second.id}

    def test_one_that_ended_is_not_run_again_under_its_id(
        self, app: Fencepost, ledger: Ledger, partition: Partition, archiver: Archiver, redis: redis_py.Redis
    ):
        one = app.handler("invoice").options(job_id="order-1")
        one.enqueue_sync(order_id=1)
        [claimed] = partition.claim()
        partition.finish(claimed.key, "DONE")
        archiver.copy_all()
        redis.flushall()
        assert one.enqueue_sync(order_id=1).state == "done"
        assert partition.claim() == []
        assert rows(ledger) == {"order-1": "done"}


class TestBatches:
    @pytest.mark.parametrize("durability", ["ledger", "redis"])
    @pytest.mark.parametrize("mode", ["async", "sync"])
    async def test_each_item_has_its_own_outcome_in_order_and_a_repeat_adds_nothing(
        self, apps: Any, ledger: Ledger, partition: Partition, proxy: FaultProxy, durability: Any, mode: str
    ):
        """report: janbjorge/pgqueuer#678, taskforcesh/bullmq#3451"""
        app = apps(proxy.url)

        @app.job(kind="mail", dedup="{number}", durability=durability)
        def mail(number: int, text: str = "") -> None: ...

        items: list[dict[str, Any]] = [{"number": number} for number in range(100)]
        items[17] = {"number": 16}
        items[40] = {"number": 40, "text": "x" * 1_100_000}
        items[80] = {"number": "eighty"}
        proxy.plan += [DROP_REQUEST, DROP_REPLY, RESET]

        async def send() -> list[Any]:
            sent: list[Any] = mail.enqueue_many_sync(items) if mode == "sync" else await mail.enqueue_many(items)
            return sent

        answers = await send()
        assert [at for at, one in enumerate(answers) if isinstance(one, ArgumentsRefused)] == [40, 80]
        duplicates = {at: one.id for at, one in enumerate(answers) if at not in (40, 80) and one.duplicate}
        assert duplicates == {17: answers[16].id}
        stored = {one.id for at, one in enumerate(answers) if at not in (40, 80)}
        assert len(stored) == 97
        again = await send()
        assert [one.id for at, one in enumerate(again) if at not in (40, 80)] == [
            one.id for at, one in enumerate(answers) if at not in (40, 80)
        ]
        assert partition.stats()["enqueued:mail"] == 97
        assert set(rows(ledger)) == (stored if durability == "ledger" else set())
        await app.close()

    async def test_durable_and_other_jobs_of_one_call_keep_their_order(self, app: Fencepost, ledger: Ledger):
        handler = app.handler("invoice")
        prepared = [
            handler.options(job_id=f"j{number}", durability="ledger" if number % 3 else "redis").prepare(
                order_id=number
            )
            for number in range(1_100)
        ]
        accepted: list[Any] = await app.enqueue_many(prepared)
        assert [job.id for job in accepted] == [f"j{number}" for number in range(1_100)]
        assert set(rows(ledger)) == {f"j{number}" for number in range(1_100) if number % 3}
        await app.close()


class TestWhatIsKnown:
    def test_unknown_expired_lost_and_unreadable_are_four_answers(
        self, apps: Any, ledger: Ledger, partition: Partition, archiver: Archiver, redis: redis_py.Redis, url: str
    ):
        """report: celery/celery#4450"""
        app = apps()
        with pytest.raises(JobNotFound):
            app.get("unknown").status_sync()
        done, lost = (app.handler("invoice").options(job_id=name).enqueue_sync(order_id=1) for name in ("done", "lost"))
        partition.finish(partition.claim()[0].key, "DONE")
        archiver.copy_all()
        redis.flushall()
        with pytest.raises(ResultExpired, match="is done, and its result is gone"):
            done.result_sync(timeout=1)
        record = done.status_sync()
        assert (record.state, record.kind, record.other) == ("done", "invoice", {"source": "ledger"})
        assert record.finished_at is not None
        assert lost.status_sync().state == "queued"  # it was accepted, and comes back
        away = apps(NOWHERE, give_up=0.1)
        with pytest.raises(RedisUnavailable):
            away.get("done").status_sync()
        blind = apps(url, ledger="sqlite:////nowhere/at/all.sqlite")
        with pytest.raises(LedgerUnavailable):
            blind.get("done").status_sync()

    async def test_the_event_loop_gets_the_same_answers(
        self, app: Fencepost, partition: Partition, archiver: Archiver, redis: redis_py.Redis
    ):
        job = await app.handler("invoice").enqueue(order_id=1)
        partition.finish(partition.claim()[0].key, "DONE")
        archiver.copy_all()
        redis.flushall()
        with pytest.raises(ResultExpired):
            await job.result(timeout=1)
        with pytest.raises(JobNotFound):
            await app.get("unknown").status()
        await app.close()


HARD: dict[str, Any] = {
    "zero": -0.0, "NUL": "a\x00b", "text": "é ☃ 🧾", "big": 2**63, "money": Decimal("0.10"),
    "fold": datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=1)), fold=1), "utc": datetime.now(UTC),
    "raw": b"\x00\xff",
}  # fmt: skip


class TestValues:
    @pytest.mark.parametrize("name", HARD)
    def test_a_value_comes_back_equal_from_the_ledger_or_is_refused_at_enqueue(
        self, app: Fencepost, ledger: Ledger, partition: Partition, redis: redis_py.Redis, name: str
    ):
        """report: Borderless360/django-logic#118"""
        value = HARD[name]
        handler = app.job(kind=name, durability="ledger")(_typed(type(value)))
        [job] = handler.enqueue_many_sync([{"value": value}])
        if not isinstance(job, Job):
            assert isinstance(job, ArgumentsRefused)
            assert (job.path, rows(ledger)) == ("value", {})
            return
        redis.flushall()
        assert reconcile(ledger, partition) == {"lost": 1}
        [claimed] = partition.claim()
        assert claimed.job_id == job.id
        assert handler.codec.decode(claimed.payload) == {"value": value}

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
    def test_what_json_cannot_hold_is_refused_before_the_ledger_sees_it(
        self, app: Fencepost, ledger: Ledger, value: Any
    ):
        """report: Borderless360/django-logic#118"""
        handler = app.job(kind="odd", durability="ledger")(_typed(type(value)))
        with pytest.raises(ArgumentsRefused, match="value"):
            handler.enqueue_sync(value=value)
        assert rows(ledger) == {}


def _typed(kind: type) -> Any:
    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = kind
    return handler


def test_many_threads_share_a_ledger(app: Fencepost, ledger: Ledger):
    accepted: list[str] = []

    def work() -> None:
        accepted.extend(app.handler("invoice").enqueue_sync(order_id=number).id for number in range(10))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(rows(ledger)) == sorted(accepted)
