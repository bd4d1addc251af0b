"""Arguments: by name, checked where they are enqueued by the decoder of the worker."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.codec import PAYLOAD_LIMIT, ArgumentsCodec
from fencepost.errors import ArgumentsRefused, ConfigurationError, PayloadUndecodable

if TYPE_CHECKING:
    from nowhere import Run  # type: ignore[import-not-found]


@dataclass
class Line:
    price: Decimal
    at: dt.datetime | None = None


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)


class Shop(enum.Enum):
    NORTH = "north"


class Level(enum.IntEnum):
    HIGH = 2


class Point(msgspec.Struct, array_like=True):
    x: float
    y: float


class Hidden:
    pass


class Pair(NamedTuple):
    a: int
    b: str


def simple(run: Run, order_id: int, note: str = "", ratio: float = 0.0, flag: bool = False) -> None: ...
def anything(value): ...
def nested(order: Order, by_name: dict[str, Line] | None = None) -> None: ...


SIMPLE = ArgumentsCodec(simple, "simple")
ANYTHING = ArgumentsCodec(anything)
NESTED = ArgumentsCodec(nested)


def codec_for(annotation: Any) -> ArgumentsCodec:
    def handler(value): ...

    handler.__annotations__["value"] = annotation
    return ArgumentsCodec(handler, "probe")


def refusal(codec: ArgumentsCodec, **arguments: Any) -> ArgumentsRefused:
    with pytest.raises(ArgumentsRefused) as caught:
        codec.encode(arguments)
    str(caught.value).encode()  # fit for any log
    return caught.value


def test_arguments_are_a_json_object_by_name_without_run_and_without_defaults():
    assert SIMPLE.encode({"order_id": 1, "note": "é"}) == '{"order_id":1,"note":"é"}'.encode()
    assert SIMPLE.decode(b'{"note":"x","order_id":1}') == {"order_id": 1, "note": "x"}
    assert (SIMPLE.takes_run, SIMPLE.names) == (True, ("order_id", "note", "ratio", "flag"))
    assert SIMPLE.defaults == {"note": "", "ratio": 0.0, "flag": False}
    assert ANYTHING.takes_run is False


@pytest.mark.parametrize("annotation", ["Run", "fencepost.Run", "Run[int]", type("Run", (), {}), "'Run'"])
def test_a_first_parameter_annotated_run_belongs_to_the_worker_under_any_name(annotation):
    def handler(r, x: int): ...

    handler.__annotations__["r"] = annotation
    assert ArgumentsCodec(handler).names == ("x",)


def test_a_call_is_bound_by_name_before_it_is_stored():
    assert SIMPLE.bind((1,), {"flag": True}) == {"order_id": 1, "flag": True}
    assert SIMPLE.bind((), {"order_id": 1}) == {"order_id": 1}
    with pytest.raises(ArgumentsRefused, match="5 positional arguments given"):
        SIMPLE.bind((1, 2, 3, 4, 5), {})
    with pytest.raises(ArgumentsRefused, match="`order_id` refused: it was given twice"):
        SIMPLE.bind((1,), {"order_id": 2})


def test_a_parameter_added_in_the_middle_does_not_shift_the_values_of_waiting_jobs():
    def v1(a: int, b: int, flag: bool): ...
    def v2(a: int, b: int, site: str | None = None, flag: bool = False): ...
    def renamed(a: int, c: int, flag: bool = False): ...
    def demanding(a: int, b: int, flag: bool, zone: str): ...

    old = ArgumentsCodec(v1)
    waiting = old.encode(old.bind((1, 2, True), {}))
    assert ArgumentsCodec(v2).decode(waiting) == {"a": 1, "b": 2, "flag": True}
    for handler in (renamed, demanding):
        with pytest.raises(PayloadUndecodable) as caught:
            ArgumentsCodec(handler).decode(waiting)
        assert caught.value.raw == waiting


def test_a_changed_default_applies_to_jobs_that_left_it_out():
    def v1(a: int, retries: int = 1): ...
    def v2(a: int, retries: int = 9): ...

    assert ArgumentsCodec(v2).decode(ArgumentsCodec(v1).encode({"a": 1})) == {"a": 1}


@pytest.mark.parametrize(
    ("arguments", "path", "problem"),
    [
        ({}, "order_id", "it is missing"),
        ({"order_id": 1, "oder_id": 2}, "oder_id", "did you mean `order_id`"),
        ({"order_id": 1, "zzz": 2}, "zzz", "it takes order_id, note"),
        ({"order_id": "1"}, "order_id", "Expected `int`, got `str`"),
        ({"order_id": True}, "order_id", "Expected `int`, got `bool`"),
        ({"order_id": None}, "order_id", "Expected `int`, got `null`"),
        ({"order_id": 1.5}, "order_id", "Expected `int`, got `float`"),
        ({"order_id": 2**64}, "order_id", "beyond 64 bit"),
        ({"order_id": -(2**63) - 1}, "order_id", "beyond 64 bit"),
        ({"order_id": 1, "ratio": math.nan}, "ratio", "nan is not a JSON number"),
        ({"order_id": 1, "ratio": -math.inf}, "ratio", "-inf is not a JSON number"),
        ({"order_id": 1, "ratio": 2**53 + 1}, "ratio", "would arrive as 9007199254740992.0"),
        ({"order_id": 1, "note": b"x"}, "note", "a bytes would arrive as str"),
        ({"order_id": 1, "note": "a\ud800"}, "note", "lone surrogate"),
        ({"order_id": 1, "note": "x" * PAYLOAD_LIMIT}, "note", f"{PAYLOAD_LIMIT} are allowed"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_path(arguments, path, problem):
    error = refusal(SIMPLE, **arguments)
    assert (error.kind, error.path) == ("simple", path)
    assert problem in error.problem


UTC_NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
NAIVE = dt.datetime(2025, 1, 1)  # noqa: DTZ001 - the mistake under test


def line(**changes: Any) -> Line:
    return Line(**{"price": Decimal("1.10"), **changes})


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"order": Order(1, [line(), line(), line(price="x")])}, "order.lines[2].price"),
        ({"order": Order(1, [line(), line(at=NAIVE)])}, "order.lines[1].at"),
        ({"order": {"id": 1, "lines": [{"price": "1", "at": "2025-01-01T00:00:00"}]}}, "order.lines[0].at"),
        ({"order": Order(1, [line(price=Decimal("NaN"))])}, "order.lines[0].price"),
        ({"order": {"id": 1, "lines": [{"price": "Infinity"}]}}, "order.lines[0].price"),
        ({"order": {"id": 1, "lines": [{}]}}, "order.lines[0].price"),
        ({"order": Order(1), "by_name": {"a b": line(at=NAIVE)}}, "by_name['a b'].at"),
    ],
)
def test_a_problem_deep_inside_is_found_with_its_path(arguments, path):
    assert refusal(NESTED, **arguments).path == path


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        [1, math.inf],
        {"a": {"b": [math.nan]}},
        {math.nan: 1},
        {"a": "\udfff"},
        {"\ud800": 1},
        [2**64],
        [[NAIVE]],
        b"x",
        [b"x"],
        Decimal(1),
        UTC_NOON,
        uuid.UUID(int=1),
        {1, 2},
        {1: "a"},
        {1: "a", "1": "b"},
        dt.date(2025, 1, 1),
        Shop.NORTH,
        Order(1),
        Point(1, 2),
        Pair(1, "x"),
        object(),
        1j,
        range(3),
        {None: 1},
        Hidden(),
        msgspec.Raw(b"{"),
    ],
    ids=lambda value: ascii(value).partition(" at 0x")[0],
)
def test_without_an_annotation_whatever_json_would_change_is_refused(value):
    assert refusal(ANYTHING, value=value).path.startswith("value")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, -0.0),
        (int, 2**64 - 1),
        (int, -(2**63)),
        (str, "a\0b"),
        (str, "日本 😀"),
        (bytes, b"\x9c\xff"),
        (Decimal, Decimal("1.10")),
        (uuid.UUID, uuid.UUID(int=7)),
        (dt.date, dt.date(2025, 2, 28)),
        (dt.time, dt.time(1, 2, tzinfo=dt.UTC)),
        (dt.timedelta, dt.timedelta(seconds=1.5)),
        (dt.datetime, UTC_NOON),
        (Shop, Shop.NORTH),
        (Level, Level.HIGH),
        (Point, Point(1.5, -2.0)),
        (Pair, Pair(1, "x")),
        (Order, Order(1, [Line(Decimal("0.1"), UTC_NOON)])),
        (tuple[int, str], (1, "x")),
        (set[int], {1, 2}),
        (frozenset[Shop], frozenset({Shop.NORTH})),
        (dict[int, list[bytes]], {1: [b"x"], 2: []}),
        (dict[uuid.UUID, int], {uuid.UUID(int=7): 1}),
        (int | None, None),
        (Any, {"a": [1, 2.5, None, True, "x"], "b c": {}}),
        (Annotated[int, msgspec.Meta(gt=0)], 5),
    ],
    ids=lambda value: ascii(value).partition(" at 0x")[0],
)
def test_an_annotated_value_arrives_equal_and_of_its_type(annotation, value):
    codec = codec_for(annotation)
    arrived = codec.decode(codec.encode({"value": value}))["value"]
    assert arrived == value
    assert type(arrived) is type(value)
    assert str(arrived) == str(value)  # -0.0, and Decimal with its zeros


def test_a_moment_in_a_fold_keeps_its_instant():
    codec = codec_for(dt.datetime)
    moment = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris"))
    arrived = codec.decode(codec.encode({"value": moment}))["value"]
    assert arrived.timestamp() == moment.timestamp()


def test_a_moment_whose_offset_has_seconds_is_refused_because_iso_text_would_shift_it():
    moment = dt.datetime(1880, 1, 1, tzinfo=dt.timezone(dt.timedelta(minutes=9, seconds=21)))
    assert "would arrive as" in refusal(codec_for(dt.datetime), value=moment).problem


def test_json_values_from_a_client_become_what_is_annotated():
    assert NESTED.decode(NESTED.encode({"order": {"id": 1, "lines": [{"price": "1.10"}]}})) == {
        "order": Order(1, [Line(Decimal("1.10"))])
    }
    for annotation, value in [(Decimal, 0.1), (dt.datetime, "2025-01-01T12:00:00Z"), (Shop, "north"), (set[int], [1])]:
        codec_for(annotation).encode({"value": value})


def test_a_tuple_may_stand_for_a_list_and_safe_text_for_text():
    class SafeText(str):
        __slots__ = ()

    assert codec_for(list[int]).encode({"value": (1, 2)}) == b'{"value":[1,2]}'
    assert codec_for(str).encode({"value": SafeText("x")}) == b'{"value":"x"}'
    assert codec_for(str).encode({"value": Level.HIGH.name}) == b'{"value":"HIGH"}'


def test_what_is_nested_too_deep_or_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(70):
        deep = [deep]
    for value in (loop, deep):
        assert "64 levels" in refusal(ANYTHING, value=value).problem


json_values = st.recursive(
    st.sampled_from([None, True, 0, -0.0, 2**63, 2**64, math.nan, -math.inf, b"x", "", "a\0", "\ud800", "é", (), {1}])
    | st.integers()
    | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b c", "1", 1, 2.5, "\udfff"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def as_json(value):
    """Tuples are lists in JSON; nothing else may differ."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value


@settings(max_examples=50)
@given(json_values)
def test_any_value_arrives_equal_or_is_refused_with_a_path(value):
    path = "value"
    try:
        raw = ANYTHING.encode({"value": value})
    except ArgumentsRefused as error:
        path = error.path
    else:
        assert ANYTHING.decode(raw) == {"value": as_json(value)}
        json.loads(raw, parse_constant=pytest.fail)
    assert path.startswith("value")


@pytest.mark.parametrize(
    "raw",
    [b"", b"[", b"\x9c", b"[]", b"null", b"{}", b'{"order_id":"x"}', b'{"order_id":1,"note":"\xff"}', b"[" * 9_999],
)
def test_a_payload_that_does_not_fit_is_undecodable_and_keeps_its_bytes(raw):
    with pytest.raises(PayloadUndecodable, match=r"simple: the payload of .* did not run") as caught:
        SIMPLE.decode(raw)
    assert caught.value.raw == raw


def test_handlers_whose_arguments_have_no_names_are_refused_when_they_are_registered():
    def starred(*ids): ...
    def keywords(**options): ...
    def positional(a, /, b): ...

    for handler, word in ((starred, r"\*ids"), (keywords, r"\*\*options"), (positional, "positional-only")):
        with pytest.raises(ConfigurationError, match=word):
            ArgumentsCodec(handler)


def test_an_annotation_that_cannot_be_resolved_is_named():
    def handler(a: int, b: Run): ...

    with pytest.raises(ConfigurationError, match="the annotation of `b` cannot be resolved: name 'Run'"):
        ArgumentsCodec(handler)


@pytest.mark.parametrize(
    "annotation", [Hidden, list[Hidden], dict[str, Hidden | None], Callable[[], int], int | Hidden]
)
def test_a_type_that_json_has_no_form_for_is_refused_when_the_handler_is_registered(annotation):
    with pytest.raises(ConfigurationError, match="pydantic"):
        codec_for(annotation)


def test_the_signature_can_be_read_by_people_and_by_programs():
    assert SIMPLE.signature_text == "(order_id: int, note: str = '', ratio: float = 0.0, flag: bool = False)"
    assert ANYTHING.signature_text == "(value)"
    schema = SIMPLE.schema()
    assert (schema["title"], schema["required"], schema["additionalProperties"]) == ("simple", ["order_id"], False)
    assert schema["properties"]["ratio"] == {"type": "number", "default": 0.0}
    assert "Order" in NESTED.schema()["$defs"]
    json.dumps(NESTED.schema())
