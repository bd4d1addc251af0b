"""The guard for those who own their transaction: install before it, the effect inside it."""

from __future__ import annotations

import inspect

import pytest

from fencepost.errors import ConfigurationError, LeaseLost, ResultRefused, StaleToken, TransactionEnded
from tests.guard.holding import Writer, kinds_of, put, raised
from tests.guard.owning import connected, effect_in, install_on, own_transaction

pytestmark = pytest.mark.parametrize("kind", kinds_of())


async def nothing(_effect):
    return None


def writes(note, result=None):
    async def body(effect):
        if effect.first:
            await put(effect.session, note)
            effect.result = result

    return body


async def missing():
    raise KeyError("changed my mind")


async def in_transaction(kind, session, first, then):
    async with own_transaction(kind, session):
        await first
        await then()


async def test_the_effect_is_committed_with_the_users_own_transaction(kind, base, factory, run):
    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        assert base.fences == [("order:1", 10, "n-ours")]
        async with own_transaction(kind, session):
            await put(session, "before")
            effect = await effect_in(kind, session, run, writes("inside", {"n": 1}))
            assert effect.first
            await put(session, "after")
    assert base.done == ["after", "before", "inside"]
    assert [row[:3] for row in base.effects] == [("j1:invoice", 10, "n-ours")]


async def test_a_second_attempt_finds_the_result(kind, base, factory, run):
    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        async with own_transaction(kind, session):
            await effect_in(kind, session, run, writes("one", {"n": 1}))
    again = Writer(token=20, nonce="n-again")
    async with connected(kind, factory) as session:
        await install_on(kind, session, again)
        async with own_transaction(kind, session):
            effect = await effect_in(kind, session, again, writes("two", {"n": 2}))
    assert (effect.first, effect.result) == (False, {"n": 1})
    assert base.done == ["one"]
    assert again.notes == [("j1:invoice", False)]


async def test_a_rollback_of_the_user_leaves_no_effect_and_tells_of_none(kind, base, factory, run):
    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        with pytest.raises(KeyError):
            await in_transaction(kind, session, effect_in(kind, session, run, writes("x")), missing)
    assert (base.done, base.effects) == ([], [])
    assert run.notes == []


async def test_install_refuses_an_open_transaction(kind, base, factory, run):
    async with connected(kind, factory) as session:
        with pytest.raises(ConfigurationError, match="open transaction"):
            await in_transaction(kind, session, put(session, "x"), lambda: install_on(kind, session, run))
    assert base.state == {"done": [], "fences": [], "effects": []}


async def test_an_effect_without_install_is_refused_before_any_work(kind, base, factory, run):
    base.install(9, "n-older")
    async with connected(kind, factory) as session:
        with pytest.raises(ConfigurationError, match=r"not installed at 'order:1'.*Call `fence.install"):
            async with own_transaction(kind, session):
                await effect_in(kind, session, run, writes("x"))
    assert (base.done, base.effects) == ([], [])


async def test_a_holder_that_was_overtaken_is_refused_before_any_work(kind, base, factory, run):
    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        base.install(11, "n-newer")
        with pytest.raises(StaleToken, match="newest is 11"):
            async with own_transaction(kind, session):
                await effect_in(kind, session, run, writes("x"))
    assert (base.done, base.effects) == ([], [])
    assert run.bumps == [(11, "verify")]
    assert run.newest == 11


async def test_install_raises_the_token_of_the_owner(kind, base, factory, run):
    base.install(50, "n-lost")
    run.on_bump = raised
    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        async with own_transaction(kind, session):
            await effect_in(kind, session, run, writes("x"))
    assert base.fences == [("order:1", 150, "n-ours")]
    assert base.done == ["x"]


async def test_another_resource_than_the_runs_own_is_fenced_by_itself(kind, base, factory, run):
    base.install(99, "n-of-the-runs-own")
    async with connected(kind, factory) as session:
        await install_on(kind, session, run, "stock:7")
        async with own_transaction(kind, session):
            await effect_in(kind, session, run, writes("x"), resource="stock:7")
    assert base.fences == [("order:1", 99, "n-of-the-runs-own"), ("stock:7", 10, "n-ours")]
    assert base.done == ["x"]


async def test_two_effects_fit_in_one_transaction(kind, base, factory, run):
    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        async with own_transaction(kind, session):
            await effect_in(kind, session, run, writes("a"), "a")
            await effect_in(kind, session, run, writes("b"), "b")
            again = await effect_in(kind, session, run, writes("b again"), "b")
    assert not again.first
    assert base.done == ["a", "b"]
    assert [row[0] for row in base.effects] == ["j1:a", "j1:b"]


async def test_a_lost_lease_and_an_odd_result_are_refused_at_the_end_of_the_block(kind, base, factory, run):
    async def loses(effect):
        await put(effect.session, "x")
        run.lost = "deadline"

    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        with pytest.raises(ResultRefused):
            async with own_transaction(kind, session):
                await effect_in(kind, session, run, writes("x", float("nan")))
        with pytest.raises(LeaseLost):
            async with own_transaction(kind, session):
                await effect_in(kind, session, run, loses)
    assert (base.done, base.effects) == ([], [])


async def test_a_commit_inside_the_block_is_noticed(kind, base, factory, run):
    async def ends(effect):
        await put(effect.session, "x")
        await _say(kind, effect.session, "COMMIT")
        await put(effect.session, "y")

    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        await _say(kind, session, "BEGIN")
        with pytest.raises(TransactionEnded, match="Take commit"):
            await effect_in(kind, session, run, ends)
    assert base.effects == []
    assert "x" in base.done


async def test_an_error_of_the_database_that_the_block_swallowed_is_noticed(kind, base, factory, run):
    if kind.engine != "postgresql":
        pytest.skip("only PostgreSQL refuses the rest of a transaction after an error")

    async def swallows(effect):
        with pytest.raises(Exception, match="value too long"):
            await put(effect.session, "x" * 201)

    async with connected(kind, factory) as session:
        await install_on(kind, session, run)
        with pytest.raises(TransactionEnded):
            await in_transaction(kind, session, effect_in(kind, session, run, swallows), missing)
    assert (base.done, base.effects) == ([], [])


async def _say(kind, session, word):
    """BEGIN where the connection does not do it by itself, or COMMIT."""
    if type(session).__module__.startswith("sqlalchemy"):
        answer = session.commit() if word == "COMMIT" else None
    else:
        answer = session.execute(word) if word == "COMMIT" or kind.name.endswith("autocommit") else None
    if inspect.isawaitable(answer):
        await answer
