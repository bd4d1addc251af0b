"""What is stored: keys and resources of any length and form, results as JSON, and for how long a session may stand."""

from __future__ import annotations

import datetime as dt
import decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from fencepost.errors import ResultRefused
from fencepost.fence.statements import stored_key
from tests.guard.holding import Writer, kinds_of, put
from tests.guard.owning import connected, effect_in, install_on, own_transaction

LONG = "order:" + "x" * 600


@pytest.mark.parametrize("kind", kinds_of(drivers=True))
async def test_a_result_comes_back_as_it_was_stored(kind, base, factory, run):
    results = [None, 0, False, "", 2**63 - 1, "x" * 65_000, "nul \0 inside", {"a": [1, 2.5, None, {"b": "c"}], "": []}]
    results.append("ü 'quoted' \\ %s %(x)s :name ? \u2028 \U0001f600")
    for number, result in enumerate(results):

        async def work(effect, result=result):
            effect.result = result

        await kind.through(run.guarded(factory, f"k{number}"), work)
        again = await kind.through(Writer(token=run.token).guarded(factory, f"k{number}"), work)
        assert not again.first
        assert again.result == result
        assert type(again.result) is type(result)


@pytest.mark.parametrize("kind", kinds_of("sqlite"))
async def test_the_first_attempt_gets_the_result_that_later_ones_get(kind, base, factory, run):
    """A Decimal on the first day and a text on the second would be found out on the second."""

    async def work(effect):
        effect.result = {"at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "sum": decimal.Decimal("9.90"), "of": (1, 2)}

    stored = {"at": "2026-01-02T00:00:00Z", "sum": "9.90", "of": [1, 2]}
    assert (await kind.through(run.guarded(factory), work)).result == stored
    again = await kind.through(run.guarded(factory), work)
    assert (again.first, again.result) == (False, stored)
    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        async with own_transaction(kind, session):
            assert (await effect_in(kind, session, run, work, "other")).result == stored


@pytest.mark.parametrize("kind", kinds_of("sqlite", "mariadb"))
async def test_results_that_are_no_json_are_refused_by_name(kind, base, factory, run):
    naive = dt.datetime(2026, 1, 2, tzinfo=dt.UTC).replace(tzinfo=None)
    for result in (object(), {"at": naive}, float("inf"), "x" * 65_536):

        async def work(effect, result=result):
            await put(effect.session, "x")
            return result

        with pytest.raises(ResultRefused, match="`result"):
            await kind.call(run.guarded(factory), work)
    assert (base.done, base.effects) == ([], [])


@pytest.mark.parametrize("kind", kinds_of(drivers=True))
async def test_keys_and_resources_longer_than_the_columns_are_told_apart(kind, base, factory, run):
    run.job_id = "j1"
    for number in range(2):
        key, resource = "k" * 300 + str(number), LONG + str(number)
        effect = await kind.through(run.guarded(factory, key, resource), lambda effect: put(effect.session, "x"))
        assert effect.first
        again = await kind.through(run.guarded(factory, key, resource), _nothing)
        assert not again.first
    assert len(base.effects) == 2
    assert {len(row[0]) for row in base.effects} == {245}
    assert all(row[0].startswith("order:xxx") for row in base.fences)


@pytest.mark.parametrize("kind", kinds_of(drivers=True))
@pytest.mark.parametrize("other", ["Order:1", "order:1 ", "order:1\t", "örder:1", "o\u0308rder:1", "order:1\u00a0"])
async def test_resources_that_differ_in_any_byte_are_two(kind, base, factory, run, other):
    """MariaDB and MySQL would take "A" for "a" by default, and "a " for "a" whatever they are told."""
    base.install(99, "n-of-order-1")
    await kind.through(run.guarded(factory, "k", other), _nothing)
    assert len(base.fences) == 2
    await kind.through(run.guarded(factory, "K", other), _nothing)
    await kind.through(run.guarded(factory, "k ", other), _nothing)
    assert len(base.effects) == 3
    assert not (await kind.through(run.guarded(factory, "k ", other), _nothing)).first


@given(st.text(min_size=1, max_size=600), st.text(min_size=1, max_size=600))
def test_a_stored_key_fits_its_column_and_stands_for_one_text(one, other):
    assert len(stored_key(one)) <= 255
    assert (stored_key(one) == stored_key(other)) == (one == other)
    assert stored_key(one) == stored_key(one).rstrip(" ")


@pytest.mark.parametrize("kind", kinds_of("postgresql"))
async def test_a_session_that_stands_still_for_longer_than_its_lease_is_ended_by_postgresql(kind, base, factory, run):
    """Nobody waits for the row of a frozen holder longer than that. The setting ends with the transaction."""
    run.lease_s, shown = 7.0, []

    async def work(effect):
        shown.append(await _setting(kind, effect.session))
        return None

    await kind.call(run.guarded(factory), work)
    assert shown == ["7s"]
    with base.engine.connect() as connection:
        assert connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one() == "0"


@pytest.mark.parametrize("kind", kinds_of(drivers=True))
async def test_namespaces_share_a_database_and_nothing_else(kind, base, factory, run):
    other = Writer(namespace="elsewhere", token=3, nonce="n-elsewhere")
    await kind.through(run.guarded(factory), lambda effect: put(effect.session, "shop"))
    effect = await kind.through(other.guarded(factory), lambda effect: put(effect.session, "elsewhere"))
    assert effect.first
    assert base.done == ["elsewhere", "shop"]
    assert {row[1] for row in base.fences} == {10, 3}


async def _nothing(_effect):
    return None


async def _setting(kind, session):
    statement = "SHOW idle_in_transaction_session_timeout"
    if type(session).__module__.startswith("sqlalchemy"):
        answer = session.execute(text(statement))
        return (await answer if kind.asynchronous else answer).scalar_one()
    cursor = session.execute(statement)
    if kind.asynchronous:
        return (await (await cursor).fetchone())[0]
    return cursor.fetchone()[0]
