"""What comes in is bounded and has to be JSON; what goes out is never stored by others, also where it is an error."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from fastapi import APIRouter, FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from fencepost import Fencepost
from fencepost.api import ApiSettings, asgi
from fencepost.api.problems import Problem
from fencepost.api.service import ProblemRoute, Service
from fencepost.errors import RedisUnavailable, StaleToken
from tests.http.conftest import in_process

MOST = 2_048


class Order(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    note: str = ""


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(auth="off", max_body=MOST)


@pytest.fixture
def service(app: Fencepost, settings: ApiSettings) -> Service:
    return Service(app, settings)


@pytest.fixture
def served(service: Service) -> FastAPI:
    """A service with a route that opens its body, and one that fails as it is told."""
    router = APIRouter(route_class=ProblemRoute)

    async def order(request: Request) -> Response:
        found = await service.body(request, Order)
        return service.json({"id": found.id, "size": len(found.note)}, 201, {"X-Seen": "1"})

    async def fail(request: Request) -> Response:
        raise {
            "stale": StaleToken("j1", 5, 1_796_095_645_962_123),
            "away": RedisUnavailable("look", "gone", None),
            "problem": Problem(418, "teapot", "No coffee", "Nothing was done.", headers={"X-Tea": "1"}, kind="green"),
        }[request.path_params["how"]]

    router.add_api_route("/orders", order, methods=["POST"])
    router.add_api_route("/fail/{how}", fail, methods=["GET", "POST"])
    one = FastAPI()
    one.include_router(router)
    return one


def checked(answer: Any, status: int, slug: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"/v1/problems/{slug}"
    assert body.keys() >= {"title", "status", "detail", "changed"}
    return body


async def test_a_body_is_opened_and_the_answer_may_not_be_stored(client):
    answer = await client.post("/orders", json={"id": 7, "note": "ab"})
    assert (answer.status_code, answer.json()) == (201, {"id": 7, "size": 2})
    assert (answer.headers["cache-control"], answer.headers["x-seen"]) == ("no-store", "1")


@pytest.mark.parametrize(
    ("raw", "status", "slug", "word"),
    [
        (b"", 400, "no-json", "JSON"), (b"{", 400, "no-json", "JSON"), (b"\xff\xfe", 400, "no-json", ""),
        (b"[" * 1_500, 422, "body-refused", "array"), (b"{}", 422, "body-refused", "id"),
        (b'{"id":"7"}', 422, "body-refused", "$.id"), (b'{"id":7,"more":1}', 422, "body-refused", "more"),
        (b'{"id":7} x', 400, "no-json", ""), (b'{"id":NaN}', 400, "no-json", ""), (b"null", 422, "body-refused", ""),
    ],
)  # fmt: skip
async def test_a_body_that_cannot_be_used_is_refused_with_its_reason(client, raw, status, slug, word):
    answer = await client.post("/orders", content=raw, headers={"Content-Type": "application/json"})
    body = checked(answer, status, slug)
    assert word in body["detail"]
    assert body["changed"] == "nothing"


@given(raw=st.binary(max_size=300))
def test_no_body_makes_the_service_fail(raw):
    service = Service(Fencepost(), ApiSettings(auth="off"))

    async def read() -> int:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": raw, "more_body": False}

        scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
        try:
            await service.body(Request(scope, receive), Order)
        except Problem as problem:
            return problem.status
        return 200

    assert asyncio.run(read()) in (200, 400, 422)


@pytest.mark.parametrize(
    "declared", ["application/json", "application/json; charset=utf-8", "Application/Problem+JSON"]
)
async def test_each_name_of_json_is_taken(client, declared):
    answer = await client.post("/orders", content=b'{"id":1}', headers={"Content-Type": declared})
    assert answer.status_code == 201


@pytest.mark.parametrize(
    "headers",
    [{}, {"Content-Type": ""}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"},
     {"Content-Type": "text/json"}, {"Content-Type": "application/json", "Content-Encoding": "gzip"}],
)  # fmt: skip
async def test_what_a_foreign_page_can_send_unasked_is_not_taken_for_json(client, headers):
    checked(await client.post("/orders", content=b'{"id":1}', headers=headers), 415, "unsupported-media-type")


async def test_a_body_that_announces_to_be_too_large_is_refused_unread(client):
    body = checked(await client.post("/orders", json={"id": 1, "note": "x" * MOST}), 413, "body-too-large")
    assert str(MOST) in body["detail"]


@pytest.mark.parametrize("length", ["-1", "1e3", "²", "9" * 400])
async def test_a_length_that_is_none_is_refused(service, length):
    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing may be read")

    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", length.encode("latin-1"))]}
    with pytest.raises(Problem) as caught:
        await service.raw(Request(scope, receive))
    assert caught.value.status == (413 if length.startswith("9") else 400)


async def test_a_body_in_chunks_is_refused_before_more_than_the_most_was_read(live):
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 200_000_000:
            sent += 65_536
            yield b" " * 65_536

    async with live.client() as client:
        with contextlib.suppress(httpx2.NetworkError, httpx2.RemoteProtocolError):  # it closed while we were sending
            answer = await client.post("/orders", content=endless(), headers={"Content-Type": "application/json"})
            checked(answer, 413, "body-too-large")
    assert sent < 50_000_000


async def test_a_refused_body_costs_the_connection_so_that_nobody_waits_for_the_rest(live):
    with socket.create_connection(("127.0.0.1", int(live.url.rpartition(":")[2]))) as one:
        one.settimeout(5)
        one.sendall(b"POST /orders HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999999999\r\n\r\n")
        answer = b""
        while part := one.recv(65_536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


async def test_a_caller_that_goes_midway_is_no_fault_of_the_service(service):
    messages: Iterator[dict[str, Any]] = iter(
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> dict[str, Any]:
        return next(messages)

    with pytest.raises(Problem) as caught:
        await service.raw(Request({"type": "http", "method": "POST", "headers": []}, receive))
    assert (caught.value.status, caught.value.slug) == (400, "body-cut-off")


async def test_errors_of_the_library_are_problems_with_their_data(client):
    stale = checked(await client.get("/fail/stale"), 409, "stale-token")
    assert (stale["job_id"], stale["token"], stale["newest"]) == ("j1", "5", "1796095645962123")
    answer = await client.post("/fail/away")
    assert checked(answer, 503, "redis-unavailable")["changed"] == "unknown"
    assert answer.headers["retry-after"] == "1"
    away = checked(await client.get("/fail/away"), 503, "redis-unavailable")
    assert away["changed"] == "nothing", "reading changes nothing, whatever became of it"
    answer = await client.get("/fail/problem")
    assert checked(answer, 418, "teapot")["kind"] == "green"
    assert answer.headers["x-tea"] == "1"


# -- the whole application ------------------------------------------------------------------------------------


async def test_where_there_is_no_route_the_answer_is_a_problem_too(app):
    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        checked(await client.get("/v2/nothing"), 404, "not-found")
        answer = await client.request("DELETE", "/livez")
        checked(answer, 405, "method-not-allowed")
        assert answer.headers["allow"] == "GET"
        assert (await client.get("/livez/")).status_code == 404, "no redirect: it would lose a body"


async def test_there_is_no_cors_and_no_banner(app, new_live):
    live = new_live(asgi(app, ApiSettings(auth="off")))
    async with live.client() as client:
        preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        for answer in (await client.options("/v1/scaling", headers=preflight), await client.get("/livez")):
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert "server" not in answer.headers


async def test_an_error_that_nobody_expected_is_told_as_such(app):
    served = asgi(app, ApiSettings(auth="off"))

    async def broken() -> None:
        raise ZeroDivisionError("secret text")

    served.add_api_route("/broken", broken)
    transport = httpx2.ASGITransport(app=served, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/broken")
    body = checked(answer, 500, "internal")
    assert body["changed"] == "unknown"
    assert "ZeroDivisionError" in body["detail"]
    assert "secret" not in answer.text
