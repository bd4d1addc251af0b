"""What the guard refuses in plain words, before anything is written."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from fencepost import Fencepost, fence
from fencepost.errors import ConfigurationError
from fencepost.sql.channel import at_once, channel_of
from tests.guard.holding import dsn_of, file_of, kinds_of, put

UNTOUCHED: dict[str, list[object]] = {"done": [], "fences": [], "effects": []}


@pytest.fixture
def sqlite_base(new_base):
    return new_base("sqlite")


@pytest.fixture
def postgres_base(shared_base):
    return shared_base("postgresql")


@pytest.fixture
def engine(sqlite_base):
    engine = create_engine(sqlite_base.url)
    yield engine
    engine.dispose()


@pytest.fixture
def app_with_outbox(sqlite_base):
    app = Fencepost("redis://127.0.0.1:1/0", namespace="shop", outbox=sqlite_base.url)

    @app.job()
    def ship() -> None:
        raise AssertionError("called")

    return app, ship


def enter(section):
    with section:
        raise AssertionError("entered")


# -- autocommit and no transaction ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["engine", "connection", "session"])
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mariadb"])
def test_an_engine_in_autocommit_is_refused(name, where, new_base, shared_base, run):
    base = new_base("sqlite") if name == "sqlite" else shared_base(name)
    engine = create_engine(base.url, **({"isolation_level": "AUTOCOMMIT"} if where == "engine" else {}))
    told = engine if where == "engine" else engine.execution_options(isolation_level="AUTOCOMMIT")
    factory = sessionmaker(told) if where == "session" else told
    with pytest.raises(ConfigurationError, match=r'autocommit mode.*without isolation_level="AUTOCOMMIT"'):
        enter(run.guarded(factory))
    with told.connect() as connection, connection.begin(), pytest.raises(ConfigurationError, match="autocommit mode"):
        enter(fence.effect(connection, run, "k"))
    with told.connect() as connection, pytest.raises(ConfigurationError, match="autocommit mode"):
        fence.install_sync(connection, run)
    assert base.state == UNTOUCHED
    engine.dispose()


def test_a_driver_that_was_told_to_commit_by_itself_is_refused_behind_sqlalchemy(postgres_base, run):
    """The engine knows nothing of it and shows a transaction that is none."""
    engine = create_engine(postgres_base.url, connect_args={"autocommit": True})
    with pytest.raises(ConfigurationError, match="connect_args"):
        enter(run.guarded(engine))
    assert postgres_base.state == UNTOUCHED
    engine.dispose()


async def test_asyncpg_in_autocommit_is_refused(postgres_base, run):
    url = postgres_base.url.replace("+psycopg", "+asyncpg")
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigurationError, match="autocommit mode"):
        async with run.guarded(async_sessionmaker(engine)):
            raise AssertionError("entered")
    assert postgres_base.state == UNTOUCHED
    await engine.dispose()


def test_sqlite3_without_begin_is_refused(sqlite_base, run):
    connection = sqlite3.connect(file_of(sqlite_base.url), isolation_level=None)
    fence.install_sync(connection, run)
    with pytest.raises(ConfigurationError, match=r'autocommit mode and no transaction is open.*"BEGIN IMMEDIATE"'):
        enter(fence.effect(connection, run, "invoice"))
    connection.close()
    assert sqlite_base.effects == []


def test_psycopg_in_autocommit_outside_a_transaction_block_is_refused(postgres_base, run):
    with psycopg.connect(dsn_of(postgres_base.url), autocommit=True) as connection:
        fence.install_sync(connection, run)
        with pytest.raises(ConfigurationError, match=r"`with connection.transaction\(\):`"):
            enter(fence.effect(connection, run, "invoice"))
        with connection.transaction(), fence.effect(connection, run, "invoice"):
            at_once(put(connection, "x"))
    assert postgres_base.done == ["x"]


def test_a_job_that_would_be_committed_apart_from_the_users_rows_is_refused_in_these_words(
    sqlite_base, app_with_outbox
):
    app, job = app_with_outbox
    connection = sqlite3.connect(file_of(sqlite_base.url), isolation_level=None)
    with pytest.raises(ConfigurationError, match="so the job and your rows would be committed one without the other"):
        job.enqueue_in_sync(connection)
    connection.close()
    app.close_sync()


# -- blocking and not -------------------------------------------------------------------------------------------


async def test_a_synchronous_session_is_refused_on_the_event_loop(engine, sqlite_base, run):
    with pytest.raises(ConfigurationError, match=r"orm.session.Session is synchronous and would block the event loop"):
        async with run.guarded(sessionmaker(engine)):
            raise AssertionError("entered")
    with pytest.raises(ConfigurationError, match="would block the event loop"):
        await run.guarded(engine).call(lambda effect: None)
    with engine.connect() as connection:
        with pytest.raises(ConfigurationError, match="would block the event loop"):
            await fence.install(connection, run)
        with pytest.raises(ConfigurationError, match="would block the event loop"):
            async with fence.effect(connection, run, "k"):
                raise AssertionError("entered")
    assert sqlite_base.state == UNTOUCHED


def test_an_asynchronous_session_is_refused_where_nobody_awaits_it(sqlite_base, run):
    engine = create_async_engine(sqlite_base.url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
    with pytest.raises(ConfigurationError, match="is asynchronous, and this section is not"):
        enter(run.guarded(async_sessionmaker(engine)))
    with pytest.raises(ConfigurationError, match="has to be awaited"):
        enter(run.guarded(engine))
    connection = async_sessionmaker(engine)()
    with pytest.raises(ConfigurationError, match="is asynchronous, and this section is not"):
        fence.install_sync(connection, run)
    with pytest.raises(ConfigurationError, match="is asynchronous, and this section is not"):
        enter(fence.effect(connection, run, "k"))
    assert sqlite_base.state == UNTOUCHED


async def test_a_synchronous_section_is_refused_on_a_thread_whose_event_loop_runs(engine, sqlite_base, run):
    """It would stand still with the heartbeats of every job on that loop."""
    said = r"event loop runs on this thread.*async with.*plain `def`"
    with pytest.raises(ConfigurationError, match=said):
        enter(run.guarded(engine))
    with pytest.raises(ConfigurationError, match=said):
        run.guarded(lambda: sqlite3.connect(file_of(sqlite_base.url))).call_sync(lambda effect: None)
    with engine.connect() as connection:
        with pytest.raises(ConfigurationError, match=said):
            fence.install_sync(connection, run)
        with pytest.raises(ConfigurationError, match=said):
            enter(fence.effect(connection, run, "k"))
    assert sqlite_base.state == UNTOUCHED
    await asyncio.to_thread(run.guarded(engine).call_sync, lambda effect: at_once(put(effect.session, "x")))
    assert sqlite_base.done == ["x"]


async def test_an_asynchronous_connection_that_is_not_open_is_refused(sqlite_base, run):
    engine = create_async_engine(sqlite_base.url.replace("sqlite:", "sqlite+aiosqlite:"))
    with pytest.raises(ConfigurationError, match="not open"):
        await fence.install(engine.connect(), run)
    await engine.dispose()


def test_an_async_function_is_refused_by_call_sync(engine, run):
    async def work(effect):
        raise AssertionError("called")

    with pytest.raises(ConfigurationError, match=r"await guarded.call"):
        run.guarded(engine).call_sync(work)


# -- factories --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda engine: "sqlite:///x", "builtins.str cannot be called"),
        (lambda engine: dict, r"it gave builtins.dict.*A factory is a sessionmaker"),
        (lambda engine: engine.begin, "has an open transaction"),
        (lambda engine: sessionmaker(engine).begin, "has an open transaction"),
        (lambda engine: sessionmaker(engine)(), "is a connection, and a section may need a second one"),
    ],
)
def test_what_makes_no_fresh_connection_is_refused(factory, said, engine, sqlite_base, run):
    with pytest.raises(ConfigurationError, match=said):
        enter(run.guarded(factory(engine)))
    assert sqlite_base.state == UNTOUCHED


def test_what_is_awaited_is_refused_by_a_section_that_is_not_async(postgres_base, run):
    dsn = dsn_of(postgres_base.url)
    with pytest.raises(ConfigurationError, match="has to be awaited"):
        enter(run.guarded(lambda: psycopg.AsyncConnection.connect(dsn)))


def test_a_context_manager_of_a_session_is_a_factory_and_is_left(engine, sqlite_base, run):
    left = []

    @contextmanager
    def session():
        with sessionmaker(engine)() as made:
            yield made
        left.append(made)

    with run.guarded(session) as effect:
        at_once(put(effect.session, "x"))
    assert sqlite_base.done == ["x"]
    assert left == [effect.session]


async def test_an_asynchronous_context_manager_and_an_async_function_are_factories(sqlite_base, run):
    engine = create_async_engine(sqlite_base.url.replace("sqlite:", "sqlite+aiosqlite:"))
    left = []

    @asynccontextmanager
    async def managed():
        async with engine.connect() as made:
            yield made
        left.append(made)

    async def made():
        return async_sessionmaker(engine)()

    for number, factory in enumerate((managed, made)):
        async with run.guarded(factory, f"k{number}") as effect:
            await put(effect.session, f"x{number}")
    assert sqlite_base.done == ["x0", "x1"]
    assert len(left) == 1
    with pytest.raises(ConfigurationError, match="It is asynchronous: write `async with`"):
        await asyncio.to_thread(enter, run.guarded(managed))
    await engine.dispose()


async def test_a_synchronous_context_manager_is_refused_on_the_event_loop(engine, run):
    @contextmanager
    def managed():
        raise AssertionError("entered")
        yield

    with pytest.raises(ConfigurationError, match="It is synchronous: write `with`"):
        async with run.guarded(managed):
            raise AssertionError("entered")


def test_a_session_with_engines_for_its_classes_only_is_refused(engine, run):
    class Model(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match="Give the session a `bind`"):
        enter(run.guarded(sessionmaker(binds={Model: engine})))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has the modes of PEP 249 from Python 3.12 on")
@pytest.mark.parametrize("autocommit", [True, False])
def test_the_modes_of_newer_pythons_are_connections_too(autocommit, sqlite_base, run):
    where, mode = file_of(sqlite_base.url), {"autocommit": autocommit}

    def connect() -> Any:
        chosen: Any = mode  # unknown to the types of Python 3.11
        return sqlite3.connect(where, **chosen)

    with run.guarded(connect) as effect:
        at_once(put(effect.session, "x"))
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sqlite3.connect(where, timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
    assert sqlite_base.done == ["x"]
    with pytest.raises(ZeroDivisionError):
        run.guarded(connect, "other").call_sync(lambda effect: 1 / 0)
    connection = connect()
    if autocommit:
        fence.install_sync(connection, run)
    else:  # whether anything was done in the transaction that is always open, nobody can tell
        with pytest.raises(ConfigurationError, match="open transaction"):
            fence.install_sync(connection, run)
    connection.close()


def test_a_scoped_session_is_a_factory(engine, sqlite_base, run):
    scoped = scoped_session(sessionmaker(engine))
    with run.guarded(scoped) as effect:
        assert effect.session is scoped()
        scoped.execute(text("INSERT INTO done (note) VALUES ('x')"))
    scoped.remove()
    assert sqlite_base.done == ["x"]


def test_a_guarded_section_cannot_be_entered_twice_at_once(engine, run):
    guarded = run.guarded(engine)
    with guarded, pytest.raises(ConfigurationError, match="in use already"), guarded:
        raise AssertionError("entered")


@pytest.mark.parametrize("name", ["first", "result", "session", "key"])
def test_who_forgot_to_enter_a_section_is_told_how_it_is_entered(name, engine, sqlite_base, run):
    guarded = run.guarded(engine)
    said = rf"`\.{name}` is what the block gets.*Write `with run\.guarded\(…\) as effect:`.*`effect\.{name}`"
    with pytest.raises(ConfigurationError, match=said):
        getattr(guarded, name)
    with pytest.raises(ConfigurationError, match=said):
        setattr(guarded, name, 1)
    assert not hasattr(guarded, "other")
    assert sqlite_base.state == UNTOUCHED


def test_an_effect_needs_a_name(engine, run):
    with pytest.raises(ConfigurationError, match="does not name an effect"):
        run.guarded(engine, "")
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="does not name an effect"):
        fence.effect(connection, run, "")


@pytest.mark.parametrize("thing", [object(), "sqlite:///x", 3, None, sqlite3.connect])
def test_what_is_no_connection_is_refused_with_a_list_of_what_is(thing):
    with pytest.raises(
        ConfigurationError, match=r"none that Fencepost can use.*AsyncSession.*psycopg.*sqlite3.*Django"
    ):
        channel_of(thing)


# -- missing tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds_of())
async def test_missing_tables_are_named_with_the_command_that_makes_them(kind, base, factory, run):
    base.do("ALTER TABLE fencepost_fences RENAME TO elsewhere")
    try:
        with pytest.raises(ConfigurationError, match=r"table fencepost_fences is missing.*`fencepost sql upgrade URL`"):
            await kind.through(run.guarded(factory), lambda effect: put(effect.session, "x"))
    finally:
        base.do("ALTER TABLE elsewhere RENAME TO fencepost_fences")
