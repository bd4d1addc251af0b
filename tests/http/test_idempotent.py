"""An endpoint of the user's own runs once for an idempotency key, and answers every repetition alike."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request, Response
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.responses import JSONResponse, StreamingResponse

from fencepost import Fencepost
from fencepost.api import Idempotent, IdempotentRoute, Once
from fencepost.api.answers import MOST_BYTES, fingerprint
from tests.http.conftest import in_process
from tests.support import eventually

KEY = {"Idempotency-Key": '"k-1"'}


class Order(BaseModel):
    sku: str
    pieces: int = 1


class Shop:
    """A FastAPI application with one protected router. calls: what its handlers were called with. gate: they wait
    there. held: the guards of the requests that wait."""

    def __init__(self, queue: Fencepost) -> None:
        self.queue, self.calls, self.gate = queue, list[Any](), asyncio.Event()
        self.held = list[Once]()
        self.gate.set()
        self.served = FastAPI()
        self.idempotent = Idempotent(queue, scope=lambda request: request.headers.get("x-tenant", "t"), lease="2s")
        self.router = APIRouter(route_class=IdempotentRoute)

    def include(self, **options: Any) -> FastAPI:
        self.served.include_router(self.router, **options)
        return self.served

    async def pass_gate(self, once: Once, what: Any) -> None:
        self.calls.append(what)
        self.held.append(once)
        await self.gate.wait()
        self.held.remove(once)


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
    return shop


@pytest.fixture
async def ask(shop: Shop) -> AsyncIterator[httpx2.AsyncClient]:
    async with in_process(shop.served, headers=KEY) as one:
        yield one


def slug(answer: httpx2.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["type"]).rpartition("/")[2]


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
    @orders.router.put("/orders")
    @orders.router.post("/returns")
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


@pytest.mark.parametrize("status", [500, 503, 408, 429])
async def test_an_answer_that_says_not_now_is_not_kept_and_the_next_try_runs(shop: Shop, ask, status: int):
    @shop.router.post("/flaky", dependencies=[Depends(shop.idempotent)])
    async def flaky() -> Response:
        shop.calls.append("flaky")
        return JSONResponse({"try": len(shop.calls)}, status if len(shop.calls) == 1 else 200)

    shop.include()
    assert [(await ask.post("/flaky")).status_code for _ in range(3)] == [status, 200, 200]
    assert len(shop.calls) == 2


async def test_what_a_handler_raises_is_not_kept_and_what_it_returns_is(shop: Shop, ask):
    @shop.router.post("/raises", dependencies=[Depends(shop.idempotent)])
    async def raises() -> None:
        shop.calls.append("raises")
        if len(shop.calls) == 1:
            raise RuntimeError("a fault")
        if len(shop.calls) == 2:
            raise HTTPException(409, "sold out")

    @shop.router.post("/returns", dependencies=[Depends(shop.idempotent)])
    def returns() -> Response:
        shop.calls.append("returns")
        return JSONResponse({"declined": True}, 402)

    shop.include()
    with pytest.raises(RuntimeError, match="a fault"):
        await ask.post("/raises")
    assert [(await ask.post("/raises")).status_code for _ in range(3)] == [409, 200, 200]
    assert len(shop.calls) == 3
    other = {"Idempotency-Key": "k-2"}
    assert [(await ask.post("/returns", headers=other)).status_code for _ in range(2)] == [402, 402]
    assert len(shop.calls) == 4


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


async def test_an_answer_that_is_a_stream_or_too_large_is_not_repeated_nor_done_again(shop: Shop, ask):
    @shop.router.post("/stream/{size}", dependencies=[Depends(shop.idempotent)])
    async def stream(size: int) -> Response:
        shop.calls.append(size)
        return StreamingResponse(iter([b"a", b"b"])) if size == 0 else Response(b"x" * size)

    shop.include()
    for number, size in enumerate((0, MOST_BYTES + 1)):
        key = {"Idempotency-Key": f"s-{size}"}
        first = await ask.post(f"/stream/{size}", headers=key)
        assert (first.status_code, len(first.content)) == (200, size or 2)
        again = await ask.post(f"/stream/{size}", headers=key)
        assert (again.status_code, slug(again), again.json()["answered"]) == (409, "answer-not-kept", 200)
        assert len(shop.calls) == number + 1
    small = MOST_BYTES - 200
    assert {len((await ask.post(f"/stream/{small}")).content) for _ in range(2)} == {small}


async def test_a_get_in_the_same_router_needs_no_key_and_keeps_nothing(shop: Shop, ask, partition):
    @shop.router.get("/orders", dependencies=[Depends(shop.idempotent)])
    async def listed() -> int:
        shop.calls.append("get")
        return len(shop.calls)

    shop.include()
    assert [(await ask.get("/orders")).json() for _ in range(2)] == [1, 2]
    assert partition.dump() == {}


async def test_a_handler_without_an_event_loop_works_alike_and_its_background_task_runs_once(shop: Shop, ask):
    tasks: list[str] = []

    @shop.router.post("/mail", status_code=202, dependencies=[Depends(shop.idempotent)])
    def mail(order: Order, background: BackgroundTasks) -> str:
        shop.calls.append(order.sku)
        background.add_task(tasks.append, order.sku)
        return order.sku.upper()

    shop.include()
    answers = [await ask.post("/mail", json={"sku": "ann"}) for _ in range(2)]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(202, "ANN")] * 2
    assert shop.calls == tasks == ["ann"]


async def test_a_handler_may_read_its_body_itself_and_what_is_no_json_counts_byte_for_byte(shop: Shop, ask):
    @shop.router.post("/upload", dependencies=[Depends(shop.idempotent)])
    async def upload(request: Request) -> int:
        shop.calls.append(b"".join([chunk async for chunk in request.stream()]))
        return len(shop.calls)

    shop.include()
    kind = {"Content-Type": "text/csv"}
    answers = [await ask.post("/upload", content=body, headers=kind) for body in (b"a,b", b"a,b", b"a, b")]
    assert [answer.status_code for answer in answers] == [200, 200, 422]
    assert shop.calls == [b"a,b"]


async def test_an_empty_answer_comes_back_empty(shop: Shop, ask):
    @shop.router.delete("/orders/7", status_code=204, dependencies=[Depends(shop.idempotent)])
    async def delete() -> None:
        shop.calls.append("delete")

    shop.include()
    answers = [await ask.delete("/orders/7") for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(204, b"")] * 2
    assert shop.calls == ["delete"]


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


def _request(body: bytes) -> Request:
    return Request({
        "type": "http", "method": "POST", "path": "/orders", "query_string": b"", "server": ("h", 80), "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
    })  # fmt: skip


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def _turned(value: Any) -> Any:
    """The same value with every object written in the opposite order."""
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(one) for one in value] if isinstance(value, list) else value


@given(_JSON, _JSON)
def test_bodies_are_one_request_where_their_values_are_equal_and_only_there(one: Any, other: Any):
    prints = [
        fingerprint(_request(b""), json.dumps(value, **how).encode())
        for value, how in ((one, {}), (_turned(one), {"indent": 1}), (other, {}))
    ]
    assert prints[0] == prints[1]
    assert (prints[0] == prints[2]) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_bodies_that_are_no_json_are_one_request_where_all_bytes_are(one: bytes, other: bytes):
    request = _request(b"")
    assert (fingerprint(request, b"\xff" + one) == fingerprint(request, b"\xff" + other)) == (one == other)
