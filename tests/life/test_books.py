"""What a worker does beside its jobs: it keeps the ledger, brings back what Redis lost, and publishes the outbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis as redis_py
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, func, insert, select, update
from sqlalchemy.orm import Session, sessionmaker

from fencepost import Fencepost, Permanent, Run
from fencepost.codec import spec_to_text
from fencepost.ledger import Ledger
from fencepost.ledger.verify import verify
from fencepost.sql.tables import jobs, outbox
from fencepost.sql.upgrade import upgrade
from tests.life.working import work_off, working
from tests.support import eventually
from tests.support.databases import DatabaseServer

invoices = Table(
    "invoices", MetaData(), Column("id", Integer, primary_key=True), Column("order_id", Integer, nullable=False)
)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, new_database: Callable[..., str]) -> str:
    """One database for everything: ledger, outbox, guard and the shop's invoices."""
    url = new_database(str(request.param))
    upgrade(url)
    engine = create_engine(url)
    invoices.metadata.create_all(engine)
    engine.dispose()
    return url


@pytest.fixture
async def app(url: str, namespace: str, database: str) -> AsyncIterator[Fencepost]:
    application = Fencepost(url, namespace=namespace, lease=2.0, ledger=database, outbox=database)
    yield application
    await application.close()


def ledger_of(app: Fencepost) -> Ledger:
    assert app.ledger is not None
    return app.ledger


def states(app: Fencepost) -> dict[str, int]:
    """How many jobs the ledger has in each state."""
    ledger = ledger_of(app)
    query = select(jobs.c.state, func.count()).where(jobs.c.namespace == ledger.namespace).group_by(jobs.c.state)
    with ledger.reading("test") as connection:
        return {row[0]: row[1] for row in connection.execute(query)}


async def test_a_burst_ends_with_its_ledger_written(app: Fencepost):
    @app.job()
    async def mail(run: Run, number: int) -> int:
        if number == 3:
            raise Permanent("no such address")
        return number

    accepted = [await mail.enqueue(number=number) for number in range(5)]
    worker = await work_off(app)
    assert states(app) == {"done": 4, "failed": 1}
    job = ledger_of(app).job(accepted[3].id)
    assert job is not None
    assert (job.reason, job.attempts, job.worker) == ("permanent", 1, worker.id)
    assert [event.name for event in ledger_of(app).history(accepted[0].id)] == ["enqueued", "acquired", "done"]
    assert verify(ledger_of(app)).ok


async def test_books_can_be_left_to_others(app: Fencepost):
    @app.job()
    async def mail() -> None: ...

    await mail.enqueue()
    await work_off(app, books=False)
    assert states(app) == {}


async def test_a_job_that_was_accepted_while_redis_was_away_runs(
    app: Fencepost, namespace: str, database: str, events: Callable[[str], list[dict[str, Any]]]
):
    away = Fencepost("redis://127.0.0.1:1/0", namespace=namespace, ledger=database)
    job = await away.job(kind="mail", durability="ledger")(lambda: None).enqueue()
    await away.close()

    @app.job(kind="mail", durability="ledger")
    async def mail() -> str:
        return "sent"

    with ledger_of(app).begin("test") as connection:  # it has been quiet for a while
        connection.execute(update(jobs).values(updated_at_ms=jobs.c.updated_at_ms - 60_000))
    async with working(app):
        await eventually(lambda: states(app) == {"done": 1}, 10)
    assert await app.get(job.id).result() == "sent"
    assert [(one["job_id"], one["state"]) for one in events("restored")] == [(job.id, "queued")]


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_all_durable_jobs_end_though_redis_is_emptied_while_they_run_and_no_effect_is_doubled(
    app: Fencepost, database: str, redis: redis_py.Redis, events: Callable[[str], list[dict[str, Any]]]
):
    engine = create_engine(database, pool_size=10)
    sessions = sessionmaker(engine)
    emptied_at = 40

    @app.job(durability="ledger", timeout=30)
    def invoice(run: Run, order_id: int) -> None:
        with run.guarded(sessions, "invoice") as effect:
            if effect.first:
                effect.session.execute(insert(invoices).values(order_id=order_id))
                effect.result = order_id

    await invoice.enqueue_many([{"order_id": number} for number in range(200)])

    def made() -> int:
        with engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(invoices)).scalar_one()

    async with working(app, concurrency=4):
        await eventually(lambda: made() >= emptied_at, 15)
        redis.flushall()
        await eventually(lambda: states(app) == {"done": 200}, 60)
    with engine.connect() as connection:
        found = list(connection.execute(select(invoices.c.order_id).order_by(invoices.c.order_id)).scalars())
    assert found == list(range(200))
    assert events("redis_rewound")
    assert events("restored")
    verdict = verify(ledger_of(app))
    assert verdict.ok, verdict.findings
    engine.dispose()


async def test_what_a_dead_producer_left_in_the_outbox_is_published_and_runs(app: Fencepost, database: str):
    @app.job()
    async def mail() -> str:
        return "sent"

    spec = mail.prepare().spec
    row = {"job_id": spec.id, "namespace": app.namespace, "spec": spec_to_text(spec), "created_at_ms": 1, "tries": 0}
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(outbox.insert(), row)
    async with working(app):
        link = app.link
        await eventually(lambda: link.asynchronous.run(link.store.job(spec.id)), 10)  # until then nobody knows of it
        assert await app.get(spec.id).result(timeout=10) == "sent"
    engine.dispose()


async def test_a_job_of_a_transaction_runs_after_its_commit(app: Fencepost, database: str):
    @app.job()
    async def invoice(order_id: int) -> str:
        return f"invoice {order_id}"

    engine = create_engine(database)
    async with working(app):
        with Session(engine) as session:
            session.execute(insert(invoices).values(order_id=7))
            job = invoice.options(durability="ledger").enqueue_in_sync(session, order_id=7)
            session.commit()
        assert await job.result(timeout=10) == "invoice 7"
        await eventually(lambda: states(app) == {"done": 1})
    engine.dispose()


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_jobs_go_on_while_the_ledger_is_away_and_it_catches_up(
    url: str,
    namespace: str,
    new_postgres: Callable[..., DatabaseServer],
    events: Callable[[str], list[dict[str, Any]]],
):
    server = new_postgres()
    database = server.new_database()
    upgrade(database)
    app = Fencepost(url, namespace=namespace, ledger=database)

    @app.job()
    async def mail(number: int) -> int:
        return number

    async with working(app):
        await mail.enqueue(number=0)
        await eventually(lambda: states(app) == {"done": 1})
        server.stop()
        accepted = [await mail.enqueue(number=number) for number in range(100)]
        assert [await job.result(timeout=10) for job in accepted] == list(range(100))
        await eventually(lambda: events("ledger_away"), 10)
        server.start()
        await eventually(lambda: events("ledger_back"), 30)
        await eventually(lambda: states(app) == {"done": 101}, 10)
    assert (len(events("ledger_away")), len(events("ledger_back"))) == (1, 1)  # however often it was tried
    with ledger_of(app).reading("test") as connection:
        assert connection.exec_driver_sql("SELECT lost FROM fencepost_cursors").scalar_one() == 0
    await app.close()
