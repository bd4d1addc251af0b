"""A guarded section on every kind of connection: done once, found later, undone as a whole."""

from __future__ import annotations

import pytest

from fencepost.errors import LeaseLost, ResultRefused, StaleToken
from tests.guard.holding import Writer, kinds_of, put, raised

pytestmark = pytest.mark.parametrize("kind", kinds_of())


async def test_the_first_run_does_the_work_and_stores_its_result(kind, base, factory, run):
    async def work(effect):
        assert effect.first
        assert effect.result is None
        await put(effect.session, "invoice 7")
        effect.result = {"invoice": 7, "for": ["Ada", "ü"]}

    effect = await kind.through(run.guarded(factory), work)

    assert effect.result == {"invoice": 7, "for": ["Ada", "ü"]}
    assert base.done == ["invoice 7"]
    assert base.fences == [("order:1", 10, "n-ours")]
    assert [row[:3] for row in base.effects] == [("j1:invoice", 10, "n-ours")]
    assert run.notes == [("j1:invoice", True)]


async def test_a_later_attempt_finds_the_stored_result_and_writes_nothing(kind, base, factory, run):
    await kind.call(run.guarded(factory), lambda effect: _wrote(effect, "first", [1, None, "x"]))
    again = Writer(token=20, nonce="n-again")

    async def work(effect):
        assert not effect.first
        await put(effect.session, "second")

    effect = await kind.through(again.guarded(factory), work)

    assert (effect.first, effect.result) == (False, [1, None, "x"])
    assert base.done == ["first"]
    assert base.fences == [("order:1", 20, "n-again")]
    assert [row[:3] for row in base.effects] == [("j1:invoice", 10, "n-ours")]
    assert again.notes == [("j1:invoice", False)]


async def test_call_does_not_even_call_the_work_when_the_effect_is_there(kind, base, factory, run):
    assert await kind.call(run.guarded(factory), lambda effect: _wrote(effect, "first", "one")) == "one"
    assert await kind.call(run.guarded(factory), lambda effect: _wrote(effect, "second", "two")) == "one"
    assert base.done == ["first"]


async def test_an_error_in_the_block_undoes_the_work_and_passes(kind, base, factory, run):
    async def work(effect):
        await put(effect.session, "half")
        raise KeyError("no such order")

    with pytest.raises(KeyError, match="no such order"):
        await kind.through(run.guarded(factory), work)

    assert base.state == {"done": [], "fences": [("order:1", 10, "n-ours")], "effects": []}
    assert run.notes == []


async def test_a_result_that_json_cannot_hold_undoes_the_work(kind, base, factory, run):
    async def work(effect):
        await put(effect.session, "x")
        effect.result = "x" * 70_000

    with pytest.raises(ResultRefused, match="65536 are allowed"):
        await kind.through(run.guarded(factory), work)
    assert (base.done, base.effects) == ([], [])


async def test_a_newer_owner_that_installed_meanwhile_refuses_the_late_write(kind, base, factory, run):
    """Paused after its read, and woken when another run has taken the resource: nothing of it is kept."""
    newer = Writer(token=11, nonce="n-newer", job_id="j2")
    late = run.guarded(factory)
    base_of_sqlite = kind.engine == "sqlite"

    async def work(effect):
        await put(effect.session, "late")
        if base_of_sqlite:  # one writer at a time: nobody can install now, so the block loses what it had
            return
        await kind.call(newer.guarded(factory), lambda other: _wrote(other, "newer", 1))

    if base_of_sqlite:
        base.install(11, "n-newer")
    with pytest.raises(StaleToken, match="newest is 11"):
        await kind.through(late, work)

    assert base.fences == [("order:1", 11, "n-newer")]
    assert "late" not in base.done
    assert run.newest == 11
    assert run.bumps == [(11, "install" if base_of_sqlite else "verify")]
    assert run.notes == []


async def test_the_same_token_with_another_nonce_is_refused(kind, base, factory, run):
    """What a Redis that lost its newest writes gives out: one number, two holders."""
    base.install(10, "n-other")
    with pytest.raises(StaleToken):
        await kind.through(run.guarded(factory), lambda effect: put(effect.session, "x"))
    assert base.state == {"done": [], "fences": [("order:1", 10, "n-other")], "effects": []}
    assert run.bumps == [(10, "install")]


async def test_the_owner_of_the_lease_raises_its_token_above_what_the_database_knows(kind, base, factory, run):
    base.install(5_000, "n-lost")
    run.on_bump = raised

    await kind.through(run.guarded(factory), lambda effect: put(effect.session, "x"))

    assert run.bumps == [(5_000, "install")]
    assert base.fences == [("order:1", 5_100, "n-ours")]
    assert [row[:3] for row in base.effects] == [("j1:invoice", 5_100, "n-ours")]


async def test_a_holder_whose_lease_ran_out_inside_the_block_commits_nothing(kind, base, factory, run):
    async def work(effect):
        await put(effect.session, "x")
        run.lost = "deadline"

    with pytest.raises(LeaseLost, match="deadline"):
        await kind.through(run.guarded(factory), work)
    assert (base.done, base.effects) == ([], [])


async def test_a_holder_that_must_stop_does_not_begin(kind, base, factory, run):
    run.lost = "cancelled"
    with pytest.raises(LeaseLost, match="cancelled"):
        await kind.through(run.guarded(factory), lambda effect: put(effect.session, "x"))
    assert base.state == {"done": [], "fences": [], "effects": []}


async def _wrote(effect, note, result):
    await put(effect.session, note)
    return result
