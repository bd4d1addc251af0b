"""A holder whose token SQL has passed is given a higher one, and stays what it was: the owner of its run or lease."""

from __future__ import annotations

import asyncio

import pytest

from fencepost import (
    Fencepost,
    JobNotFound,
    LeaseExpired,
    LeaseLost,
    RedisUnavailable,
    RetryPolicy,
    Run,
    StaleToken,
)
from fencepost.errors import SectionRepeat
from fencepost.worker import settle
from tests.life.working import ended, lapsed, reached, taken, told, work_off, working
from tests.support import eventually, wait_until
from tests.support.proxy import DROP_REPLY, FaultProxy

FAR = 10**12


@pytest.fixture
def invoice(app):
    @app.job()
    async def invoice(run: Run) -> None: ...

    return invoice


# -- a run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_run_goes_on_under_its_new_token(app, redis, asynchronous):
    tokens = []

    async def in_loop(run: Run) -> str:
        tokens.append(run.token)
        await run.bump(run.token + FAR, "install")
        tokens.append(run.token)
        await run.checkpoint("after it")
        return run.why or "good"

    def in_thread(run: Run) -> str:
        tokens.append(run.token)
        run.bump_sync(run.token + FAR, "verify")
        tokens.append(run.token)
        run.checkpoint_sync("after it")
        return run.why or "good"

    job = await app.job(kind="invoice")(in_loop if asynchronous else in_thread).enqueue()
    worker = await work_off(app)
    assert await job.result() == "good"
    assert tokens[1] == tokens[0] + FAR + 1 == (await job.status()).token
    assert worker.refused == 0
    assert told(app, redis, "bumped") == [("bumped", f"{'install' if asynchronous else 'verify'} from {tokens[0]}")]


async def test_a_bump_whose_answer_is_still_on_its_way_does_not_cost_the_run_its_lease(app, redis, events):
    """The heartbeat comes with the token from before it, and so may the outcome."""
    gate, runs = asyncio.Event(), []

    @app.job()
    async def invoice(run: Run) -> str:
        runs.append(run)
        store = app.link.store
        answer = await app.link.asynchronous.run(store.bump(run.key, run.worker_id, run.token + FAR, "install"))
        assert answer.word == "OK"  # and it is told to nobody
        await gate.wait()
        return run.why or "good"

    job = await invoice.enqueue()
    leases = app.link.store.keys.leases
    async with working(app, lease_s=1.0) as worker:
        await eventually(lambda: runs and (redis.zscore(leases, job.id) or 0))
        before = redis.zscore(leases, job.id)
        await eventually(lambda: redis.zscore(leases, job.id) > before + 500)
        gate.set()
        assert await job.result(timeout=5) == "good"
        assert worker.refused == 0
    record = await job.status()
    assert record.token > runs[0].token + FAR
    assert (record.attempts, record.crashes) == (1, 0)
    assert events("lost") == []


async def test_a_refusal_of_a_token_that_the_run_has_no_more_is_no_loss(app, events, monkeypatch):
    """The server answers the heartbeat about a token; by then the run has another one."""
    gate, runs = asyncio.Event(), []
    asked: list[object] = []

    @app.job()
    async def invoice(run: Run) -> str:
        runs.append(run)
        await gate.wait()
        return run.why or "good"

    renew = app.link.store.renew

    def with_a_race(lease_ms, worker_id, keys):
        if runs and not asked:  # what is sent is a key of another run; what is kept is the run's own of that time
            asked.append(list(keys))
            call = renew(lease_ms, worker_id, [key._replace(nonce="other.1") for key in keys])
            runs[0].bump_sync(runs[0].token + FAR, "verify")
            return call
        return renew(lease_ms, worker_id, keys)

    job = await invoice.enqueue()
    async with working(app, lease_s=1.0):
        await reached(job, "processing")
        monkeypatch.setattr(app.link.store, "renew", with_a_race)
        await eventually(lambda: asked)
        beaten = runs[0].deadline_s
        await eventually(lambda: runs[0].deadline_s > beaten)
        gate.set()
        assert await job.result(timeout=5) == "good"
    assert events("lost") == []


async def test_two_bumps_at_a_time_leave_the_higher_token(app, invoice):
    await invoice.enqueue()
    run = await taken(app)
    floors = [run.token + FAR * n for n in range(1, 6)]
    await asyncio.gather(*(run.bump(floor, "install") for floor in [*floors, *reversed(floors)]))
    assert run.token == floors[-1] + 1
    assert await ended(app, run) == "OK"


async def test_an_answer_that_is_read_last_does_not_take_the_newer_token_away(app, invoice):
    await invoice.enqueue()
    run = await taken(app)
    store, first = app.link.store, run.key
    older = await app.link.asynchronous.run(store.bump(first, "w", run.token + 5, "install"))
    await run.bump(run.token + FAR, "install")
    newest = run.token
    run._bumped(older, 0)
    assert run.token == newest


async def test_a_bump_whose_answers_are_lost_leaves_a_run_that_can_ask_again_and_end(app, server, invoice):
    job = await invoice.enqueue()
    with FaultProxy(server.socket) as proxy:
        far = Fencepost(proxy.url, namespace=app.namespace)
        far.link.asynchronous.give_up_s = 0.0
        run = await taken(app, far.link)
        token = run.token
        proxy.plan.extend([DROP_REPLY] * 2)
        with pytest.raises(RedisUnavailable):
            await run.bump(token + FAR, "install")
        proxy.plan.clear()
        assert run.token == token
        await run.checkpoint("with the token it knows")
        await run.bump(token + FAR * 2, "install")
        assert run.token == token + FAR * 2 + 1
        await far.close()
    assert await ended(app, run) == "OK"
    assert (await job.status()).state == "done"


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize(
    ("how", "error", "why"),
    [("cancelled", StaleToken, "stale"), ("lapsed", LeaseExpired, "expired"), ("gone", JobNotFound, "")],
)
async def test_who_is_not_the_owner_any_more_gets_no_token(app, redis, invoice, how, error, why, asynchronous):
    job = await invoice.enqueue()
    run = await taken(app)
    token, floor = run.token, run.token + FAR
    if how == "cancelled":
        await job.cancel(hard=True)
    elif how == "lapsed":
        lapsed(app, redis, run)
    else:
        redis.delete(app.link.store.keys.job(job.id), app.link.store.keys.leases)
    with pytest.raises(error) as caught:
        await (run.bump(floor, "verify") if asynchronous else asyncio.to_thread(run.bump_sync, floor, "verify"))
    assert (run.token, run.why) == (token, why)
    if how == "cancelled":
        assert caught.value.newest == floor, "SQL knows a newer one than Redis"
        with pytest.raises(LeaseLost):
            run.check()
    assert redis.hget(app.link.store.keys.stats, "refused:verify") == b"1"


# -- what it committed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["it ended", "it failed", "it was lost", "it found out by itself"])
async def test_what_a_run_committed_is_told_with_its_outcome_or_without_one(app, redis, how):
    runs = []

    @app.job(retry=RetryPolicy(attempts=2, base=0.01, jitter="none"))
    async def invoice(run: Run) -> None:
        runs.append(run)
        if len(runs) > 1:
            return
        run.note_effect("k:mail", first=True)
        run.note_effect("k:card", first=False)
        if how == "it failed":
            raise OSError("reset")
        if how == "it was lost":
            lapsed(app, redis, run)
        if how == "it found out by itself":
            lapsed(app, redis, run)
            run.newer(run.token + 1)

    job = await invoice.enqueue()
    worker = await work_off(app)
    await job.result(timeout=5)
    late = how in ("it was lost", "it found out by itself")
    names = ["late_effect"] * 2 if late else ["effect", "effect_found"]
    assert told(app, redis, "effect", "effect_found", "late_effect") == list(
        zip(names, ["k:mail", "k:card"], strict=True)
    )
    assert len(runs) == (1 if how == "it ended" else 2)
    assert worker.refused == (how == "it was lost")


# -- a section that has to be repeated --------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_section_that_has_to_be_repeated_hands_the_job_back_and_charges_nothing(
    app, redis, events, asynchronous
):
    runs = []

    def body(run: Run) -> str:
        runs.append(run.attempt)
        run.note_effect("k:mail", first=True)
        if len(runs) < 4:
            raise SectionRepeat(run.job_id, "k:card", "40001: could not serialize access")
        return "committed"

    async def in_loop(run: Run) -> str:
        return body(run)

    once = RetryPolicy(attempts=1)
    job = await app.job(kind="invoice", retry=once)(in_loop if asynchronous else body).enqueue()
    await work_off(app)
    assert await job.result(timeout=5) == "committed"
    record = await job.status()
    assert (runs, record.attempts, record.releases, record.crashes) == ([1] * 4, 1, 3, 0)
    assert told(app, redis, "released") == [("released", "section_repeat")] * 3
    assert len(told(app, redis, "effect")) == 4, "what was committed before it is told all the same"
    assert len(events("section_repeated")) == 3
    assert "40001" in events("section_repeated")[0]["cause"]


# -- a lease without a job --------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_lease_is_bumped_renewed_and_given_back(app, redis, asynchronous):
    slots = app.link.store.keys.slots("stock:42")

    def bumped(lease) -> None:
        first = redis.zrange(slots, 0, -1, withscores=True)[0][1]
        wait_until(lambda: redis.zrange(slots, 0, -1, withscores=True)[0][1] > first + 300)
        lease.check()

    if asynchronous:
        async with app.lease("stock:42", ttl=1) as lease:
            token = lease.token
            await lease.bump(token + FAR, "install")
            bumped(lease)
    else:
        with app.lease("stock:42", ttl=1) as lease:
            token = lease.token
            lease.bump_sync(token + FAR, "install")
            bumped(lease)
    assert (lease.token, lease.lost) == (token + FAR + 1, "")
    assert not redis.exists(slots)
    async with app.lease("stock:42", ttl=1) as again:
        assert again.token > lease.token


async def test_a_lease_whose_bump_was_not_answered_is_kept_and_given_back_all_the_same(app, redis):
    slots = app.link.store.keys.slots("stock:42")
    async with app.lease("stock:42", ttl=1) as lease:
        await app.link.asynchronous.run(app.link.store.bump(lease._run_key(), "w", lease.token + FAR, "install"))
        first = redis.zrange(slots, 0, -1, withscores=True)[0][1]
        await eventually(lambda: redis.zrange(slots, 0, -1, withscores=True)[0][1] > first + 300)
        lease.check()
    assert lease.lost == ""
    assert not redis.exists(slots)


@pytest.mark.parametrize(("how", "error", "why"), [("gone", LeaseExpired, "expired"), ("taken", StaleToken, "stale")])
async def test_a_lease_that_is_somebody_elses_is_not_bumped(app, redis, how, error, why):
    lost: list[str] = []
    keys = app.link.store.keys
    async with app.lease("stock:42", ttl=5, on_lost=lost.append) as lease:
        token = lease.token
        if how == "gone":
            redis.delete(keys.lease(lease.nonce))
        else:
            redis.hset(keys.lease(lease.nonce), "token", token + 7)
        with pytest.raises(error) as caught:
            await lease.bump(token + FAR, "verify")
        if how == "taken":
            assert caught.value.newest == token + FAR
        with pytest.raises(LeaseLost):
            lease.check()
    assert (lost, lease.lost, lease.token) == ([why], why, token)
    redis.delete(keys.lease(lease.nonce), keys.slots("stock:42"), keys.leases)


# -- what it is called in SQL -----------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "fenced"), [(1, "stock:42"), (2, "=")])
async def test_what_is_fenced_is_the_resource_where_one_alone_may_hold_it_else_the_holder(app, limit, fenced):
    @app.job(resource="stock:42", limit=limit)
    async def invoice(run: Run) -> None: ...

    job = await invoice.enqueue()
    run = await taken(app)
    assert run.fence_resource() == (fenced if limit == 1 else f"={job.id}")
    assert run.fence_resource("book:7") == "book:7"
    assert (run.namespace, run.effect_key("mail")) == (app.namespace, f"{job.id}:mail")
    await ended(app, run)
    async with app.lease("stock:42", ttl=5, limit=limit) as lease:
        assert lease.fence_resource() == (fenced if limit == 1 else f"@{lease.nonce}")
        assert lease.fence_resource("book:7") == "book:7"
        assert (lease.namespace, lease.job_id, lease.effect_key("30 November")) == (
            app.namespace,
            "",
            "@stock:42:30 November",
        )


async def test_a_job_without_a_resource_is_its_own_fence(app, invoice):
    job = await invoice.enqueue()
    run = await taken(app)
    assert run.fence_resource() == f"={job.id}"


async def test_a_section_that_has_to_be_repeated_for_ever_is_charged_in_the_end(app, monkeypatch):
    """Twenty times for nothing; then it counts as a failed attempt, so that the job cannot go round for ever."""
    monkeypatch.setattr(settle, "_REPEAT_MS", 8)
    runs = []

    @app.job(retry=RetryPolicy(attempts=1))
    async def invoice(run: Run) -> None:
        runs.append(run.attempt)
        raise SectionRepeat(run.job_id, "k:card", "40001: could not serialize access")

    job = await invoice.enqueue()

    async def over() -> bool:
        return (await job.status()).finished_at is not None

    async with working(app, poll_s=0.05):
        await eventually(over, 15)
    record = await job.status()
    assert (record.state, record.reason, record.releases, len(runs)) == ("failed", "exhausted", 20, 21)
