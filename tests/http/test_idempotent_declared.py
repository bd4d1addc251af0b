"""Where an idempotent endpoint is declared wrongly, that is said at once; nothing is left unprotected in silence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.responses import StreamingResponse

from fencepost import ConfigurationError, Fencepost
from fencepost.api import Idempotent, IdempotentRoute, Once
from tests.http.conftest import in_process

# Here, not in a fixture: annotations of this module are text, and are looked up among its names.
QUEUE = Fencepost("redis://127.0.0.1:1", give_up="50ms")
idempotent = Idempotent(QUEUE, scope=lambda request: "t")
other = Idempotent(QUEUE, scope=lambda request: "t", required=False)
UNSEEN = "no IdempotentRoute sees it, so the endpoint would be unprotected.*route_class=IdempotentRoute"


async def with_a_parameter(once: Annotated[Once, Depends(idempotent)]) -> int:
    return 1


async def with_a_default(amount: int, once: Once = Depends(idempotent)) -> int:  # noqa: B008
    return amount


def needs_it(once: Annotated[Once, Depends(idempotent)]) -> Once:
    return once


async def nested(once: Annotated[Once, Depends(needs_it)]) -> int:
    return 1


async def bare() -> int:
    return 1


class Made(IdempotentRoute):
    """What a user may derive."""


@pytest.mark.parametrize("endpoint", [with_a_parameter, with_a_default, nested])
def test_the_dependency_without_the_route_class_is_refused_where_the_endpoint_is_declared(endpoint):
    with pytest.raises(ConfigurationError, match=UNSEEN):
        APIRouter().post("/orders")(endpoint)
    with pytest.raises(ConfigurationError, match=UNSEEN):
        FastAPI().post("/orders")(endpoint)


def test_the_dependency_of_a_whole_plain_router_or_application_is_refused_too():
    with pytest.raises(ConfigurationError, match=UNSEEN):
        APIRouter(dependencies=[Depends(idempotent)]).post("/orders")(bare)
    with pytest.raises(ConfigurationError, match=UNSEEN):
        FastAPI(dependencies=[Depends(idempotent)]).post("/orders")(bare)
    with pytest.raises(ConfigurationError, match=UNSEEN):
        APIRouter().post("/orders", dependencies=[Depends(idempotent)])(bare)


def test_inside_another_dependency_it_is_refused_also_with_the_route_class():
    with pytest.raises(ConfigurationError, match=UNSEEN):
        APIRouter(route_class=IdempotentRoute).post("/orders", dependencies=[Depends(idempotent)])(nested)


async def test_named_only_where_a_plain_router_is_included_no_request_of_it_is_served():
    """FastAPI looks at such a dependency there, or, in later versions, when the first request comes."""
    router, served, calls = APIRouter(), FastAPI(), list[int]()

    @router.get("/orders")
    async def orders() -> None:
        calls.append(1)

    async with in_process(served) as ask:
        with pytest.raises(ConfigurationError, match=UNSEEN):  # noqa: PT012  in which of the two lines
            served.include_router(router, dependencies=[Depends(idempotent)])
            await ask.get("/orders", headers={"Idempotency-Key": "k"})
    assert calls == []


def test_the_route_class_without_the_dependency_is_refused_for_post_and_patch():
    router = APIRouter(route_class=IdempotentRoute)
    for declare in (router.post, router.patch):
        with pytest.raises(ConfigurationError, match="/orders has no Idempotent among its dependencies"):
            declare("/orders")(bare)
    for declare in (router.get, router.put, router.delete):
        declare("/orders")(bare)


def test_two_policies_for_one_endpoint_are_refused_and_one_named_twice_is_not():
    router = APIRouter(route_class=Made, dependencies=[Depends(idempotent)])
    router.post("/orders")(with_a_parameter)
    with pytest.raises(ConfigurationError, match="/orders has two of them"):
        router.post("/orders", dependencies=[Depends(other)])(bare)


def test_an_endpoint_that_streams_is_refused():
    async def numbers() -> AsyncIterator[int]:
        yield 1

    def lines() -> Iterator[str]:
        yield "a"

    router = APIRouter(route_class=IdempotentRoute, dependencies=[Depends(idempotent)])
    with pytest.raises(ConfigurationError, match="numbers streams, and a stream cannot be repeated"):
        router.post("/stream")(numbers)
    with pytest.raises(ConfigurationError, match="lines streams, and a stream cannot be repeated"):
        router.post("/stream", response_class=StreamingResponse)(lines)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("lease", 0.5), ("lease", "2h"), ("keep", 59), ("keep", "400d"), ("keep", "soon")],
)
def test_a_setting_outside_its_bounds_is_refused(setting: str, value: Any):
    options: dict[str, Any] = {setting: value}
    with pytest.raises(ConfigurationError, match=f"^{setting}"):
        Idempotent(QUEUE, scope=lambda request: "t", **options)


async def test_a_scope_that_does_not_say_who_calls_stops_the_request():
    """It is not taken for "everybody": one user would see the answer of another."""
    unsure = Idempotent(QUEUE, scope=lambda request: None)
    router, served = APIRouter(route_class=IdempotentRoute, dependencies=[Depends(unsure)]), FastAPI()
    router.post("/orders")(bare)
    served.include_router(router)
    async with in_process(served) as ask:
        with pytest.raises(ConfigurationError, match="it returned None, which does not say who calls"):
            await ask.post("/orders", headers={"Idempotency-Key": "k"})


@pytest.fixture
def served() -> FastAPI:
    """A router that is included twice, once within another; and endpoints of the application itself."""
    inner, outer, served = APIRouter(route_class=Made, prefix="/shop"), APIRouter(), FastAPI()
    inner.post("/orders")(with_a_parameter)
    inner.post("/loose", dependencies=[Depends(other)], openapi_extra={"parameters": [], "x-own": 1})(bare)
    inner.get("/orders", dependencies=[Depends(idempotent)], responses={409: {"description": "own"}})(bare)
    outer.include_router(inner, prefix="/v1")
    served.include_router(outer)
    served.include_router(inner, prefix="/v2")
    served.router.route_class = IdempotentRoute
    served.post("/direct")(with_a_default)
    return served


@pytest.mark.parametrize("path", ["/v1/shop/orders", "/v2/shop/orders", "/v1/shop/loose", "/direct?amount=2"])
async def test_an_endpoint_is_protected_however_its_router_is_included(served: FastAPI, path: str):
    """Redis is away, so a protected one answers 503; and 400 without a key that it needs."""
    async with in_process(served) as ask:
        assert (await ask.post(path, headers={"Idempotency-Key": "k"})).status_code == 503
        assert (await ask.post(path)).status_code == (200 if "loose" in path else 400)
        assert (await ask.get(path)).status_code == (200 if path.endswith("orders") else 405)


def test_the_document_tells_of_the_header_and_hides_how_it_is_done(served: FastAPI):
    paths = served.openapi()["paths"]
    for path, required in (("/v1/shop/orders", True), ("/v1/shop/loose", False), ("/direct", True)):
        operation = paths[path]["post"]
        [header] = [one for one in operation["parameters"] if one["in"] == "header"]
        assert (header["name"], header["required"]) == ("Idempotency-Key", required)
        assert operation["responses"].keys() >= {"200", "400", "409", "503"}
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]["type"] == "integer"
    assert [one["name"] for one in paths["/direct"]["post"]["parameters"]] == ["amount", "Idempotency-Key"]
    assert paths["/v1/shop/loose"]["post"]["x-own"] == 1
    read = paths["/v1/shop/orders"]["get"]
    assert "parameters" not in read
    assert read["responses"]["409"] == {"description": "own"}
    assert "requestBody" not in paths["/v1/shop/orders"]["post"]
