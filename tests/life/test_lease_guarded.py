"""`lease.guarded(…)`: a script without a job writes to SQL only while the resource is its own, once a name."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis as redis_py

from fencepost import ConfigurationError, Fencepost, LeaseExpired, LeaseLost, StaleToken
from fencepost.errors import FencepostError
from fencepost.fence import Effect
from fencepost.lease import Lease
from tests.guard.holding import KINDS, Base, Kind, put
from tests.support import eventually

NOWHERE = "redis://127.0.0.1:1/0"
NAMES = ("Session", "AsyncSession-aiosqlite", "AsyncSession-psycopg")
CHOSEN = [one for one in KINDS if one.name in NAMES and one.engine in ("sqlite", "postgresql")]
SERVERS = [one for one in CHOSEN if one.engine == "postgresql"]


def _id(kind: Kind) -> str:
    return f"{kind.engine}-{kind.name}"


@pytest.fixture(params=CHOSEN, ids=_id)
def kind(request: pytest.FixtureRequest) -> Kind:
    """SQLite and PostgreSQL, each with and without an event loop."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def base(kind: Kind, new_database: Callable[..., str]) -> Iterator[Base]:
    one = Base(new_database(kind.engine))
    yield one
    one.engine.dispose()


@pytest.fixture
async def factory(kind: Kind, base: Base) -> AsyncIterator[Any]:
    made, close = kind.make(base.url)
    yield made
    closing = close()
    if inspect.isawaitable(closing):
        await closing


@asynccontextmanager
async def held(kind: Kind, lease: Lease) -> AsyncIterator[Lease]:
    """Hold the lease in the way that goes with the connection: with an event loop, or without."""
    if kind.asynchronous:
        async with lease:
            yield lease
    else:
        with lease:
            yield lease


def writes(note: str, result: Any = None) -> Callable[[Effect], Any]:
    """The work of a section: one row of the user's own."""

    async def work(effect: Effect) -> None:
        if effect.first:
            await put(effect.session, note)
            effect.result = result

    return work


def taken_away(app: Fencepost, redis: redis_py.Redis, lease: Lease) -> None:
    """The lease lapses on the server, as after a pause of its holder, which has not noticed yet."""
    assert redis.zadd(app.link.store.keys.leases, {f"@{lease.nonce}": 1}, xx=True, ch=True) == 1


async def refused(kind: Kind, base: Base, lease: Lease, factory: Any, *, resource: str | None = None) -> FencepostError:
    """Try to write in each way there is; nothing of it may be kept. Returns the last refusal."""
    before = base.state
    with pytest.raises(FencepostError):
        await kind.through(lease.guarded(factory, "refused", resource), writes("refused"))
    with pytest.raises(FencepostError) as caught:
        await kind.call(lease.guarded(factory, "refused", resource), writes("refused"))
    assert base.state == before
    return caught.value


class TestOnceAName:
    async def test_the_first_writes_and_all_who_come_later_find_its_result(self, kind, base, factory, app):
        async with held(kind, app.lease("stock:42", ttl=30)) as lease:
            first = await kind.through(lease.guarded(factory, "2026-11-30"), writes("one", {"rows": 3}))
            again = await kind.through(lease.guarded(factory, "2026-11-30"), writes("two", "other"))
        async with held(kind, app.lease("stock:42", ttl=30)) as later:
            found = await kind.through(later.guarded(factory, "2026-11-30"), writes("three", "other"))
            called = await kind.call(later.guarded(factory, "2026-11-30"), writes("four", "other"))
        assert (first.first, again.first, found.first) == (True, False, False)
        assert [again.result, found.result, called] == [{"rows": 3}] * 3
        assert base.done == ["one"]
        assert base.fences == [("stock:42", later.token, later.nonce)]
        assert [row[:3] for row in base.effects] == [("@stock:42:2026-11-30", lease.token, lease.nonce)]

    async def test_another_name_and_another_resource_are_other_effects(self, kind, base, factory, app):
        async with held(kind, app.lease("stock:42", ttl=30)) as lease:
            await kind.call(lease.guarded(factory, "monday"), writes("42 monday"))
            await kind.call(lease.guarded(factory, "tuesday"), writes("42 tuesday"))
        async with held(kind, app.lease("stock:43", ttl=30)) as other:
            await kind.call(other.guarded(factory, "monday"), writes("43 monday"))
        assert base.done == ["42 monday", "42 tuesday", "43 monday"]


class TestRefused:
    async def test_one_that_was_overtaken_writes_nothing_however_sure_it_is(self, kind, base, factory, app, redis):
        async with held(kind, app.lease("stock:42", ttl=30)) as old:
            taken_away(app, redis, old)
            async with held(kind, app.lease("stock:42", ttl=30)) as new:
                assert new.token > old.token
                await kind.call(new.guarded(factory, "new"), writes("new"))
                old.check()  # it still believes in itself
                with pytest.raises((StaleToken, LeaseExpired)):
                    await kind.call(old.guarded(factory, "old"), writes("old"))
                assert old.lost in ("stale", "expired")
                assert isinstance(await refused(kind, base, old, factory), LeaseLost)
                await kind.call(new.guarded(factory, "more"), writes("more"))
        assert base.done == ["more", "new"]
        assert base.fences == [("stock:42", new.token, new.nonce)]

    @pytest.mark.parametrize("kind", SERVERS, ids=_id, indirect=True)
    async def test_one_that_is_overtaken_in_its_block_commits_nothing_of_it(self, kind, base, factory, app, redis):
        async def late(effect: Effect) -> None:
            await put(effect.session, "old")
            taken_away(app, redis, old)
            async with held(kind, app.lease("stock:42", ttl=30)) as new:
                await kind.call(new.guarded(factory, "new"), writes("new"))

        async with held(kind, app.lease("stock:42", ttl=30)) as old:
            with pytest.raises((StaleToken, LeaseExpired)):
                await kind.through(old.guarded(factory, "old"), late)
        assert base.done == ["new"]
        assert [row[0] for row in base.effects] == ["@stock:42:new"]

    async def test_one_that_knows_that_it_is_lost_is_refused_before_and_in_the_block(
        self, kind, base, factory, app, redis
    ):
        async def late(effect: Effect) -> None:
            await put(effect.session, "late")
            taken_away(app, redis, lease)
            async with app.lease("stock:42", ttl=1):
                await eventually(lambda: lease.lost)

        async with held(kind, app.lease("stock:42", ttl=2)) as lease:
            with pytest.raises(LeaseLost):
                await kind.through(lease.guarded(factory, "late"), late)
            assert isinstance(await refused(kind, base, lease, factory), LeaseLost)
        assert (base.done, base.effects) == ([], [])

    async def test_before_it_is_entered_and_after_it_was_left(self, kind, base, factory, app):
        lease = app.lease("stock:42", ttl=30)
        await refused(kind, base, lease, factory)
        async with held(kind, lease):
            await kind.call(lease.guarded(factory, "inside"), writes("inside"))
        await refused(kind, base, lease, factory)
        await refused(kind, base, lease, factory, resource="other")
        assert base.done == ["inside"]

    @pytest.mark.parametrize("limit", [1, 3])
    @pytest.mark.parametrize("resource", [None, "stock:43"])
    async def test_one_that_failed_open_has_no_token_to_guard_with(
        self, kind, base, factory, namespace, resource, limit
    ):
        away = Fencepost(NOWHERE, namespace=namespace, give_up=0.1)
        lease = away.lease("stock:42", ttl=30, limit=limit, when_redis_away="fail_open")
        async with held(kind, lease):
            assert not lease.held
            problem = await refused(kind, base, lease, factory, resource=resource)
            assert isinstance(problem, ConfigurationError)
        assert base.state == {"done": [], "fences": [], "effects": []}
        await away.close()


class TestSeveralHolders:
    async def test_they_do_not_refuse_each_other_and_need_no_new_tokens(self, kind, base, factory, app):
        async with (
            held(kind, app.lease("seats", ttl=30, limit=2)) as one,
            held(kind, app.lease("seats", ttl=30, limit=2)) as two,
        ):
            tokens = [one.token, two.token]
            await kind.call(two.guarded(factory, "two"), writes("two"))
            await kind.call(one.guarded(factory, "one"), writes("one"))
            await kind.call(two.guarded(factory, "three"), writes("three"))
            assert [one.token, two.token] == tokens
        assert base.done == ["one", "three", "two"]
        assert sorted(row[:2] for row in base.fences) == sorted(
            [(f"@{one.nonce}", tokens[0]), (f"@{two.nonce}", tokens[1])]
        )

    @pytest.mark.parametrize("kind", SERVERS, ids=_id, indirect=True)
    async def test_their_blocks_may_overlap(self, kind, base, factory, app):
        async with (
            held(kind, app.lease("seats", ttl=30, limit=2)) as one,
            held(kind, app.lease("seats", ttl=30, limit=2)) as two,
        ):

            async def around(effect: Effect) -> None:
                await put(effect.session, "one")
                await kind.call(two.guarded(factory, "two"), writes("two"))

            await kind.through(one.guarded(factory, "one"), around)
        assert base.done == ["one", "two"]

    async def test_one_effect_has_one_writer_among_them(self, kind, base, factory, app):
        async with (
            held(kind, app.lease("seats", ttl=30, limit=2)) as one,
            held(kind, app.lease("seats", ttl=30, limit=2)) as two,
        ):
            assert await kind.call(two.guarded(factory, "same"), writes("two", 2)) == 2
            assert await kind.call(one.guarded(factory, "same"), writes("one", 1)) == 2
        assert base.done == ["two"]


def test_no_two_uses_share_a_nonce_and_so_no_fence(app: Fencepost):
    """Two who hold a seat each are told apart by the nonce alone; also the uses of one object, and many threads."""
    seen: list[str] = []

    def use() -> None:
        lease = app.lease("seats", ttl=30, limit=100)
        for _ in range(5):
            with lease:
                assert lease.fence_resource() == f"@{lease.nonce}"
                seen.append(lease.nonce)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(seen), len(set(seen))) == (40, 40)


async def test_the_same_token_with_another_nonce_is_refused(redis, app, new_database):
    """What a Redis gives out that lost its newest writes: one number, two holders."""
    [kind] = [one for one in CHOSEN if (one.engine, one.name) == ("sqlite", "Session")]
    base = Base(new_database("sqlite"))
    factory, close = kind.make(base.url)
    with app.lease("stock:42", ttl=30) as lease:
        base.do(
            "INSERT INTO fencepost_fences (namespace, resource, token, nonce, updated_at_ms)"
            " VALUES (:namespace, 'stock:42', :token, 'another', 0)",
            namespace=lease.namespace,
            token=lease.token,
        )
        taken_away(app, redis, lease)
        with app.lease("stock:42", ttl=30):
            with pytest.raises(FencepostError):
                await kind.call(lease.guarded(factory, "late"), writes("late"))
            assert base.state == {"done": [], "fences": [("stock:42", lease.token, "another")], "effects": []}
    close()
    base.engine.dispose()
