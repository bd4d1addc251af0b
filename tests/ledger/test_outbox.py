"""Jobs that are enqueued in the user's own transaction: they exist if and only if it commits, on every connection."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
import redis as redis_py
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from fencepost import ConfigurationError, Fencepost, IdempotencyConflict
from fencepost.sql.tables import outbox
from fencepost.sql.upgrade import upgrade
from tests.support import eventually, wait_until

orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True))


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def shop(request: pytest.FixtureRequest, new_database: Callable[..., str]) -> str:
    """The URL of a shop's own database, with its table of orders and those of Fencepost."""
    url = new_database(str(request.param))
    upgrade(url)
    engine = create_engine(url)
    orders.metadata.create_all(engine)
    engine.dispose()
    return url


@pytest.fixture
def engine(shop: str) -> Iterator[Engine]:
    """The shop's own engine, made as a user would: without any setting of ours."""
    one = create_engine(shop)
    yield one
    one.dispose()


@pytest.fixture
async def app(url: str, namespace: str, shop: str) -> AsyncIterator[Fencepost]:
    """An application whose outbox is in the shop's database."""
    application = Fencepost(url, namespace=namespace, outbox=shop)

    @application.job(kind="invoice", dedup="{order_id}")
    def _(order_id: int) -> str:
        return f"invoice {order_id}"

    yield application
    await application.close()


def rows(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(outbox).order_by(outbox.c.created_at_ms)))


def published(engine: Engine) -> bool:
    found = rows(engine)
    return bool(found) and all(row.published_at_ms is not None for row in found)


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(orders)).scalar_one()


def keys(redis: redis_py.Redis, app: Fencepost) -> set[str]:
    """What the application has in Redis, without its own counters."""
    prefix = app.link.store.keys.prefix
    return {key.decode().removeprefix(prefix) for key in redis.scan_iter(f"{prefix}*")}


class TestTheTransactionDecides:
    def test_a_commit_makes_a_job_at_once_and_marks_its_row(self, app: Fencepost, engine: Engine):
        with Session(engine) as session:
            session.execute(insert(orders).values(id=1))
            job = app.handler("invoice").enqueue_in_sync(session, order_id=1)
            assert job.state == "outbox"
            session.commit()
        wait_until(lambda: published(engine))
        assert job.status_sync().state == "queued"
        [row] = rows(engine)
        assert (row.job_id, row.answer, row.problem, row.tries) == (job.id, "QUEUED", None, 1)

    def test_a_rollback_leaves_no_order_no_job_and_no_key(self, app: Fencepost, engine: Engine, redis: redis_py.Redis):
        """report: Laravel's unique lock that stayed after the rollback of the transaction it was taken in."""
        with Session(engine) as session:
            session.execute(insert(orders).values(id=1))
            app.handler("invoice").options(idempotency_key="request-1").enqueue_in_sync(session, order_id=1)
            session.rollback()
        assert rows(engine) == []
        assert keys(redis, app) == set()
        job = app.handler("invoice").options(idempotency_key="request-1").enqueue_sync(order_id=1)
        assert (job.duplicate, job.replayed) == (False, False)

    def test_what_was_in_a_savepoint_that_is_undone_never_was(self, app: Fencepost, engine: Engine):
        with Session(engine) as session:
            kept = app.handler("invoice").enqueue_in_sync(session, order_id=1)
            with session.begin_nested() as savepoint:
                app.handler("invoice").enqueue_in_sync(session, order_id=2)
                savepoint.rollback()
            with session.begin_nested():
                also = app.handler("invoice").enqueue_in_sync(session, order_id=3)
            assert app.outbox is not None
            assert app.outbox.publisher().publish_some().seen == 0  # a savepoint that is released commits nothing
            session.commit()
        wait_until(lambda: published(engine))
        assert {row.job_id for row in rows(engine)} == {kept.id, also.id}
        assert {kept.status_sync().state, also.status_sync().state} == {"queued"}

    def test_the_delay_counts_from_the_call_not_from_the_publication(self, app: Fencepost, engine: Engine):
        with engine.begin() as connection:
            job = app.handler("invoice").options(delay=3600).enqueue_in_sync(connection, order_id=1)
            connection.execute(outbox.update().values(created_at_ms=outbox.c.created_at_ms - 1_800_000))
        wait_until(lambda: published(engine))
        record = job.status_sync()
        assert record.state == "scheduled"
        assert record.due_at is not None
        assert record.created_at is not None
        assert 1_790_000 < record.due_at - record.created_at <= 1_800_000

    def test_the_same_job_id_twice_is_one_row(self, app: Fencepost, engine: Engine):
        with engine.begin() as connection:
            for _ in range(2):
                app.handler("invoice").options(job_id="order-1", dedup=False).enqueue_in_sync(connection, order_id=1)
        wait_until(lambda: published(engine))
        assert [row.job_id for row in rows(engine)] == ["order-1"]

    def test_until_the_commit_and_the_publication_the_job_is_in_the_outbox(self, shop: str, engine: Engine):
        app = Fencepost("redis://127.0.0.1:1/0", namespace="away", outbox=shop, give_up=0.1)
        handler = app.job(kind="invoice")(lambda order_id: None)
        with engine.begin() as connection:
            job = handler.enqueue_in_sync(connection, order_id=1)
        assert app.outbox is not None
        record = app.outbox.recall(job.id)
        assert record is not None
        assert (record.state, record.kind, record.payload) == ("outbox", "invoice", b'{"order_id":1}')
        app.close_sync()


class TestKeysAreHonouredAtPublication:
    def test_a_duplicate_of_a_live_job_ends_in_the_outbox_and_tells_of_that_job(self, app: Fencepost, engine: Engine):
        first = app.handler("invoice").enqueue_sync(order_id=1)
        with Session(engine) as session:
            second = app.handler("invoice").enqueue_in_sync(session, order_id=1)
            session.commit()
        wait_until(lambda: published(engine))
        assert rows(engine)[0].answer == f"DUPLICATE {first.id}"
        assert second.status_sync().id == first.id

    def test_a_repeated_request_is_the_first_job(self, app: Fencepost, engine: Engine):
        request = app.handler("invoice").options(idempotency_key="request-1", dedup=False)
        first = request.enqueue_sync(order_id=1)
        with Session(engine) as session:
            second = request.enqueue_in_sync(session, order_id=1)
            session.commit()
        wait_until(lambda: published(engine))
        assert rows(engine)[0].answer == f"REPLAYED {first.id}"
        assert second.status_sync().id == first.id

    def test_a_key_of_another_request_is_a_conflict_for_whoever_asks(self, app: Fencepost, engine: Engine):
        request = app.handler("invoice").options(idempotency_key="request-1", dedup=False)
        request.enqueue_sync(order_id=1)
        with Session(engine) as session:
            other = request.enqueue_in_sync(session, order_id=2)
            session.commit()
        wait_until(lambda: published(engine))
        with pytest.raises(IdempotencyConflict, match="request-1"):
            other.status_sync()


class TestEveryConnection:
    def test_a_connection_of_sqlalchemy(self, app: Fencepost, engine: Engine):
        with engine.connect() as connection:
            lost = app.handler("invoice").enqueue_in_sync(connection, order_id=1)
            connection.rollback()
            kept = app.handler("invoice").enqueue_in_sync(connection, order_id=2)
            connection.commit()
        wait_until(lambda: published(engine))
        assert [row.job_id for row in rows(engine)] == [kept.id]
        assert lost.id != kept.id

    def test_a_scoped_session(self, app: Fencepost, engine: Engine):
        sessions = scoped_session(sessionmaker(engine))
        app.handler("invoice").enqueue_in_sync(sessions, order_id=1)
        sessions.commit()
        sessions.remove()
        wait_until(lambda: published(engine))

    async def test_a_session_on_the_event_loop(self, app: Fencepost, engine: Engine):
        asynchronous = create_async_engine(_asynchronous(engine))
        try:
            async with AsyncSession(asynchronous) as session, session.begin():
                await session.execute(insert(orders).values(id=1))
                job = await app.handler("invoice").enqueue_in(session, order_id=1)
            async with AsyncSession(asynchronous) as session:
                await app.handler("invoice").enqueue_in(session, order_id=2)
                await session.rollback()
            async with asynchronous.begin() as connection:
                other = await app.handler("invoice").options(priority=3).enqueue_in(connection, order_id=3)
        finally:
            await asynchronous.dispose()
        await eventually(lambda: published(engine))
        assert {row.job_id for row in rows(engine)} == {job.id, other.id}
        assert (await job.status()).state == "queued"

    async def test_a_synchronous_session_on_the_event_loop_is_refused(self, app: Fencepost, engine: Engine):
        with Session(engine) as session, pytest.raises(ConfigurationError, match="would block the event loop"):
            await app.handler("invoice").enqueue_in(session, order_id=1)

    @pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
    async def test_connections_of_psycopg(self, app: Fencepost, engine: Engine):
        address = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(address) as connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            app.handler("invoice").enqueue_in_sync(connection, order_id=1)
            with connection.transaction():
                app.handler("invoice").enqueue_in_sync(connection, order_id=2)
                raise psycopg.Rollback  # undoes the savepoint
        async with await psycopg.AsyncConnection.connect(address) as asynchronous:
            await app.handler("invoice").enqueue_in(asynchronous, order_id=3)
        await eventually(lambda: len(rows(engine)) == 2 and published(engine))
        with psycopg.connect(address, autocommit=True) as connection:
            with pytest.raises(ConfigurationError, match="autocommit"):
                app.handler("invoice").enqueue_in_sync(connection, order_id=4)
            with connection.transaction():
                app.handler("invoice").enqueue_in_sync(connection, order_id=5)
        await eventually(lambda: len(rows(engine)) == 3 and published(engine))

    @pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
    def test_a_connection_of_sqlite3(self, app: Fencepost, engine: Engine):
        assert engine.url.database is not None
        connection = sqlite3.connect(engine.url.database)
        app.handler("invoice").enqueue_in_sync(connection, order_id=1)
        connection.rollback()
        app.handler("invoice").enqueue_in_sync(connection, order_id=2)
        connection.commit()
        connection.close()
        wait_until(lambda: published(engine))
        plain = sqlite3.connect(engine.url.database, isolation_level=None)
        with pytest.raises(ConfigurationError, match="autocommit"):
            app.handler("invoice").enqueue_in_sync(plain, order_id=3)
        plain.close()
        assert len(rows(engine)) == 1


def test_without_an_outbox_nothing_can_be_enqueued_in_a_transaction(url: str, namespace: str):
    app = Fencepost(url, namespace=namespace)
    handler = app.job(kind="invoice")(lambda order_id: None)
    with (
        sqlite3.connect(":memory:") as connection,
        pytest.raises(ConfigurationError, match=r"no outbox.*Write Fencepost\(…, outbox="),
    ):
        handler.enqueue_in_sync(connection, order_id=1)
    connection.close()


def test_a_durable_job_without_a_ledger_is_refused_before_a_row_is_written(url: str, namespace: str, sqlite_url: str):
    upgrade(sqlite_url)
    app = Fencepost(url, namespace=namespace, outbox=sqlite_url)
    handler = app.job(kind="invoice")(lambda order_id: None)
    engine = create_engine(sqlite_url)
    with engine.begin() as connection, pytest.raises(ConfigurationError, match="the application has no ledger"):
        handler.options(durability="ledger").enqueue_in_sync(connection, order_id=1)
    assert rows(engine) == []
    engine.dispose()
    app.close_sync()


def test_a_database_without_the_table_names_the_command(url: str, namespace: str, sqlite_url: str):
    app = Fencepost(url, namespace=namespace, outbox=sqlite_url)
    handler = app.job(kind="invoice")(lambda order_id: None)
    engine = create_engine(sqlite_url)
    with engine.begin() as connection, pytest.raises(ConfigurationError, match="fencepost sql upgrade"):
        handler.enqueue_in_sync(connection, order_id=1)
    engine.dispose()
    app.close_sync()


def _asynchronous(engine: Engine) -> Any:
    names = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+aiomysql"}
    return engine.url.set(drivername=names[engine.dialect.name if engine.dialect.name != "mariadb" else "mysql"])
