"""Each route wants the scope that the page of the service says, and nothing else."""

from __future__ import annotations

import re

import httpx2
import pytest
from fastapi import FastAPI

from fencepost import Fencepost, credentials
from fencepost.api import ApiSettings
from fencepost.operate import Operator
from tests.http.conftest import in_process
from tests.surface.test_reference import rows, section

ALL = ("enqueue:*", "read", "operate", "work")
ROUTES = {row[0].strip("`"): row[1].strip("`") for row in rows(section("http.md", "Routes")) if row[0].startswith("`")}
FILLED = {"kind": "add", "id": "some-job", "resource": "stock:mug", "queue": "sums", "slug": "forbidden"}


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings()


async def token(app: Fencepost, *scopes: str) -> str:
    """Make a credential with these scopes."""
    made = await Operator(app).run(credentials.make(app.link.store, "tester", scopes, actor="test"))
    return made.token


async def ask(client: httpx2.AsyncClient, route: str, token: str | None) -> httpx2.Response:
    method, path = route.split(" ")
    path = re.sub(r"{(\w+)}", lambda found: FILLED[found[1]], path)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if method == "GET":
        return await client.get(path, headers=headers)
    body = {"jobs": [{"kind": "add", "args": {"a": 1}}]} if path.endswith("/batch") else {}
    return await client.post(path, headers=headers, json=body)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_route_wants_the_scope_that_the_page_says(route: str, app: Fencepost, served: FastAPI):
    scope = ROUTES[route].replace("<kind>", "add")
    async with in_process(served) as client:
        without = await ask(client, route, None)
        if scope == "none":
            assert without.status_code == 200
            return
        assert without.status_code == 401
        if scope != "any":
            others = [one for one in ALL if one != scope and not scope.startswith(one.rstrip("*"))]
            refused = await ask(client, route, await token(app, "enqueue:book", *others))
            problem = refused.json()["jobs"][0]["problem"] if route.endswith("/batch") else refused.json()
            assert (problem["status"], problem["scope"]) == (403, scope)
        enough = await ask(client, route, await token(app, "read" if scope == "any" else scope))
        assert enough.status_code not in (401, 403, 500)
