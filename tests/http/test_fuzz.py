"""The whole service under calls made from its own document: what fits it and what does not, and never a 5xx."""

from __future__ import annotations

import datetime as dt
import functools
from typing import Annotated, Any, Literal, cast

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from fencepost.api import ApiSettings

PARTS = 12
"""Of the document, so that each test stays within its time."""
EXAMPLES = 6

load_all_checks()
ANSWERS = [
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method", "allow_header_conformance",
]  # fmt: skip


REFUSALS = ["negative_data_rejection", "missing_required_header", "ignored_auth"]
TOLERANT = {
    "POST /v1/jobs/batch": "its items are refused one by one, within an answer that is 200",
    "GET /v1/scaling": "the fuzzer sends the text null for a queue, which is a name like any other",
}


class Line(msgspec.Struct):
    sku: Annotated[str, msgspec.Meta(min_length=1, max_length=20)]
    pieces: Annotated[int, msgspec.Meta(ge=1, le=99)] = 1


@pytest.fixture(name="settings")
def settings_of_the_service() -> ApiSettings:
    """Callers with a token; nothing waits long."""
    return ApiSettings(rate_per_s=0, max_wait_s=0.05)


@pytest.fixture
async def app(app):
    """Also a kind with arguments of many sorts, and one whose resource callers name."""

    @app.job(idempotency="required", caller_resource=True, dedup="{order}")
    async def invoice(
        order: int, lines: list[Line], how: Literal["post", "mail"] = "post", at: dt.datetime | None = None
    ) -> None: ...

    @app.job()
    async def anything(value: Any = None, password: str = "") -> None: ...

    return app


@pytest.fixture
def call(live, new_token):
    """Call an operation as a case says, with a token of all scopes, and check the answer."""
    token = new_token("enqueue:*", "read", "operate", "work")
    headers = {"Authorization": f"Bearer {token}"}
    with requests.Session() as session:

        def call(case, checks=()):
            named = CHECKS.get_by_names([*ANSWERS, *checks])
            case.call_and_validate(base_url=live.url, session=session, headers=headers, checks=named, timeout=5)

        yield call


@pytest.fixture
def operations(served):
    """All operations of the document, by method and path."""
    schema = schemathesis.openapi.from_dict(served.openapi())
    every: list[Any] = [result.ok() for result in cast("Any", schema.get_all_operations())]
    found = {f"{one.method.upper()} {one.path}": one for one in every}
    assert len(found) > 25
    return found


def fuzz(operation, mode, run):
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case):
        run(case)

    one()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_call_that_fits_the_document_is_answered_as_the_document_says(operations, call, part):
    for name in sorted(operations)[part::PARTS]:
        fuzz(operations[name], GenerationMode.POSITIVE, call)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_call_that_does_not_fit_the_document_is_refused_and_breaks_nothing(operations, call, part):
    for name in sorted(operations)[part::PARTS]:
        operation = operations[name]
        if operation.body or list(operation.iter_parameters()):  # else there is nothing that could not fit
            checks = [] if name in TOLERANT else REFUSALS
            fuzz(operation, GenerationMode.NEGATIVE, functools.partial(call, checks=checks))


_BODY = st.binary(max_size=60) | st.text(max_size=60).map(str.encode)
_KEY = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20)
_MEMBERS = {"args": _BODY, "delay": _BODY, "run_at": _BODY, "priority": _BODY, "dedup": _BODY, "more": _BODY}
_OBJECT = st.fixed_dictionaries({}, optional=_MEMBERS).map(
    lambda parts: b"{" + b",".join(b'"%s":%s' % (name.encode(), raw) for name, raw in parts.items()) + b"}"
)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/jobs/anything", "/v1/jobs/invoice", "/v1/jobs/batch"])
def test_any_bytes_at_all_are_accepted_or_refused(live, new_token, path):
    headers = {"Authorization": f"Bearer {new_token('enqueue:*')}", "Content-Type": "application/json"}

    @settings(max_examples=40, deadline=None, database=None)
    @given(body=_BODY | _OBJECT | _OBJECT.map(lambda raw: b'{"jobs":[%s]}' % raw), key=_KEY)
    def one(body, key):
        named: dict[str, Any] = headers | {"Idempotency-Key": key.encode("latin-1").strip()}
        answer = client.post(path, content=body, headers=named)
        assert answer.status_code in (200, 202, 400, 422), answer.text

    with live.blocking() as client:
        one()
