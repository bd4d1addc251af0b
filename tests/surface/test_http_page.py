"""The page of the HTTP service lists every route, every setting and every problem of the code; no more."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from fencepost import Fencepost
from fencepost.api import ApiSettings, fencepost_router
from fencepost.api.problems import _KNOWN, PAGES
from tests.surface.test_reference import SOURCE, rows, section


@pytest.fixture(scope="module")
def served() -> FastAPI:
    return Fencepost("redis://127.0.0.1:1").asgi()  # nothing connects


def listed(heading: str) -> dict[str, list[str]]:
    return {row[0].strip("`"): row[1:] for row in rows(section("http.md", heading)) if row[0].startswith("`")}


def routes(served: FastAPI) -> Iterator[str]:
    found = served.openapi()["paths"]
    yield from (f"{method.upper()} {path}" for path, methods in found.items() for method in methods)
    yield "POST /v1/jobs/{kind}"  # in the document under the name of each kind


def problems_of_the_code() -> dict[str, set[int]]:
    """Each name of a problem that an answer may have, with its statuses."""
    out: dict[str, set[int]] = {}
    for path in SOURCE.glob("api/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem" and len(node.args) > 1:
                status, slug = node.args[:2]
                if isinstance(status, ast.Constant) and isinstance(slug, ast.Constant):
                    out.setdefault(str(slug.value), set()).add(int(str(status.value)))
    for _, code, name, _ in _KNOWN:
        out.setdefault(name, set()).add(code)
    return out


def test_each_route_is_listed_and_no_other(served: FastAPI):
    assert set(listed("Routes")) == set(routes(served))


def test_no_route_is_missing_from_the_document(served: FastAPI):
    router = fencepost_router(Fencepost("redis://127.0.0.1:1"))
    known = {re.sub(r":\w+}", "}", route.path) for route in router.routes if isinstance(route, APIRoute)}
    assert known == {*served.openapi()["paths"], "/v1/jobs/{kind}"}


def test_each_setting_of_the_service_is_listed_with_its_default():
    table = {name: ast.literal_eval(cells[0].strip("`")) for name, cells in listed("Settings").items()}
    assert table == {field.name: field.default for field in dataclasses.fields(ApiSettings)}


def test_each_problem_is_listed_with_its_status_and_no_other():
    table = {name: {int(code) for code in cells[0].split(", ")} for name, cells in listed("Problems").items()}
    assert table == problems_of_the_code()


def test_each_problem_has_a_page_that_explains_it():
    assert set(problems_of_the_code()) == set(PAGES)
