"""Results and error texts never fail a job that has done its work."""

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.codec import RESULT_LIMIT, decode_result, encode_result, encode_result_safely, error_text
from fencepost.errors import ResultRefused


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no text for you")


class BrokenError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class Color(enum.Enum):
    RED = "red"


@dataclass
class Invoice:
    number: str
    at: datetime


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        ("INV-1 日本", "INV-1 日本"),
        (0, 0),
        ([1, (2, 3)], [1, [2, 3]]),
        (b"\xff", "/w=="),
        (Color.RED, "red"),
        (Invoice("1", datetime(2025, 1, 1, tzinfo=UTC)), {"number": "1", "at": "2025-01-01T00:00:00Z"}),
        (b"", ""),
    ],
)
def test_a_result_is_stored_as_plain_data(value, plain):
    raw, problem = encode_result_safely(value)
    assert problem is None
    assert (raw is None) == (value is None)
    assert decode_result(raw) == plain
    assert encode_result(value) == raw


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        {"a": [float("inf")]},
        Broken(),
        [Broken()],
        object(),
        "\ud800",
        CYCLE,
        2**64,
        "x" * RESULT_LIMIT,
        1j,
        Invoice("1", datetime(2025, 1, 1)),  # noqa: DTZ001 - the mistake under test
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_cannot_be_stored_is_described_instead_and_the_problem_handed_back(value):
    raw, problem = encode_result_safely(value, "invoice")
    assert list(decode_result(raw)) == ["repr"]
    assert raw is not None
    assert len(raw) < 9_000
    assert problem
    assert "result" in problem
    problem.encode()
    with pytest.raises(ResultRefused, match=r"^invoice: `result") as caught:
        encode_result(value, "invoice")
    assert caught.value.path.startswith("result")


def test_the_path_of_a_bad_result_is_named():
    with pytest.raises(ResultRefused, match=r"`result\.rows\[1\]` cannot be stored: nan"):
        encode_result({"rows": [1, float("nan")]}, "report")


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001 - it is what is looked at
        return caught


def test_an_error_text_has_class_message_and_traceback():
    text = error_text(raised(ValueError("no such order: é")))
    assert text.startswith("ValueError: no such order: é\n\nTraceback (most recent call last):")
    assert "raise exc" in text


@pytest.mark.parametrize(
    "exc", [BrokenError(), ValueError("\ud800\0"), ExceptionGroup("g", [BrokenError()]), KeyError()]
)
def test_an_error_without_a_proper_text_still_has_one(exc):
    text = error_text(raised(exc))
    assert type(exc).__name__ in text
    assert "\0" not in text
    text.encode()


def test_a_long_error_text_keeps_its_head_and_its_tail():
    text = error_text(raised(ValueError("start " + "é" * 50_000 + " finish")), limit=1_000)
    assert text.startswith("ValueError: start")
    assert text.endswith("é finish")
    assert "bytes left out" in text
    assert len(text.encode()) <= 1_000


def test_a_deep_recursion_has_a_short_text():
    def down() -> None:
        down()

    try:
        down()
    except RecursionError as exc:
        text = error_text(exc)
    assert text.startswith("RecursionError: ")
    assert len(text.encode()) <= 8 * 1024


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=())), st.integers(0, 300))
def test_an_error_text_is_valid_within_its_limit_and_never_raises(message, limit):
    assert len(error_text(ValueError(message), limit).encode()) <= limit
