"""What the database wants done again: serialization failures, deadlocks, a busy SQLite, an effect that came first."""

from __future__ import annotations

import sqlite3
import threading

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from fencepost import fence
from fencepost.errors import SectionRepeat, TransactionEnded
from fencepost.sql.channel import at_once
from tests.guard.holding import file_of, kinds_of, put, raised
from tests.guard.owning import connected, effect_in, install_on, own_transaction


class Repeats:
    """A PostgreSQL engine at an isolation level, with one row that another transaction changes under the section."""

    def __init__(self, base, level):
        self.base = base
        self.engine = create_engine(base.url, isolation_level=level)
        self.passes = 0
        base.do("INSERT INTO done (note) VALUES ('0')")

    def add_one(self, effect, disturbed=1):
        """Read and write back; the first `disturbed` passes meet somebody who did so in between."""
        self.passes += 1
        value = int(effect.session.execute(text("SELECT note FROM done")).scalar_one())
        if self.passes <= disturbed:
            self.base.do("UPDATE done SET note = CAST(CAST(note AS INTEGER) + 10 AS VARCHAR(9))")
        effect.session.execute(text(f"UPDATE done SET note = '{value + 1}'"))
        return value + 1


@pytest.fixture(params=["REPEATABLE READ", "SERIALIZABLE"])
def repeats(request, shared_base):
    made = Repeats(shared_base("postgresql"), request.param)
    yield made
    made.engine.dispose()


def test_call_repeats_a_section_that_postgresql_could_not_serialize(repeats, run):
    assert run.guarded(repeats.engine).call_sync(repeats.add_one) == 11
    assert repeats.passes == 2
    assert repeats.base.done == ["11"]
    assert run.notes == [("j1:invoice", True)]


def test_call_gives_up_after_ten_passes(repeats, run):
    with pytest.raises(SectionRepeat, match=r"could not serialize access.*no attempt is charged"):
        run.guarded(repeats.engine).call_sync(lambda effect: repeats.add_one(effect, disturbed=99))
    assert repeats.passes == 10
    assert repeats.base.done == ["100"]
    assert repeats.base.effects == []


def test_a_context_manager_raises_section_repeat_and_leaves_nothing(repeats, run):
    with pytest.raises(SectionRepeat) as caught, run.guarded(repeats.engine) as effect:
        repeats.add_one(effect)
    assert caught.value.job_id == "j1"
    assert caught.value.key == "j1:invoice"
    assert repeats.base.done == ["10"]
    assert repeats.base.effects == []


def test_a_conflict_that_shows_only_at_commit_is_repeated(shared_base, run):
    """Write skew: each reads both rows and writes one. PostgreSQL notices it when the second one commits."""
    base = shared_base("postgresql")
    base.do("INSERT INTO done (note) VALUES ('a'), ('b')")
    engine = create_engine(base.url, isolation_level="SERIALIZABLE")
    passes = []

    def work(effect):
        passes.append(1)
        seen = effect.session.execute(text("SELECT count(*) FROM done WHERE note IN ('a', 'b')")).scalar_one()
        if len(passes) == 1:
            with engine.begin() as other:
                other.execute(text("SELECT count(*) FROM done WHERE note IN ('a', 'b')")).scalar_one()
                other.execute(text("DELETE FROM done WHERE note = 'a'"))
        if seen == 2:
            effect.session.execute(text("DELETE FROM done WHERE note = 'b'"))
        return seen

    assert run.guarded(engine).call_sync(work) == 1
    assert len(passes) == 2
    assert base.done == ["b"]
    engine.dispose()


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
async def test_a_section_that_was_the_victim_of_a_deadlock_is_repeated(name, shared_base, run):
    """The section has row a and wants b; a rival has b and wants a."""
    base = shared_base(name)
    base.do("INSERT INTO done (note) VALUES ('a')")
    base.do("DROP TABLE IF EXISTS second")
    base.do("CREATE TABLE second (note VARCHAR(20))")
    base.do("INSERT INTO second (note) VALUES ('b')")
    engine = create_async_engine(base.url.replace("+pymysql", "+aiomysql"))
    rival_engine, rival_has_b, section_has_a = create_engine(base.url), threading.Event(), threading.Event()
    passes = []

    def rival():
        with rival_engine.connect() as connection:
            if name == "postgresql":  # who looks for a deadlock first is its victim
                connection.execute(text("SET LOCAL deadlock_timeout = '10s'"))
            connection.execute(text("UPDATE second SET note = 'rival'"))
            for number in range(50):  # InnoDB undoes whoever has changed less
                connection.execute(text(f"INSERT INTO second (note) VALUES ('{number}')"))
            rival_has_b.set()
            section_has_a.wait(10)
            connection.execute(text("UPDATE done SET note = 'rival'"))
            connection.rollback()

    async def work(effect):
        passes.append(1)
        await effect.session.execute(text("UPDATE done SET note = 'a2'"))
        if len(passes) == 1:
            helper.start()
            rival_has_b.wait(10)
            section_has_a.set()
        await effect.session.execute(text("UPDATE second SET note = 'b2'"))
        return len(passes)

    helper = threading.Thread(target=rival)
    assert await run.guarded(engine).call(work) == 2
    helper.join()
    assert base.done == ["a2"]
    assert base.rows("SELECT note FROM second") == [("b2",)]
    assert len(base.effects) == 1
    await engine.dispose()
    rival_engine.dispose()


def test_a_deadlock_that_the_block_swallowed_is_not_taken_for_success(shared_base, run):
    """MariaDB undoes the whole transaction of a victim, and the next statement silently begins another."""
    base = shared_base("mariadb")
    base.do("INSERT INTO done (note) VALUES ('a')")
    engine = create_engine(base.url)

    def work(effect):
        effect.session.execute(text("INSERT INTO done (note) VALUES ('lost')"))
        # What the server does to a victim, at the level of the driver: SQLAlchemy knows nothing of it.
        effect.session.connection.driver_connection.rollback()
        effect.session.execute(text("INSERT INTO done (note) VALUES ('half')"))

    with pytest.raises(TransactionEnded):
        run.guarded(engine).call_sync(work)
    assert base.done == ["a"]
    assert base.effects == []
    engine.dispose()


# -- SQLite -----------------------------------------------------------------------------------------------------


def test_a_busy_sqlite_is_waited_for_and_then_asked_again(new_base, run):
    """Another process writes for longer than the driver waits; `call` comes again."""
    base = new_base("sqlite")
    engine = create_engine(base.url, connect_args={"timeout": 0})
    other = sqlite3.connect(file_of(base.url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    tried = []

    def factory():
        tried.append(1)
        if len(tried) == 3:
            other.execute("ROLLBACK")
        return engine.connect()

    with pytest.raises(SectionRepeat, match="database is locked"), run.guarded(lambda: engine.connect()):
        raise AssertionError("entered")
    assert run.guarded(factory).call_sync(lambda effect: at_once(put(effect.session, "x"))) is None
    assert len(tried) == 3
    assert base.done == ["x"]
    other.close()
    engine.dispose()


@pytest.mark.parametrize("mode", ["", None], ids=["legacy", "autocommit"])
def test_a_transaction_of_the_users_own_that_has_read_an_old_snapshot_is_repeated(mode, new_base, run):
    """WAL: who has read before another committed cannot become the writer; SQLite says so at once, whatever timeout."""
    base = new_base("sqlite")
    base.do("PRAGMA journal_mode = WAL")
    connection = sqlite3.connect(file_of(base.url), isolation_level=mode)
    fence.install_sync(connection, run)
    connection.execute("BEGIN")
    assert connection.execute("SELECT count(*) FROM done").fetchone() == (0,)
    base.do("INSERT INTO done (note) VALUES ('meanwhile')")
    with pytest.raises(SectionRepeat, match="database is locked"), fence.effect(connection, run, "invoice"):
        raise AssertionError("entered")
    connection.rollback()
    connection.execute("BEGIN")
    with fence.effect(connection, run, "invoice"):
        connection.execute("INSERT INTO done (note) VALUES ('x')")
    connection.commit()
    connection.close()
    assert base.done == ["meanwhile", "x"]


# -- an effect that came first ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds_of("postgresql", "mariadb"))
async def test_an_effect_that_another_committed_meanwhile_counts_and_ours_is_undone(kind, base, factory, run):
    """The same key under another resource: no fence stands between the two, only the key itself."""

    async def work(effect):
        assert effect.first
        await put(effect.session, "ours")
        base.effect("j1:invoice", '"theirs"')

    effect = await kind.through(run.guarded(factory), work)
    assert (effect.first, effect.result) == (False, "theirs")
    assert base.done == []
    assert [row[1:3] for row in base.effects] == [(5, "n-other")]
    assert run.notes == [("j1:invoice", False)]


@pytest.mark.parametrize("kind", kinds_of("postgresql", "mariadb"))
async def test_in_the_users_own_transaction_such_an_effect_asks_for_a_repetition(kind, base, factory, run):
    async def work(effect):
        await put(effect.session, "ours")
        base.effect("j1:invoice", '"theirs"')

    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        with pytest.raises(SectionRepeat):
            async with own_transaction(kind, session):
                await effect_in(kind, session, run, work)
        async with own_transaction(kind, session):
            effect = await effect_in(kind, session, run, _nothing)
    assert (effect.first, effect.result) == (False, "theirs")
    assert base.done == []


@pytest.mark.parametrize("kind", kinds_of("postgresql", "mariadb"))
async def test_a_duplicate_key_of_the_users_own_table_is_his_error(kind, base, factory, run):
    base.do(_TAKEN)

    async def work(effect):
        answer = (
            effect.session.execute(text(_TAKEN))
            if "sqlalchemy" in type(effect.session).__module__
            else effect.session.execute(_TAKEN)
        )
        if kind.asynchronous:
            await answer

    with pytest.raises(Exception, match=r"(?i)duplicate") as caught:
        await kind.call(run.guarded(factory), work)
    assert isinstance(caught.value, (IntegrityError, psycopg.IntegrityError))


_TAKEN = (
    "INSERT INTO fencepost_effects (namespace, effect_key, job_id, token, nonce, created_at_ms)"
    " VALUES ('elsewhere', 'k', '', 1, '', 0)"
)


# -- catching up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds_of("postgresql", "mariadb"))
async def test_an_owner_that_was_refused_at_the_end_catches_up_and_does_it_again(kind, base, factory, run):
    """A run from before a rewind woke up and installed its higher token; Redis says that we are the owner."""
    run.on_bump, passes = raised, []

    async def work(effect):
        passes.append(run.token)
        await put(effect.session, f"pass {len(passes)}")
        if len(passes) == 1:
            base.install(5_000, "n-from-before")
        return len(passes)

    assert await kind.call(run.guarded(factory), work) == 2
    assert passes == [10, 5_100]
    assert run.bumps == [(5_000, "verify")]
    assert base.done == ["pass 2"]
    assert [row[:3] for row in base.effects] == [("j1:invoice", 5_100, "n-ours")]


@pytest.mark.parametrize("kind", kinds_of("postgresql", "mariadb"))
async def test_as_a_context_manager_it_asks_for_the_repetition(kind, base, factory, run):
    run.on_bump = raised

    async def work(effect):
        await put(effect.session, "x")
        base.install(5_000, "n-from-before")

    with pytest.raises(SectionRepeat, match=r"knew token 5000, ours is raised to 5100"):
        await kind.through(run.guarded(factory), work)
    assert (base.done, base.effects) == ([], [])
    assert run.newest == 0


@pytest.mark.parametrize("kind", kinds_of())
async def test_a_token_that_is_overtaken_again_and_again_is_given_up(kind, base, factory, run):
    def overtaken(floor):
        base.install(floor + 200, "n-other")
        return floor + 100

    base.install(11, "n-other")
    run.on_bump = overtaken
    with pytest.raises(SectionRepeat, match="overtaken 5 times"):
        await kind.through(run.guarded(factory), _nothing)
    assert len(run.bumps) == 5
    assert base.effects == []


async def test_two_sections_of_one_run_do_not_push_each_other_out(shared_base, run):
    """Both were installed with token 10; the other had to raise it. The claim is the same, so both effects count."""
    base = shared_base("postgresql")
    engine = create_async_engine(base.url)
    async with run.guarded(engine, "first") as outer:
        await put(outer.session, "outer")
        base.install(50, "n-lost")
        run.on_bump = raised
        async with run.guarded(engine, "second") as inner:
            await put(inner.session, "inner")
    assert base.done == ["inner", "outer"]
    assert [row[:3] for row in base.effects] == [("j1:first", 150, "n-ours"), ("j1:second", 150, "n-ours")]
    await engine.dispose()


async def test_two_sections_of_one_run_with_the_same_key_write_once(shared_base, run):
    """Token and nonce are the same, so only the key itself tells them apart."""
    base = shared_base("postgresql")
    engine = create_async_engine(base.url)
    async with run.guarded(engine) as outer:
        await put(outer.session, "outer")
        outer.result = "outer"
        async with run.guarded(engine) as inner:
            assert inner.first
            await put(inner.session, "inner")
            inner.result = "inner"
    assert (outer.first, outer.result) == (False, "inner")
    assert base.done == ["inner"]
    await engine.dispose()


async def _nothing(_effect):
    return None
