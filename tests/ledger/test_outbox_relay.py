"""What a killed producer left in the outbox comes into Redis once, by however many relays."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py
from sqlalchemy import Engine, create_engine, event, select, update

from fencepost import Fencepost
from fencepost.codec import spec_to_text
from fencepost.embedded import EmbeddedServer
from fencepost.outbox import publish
from fencepost.outbox.publish import Publisher
from fencepost.outbox.table import HELD
from fencepost.relay import Relay
from fencepost.sql.engines import now_ms
from fencepost.sql.tables import outbox
from fencepost.sql.upgrade import upgrade
from tests.support import wait_until
from tests.support.proxy import DROP_REPLY, HOLD, FaultProxy


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def shop(request: pytest.FixtureRequest, new_database: Callable[..., str]) -> str:
    """The URL of a shop's own database with the tables of Fencepost."""
    url = new_database(str(request.param))
    upgrade(url)
    return url


@pytest.fixture
def engine(shop: str) -> Iterator[Engine]:
    one = create_engine(shop)
    yield one
    one.dispose()


@pytest.fixture
def app(url: str, namespace: str, shop: str) -> Iterator[Fencepost]:
    application = new_app(url, namespace, shop)
    yield application
    application.close_sync()


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[FaultProxy]:
    with FaultProxy(str(server.socket)) as one:
        yield one


def new_app(url: str, namespace: str, shop: str, **settings: Any) -> Fencepost:
    application = Fencepost(url, namespace=namespace, outbox=shop, **settings)
    application.job(kind="invoice")(lambda order_id: None)
    return application


def relay_of(app: Fencepost) -> Relay:
    assert app.outbox is not None
    return Relay(app.outbox)


def open_rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(list(connection.execute(select(outbox.c.job_id).where(outbox.c.published_at_ms.is_(None)))))


def fill(app: Fencepost, engine: Engine, jobs: int) -> list[str]:
    """Write rows as a process does that dies at its commit: nobody is told."""
    specs = [app.handler("invoice").prepare(order_id=number).spec for number in range(jobs)]
    rows = [
        {"job_id": one.id, "namespace": app.namespace, "spec": spec_to_text(one), "created_at_ms": now_ms(), "tries": 0}
        for one in specs
    ]
    with engine.begin() as connection:
        connection.execute(outbox.insert(), rows)
    return [one.id for one in specs]


def enqueued(redis: redis_py.Redis, app: Fencepost) -> int:
    """How many jobs were stored anew, by the partition's own counter."""
    found: Any = redis.hget(app.link.store.keys.stats, "enqueued:invoice")
    return int(found or 0)


def shopping(url: str, namespace: str, shop: str) -> tuple[subprocess.Popen[str], str]:
    """Start the shop's process and wait until it has committed; its job id."""
    command = [sys.executable, "-m", "tests.ledger.shopping", url, namespace, shop, "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


class TestKilled:
    def test_between_commit_and_push_the_relay_publishes_the_job_once(
        self, app: Fencepost, engine: Engine, redis: redis_py.Redis, namespace: str, shop: str
    ):
        process, job_id = shopping("redis://127.0.0.1:1/0", namespace, shop)  # it has no way to Redis
        killed(process)
        assert open_rows(engine) == 1
        assert app.get(job_id).status_sync().state == "outbox"
        relay = relay_of(app)
        assert relay.step().sent == 1
        assert relay.step().seen == 0
        assert app.get(job_id).status_sync().state == "queued"
        assert enqueued(redis, app) == 1

    def test_between_push_and_mark_the_job_is_there_once(
        self, app: Fencepost, engine: Engine, redis: redis_py.Redis, namespace: str, shop: str, proxy: FaultProxy
    ):
        app.handler("invoice").enqueue_sync(order_id=0)  # the script is known to the server: the next call runs it
        proxy.plan.append(HOLD)
        process, job_id = shopping(proxy.url, namespace, shop)
        wait_until(lambda: redis.exists(app.link.store.keys.job(job_id)))
        killed(process)
        relay = relay_of(app)
        wait_until(lambda: relay.step().known)  # a server frees the rows of the dead as soon as it has noticed
        assert open_rows(engine) == 0
        assert enqueued(redis, app) == 2


def test_a_job_that_is_published_while_its_status_is_asked_for_is_found(app: Fencepost, engine: Engine):
    """Redis is asked, then the outbox: in between the job goes from here to there."""
    [job_id] = fill(app, engine, 1)
    relay, recall = relay_of(app), app.link.recall
    assert recall is not None

    def late(wanted: str) -> Any:
        assert relay.step().sent == 1
        return recall(wanted)

    app.link.recall = late
    assert app.get(job_id).status_sync().state == "queued"


class TestSeveralRelays:
    def test_two_at_once_publish_each_job_once(self, app: Fencepost, engine: Engine, redis: redis_py.Redis):
        ids = fill(app, engine, 700)
        start = threading.Barrier(2)
        sent: list[int] = []

        def work() -> None:
            relay = relay_of(app)
            start.wait()
            while (done := relay.step()).seen:
                sent.append(done.sent)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        wait_until(lambda: relay_of(app).step().seen == 0)
        assert open_rows(engine) == 0
        assert enqueued(redis, app) == 700
        assert redis.zcard(app.link.store.keys.ready("default")) == 700
        assert all(redis.exists(app.link.store.keys.job(job_id)) for job_id in ids[:10])

    def test_one_that_hangs_in_its_push_does_not_double_a_job_when_it_wakes_up(
        self, app: Fencepost, engine: Engine, redis: redis_py.Redis, namespace: str, shop: str, proxy: FaultProxy
    ):
        app.handler("invoice").enqueue_sync(order_id=0)
        fill(app, engine, 3)
        hanging = new_app(proxy.url, namespace, shop)
        proxy.plan.append(HOLD)
        thread = threading.Thread(target=relay_of(hanging).step)
        thread.start()
        wait_until(lambda: proxy.seen)
        relay_of(app).step()  # SQLite: sends them too; a server: passes over rows that are locked
        proxy.release()
        thread.join(10)
        wait_until(lambda: relay_of(app).step().seen == 0)
        assert open_rows(engine) == 0
        assert enqueued(redis, app) == 4
        hanging.close_sync()

    @pytest.mark.parametrize("shop", ["postgresql", "mariadb"], indirect=True)  # SQLite locks no rows
    @pytest.mark.parametrize(("nth", "stage"), [(1, "take"), (2, "mark")])
    def test_one_that_stands_still_with_its_rows_locked_holds_up_none_of_the_others(
        self, app: Fencepost, engine: Engine, redis: redis_py.Redis, url: str, namespace: str, shop: str,
        nth: int, stage: str,
    ):  # fmt: skip
        """Before its first UPDATE it has taken rows, before its second it has sent them and not marked them."""
        fill(app, engine, 6)
        slow = new_app(url, namespace, shop)
        assert slow.outbox is not None
        publisher, stands, go_on = slow.outbox.publisher(), threading.Event(), threading.Event()
        updates: list[str] = []

        def stand_still(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            if statement.startswith("UPDATE"):
                updates.append(statement)
                if len(updates) == nth:
                    stands.set()
                    go_on.wait(20)

        event.listen(publisher.table.engine, "before_cursor_execute", stand_still)
        first = threading.Thread(target=publisher.publish_some, args=(2,))
        others: list[tuple[int, int]] = []
        second = threading.Thread(target=lambda: others.append(relay_of(app).step()[:2]))
        first.start()
        try:
            assert stands.wait(5)
            second.start()
            wait_until(lambda: others, 4)  # a locked row is let go after 10 s at the earliest
            assert others == [(4, 4)]
            assert open_rows(engine) == 2
            assert enqueued(redis, app) == (6 if stage == "mark" else 4)
        finally:
            go_on.set()
            first.join(10)
            second.join(20)
        assert open_rows(engine) == 0
        assert enqueued(redis, app) == 6
        slow.close_sync()

    @pytest.mark.parametrize(("stood_s", "sent"), [(2.0, 2), (2.1, 0), (3_600.0, 0)])
    def test_one_that_stood_still_between_its_reading_and_its_push_pushes_nothing(
        self, app: Fencepost, engine: Engine, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch,
        stood_s: float, sent: int,
    ):  # fmt: skip
        """Meanwhile another may have sent the job, which ran, and whose retention is over: it would run twice."""
        fill(app, engine, 2)
        assert app.outbox is not None
        usual, ahead_s = app.outbox.publisher(), 0.0
        monkeypatch.setattr(publish, "boottime_s", lambda: ahead_s)

        def stand_still() -> None:
            nonlocal ahead_s
            ahead_s += stood_s

        slow = Publisher(usual.table, app.link.store, app.link.synchronous, stand_still)
        assert slow.publish_some().sent == sent
        assert enqueued(redis, app) == sent
        assert open_rows(engine) == 2 - sent
        assert usual.publish_some().sent == 2 - sent, "what it left alone is for the next round"
        assert enqueued(redis, app) == 2

    def test_a_lost_reply_is_asked_for_again(
        self, engine: Engine, redis: redis_py.Redis, namespace: str, shop: str, proxy: FaultProxy
    ):
        app = new_app(proxy.url, namespace, shop)
        fill(app, engine, 5)
        proxy.plan += [DROP_REPLY, DROP_REPLY]
        assert relay_of(app).step().sent == 5
        assert enqueued(redis, app) == 5
        app.close_sync()


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
class TestWhatNobodyCanTell:
    def age(self, engine: Engine, tries: int, days: int) -> None:
        with engine.begin() as connection:
            connection.execute(
                update(outbox).values(tries=tries, created_at_ms=outbox.c.created_at_ms - days * 86_400_000)
            )

    def test_an_old_row_that_was_tried_and_that_nobody_knows_is_held_for_a_person(
        self, app: Fencepost, engine: Engine, redis: redis_py.Redis
    ):
        [job_id] = fill(app, engine, 1)
        self.age(engine, tries=1, days=2)
        relay = relay_of(app)
        assert relay.step().held == 1
        assert relay.step().seen == 0
        assert enqueued(redis, app) == 0
        [row] = relay.held()
        assert (row.job_id, row.problem.startswith(HELD)) == (job_id, True)
        assert relay.waiting()._replace(oldest_ms=0) == (1, 0, 1)
        assert relay.let_go([job_id, "unknown"]) == 1
        assert relay.step().sent == 1
        assert enqueued(redis, app) == 1

    def test_an_old_row_that_was_never_tried_is_published(self, app: Fencepost, engine: Engine):
        fill(app, engine, 1)
        self.age(engine, tries=0, days=30)
        assert relay_of(app).step().sent == 1

    def test_a_row_that_was_tried_lately_is_published(self, app: Fencepost, engine: Engine):
        fill(app, engine, 1)
        self.age(engine, tries=3, days=0)
        assert relay_of(app).step().sent == 1

    def test_while_redis_is_away_no_try_is_counted_and_nothing_is_held(
        self, app: Fencepost, engine: Engine, namespace: str, shop: str
    ):
        fill(app, engine, 1)
        away = new_app("redis://127.0.0.1:1/0", namespace, shop)
        done = relay_of(away).step()
        assert (done.seen, bool(done.away)) == (0, True)
        self.age(engine, tries=0, days=30)
        assert relay_of(app).step().sent == 1
        away.close_sync()

    def test_a_row_that_cannot_be_read_does_not_hold_up_the_others(self, app: Fencepost, engine: Engine):
        ids = fill(app, engine, 3)
        with engine.begin() as connection:
            connection.execute(update(outbox).where(outbox.c.job_id == ids[0]).values(spec='{"id": "x"}'))
        done = relay_of(app).step()
        assert (done.sent, done.held) == (2, 1)
        assert "cannot be read" in relay_of(app).held()[0].problem

    def test_published_rows_are_deleted_when_they_are_old(self, app: Fencepost, engine: Engine):
        fill(app, engine, 3)
        assert relay_of(app).step().sent == 3
        assert app.outbox is not None
        assert app.outbox.table.clear(86_400_000) == 0
        assert app.outbox.table.clear(-1_000) == 3


class TestDurable:
    """Jobs of the outbox that go to the ledger first."""

    def fill(self, app: Fencepost, engine: Engine, jobs: int, **options: Any) -> list[str]:
        prepared = app.handler("invoice").options(durability="ledger", **options)
        specs = [prepared.prepare(order_id=number).spec for number in range(jobs)]
        head = {"namespace": app.namespace, "created_at_ms": 1, "tries": 0}
        with engine.begin() as connection:
            connection.execute(outbox.insert(), [{"job_id": x.id, "spec": spec_to_text(x), **head} for x in specs])
        return [one.id for one in specs]

    def test_the_ledger_has_them_and_not_those_that_became_another_job(
        self, engine: Engine, url: str, namespace: str, shop: str, sqlite_url: str
    ):
        app = new_app(url, namespace, shop, ledger=sqlite_url)
        first, second = self.fill(app, engine, 2, dedup="same")
        assert relay_of(app).step().sent == 2
        assert app.ledger is not None
        known = {job_id: app.ledger.job(job_id) for job_id in (first, second)}
        assert sorted(job is None for job in known.values()) == [False, True]
        app.close_sync()

    def test_while_the_ledger_is_away_they_wait_and_hold_up_nobody(
        self, engine: Engine, redis: redis_py.Redis, url: str, namespace: str, shop: str, sqlite_url: str
    ):
        away = new_app(url, namespace, shop, ledger="sqlite:////nowhere/at/all.sqlite")
        self.fill(away, engine, 500)
        relay = relay_of(away)
        done = relay.step()
        assert (done.sent, done.failed, "open" in done.away) == (0, 500, True)
        fill(away, engine, 3)
        assert relay.step().sent == 3
        with engine.connect() as connection:
            assert set(connection.execute(select(outbox.c.tries)).scalars()) == {0, 1}
        back = new_app(url, namespace, shop, ledger=sqlite_url)
        assert relay_of(back).step().sent == 500  # old as they are: it is certain that Redis never had them
        assert enqueued(redis, back) == 503
        away.close_sync()
        back.close_sync()

    def test_what_the_ledger_knows_as_done_is_not_pushed_again(
        self, engine: Engine, redis: redis_py.Redis, url: str, namespace: str, shop: str, sqlite_url: str
    ):
        app = new_app(url, namespace, shop, ledger=sqlite_url)
        [job_id] = self.fill(app, engine, 1)
        assert app.ledger is not None
        app.ledger.accept([app.handler("invoice").options(job_id=job_id).prepare(order_id=0).spec])
        with app.ledger.begin("test") as connection:
            connection.exec_driver_sql("UPDATE fencepost_jobs SET state = 'done', finished_at_ms = 9000000000000")
        assert relay_of(app).step().sent == 1
        assert enqueued(redis, app) == 0
        assert open_rows(engine) == 0
        app.close_sync()
