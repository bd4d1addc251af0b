"""Who is admitted: by a token with the right scope, not too often; without tokens only from this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from fencepost import Fencepost, credentials
from fencepost.api import ApiSettings, admission
from fencepost.api.admission import Bucket
from fencepost.api.service import ProblemRoute, Service
from fencepost.operate.plan import run_sync
from tests.http.conftest import bearer, in_process
from tests.support import eventually, raw_client


def probing(service: Service) -> FastAPI:
    """A service with one route: it asks for the scope that the path names, and says who calls."""
    router = APIRouter(route_class=ProblemRoute)

    async def probe(request: Request) -> Response:
        caller = await service.admit(request, request.path_params["scope"])
        return service.json({"id": caller.id, "name": caller.name})

    router.add_api_route("/probe/{scope}", probe)
    served = FastAPI()
    served.include_router(router)
    return served


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings()


@pytest.fixture
def service(app: Fencepost, settings: ApiSettings) -> Service:
    return Service(app, settings)


@pytest.fixture
def served(service: Service) -> FastAPI:
    return probing(service)


def revoke(app: Fencepost, token: str) -> None:
    held = credentials.opened(token)
    assert held is not None
    plan = credentials.revoke(app.link.store, held.id, reason="it leaked", actor="tests")
    assert run_sync(app.link.synchronous, plan) is not None


def problem(answer: httpx2.Response, status: int, slug: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    body: dict[str, Any] = answer.json()
    assert (body["status"], body["type"]) == (status, f"/v1/problems/{slug}")
    assert "Nothing was " in body["detail"]
    return body


# -- tokens ---------------------------------------------------------------------------------------------------


async def test_a_token_with_the_scope_is_admitted_and_the_caller_is_known_by_name(client, new_token):
    token = new_token("read", name="the shop")
    answer = await client.get("/probe/read", headers=bearer(token))
    assert answer.status_code == 200
    assert answer.json() == {"id": token.split("_")[1], "name": "the shop"}


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer abc", "fp_abcdefghijkl_" + "x" * 43,
     "Bearer fp_abcdefghijkl_" + "x" * 43, "Bearer fp_abcdefghijkl_" + "x" * 43 + " x"],
)  # fmt: skip
async def test_what_is_no_known_credential_is_told_how_to_show_one(client, header):
    answer = await client.get("/probe/read", headers={"Authorization": header})
    body = problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert "x" * 43 not in body["detail"]


async def test_a_call_without_a_credential_is_asked_for_one(client):
    answer = await client.get("/probe/read")
    problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_the_right_id_with_another_secret_is_refused_also_while_the_credential_is_believed(client, new_token):
    token = new_token("read")
    assert (await client.get("/probe/read", headers=bearer(token))).status_code == 200
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    problem(await client.get("/probe/read", headers=bearer(wrong)), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("granted", "asked", "status"),
    [
        ("read", "read", 200), ("read", "operate", 403), ("operate", "read", 403), ("work", "enqueue:add", 403),
        ("enqueue:add", "enqueue:add", 200), ("enqueue:add", "enqueue:book", 403), ("enqueue:*", "enqueue:add", 200),
        ("enqueue:add", "enqueue:*", 403), ("enqueue:*", "read", 403), ("enqueue:add", "enqueue:addition", 403),
    ],
)  # fmt: skip
async def test_a_scope_grants_itself_and_nothing_else(client, new_token, granted, asked, status):
    answer = await client.get(f"/probe/{asked}", headers=bearer(new_token(granted)))
    assert answer.status_code == status
    if status == 403:
        body = problem(answer, 403, "forbidden")
        assert body["scope"] == asked
        assert asked in body["detail"]
        assert answer.headers["www-authenticate"] == f'Bearer error="insufficient_scope", scope="{asked}"'


async def test_a_scope_that_could_not_stand_in_a_header_is_told_in_the_body_only(client, new_token):
    answer = await client.get("/probe/enqueue:a%22b%0d%0ax", headers=bearer(new_token("read")))
    assert problem(answer, 403, "forbidden")["scope"] == 'enqueue:a"b\r\nx'
    assert "www-authenticate" not in answer.headers


async def test_a_credential_that_has_run_out_is_refused(client, new_token, clock):
    token = new_token("read", expires_s=60)
    clock.advance(61)
    body = problem(await client.get("/probe/read", headers=bearer(token)), 401, "unauthenticated")
    assert "has run out" in body["detail"]


async def test_a_credential_runs_out_while_it_is_believed(client, new_token):
    token = new_token("read", expires_s=1)
    assert (await client.get("/probe/read", headers=bearer(token))).status_code == 200
    began = time.monotonic()

    async def refused() -> bool:
        return bool((await client.get("/probe/read", headers=bearer(token))).status_code == 401)

    await eventually(refused)
    assert time.monotonic() - began < 1.5


@pytest.mark.slow
async def test_a_revocation_counts_within_two_seconds_and_until_then_redis_is_not_asked(app, client, new_token):
    token = new_token("read")
    assert (await client.get("/probe/read", headers=bearer(token))).status_code == 200
    asked = app.link.asynchronous.round_trips
    for _ in range(50):
        assert (await client.get("/probe/read", headers=bearer(token))).status_code == 200
    assert app.link.asynchronous.round_trips == asked
    revoke(app, token)
    began = time.monotonic()

    async def refused() -> bool:
        return bool((await client.get("/probe/read", headers=bearer(token))).status_code == 401)

    await eventually(refused)
    assert time.monotonic() - began < 2.0 + 0.5, "as the documentation promises"
    assert admission.EXTENDED_S == 10.0, "likewise"


async def test_many_calls_at_once_ask_redis_once(app, client, new_token):
    token = new_token("read")
    await client.get("/probe/read", headers=bearer(new_token("read")))  # the script is known to the server now
    asked = app.link.asynchronous.round_trips
    answers = await asyncio.gather(*(client.get("/probe/read", headers=bearer(token)) for _ in range(30)))
    assert {answer.status_code for answer in answers} == {200}
    assert app.link.asynchronous.round_trips == asked + 1


async def test_one_caller_that_goes_does_not_take_the_answer_from_the_others(redis, service, client, new_token):
    token = new_token("read")
    redis.client_pause(400)
    calls = [asyncio.create_task(client.get("/probe/read", headers=bearer(token))) for _ in range(5)]
    await eventually(lambda: service._admission._reading)
    calls[0].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert [one.status_code for one in answers[1:] if isinstance(one, httpx2.Response)] == [200] * 4


async def test_nothing_is_kept_of_tokens_that_are_unknown(service, client):
    for number in range(200):
        name = format(number, "b").translate(str.maketrans("01", "ab")).rjust(12, "a")
        assert (await client.get("/probe/read", headers=bearer(f"fp_{name}_{'x' * 43}"))).status_code == 401
    assert len(service._admission._known) == 0
    assert len(service._admission._reading) == 0


async def test_what_is_remembered_of_credentials_is_bounded(service, client, new_token, monkeypatch):
    monkeypatch.setattr(admission, "_MOST", 3)
    for _ in range(6):
        assert (await client.get("/probe/read", headers=bearer(new_token("read")))).status_code == 200
    assert len(service._admission._known) == 3


# -- Redis away -----------------------------------------------------------------------------------------------


@pytest.fixture
def away(new_server: Callable[..., Any]) -> Any:
    """A server of this test alone, which may be stopped, and an application on it."""
    server = new_server()
    app = Fencepost(server.url, namespace="away", give_up=0.2)
    yield server, app
    app.close_sync()


@pytest.mark.slow
async def test_without_redis_nobody_is_told_that_his_token_is_wrong_and_who_was_known_goes_on_for_a_while(
    away, monkeypatch
):
    server, app = away
    monkeypatch.setattr(admission, "EXTENDED_S", 1.5)
    service = Service(app, ApiSettings())
    tokens = [
        run_sync(app.link.synchronous, credentials.make(app.link.store, name, ["read"], actor="tests")).token
        for name in ("known", "new")
    ]
    async with in_process(probing(service)) as client:

        async def status(token: str) -> int:
            return (await client.get("/probe/read", headers=bearer(token))).status_code

        assert await status(tokens[0]) == 200
        read_at = time.monotonic()
        client_of_server = raw_client(server.url)
        client_of_server.close()
        server.stop()
        answer = await client.get("/probe/read", headers=bearer(tokens[1]))
        assert answer.status_code == 503
        assert answer.json()["type"] == "/v1/problems/redis-unavailable"
        assert answer.headers["retry-after"] == "1"

        async def over() -> bool:
            found = await status(tokens[0])
            passed = time.monotonic() - read_at
            if found == 200:
                assert passed < admission.BELIEVED_S + 1.5 + 1.0
            else:
                assert found == 503, "never 401: nobody has said that it is wrong"
                assert passed >= admission.BELIEVED_S + 1.5
            return found == 503

        await eventually(over, 8)
    await app.link.asynchronous.close()


# -- how often ------------------------------------------------------------------------------------------------


class TestRate:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(rate_per_s=2, burst=3)

    async def test_who_calls_too_often_is_told_when_to_come_again_and_others_are_not_held_up(self, client, new_token):
        token, other = new_token("read"), new_token("read")
        found = [await client.get("/probe/read", headers=bearer(token)) for _ in range(5)]
        assert [answer.status_code for answer in found] == [200, 200, 200, 429, 429]
        body = problem(found[-1], 429, "rate-limited")
        assert found[-1].headers["retry-after"] == "1"
        assert "2 times a second" in body["detail"]
        assert (await client.get("/probe/read", headers=bearer(other))).status_code == 200

    async def test_calls_beyond_one_s_scope_count_too(self, client, new_token):
        token = new_token("read")
        found = [await client.get("/probe/work", headers=bearer(token)) for _ in range(5)]
        assert [answer.status_code for answer in found] == [403, 403, 403, 429, 429]


def test_a_bucket_fills_again_at_its_rate_and_never_above_its_burst():
    bucket = Bucket(4.0, 2)
    start = bucket._at
    assert [bucket.wait_s(start) for _ in range(3)] == [0.0, 0.0, 0.25]
    assert bucket.wait_s(start + 0.25) == 0.0
    assert bucket.wait_s(start + 0.25) == 0.25
    assert [bucket.wait_s(start + 100) for _ in range(3)] == [0.0, 0.0, 0.25]


def test_a_rate_of_zero_is_no_limit():
    bucket = Bucket(0, 1)
    assert {bucket.wait_s(1e6) for _ in range(1_000)} == {0.0}


# -- without tokens -------------------------------------------------------------------------------------------


class TestWithoutTokens:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(auth="off")

    async def test_a_caller_on_this_machine_may_do_anything(self, client):
        for scope in ("read", "operate", "work", "enqueue:add"):
            answer = await client.get(f"/probe/{scope}")
            assert answer.json() == {"id": "", "name": "anonymous"}

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.9.9.9:8000"])
    async def test_each_name_of_loopback_is_this_machine(self, served, host):
        transport = httpx2.ASGITransport(app=served, client=("::1", 5))
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            assert (await client.get("/probe/read")).status_code == 200

    @pytest.mark.parametrize(
        ("client_address", "base_url", "headers", "why"),
        [
            ("10.0.0.7", "http://127.0.0.1", {}, "address"),
            ("::ffff:10.0.0.7", "http://127.0.0.1", {}, "address"),
            ("testclient", "http://127.0.0.1", {}, "address"),
            ("127.0.0.1", "http://192.168.1.1", {}, "others reach"),
            ("127.0.0.1", "http://127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, "proxy"),
            ("127.0.0.1", "http://127.0.0.1", {"Forwarded": "for=127.0.0.1"}, "proxy"),
            ("127.0.0.1", "http://127.0.0.1", {"X-Real-IP": "127.0.0.1"}, "proxy"),
            ("127.0.0.1", "http://127.0.0.1", {"Host": "evil.example:80"}, "Host"),
            ("127.0.0.1", "http://127.0.0.1", {"Origin": "https://evil.example"}, "another site"),
            ("127.0.0.1", "http://127.0.0.1", {"Origin": "null"}, "another site"),
            ("127.0.0.1", "http://127.0.0.1", {"Sec-Fetch-Site": "cross-site"}, "another site"),
            ("127.0.0.1", "http://127.0.0.1", {"Sec-Fetch-Site": "same-site"}, "another site"),
        ],
    )
    async def test_anybody_else_is_refused(self, served, client_address, base_url, headers, why):
        transport = httpx2.ASGITransport(app=served, client=(client_address, 5))
        async with httpx2.AsyncClient(transport=transport, base_url=base_url, headers=headers) as client:
            assert why in problem(await client.get("/probe/read"), 403, "not-admitted")["detail"]

    async def test_the_page_of_the_documentation_may_call(self, client):
        headers = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
        assert (await client.get("/probe/read", headers=headers)).status_code == 200

    async def test_a_call_over_a_real_socket_of_loopback_is_admitted(self, live):
        async with live.client() as client:
            assert (await client.get("/probe/read")).status_code == 200
