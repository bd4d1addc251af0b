"""The transaction of a section: whose it is, what it sees, what becomes of it when somebody else ends it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from fencepost import fence
from fencepost.errors import StaleToken, TransactionEnded
from fencepost.fence import Guarded
from fencepost.sql.channel import at_once
from tests.guard.holding import Writer, file_of, kinds_of, put
from tests.support.waiting import wait_until

# -- ended by the block -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds_of())
@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
async def test_a_block_that_ends_the_transaction_of_its_section_is_found_out(kind, base, factory, run, word):
    async def work(effect):
        session = effect.session
        await put(session, "x")
        if type(session).__module__.startswith("sqlalchemy"):
            ended = session.commit() if word == "COMMIT" else session.rollback()
        else:
            ended = session.execute(word)
        if kind.asynchronous:
            await ended
        if not kind.name.endswith("-autocommit"):
            await put(session, "y")

    with pytest.raises(TransactionEnded, match="let errors of the database pass"):
        await kind.through(run.guarded(factory), work)
    assert base.done == (["x"] if word == "COMMIT" else [])
    assert base.effects == []
    assert run.notes == []


@pytest.mark.parametrize("kind", kinds_of("postgresql"))
async def test_a_block_that_swallowed_an_error_of_the_database_and_went_on_is_found_out(kind, base, factory, run):
    async def work(effect):
        await put(effect.session, "x")
        with pytest.raises(Exception, match="value too long"):
            await put(effect.session, "x" * 201)

    with pytest.raises(TransactionEnded, match="let errors of the database pass"):
        await kind.through(run.guarded(factory), work)
    with pytest.raises(TransactionEnded):
        await kind.call(run.guarded(factory), work)
    assert base.state | {"fences": []} == {"done": [], "fences": [], "effects": []}


@pytest.mark.parametrize("name", ["postgresql", "sqlite"])
def test_a_flush_that_failed_and_was_swallowed_is_found_out(name, new_base, run):
    base = new_base(name)
    Model.metadata.create_all(base.engine)
    base.do("INSERT INTO orders (id, number) VALUES (2, 7)")

    def work(effect):
        effect.session.add(Order(id=1, number=7))
        with pytest.raises(DBAPIError, match=r"(?i)unique"):
            effect.session.flush()

    engine = create_engine(base.url)
    with pytest.raises(TransactionEnded):
        run.guarded(sessionmaker(engine)).call_sync(work)
    assert base.effects == []
    engine.dispose()


# -- isolation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("postgresql", "READ COMMITTED"),
        ("postgresql", "REPEATABLE READ"),
        ("postgresql", "SERIALIZABLE"),
        ("mariadb", "READ COMMITTED"),
        ("mariadb", "REPEATABLE READ"),
    ],
)
async def test_every_isolation_level_does_the_work_once_and_refuses_the_late_one(name, level, shared_base, run):
    """The late one has read; the newer one installs, reads, writes and commits; then the late one wants to write."""
    base = shared_base(name)
    base.do("INSERT INTO done (note) VALUES ('0')")
    engine = create_async_engine(base.url.replace("+pymysql", "+aiomysql"), isolation_level=level)
    newer = Writer(token=11, nonce="n-newer", job_id="j2")

    async def add_one(effect):
        value = (await effect.session.execute(text("SELECT note FROM done"))).scalar_one()
        await effect.session.execute(text(f"UPDATE done SET note = '{int(value) + 1}'"))

    async def late(effect):
        value = (await effect.session.execute(text("SELECT note FROM done"))).scalar_one()
        await newer.guarded(engine).call(add_one)
        assert base.done == ["1"]
        return value

    with pytest.raises(StaleToken, match="newest is 11"):
        await run.guarded(engine).call(late)
    assert base.done == ["1"]
    assert base.fences == [("order:1", 11, "n-newer")]
    assert [row[0] for row in base.effects] == ["j2:invoice"]
    await engine.dispose()


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
async def test_a_new_holder_waits_for_a_commit_that_was_verified_before_it_came(name, shared_base, run):
    """Between the verification of the old one and its COMMIT the row is locked: what the new one reads is settled."""
    base = shared_base(name)
    engine = create_async_engine(base.url.replace("+pymysql", "+aiomysql"))
    newer = Writer(token=11, nonce="n-newer", job_id="j2")
    seen: list[str] = []

    async def look(effect):
        seen.extend((await effect.session.execute(text("SELECT note FROM done"))).scalars())

    async with engine.connect() as connection:
        await fence.install(connection, run)
        async with connection.begin():
            async with fence.effect(connection, run, "invoice"):
                await put(connection, "old")
            taking = asyncio.create_task(newer.guarded(engine).call(look))
            done, _ = await asyncio.wait([taking], timeout=0.2)
            assert not done
    await taking
    assert seen == ["old"]
    assert base.fences == [("order:1", 11, "n-newer")]
    await engine.dispose()


# -- SQLite -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds_of("sqlite"))
async def test_a_section_on_sqlite_is_the_one_writer_from_its_first_read(kind, base, factory, run):
    """In each mode of the driver: nobody writes between what the block reads and what it writes. Readers go on."""
    base.do("PRAGMA journal_mode = WAL")
    other = sqlite3.connect(file_of(base.url), timeout=0, isolation_level=None)

    async def work(effect):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        assert other.execute("SELECT count(*) FROM done").fetchone() == (0,)
        await put(effect.session, "x")

    await kind.through(run.guarded(factory), work)
    assert other.execute("SELECT note FROM done").fetchall() == [("x",)]
    other.close()


@pytest.mark.parametrize("kind", kinds_of("sqlite"))
async def test_sections_on_sqlite_wait_for_each_other_and_lose_nothing(kind, base, factory):
    """Eight holders of eight resources add one to the same row, each on a connection of its own."""
    base.do("PRAGMA journal_mode = WAL")
    base.do("INSERT INTO done (note) VALUES ('0')")

    async def add_one(effect):
        value = int(await _ask(kind, effect.session, "SELECT note FROM done"))
        await _ask(kind, effect.session, f"UPDATE done SET note = '{value + 1}'")

    def passing(number):
        holder = Writer(token=number, nonce=f"n{number}", job_id=f"job{number}", resource=f"r{number}")
        return kind.call(holder.guarded(factory), add_one)

    if kind.asynchronous:
        await asyncio.gather(*(passing(number) for number in range(8)))
    else:
        threads = [threading.Thread(target=lambda n=number: at_once(passing(n))) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert base.done == ["8"]
    assert len(base.effects) == 8


async def _ask(kind, session, statement):
    """The first value that a statement of the user returns, None without one."""
    if type(session).__module__.startswith("sqlalchemy"):
        answer = session.execute(text(statement))
        result = await answer if kind.asynchronous else answer
        return result.scalar() if result.returns_rows else None
    row = session.execute(statement).fetchone()
    return row[0] if row else None


# -- ORM --------------------------------------------------------------------------------------------------------


class Model(DeclarativeBase):
    pass


class Order(Model):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int | None] = mapped_column(unique=True)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def orders(request, new_base):
    base = new_base(request.param)
    Model.metadata.create_all(base.engine)
    base.do("INSERT INTO orders (id, number) VALUES (1, NULL), (2, 7)")
    return base


def test_what_an_orm_session_keeps_to_itself_is_written_with_the_effect(orders, run):
    engine = create_engine(orders.url)
    with run.guarded(sessionmaker(engine)) as effect:
        order = effect.session.get(Order, 1)
        order.number = effect.result = 8
    assert orders.rows("SELECT number FROM orders WHERE id = 1") == [(8,)]
    assert effect.result == 8
    engine.dispose()


async def test_an_error_of_the_flush_undoes_the_section_and_passes(orders, run):
    drivers = {"sqlite": "sqlite+aiosqlite", "mariadb+pymysql": "mariadb+aiomysql"}
    scheme = orders.url.split(":", 1)[0]
    engine = create_async_engine(orders.url.replace(scheme, drivers.get(scheme, scheme), 1))

    async def work(effect):
        order = await effect.session.get(Order, 1)
        order.number = 7  # taken by order 2; the session writes it only at the end

    with pytest.raises(DBAPIError, match=r"(?i)unique|duplicate"):
        await run.guarded(async_sessionmaker(engine)).call(work)
    assert orders.rows("SELECT number FROM orders WHERE id = 1") == [(None,)]
    assert orders.effects == []
    await engine.dispose()


def test_the_ledger_hears_of_an_effect_when_the_users_session_has_committed(orders, run):
    engine = create_engine(orders.url)
    with sessionmaker(engine)() as session:
        fence.install_sync(session, run)
        with session.begin():
            with fence.effect(session, run, "a"):
                session.add(Order(id=3, number=None))
            assert run.notes == []
        assert run.notes == [("j1:a", True)]
        with session.begin():
            session.add(Order(id=4, number=None))
        assert run.notes == [("j1:a", True)]
    engine.dispose()


def test_an_effect_inside_a_savepoint_that_was_undone_is_not_told(shared_base, run):
    base = shared_base("postgresql")
    engine = create_engine(base.url)
    with sessionmaker(engine)() as session:
        fence.install_sync(session, run)
        with session.begin():
            savepoint = session.begin_nested()
            with fence.effect(session, run, "a"):
                at_once(put(session, "x"))
            savepoint.rollback()
    assert (base.done, base.effects, run.notes) == ([], [], [])
    engine.dispose()


def test_a_released_savepoint_is_no_commit(shared_base, run):
    base = shared_base("postgresql")
    engine = create_engine(base.url)
    with sessionmaker(engine)() as session:
        fence.install_sync(session, run)
        with session.begin_nested(), fence.effect(session, run, "a"):
            at_once(put(session, "x"))
        assert run.notes == []
        session.rollback()
        assert (base.done, base.effects, run.notes) == ([], [], [])
        with session.begin_nested(), fence.effect(session, run, "a"):
            at_once(put(session, "x"))
        session.commit()
        assert run.notes == [("j1:a", True)]
    engine.dispose()


# -- connections are given back ---------------------------------------------------------------------------------


async def test_whatever_happens_the_connection_goes_back_to_its_pool(shared_base, run):
    base = shared_base("postgresql")
    engine = create_async_engine(base.url, pool_size=1, max_overflow=0, pool_timeout=1)

    async def fails(effect):
        await put(effect.session, "x")
        raise KeyError("no")

    async def stale(effect):
        base.install(99, "n-newer")

    for work in (fails, stale):
        with pytest.raises((KeyError, StaleToken)):
            await run.guarded(engine).call(work)
    with pytest.raises(StaleToken):
        await run.guarded(engine).call(_nothing)
    run.token = 100
    assert await run.guarded(engine).call(_nothing) is None
    assert base.done == []
    await engine.dispose()


@pytest.mark.parametrize("kind", [kind for kind in kinds_of() if kind.values[0].asynchronous])
async def test_a_section_that_is_cancelled_in_its_block_is_undone(kind, base, factory, run):
    inside = asyncio.Event()

    async def work(effect):
        await put(effect.session, "x")
        inside.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(kind.through(run.guarded(factory), work))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (base.done, base.effects, run.notes) == ([], [], [])
    assert (await kind.through(Writer(token=11, nonce="n2").guarded(factory), _nothing)).first


async def test_a_section_that_is_cancelled_while_it_waits_for_the_fence_leaves_no_lock(shared_base, run):
    base = shared_base("postgresql")
    engine = create_async_engine(base.url)
    base.install(5, "n-old")
    with base.engine.connect() as holder:
        holder.execute(text("SELECT * FROM fencepost_fences FOR UPDATE"))
        task = asyncio.create_task(run.guarded(engine).call(_nothing))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await asyncio.to_thread(wait_until, lambda: base.rows(waiting)[0][0])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert base.fences == [("order:1", 5, "n-old")]
    assert await run.guarded(engine).call(_nothing) is None
    await engine.dispose()


def test_the_end_of_the_server_session_inside_a_block_passes_as_it_is(shared_base, run):
    """Nothing was committed for certain: the COMMIT was never sent."""
    base = shared_base("postgresql")
    engine = create_engine(base.url)

    def work(effect):
        (pid,) = effect.session.execute(text("SELECT pg_backend_pid()")).one()
        base.rows(f"SELECT pg_terminate_backend({pid})")

    with pytest.raises(DBAPIError) as caught:
        Guarded(run, engine, "invoice").call_sync(work)
    assert isinstance(caught.value.orig, psycopg.OperationalError)
    assert base.effects == []
    engine.dispose()


async def _nothing(_effect):
    return None
