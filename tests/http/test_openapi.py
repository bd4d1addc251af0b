"""The OpenAPI document: valid, a path for each kind with the schema of its arguments, and examples that work."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import uuid
from typing import Annotated, Any, Literal

import jsonschema_rs
import msgspec
import pydantic
import pytest
from fastapi import FastAPI
from schemathesis.specs.openapi.definitions import OPENAPI_31
from starlette.routing import Match

from fencepost.api import ApiSettings, asgi, fencepost_router
from fencepost.api.schemas import example_of, inlined
from fencepost.codec import ArgumentsCodec
from tests.http.conftest import in_process


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(msgspec.Struct):
    sku: Annotated[str, msgspec.Meta(min_length=3, max_length=8)]
    price: decimal.Decimal
    pieces: Annotated[int, msgspec.Meta(ge=2, le=5)]


class Tree(msgspec.Struct):
    name: str
    left: Tree | None = None
    right: Tree | None = None


class Inner(pydantic.BaseModel):
    x: int


class Model(pydantic.BaseModel):
    inner: Inner
    many: list[Inner]


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    legs: int


@pytest.fixture
async def app(app):
    """Kinds with arguments of many sorts."""

    @app.job(resource="order:{order}", idempotency="required", caller_resource=True)
    async def nested(order: int, lines: list[Line], tree: Tree, model: Model, pet: Cat | Dog) -> None:
        """Do something with an order."""

    @app.job()
    async def plain(
        at: dt.datetime, day: dt.date, key: uuid.UUID, raw: bytes, colour: Colour, how: Literal["a", "b"],
        pair: tuple[int, str], share: Annotated[float, msgspec.Meta(gt=0, lt=1.5)], anything: Any,
        numbers: dict[str, int], flag: bool, step: Annotated[int, msgspec.Meta(multiple_of=7)],
        maybe: int | None = None,
    ) -> None: ...  # fmt: skip

    @app.job()
    async def odd(default: int, enum: str, properties: dict[str, str] | None = None) -> None: ...

    @app.job()
    async def patterned(code: Annotated[str, msgspec.Meta(pattern="^[0-9]{12}$")]) -> None: ...

    @app.job(kind="a/{b}")
    async def unsuited() -> None: ...

    return app


@pytest.fixture
def document(app):
    """The document of the whole service, with tokens."""
    return json.loads(json.dumps(asgi(app, ApiSettings()).openapi()))


def checked(document):
    """Check a document against the schema of OpenAPI 3.1."""
    validator = jsonschema_rs.Draft202012Validator(OPENAPI_31)
    problems = [f"{list(one.instance_path)}: {one.message[:200]}" for one in validator.iter_errors(document)]
    assert not problems
    ids = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(ids) == len(set(ids))
    return document


def body_of(document, kind):
    return document["paths"][f"/v1/jobs/{kind}"]["post"]["requestBody"]["content"]["application/json"]


def test_the_document_is_valid_and_needs_nothing_outside_of_itself(document):
    checked(document)
    references = set(_references(document))
    assert all(one.startswith("#/components/") for one in references), references
    for reference in references:
        node = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def _references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for one in node.values():
            yield from _references(one)
    elif isinstance(node, list):
        for one in node:
            yield from _references(one)


def test_each_kind_has_a_path_and_no_path_is_there_for_any_kind(document):
    posts = {path for path, item in document["paths"].items() if "post" in item and path.startswith("/v1/jobs/")}
    kinds = {"add", "book", "nested", "plain", "odd", "patterned", "batch"}
    assert {path.removeprefix("/v1/jobs/") for path in posts if "{" not in path} == kinds
    assert "/v1/jobs/{kind}" not in document["paths"]
    nested = document["paths"]["/v1/jobs/nested"]["post"]
    assert "Do something with an order." in nested["description"]
    assert "`order:{order}`" in nested["description"]
    [parameter] = nested["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == ("Idempotency-Key", "header", True)
    assert document["paths"]["/v1/jobs/add"]["post"]["parameters"][0]["required"] is False
    assert set(nested["responses"]) >= {"202", "400", "401", "403", "413", "415", "422", "429", "503"}


def test_a_body_has_the_arguments_with_their_defaults_and_only_what_the_kind_allows(document):
    body = body_of(document, "add")
    args = body["schema"]["properties"]["args"]
    assert args["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}}
    assert (args["required"], args["additionalProperties"], body["schema"]["required"]) == (["a"], False, ["args"])
    assert "resource" not in body["schema"]["properties"]
    assert "resource" in body_of(document, "nested")["schema"]["properties"]


@pytest.mark.parametrize("kind", ["add", "book", "nested", "plain", "odd"])
async def test_an_example_fits_its_schema_and_is_accepted(app, document, kind):
    body = body_of(document, kind)
    jsonschema_rs.validate(body["schema"], body["example"])
    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        answer = await client.post(f"/v1/jobs/{kind}", json=body["example"], headers={"Idempotency-Key": "example"})
        assert answer.status_code == 202, answer.text


def test_there_is_no_example_rather_than_one_that_is_refused(document):
    assert "example" not in body_of(document, "patterned")


def test_calls_need_a_token_but_for_those_of_machines(app, document):
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert document["security"] == [{"bearer": []}]
    free = {path for path, item in document["paths"].items() if any(one.get("security") == [] for one in item.values())}
    assert free == {"/livez", "/readyz", "/v1/problems/{slug}"}
    open_ = checked(asgi(app, ApiSettings(auth="off")).openapi())
    assert "security" not in open_


def test_each_call_with_a_token_tells_what_can_come_of_the_token_and_of_the_body(document):
    for path, item in document["paths"].items():
        for method, one in item.items():
            wanted = set() if one.get("security") == [] else {"401", "403", "429", "503"}
            wanted |= {"400", "413", "415", "422"} if "requestBody" in one else set()
            assert wanted <= set(one["responses"]), f"{method} {path}"


def test_the_document_of_a_host_stays_valid(app):
    host = FastAPI()
    host.include_router(fencepost_router(app), prefix="/queue")

    @host.get("/own")
    async def own() -> int:
        return 1

    document = checked(host.openapi())
    assert {"/own", "/queue/v1/jobs/add", "/queue/v1/jobs/batch"} <= document["paths"].keys()
    assert "security" not in document


async def test_the_paths_of_kinds_cost_other_calls_nothing(app):
    """They are in the document only: with hundreds of kinds, a call would be compared with each of them."""
    router = fencepost_router(app, ApiSettings(auth="off"))
    scope = {"type": "http", "method": "POST", "path": "/v1/jobs/add", "headers": []}
    routes: list[Any] = list(router.routes)
    full = [route for route in routes if route.matches(dict(scope))[0] == Match.FULL]
    assert [route.path for route in full] == ["/v1/jobs/{kind}"]


# -- schemas --------------------------------------------------------------------------------------------------


def test_a_type_that_holds_itself_is_shown_some_levels_deep():
    def handler(tree: Tree): ...

    schema = inlined(ArgumentsCodec(handler).schema())
    assert "$ref" not in json.dumps(schema)
    node, depth = schema["properties"]["tree"], 0
    while node:
        node, depth = node["properties"]["left"]["anyOf"][0], depth + 1
    assert depth == 3


def test_definitions_are_found_where_they_stand_and_a_property_may_have_any_name():
    schema = {
        "type": "object",
        "properties": {
            "$ref": {"type": "string"},
            "default": {"$ref": "#/$defs/A"},
            "model": {"$ref": "#/$defs/B", "$defs": {"B": {"type": "array", "items": {"$ref": "#/$defs/A"}}}},
            "pet": {"anyOf": [{"$ref": "#/$defs/A"}], "discriminator": {"mapping": {"a": "#/$defs/A"}}},
            "kept": {"default": {"$ref": "text"}, "enum": [{"$ref": "text"}]},
        },
        "$defs": {"A": {"type": "integer"}},
    }
    assert inlined(schema)["properties"] == {
        "$ref": {"type": "string"},
        "default": {"type": "integer"},
        "model": {"type": "array", "items": {"type": "integer"}},
        "pet": {"anyOf": [{"type": "integer"}]},
        "kept": {"default": {"$ref": "text"}, "enum": [{"$ref": "text"}]},
    }


def test_a_type_that_branches_into_itself_stays_small():
    many = {"type": "object", "properties": {f"p{n}": {"$ref": "#/$defs/Many"} for n in range(40)}}
    schema = inlined({"$ref": "#/$defs/Many", "$defs": {"Many": many}})
    assert len(json.dumps(schema)) < 20_000


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "integer", "exclusiveMinimum": 5, "multipleOf": 4}, 8),
        ({"type": "number", "maximum": -2}, -2),
        ({"type": "string", "minLength": 6}, "textxx"),
        ({"type": "string", "maxLength": 2}, "te"),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [True, True]),
        ({"type": "array", "minItems": 0, "items": {"type": "boolean"}}, []),
        ({"const": None}, None),
        ({}, "text"),
    ],
)
def test_an_example_keeps_to_the_bounds(schema, example):
    assert example_of(schema) == example
    jsonschema_rs.validate(schema, example)
