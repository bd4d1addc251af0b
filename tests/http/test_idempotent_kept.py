"""Which answers of an idempotent endpoint are kept, and how they come back; what makes two bodies one request."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi import BackgroundTasks, Depends, HTTPException, Request, Response
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse, StreamingResponse

from fencepost import Fencepost
from fencepost.api.answers import MOST_BYTES, fingerprint
from tests.http.conftest import in_process
from tests.http.idempotent_shop import KEY, Order, Shop, slug


@pytest.fixture
def shop(app: Fencepost) -> Shop:
    return Shop(app)


@pytest.fixture
async def ask(shop: Shop) -> AsyncIterator[httpx2.AsyncClient]:
    async with in_process(shop.served, headers=KEY) as one:
        yield one


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


_REQUEST = Request(
    {
        "type": "http", "method": "POST", "path": "/orders", "query_string": b"", "server": ("h", 80), "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
    }
)  # fmt: skip


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
    texts = json.dumps(one), json.dumps(_turned(one), indent=1), json.dumps(other)
    prints = [fingerprint(_REQUEST, text.encode()) for text in texts]
    assert prints[0] == prints[1]
    assert (prints[0] == prints[2]) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_bodies_that_are_no_json_are_one_request_where_all_bytes_are(one: bytes, other: bytes):
    assert (fingerprint(_REQUEST, b"\xff" + one) == fingerprint(_REQUEST, b"\xff" + other)) == (one == other)
