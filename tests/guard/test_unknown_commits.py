"""COMMIT was sent and no answer came: the section asks on a new connection what became of it; nothing is done twice."""

from __future__ import annotations

import inspect
import threading

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from tests.guard.holding import Writer, kinds_of, put
from tests.guard.wire import CommitProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("kind", kinds_of("postgresql", "mariadb"))


@pytest.fixture
def proxy(base):
    with CommitProxy(base.url) as proxy:
        yield proxy


@pytest.fixture
async def factory(kind, proxy):
    made, close = kind.make(proxy.url)
    yield made
    closing = close()
    if inspect.isawaitable(closing):
        await closing


def breaks(proxy, fault, note="x", result=None):
    """A block that does its work, and whose COMMIT meets the fault."""

    async def body(effect):
        await put(effect.session, note)
        effect.result = result
        proxy.fault = fault

    return body


async def test_a_commit_whose_answer_was_lost_is_found_committed(kind, base, factory, run, proxy):
    effect = await kind.through(run.guarded(factory), breaks(proxy, "after", result={"n": 7}))
    assert proxy.hits == ["after"]
    assert (effect.first, effect.result) == (True, {"n": 7})
    assert base.done == ["x"]
    assert len(base.effects) == 1
    assert run.notes == [("j1:invoice", True)]


async def test_a_commit_that_never_arrived_lets_the_error_pass_and_has_written_nothing(kind, base, factory, run, proxy):
    with pytest.raises((DBAPIError, psycopg.OperationalError)) as caught:
        await kind.through(run.guarded(factory), breaks(proxy, "before"))
    assert proxy.hits == ["before"]
    assert not hasattr(caught.value, "__notes__")
    assert (base.done, base.effects) == ([], [])
    assert run.notes == []

    # The next attempt does the work, on the same pool.
    again = Writer(token=20, nonce="n-again")
    await kind.through(again.guarded(factory), breaks(proxy, "", note="again"))
    assert base.done == ["again"]


async def test_an_effect_that_another_committed_since_counts_and_ours_is_known_to_be_undone(
    kind, base, factory, run, proxy
):
    proxy.meanwhile = lambda: base.effect("j1:invoice", '"theirs"')
    effect = await kind.through(run.guarded(factory), breaks(proxy, "before", result="ours"))
    assert proxy.hits == ["before"]
    assert (effect.first, effect.result) == (False, "theirs")
    assert base.done == []
    assert run.notes == [("j1:invoice", False)]


async def test_the_question_waits_for_a_commit_that_is_still_on_its_way(kind, base, factory, run, proxy):
    """The connection is gone, its COMMIT reaches the server later: an answer before that would be a guess."""

    def waits_for_the_lock():
        if kind.engine == "postgresql":
            return base.rows("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")[0][0]
        # Not information_schema.innodb_trx: that is only filled anew when nobody has read it for 0.1 s.
        return "\nLOCK WAIT " in base.rows("SHOW ENGINE INNODB STATUS")[0][2]

    def release_when_somebody_waits():
        wait_until(waits_for_the_lock, timeout=8)
        proxy.release()

    helper = threading.Thread(target=release_when_somebody_waits)
    helper.start()
    effect = await kind.through(run.guarded(factory), breaks(proxy, "held", result=3))
    helper.join()
    assert proxy.hits == ["held"]
    assert (effect.first, effect.result) == (True, 3)
    assert base.done == ["x"]
    assert run.notes == [("j1:invoice", True)]


@pytest.mark.slow
async def test_where_nothing_can_be_asked_the_error_says_that_it_is_unknown(kind, base, factory, run, proxy):
    with pytest.raises((DBAPIError, psycopg.OperationalError)) as caught:
        await kind.through(run.guarded(factory), breaks(proxy, "away"))
    (note,) = caught.value.__notes__
    assert "'j1:invoice' was committed is unknown" in note
    assert base.done == ["x"]
    assert run.notes == []
