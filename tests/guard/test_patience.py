"""MySQL and MariaDB: how long a section waits for a lock and may stand still, and that nothing of it stays behind."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from fencepost import fence
from fencepost.errors import SectionRepeat
from tests.guard.holding import Writer

LIMITS = "SELECT @@SESSION.innodb_lock_wait_timeout, @@SESSION.idle_transaction_timeout"


@pytest.fixture
def base(shared_base):
    return shared_base("mariadb")


@pytest.fixture
def engine(base):
    """One connection, which every section of a test gets again."""
    engine = create_engine(base.url, pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


def limits(engine):
    with engine.connect() as connection:
        return tuple(connection.execute(text(LIMITS)).one())


@pytest.mark.parametrize("made", [lambda engine: engine, sessionmaker], ids=["engine", "sessionmaker"])
@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
def test_a_section_limits_its_session_to_its_lease_and_the_pool_gets_it_back_as_it_was(made, fails, engine):
    before, inside = limits(engine), []

    def work(effect):
        inside.append(tuple(effect.session.execute(text(LIMITS)).one()))
        if fails:
            raise KeyError("no")

    guarded = Writer(lease_s=2.5).guarded(made(engine))
    if fails:
        with pytest.raises(KeyError):
            guarded.call_sync(work)
    else:
        guarded.call_sync(work)
    assert inside == [(3, 3)]
    assert limits(engine) == before == (50, 0)


async def test_on_an_event_loop_too(base):
    engine = create_async_engine(base.url.replace("+pymysql", "+aiomysql"), pool_size=1, max_overflow=0)
    async with Writer(lease_s=2.5).guarded(engine) as effect:
        assert tuple((await effect.session.execute(text(LIMITS))).one()) == (3, 3)
    async with engine.connect() as connection:
        assert tuple((await connection.execute(text(LIMITS))).one()) == (50, 0)
    await engine.dispose()


def test_what_the_user_has_set_shorter_stays_and_install_leaves_his_connection_as_it_was(engine):
    with engine.connect() as connection:
        connection.execute(text("SET SESSION innodb_lock_wait_timeout = 2, idle_transaction_timeout = 1"))
        connection.commit()
        fence.install_sync(connection, Writer())
        assert not connection.in_transaction()
        assert tuple(connection.execute(text(LIMITS)).one()) == (2, 1)
    with Writer().guarded(engine) as effect:
        assert tuple(effect.session.execute(text(LIMITS)).one()) == (2, 1)


def test_a_fence_that_somebody_holds_is_asked_for_during_three_leases_and_not_ten_times(base, engine):
    base.install(5, "n-old")
    with base.engine.connect() as holder:
        holder.execute(text("SELECT * FROM fencepost_fences FOR UPDATE"))
        began = time.monotonic()
        with pytest.raises(SectionRepeat, match="Lock wait timeout"):
            Writer(lease_s=1.0).guarded(engine).call_sync(lambda effect: None)
        assert 1 < time.monotonic() - began < 8
    assert base.fences == [("order:1", 5, "n-old")]


def test_a_holder_that_stands_still_in_its_section_is_thrown_out_within_its_lease(base, engine):
    """The old one has locked the fence and does nothing: MariaDB ends its session, and the newer one goes on."""
    frozen_engine = create_engine(base.url)
    frozen = Writer(lease_s=1.0).guarded(frozen_engine)
    effect = frozen.__enter__()
    effect.session.execute(text("SELECT * FROM fencepost_fences FOR UPDATE"))
    newer = Writer(token=11, nonce="n-newer", job_id="j2", lease_s=1.0)
    assert newer.guarded(engine).call_sync(lambda effect: "done") == "done"
    with pytest.raises(Exception, match=r"(?i)lost connection|gone away|killed|idle"):
        frozen.__exit__(None, None, None)
    assert [row[0] for row in base.effects] == ["j2:invoice"]
    frozen_engine.dispose()
