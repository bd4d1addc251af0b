"""`run.outside` keeps an honest record of an effect that no database can fence: new, unknown or done."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fencepost import ArgumentsRefused, LeaseExpired, Permanent, Retry, RetryPolicy, Run, StaleToken
from tests.life.working import ended, lapsed, taken, told, work_off

QUICK = RetryPolicy(attempts=4, base=0.01, jitter="none")


@pytest.fixture
def charge(app):
    @app.job()
    async def charge(run: Run) -> None: ...

    return charge


async def again(app, run: Run) -> Run:
    """End a run so that the job comes back at once, and take it anew."""
    await ended(app, run, "RETRY", 0, "Oops", "it broke")
    return await taken(app)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_effect_that_was_done_is_done_for_every_later_attempt(app, redis, asynchronous):
    seen = []

    async def in_loop(run: Run) -> Any:
        async with run.outside("mail") as effect:
            seen.append((effect.known, effect.key, effect.result))
            if effect.known == "new":
                effect.result = {"id": "m-1"}
        if run.attempt < 3:
            raise Retry(after=0.0)
        return effect.result

    def in_thread(run: Run) -> Any:
        with run.outside("mail") as effect:
            seen.append((effect.known, effect.key, effect.result))
            if effect.known == "new":
                effect.result = {"id": "m-1"}
        if run.attempt < 3:
            raise Retry(after=0.0)
        return effect.result

    job = await app.job(kind="charge", retry=QUICK)(in_loop if asynchronous else in_thread).enqueue()
    await work_off(app)
    key = f"{job.id}:mail"
    assert seen == [("new", key, None)] + [("done", key, {"id": "m-1"})] * 2
    assert await job.result() == {"id": "m-1"}
    assert told(app, redis, "intent", "outcome") == [("intent", "mail begins"), ("outcome", "mail done")]


@pytest.mark.parametrize("how", ["an error", "a crash", "a cancellation"])
async def test_an_effect_that_was_begun_and_did_not_end_is_unknown(app, redis, how):
    """Nobody can tell whether the provider has it: the handler is told so, and asks for the key."""
    seen = []

    @app.job(retry=QUICK)
    async def charge(run: Run) -> Any:
        async with run.outside("card") as effect:
            seen.append((effect.known, effect.key))
            if effect.known == "unknown":
                effect.result = "the provider had it"
                return effect.result
            if how == "an error":
                raise OSError("connection reset")
            if how == "a cancellation":
                raise asyncio.CancelledError
            lapsed(app, redis, run)
            effect.result = "never told"
        raise AssertionError("it left with an outcome that nobody stored")

    job = await charge.enqueue()
    await work_off(app)
    assert seen == [("new", f"{job.id}:card"), ("unknown", f"{job.id}:card")]
    assert await job.result() == "the provider had it"
    assert json.loads((await job.status()).outside["card"])["state"] == "done"
    reasons = [reason for _, reason in told(app, redis, "intent", "outcome")]
    assert reasons == ["card begins", "card begins (was unknown)", "card done (was unknown)"]


async def test_what_is_known_of_an_effect_outlives_a_requeue(app, charge):
    job = await charge.enqueue()
    run = await taken(app)
    async with run.outside("mail") as mail:
        mail.result = 1
    with pytest.raises(OSError, match="reset"):
        async with run.outside("card"):
            raise OSError("reset")
    await ended(app, run, "BURY", "permanent", "Oops", "it broke")
    await app.link.asynchronous.run(app.link.store.requeue([job.id], "ask"))
    run = await taken(app)
    async with run.outside("mail") as mail, run.outside("card") as card:
        assert (mail.known, mail.result, card.known, card.result) == ("done", 1, "unknown", None)


@pytest.mark.parametrize("known", ["new", "unknown"])
@pytest.mark.parametrize("raises", [True, False])
async def test_an_effect_that_certainly_did_not_happen_begins_new(app, redis, charge, known, raises):
    await charge.enqueue()
    run = await taken(app)
    if known == "unknown":
        with pytest.raises(OSError, match="reset"):
            async with run.outside("card"):
                raise OSError("reset")
        run = await again(app, run)
    try:
        async with run.outside("card") as effect:
            assert effect.known == known
            effect.result = "refused"
            effect.not_done()
            if raises:
                raise Permanent("the card is blocked")
    except Permanent:
        pass
    run = await again(app, run)
    with run.outside("card") as effect:
        assert (effect.known, effect.result) == ("new", None)
        effect.not_done()
    async with run.outside("card") as effect:
        assert effect.known == "new"
        effect.result = True
    async with run.outside("card") as effect:
        assert (effect.known, effect.result) == ("done", True)
        effect.not_done()  # too late: it is done
    async with run.outside("card") as effect:
        assert effect.known == "done"


async def test_the_provider_is_asked_for_the_key_that_it_was_told(app, charge):
    """Whatever a later attempt, or a later release, would call it."""
    await charge.enqueue()
    run = await taken(app)
    for key in ("order-7", "order-8"):
        with pytest.raises(OSError, match="reset"):
            async with run.outside("card", key) as effect:
                raise OSError("reset")
        assert effect.key == "order-7"
        run = await again(app, run)
    with run.outside("card") as effect:
        assert (effect.known, effect.key) == ("unknown", "order-7")


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_two_effects_of_a_run_know_nothing_of_each_other(app, charge, asynchronous):
    job = await charge.enqueue()
    run = await taken(app)
    if asynchronous:
        async with run.outside("mail") as first, run.outside("card") as second:
            first.result, second.result = "m", "c"
    else:
        with run.outside("mail") as first, run.outside("card") as second:
            first.result, second.result = "m", "c"
    kept = {name: json.loads(raw) for name, raw in (await job.status()).outside.items()}
    assert {name: (one["state"], one["result"], one["key"]) for name, one in kept.items()} == {
        "mail": ("done", "m", f"{job.id}:mail"),
        "card": ("done", "c", f"{job.id}:card"),
    }
    assert {(one["attempt"], one["token"]) for one in kept.values()} == {(1, str(run.token))}


@pytest.mark.parametrize("how", ["cancelled", "lapsed"])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_the_effect_of_a_run_that_is_not_the_owner_any_more_does_not_begin(app, redis, charge, how, asynchronous):
    job = await charge.enqueue()
    run = await taken(app)
    if how == "cancelled":
        await job.cancel(hard=True)
    else:
        lapsed(app, redis, run)
    effect = run.outside("card")
    with pytest.raises(StaleToken if how == "cancelled" else LeaseExpired):
        await (effect.__aenter__() if asynchronous else asyncio.to_thread(effect.__enter__))
    assert told(app, redis, "intent") == []
    assert (await job.status()).outside == {}


async def test_the_outcome_of_an_effect_whose_run_was_lost_meanwhile_is_not_stored(app, redis, charge):
    """It may have happened, or another attempt may be at it: it stays unknown."""
    job = await charge.enqueue()
    run = await taken(app)
    effect = await run.outside("card").__aenter__()
    await job.cancel(hard=True)
    effect.result = "charged"
    with pytest.raises(StaleToken):
        await effect.__aexit__(None, None, None)
    assert json.loads((await job.status()).outside["card"])["state"] == "unknown"


@pytest.mark.parametrize("value", ["x" * 70_000, float("nan"), object()])
async def test_a_result_that_cannot_be_stored_does_not_make_a_done_effect_unknown(app, charge, events, value):
    """The card was charged, whatever the provider answered."""
    await charge.enqueue()
    run = await taken(app)
    async with run.outside("card") as effect:
        effect.result = value
    assert events("result_replaced")[0]["job_id"] == run.job_id
    run = await again(app, run)
    async with run.outside("card") as effect:
        assert effect.known == "done"
        assert effect.result.keys() == {"repr"}


@pytest.mark.parametrize("key", ["", "x" * 501])
async def test_a_key_that_is_none_is_refused(app, charge, key):
    await charge.enqueue()
    run = await taken(app)
    with pytest.raises(ArgumentsRefused, match="outside"):
        run.outside("card", key)


async def test_a_job_that_the_ledger_put_back_after_it_had_run_does_not_say_that_nobody_began(app):
    """What its runs had recorded went with Redis. Unknown is the only honest answer."""
    known = []

    @app.job()
    async def mail(run: Run) -> None:
        async with run.outside("mail") as one:
            known.append(one.known)

    for restored in (False, True):
        spec = mail.prepare().spec
        spec.restored = restored
        await app.link.asynchronous.run(app.link.store.enqueue([spec]))
        await work_off(app)
    assert known == ["new", "unknown"]
