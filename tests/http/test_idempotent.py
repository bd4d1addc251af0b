"""An endpoint of the user's own runs once for an idempotency key, and answers every repetition alike."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import Depends, Header, HTTPException, Response

from fencepost import Fencepost
from fencepost.api import Idempotent, IdempotentRoute, Once
from tests.http.conftest import in_process
from tests.http.idempotent_shop import KEY, Order, Shop, slug
from tests.support import eventually


@pytest.fixture
def shop(app: Fencepost) -> Shop:
    return Shop(app)


@pytest.fixture
def orders(shop: Shop) -> Shop:
    """With POST /orders, which counts."""

    @shop.router.post("/orders", status_code=201)
    async def order(
        order: Order, response: Response, once: Annotated[Once, Depends(shop.idempotent)]
    ) -> dict[str, Any]:
        await shop.pass_gate(once, order.sku)
        response.headers["Location"] = f"/orders/{len(shop.calls)}"
        response.set_cookie("session", "secret")
        return {"number": len(shop.calls), "sku": order.sku}

    shop.include()
    shop.served.router.route_class = IdempotentRoute
    return shop


@pytest.fixture
async def ask(shop: Shop) -> AsyncIterator[httpx2.AsyncClient]:
    async with in_process(shop.served, headers=KEY) as one:
        yield one


async def test_the_second_request_gets_the_answer_of_the_first_and_the_handler_runs_once(orders: Shop, ask):
    first = await ask.post("/orders", json={"sku": "42"})
    again = await ask.post("/orders", json={"sku": "42"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content == b'{"number":1,"sku":"42"}'
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == "/orders/1"
    assert again.headers["content-type"] == first.headers["content-type"] == "application/json"
    assert "set-cookie" in first.headers
    assert "set-cookie" not in again.headers, "a session is nobody else's to have"
    assert orders.calls == ["42"]


async def test_the_order_of_keys_and_blanks_make_no_other_request(orders: Shop, ask):
    kind = {"content-type": "application/json"}
    first = await ask.post("/orders", content='{"sku":"42","pieces":2}', headers=kind)
    again = await ask.post("/orders", content='{ "pieces": 2,\n "sku": "42" }', headers=kind)
    assert again.content == first.content
    assert orders.calls == ["42"]


async def test_another_body_path_query_or_method_with_the_same_key_is_refused(orders: Shop, ask, partition):
    @orders.served.put("/orders")
    @orders.served.post("/returns")
    async def other(once: Annotated[Once, Depends(orders.idempotent)]) -> None:
        orders.calls.append("other")

    await ask.post("/orders", json={"sku": "42"})
    before = partition.dump()
    for how, where, body in (
        ("POST", "/orders", {"sku": "43"}),
        ("POST", "/orders?really=yes", {"sku": "42"}),
        ("POST", "/returns", {"sku": "42"}),
        ("PUT", "/orders", {"sku": "42"}),
    ):
        answer = await ask.request(how, where, json=body)
        assert (answer.status_code, slug(answer)) == (422, "idempotency-conflict")
        assert "Nothing was changed" in answer.json()["detail"]
    assert orders.calls == ["42"]
    assert partition.dump() == before


async def test_two_at_once_run_once_and_the_second_is_told_to_come_again(orders: Shop, ask):
    orders.gate.clear()
    first = asyncio.create_task(ask.post("/orders", json={"sku": "42"}))
    await eventually(lambda: orders.held)
    second = await ask.post("/orders", json={"sku": "42"})
    assert (second.status_code, slug(second), second.headers["retry-after"]) == (409, "request-in-progress", "1")
    other = await ask.post("/orders", json={"sku": "43"})
    assert (other.status_code, slug(other)) == (422, "idempotency-conflict"), "also while the first runs"
    orders.gate.set()
    assert (await first).status_code == 201
    again = await ask.post("/orders", json={"sku": "42"})
    assert again.content == (await first).content
    assert orders.calls == ["42"]


async def test_of_many_at_once_one_runs(orders: Shop, ask):
    answers = await asyncio.gather(*(ask.post("/orders", json={"sku": "42"}) for _ in range(20)))
    assert orders.calls == ["42"]
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert {answer.content for answer in answers if answer.status_code == 201} == {b'{"number":1,"sku":"42"}'}


async def test_one_that_looked_before_the_first_answered_does_not_run_after_it(orders: Shop, ask, app, monkeypatch):
    """Its lease is free by then, and the answer is there."""
    orders.gate.clear()
    first = asyncio.create_task(ask.post("/orders", json={"sku": "42"}))
    await eventually(lambda: orders.held)
    real = app.lease

    def after_the_first(*a: Any, **options: Any) -> Any:
        lease = real(*a, **options)
        enter = lease.__aenter__

        class Late:
            def __getattr__(self, name: str) -> Any:
                return getattr(lease, name)

            async def __aenter__(self) -> Any:
                orders.gate.set()
                await first
                return await enter()

        return Late()

    monkeypatch.setattr(app, "lease", after_the_first)
    second = await ask.post("/orders", json={"sku": "42"})
    assert second.headers["idempotent-replayed"] == "true"
    assert second.content == (await first).content
    assert orders.calls == ["42"]


async def test_a_request_without_a_key_is_refused_and_with_required_off_it_just_runs(shop: Shop, app: Fencepost):
    loose = Idempotent(app, scope=lambda request: "t", required=False)

    @shop.router.post("/strict", dependencies=[Depends(shop.idempotent)])
    async def strict() -> None:
        shop.calls.append("strict")

    @shop.router.post("/loose")
    async def relaxed(once: Annotated[Once, Depends(loose)]) -> str:
        once.check()
        shop.calls.append("loose")
        return str(once.key)

    shop.include()
    async with in_process(shop.served) as ask:
        answer = await ask.post("/strict")
        assert (answer.status_code, slug(answer)) == (400, "idempotency-key-missing")
        for bad in ("", '"', "a" * 256):
            answer = await ask.post("/loose", headers={"Idempotency-Key": bad})
            assert (answer.status_code, slug(answer)) == (400, "idempotency-key-malformed")
        assert [(await ask.post("/loose")).json() for _ in range(2)] == ["None", "None"]
        assert [(await ask.post("/loose", headers=KEY)).json() for _ in range(2)] == ["k-1", "k-1"]
    assert shop.calls == ["loose"] * 3


async def test_two_tenants_with_one_key_never_meet(orders: Shop, ask):
    answers = [await ask.post("/orders", json={"sku": "42"}, headers={"x-tenant": name}) for name in ("a", "b", "a")]
    assert [answer.json()["number"] for answer in answers] == [1, 2, 1]


async def test_a_request_that_was_refused_binds_no_key_and_a_stored_answer_is_not_shown_to_who_may_not_have_it(
    shop: Shop, ask, partition
):
    def user(authorization: Annotated[str, Header()] = "") -> str:
        if not authorization:
            raise HTTPException(401, "who are you?")
        return authorization

    idempotent = Idempotent(shop.queue, scope=user)
    late: list[str] = []

    def allowed(x_blocked: Annotated[str, Header()] = "") -> None:
        late.append(x_blocked)
        if x_blocked:
            raise HTTPException(403, "blocked")

    @shop.router.post("/orders", dependencies=[Depends(idempotent)])
    async def order(order: Order, _: Annotated[None, Depends(allowed)]) -> str:
        shop.calls.append(order.sku)
        return "done"

    shop.include()
    ann = {"Authorization": "ann"}
    before = partition.dump()
    assert (await ask.post("/orders", json={"sku": "42"})).status_code == 401
    assert (await ask.post("/orders", json={"sku": 42}, headers=ann)).status_code == 422
    assert (await ask.post("/orders", json={"sku": "42"}, headers={**ann, "x-blocked": "1"})).status_code == 403
    assert partition.dump() == before
    assert (await ask.post("/orders", json={"sku": "42"}, headers=ann)).json() == "done"
    assert (await ask.post("/orders", json={"sku": "42"}, headers={**ann, "x-blocked": "1"})).status_code == 403
    assert shop.calls == ["42"]


async def test_a_get_in_the_same_router_needs_no_key_and_keeps_nothing(shop: Shop, ask, partition):
    @shop.router.get("/orders", dependencies=[Depends(shop.idempotent)])
    async def listed() -> int:
        shop.calls.append("get")
        return len(shop.calls)

    shop.include()
    assert [(await ask.get("/orders")).json() for _ in range(2)] == [1, 2]
    assert partition.dump() == {}


async def test_while_redis_is_away_the_handler_does_not_run(shop: Shop):
    away = Fencepost("redis://127.0.0.1:1", give_up="100ms")
    idempotent = Idempotent(away, scope=lambda request: "t")

    @shop.router.post("/orders", dependencies=[Depends(idempotent)])
    async def order() -> None:
        shop.calls.append("ran")

    shop.include()
    async with in_process(shop.served, headers=KEY) as ask:
        answer = await ask.post("/orders")
    assert (answer.status_code, slug(answer), answer.headers["retry-after"]) == (503, "redis-unavailable", "1")
    assert answer.json()["changed"] == "nothing"
    assert shop.calls == []
    await away.close()


async def test_when_redis_goes_away_under_the_handler_its_caller_is_not_told_that_all_is_well(new_server, tmp_path):
    """Nobody knows of that answer, so the next try runs."""
    servers = [new_server(tmp_path / "server")]
    queue = Fencepost(servers[0].url, give_up="300ms")
    shop = Shop(queue)

    @shop.router.post("/orders", dependencies=[Depends(shop.idempotent)])
    def order() -> str:
        shop.calls.append("ran")
        if len(shop.calls) == 1:
            servers[0].stop()
        return "fine"

    shop.include()
    async with in_process(shop.served, headers=KEY) as ask:
        answer = await ask.post("/orders")
        assert (answer.status_code, slug(answer), answer.json()["changed"]) == (503, "redis-unavailable", "unknown")
        servers.append(new_server(tmp_path / "server"))
        assert servers[1].url == servers[0].url

        async def answered() -> bool:
            return (await ask.post("/orders")).status_code == 200

        await eventually(answered, 10)
    assert shop.calls == ["ran", "ran"]
    await queue.close()


async def test_any_key_and_any_scope_fit_and_stay_apart(orders: Shop, ask):
    long = "x" * 254
    pairs = [
        (f'"{key}"', scope) for key in (f"{long}1", f"{long}2", "{a} b%", ":" * 255) for scope in (":" * 255, "{%}")
    ]
    for _ in range(2):
        asked = [
            await ask.post("/orders", json={"sku": "42"}, headers={"Idempotency-Key": key, "x-tenant": scope})
            for key, scope in pairs
        ]
        assert [answer.json()["number"] for answer in asked] == list(range(1, len(pairs) + 1))


async def test_who_loses_the_lease_while_running_is_refused_and_its_transaction_rolls_back(shop: Shop, ask, partition):
    ends: list[str] = []

    async def session() -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            ends.append("rolled back")
            raise
        ends.append("committed")

    @shop.router.post("/orders/{how}")
    async def order(
        how: str, once: Annotated[Once, Depends(shop.idempotent)], _: Annotated[None, Depends(session)]
    ) -> str:
        await shop.pass_gate(once, how)
        if how == "checks":
            once.check()
        return "late"

    shop.include()
    for how in ("checks", "returns"):
        shop.gate.clear()
        key = {"Idempotency-Key": how}
        first = asyncio.create_task(ask.post(f"/orders/{how}", headers=key))
        await eventually(lambda: shop.held)
        lease = shop.held[0]._turn.lease
        assert lease is not None
        assert partition.revoke(f"@{lease.nonce}", str(lease.token)).word == "REVOKED"
        if how == "checks":
            await eventually(lambda: lease.lost)  # noqa: B023  by its next renewal
        shop.gate.set()
        answer = await first
        assert (answer.status_code, slug(answer), answer.json()["changed"]) == (409, "answer-refused", "unknown")
        again = await ask.post(f"/orders/{how}", headers=key)
        assert (again.status_code, again.json()) == (200, "late")
    assert shop.calls == ["checks", "checks", "returns", "returns"]
    assert ends == ["rolled back", "committed"] * 2


async def test_a_request_that_is_cut_off_gives_its_key_back(orders: Shop, ask, partition):
    orders.gate.clear()
    first = asyncio.create_task(ask.post("/orders", json={"sku": "42"}))
    await eventually(lambda: orders.held)
    first.cancel()
    await eventually(lambda: not partition.dump().keys() & {"leases", "slots:answer:t:k-1"})
    orders.gate.set()
    assert (await ask.post("/orders", json={"sku": "42"})).status_code == 201
