"""Names made from a job's arguments, and the rule for a busy resource."""

import enum
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.errors import ArgumentsRefused, ConfigurationError
from fencepost.resource import ResourceRule, ResourceTemplate


@dataclass
class Order:
    id: int
    lines: list[str]


class Shop(enum.Enum):
    NORTH = "north"


def test_a_name_is_made_from_the_arguments():
    assert ResourceTemplate("invoice:order:{order_id}").render({"order_id": 123, "note": "x"}) == "invoice:order:123"
    assert ResourceTemplate("nightly").render({}) == "nightly"


@pytest.mark.parametrize("order", [Order(7, ["a", "b"]), {"id": 7, "lines": ["a", "b"]}])
def test_a_model_and_its_json_give_the_same_name(order):
    assert ResourceTemplate("order:{order.id}:{order.lines[1]}").render({"order": order}) == "order:7:b"


def test_a_number_and_its_text_give_the_same_name_and_so_do_two_spellings_of_a_letter():
    template = ResourceTemplate("c:{x}")
    assert template.render({"x": 1}) == template.render({"x": "1"})
    assert template.render({"x": "caf\u00e9"}) == template.render({"x": "cafe\u0301"})
    assert template.render({"x": Shop.NORTH}) == "c:north"


@settings(max_examples=60)
@given(st.tuples(st.text("a:-%1"), st.text("a:-%1")), st.tuples(st.text("a:-%1"), st.text("a:-%1")))
def test_two_sets_of_values_never_give_one_name(one, other):
    template = ResourceTemplate("x:{a}:-{b}")
    if all((*one, *other)) and one != other:
        assert template.render(dict(zip("ab", one, strict=True))) != template.render(
            dict(zip("ab", other, strict=True))
        )


def test_a_single_value_is_kept_as_it_is():
    assert ResourceTemplate("url:{u}").render({"u": "http://x/?a=%20"}) == "url:http://x/?a=%20"


@pytest.mark.parametrize(
    "value",
    ["", None, "a b", "a{b", "a}b", "a\nb", "a\0b", "\ud800", "x" * 201, 10**300, b"x", [1], {"a": 1}, object()],
)
def test_a_value_that_cannot_be_part_of_a_name_is_refused_with_its_path(value):
    with pytest.raises(ArgumentsRefused, match=r"mail: argument `to\[0\]` refused: .*Nothing was enqueued") as caught:
        ResourceTemplate("mail:{to[0]}").render({"to": [value]}, kind="mail")
    assert caught.value.path == "to[0]"
    str(caught.value).encode()  # fit for any log


@pytest.mark.parametrize("arguments", [{}, {"order": None}, {"order": {}}, {"order": {"id": []}}, {"order": "text"}])
def test_a_missing_part_is_refused_with_its_path(arguments):
    with pytest.raises(ArgumentsRefused, match=r"`order.id\[0\]`.*missing"):
        ResourceTemplate("o:{order.id[0]}").render(arguments)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "a{",
        "a}b",
        "{}",
        "{0}",
        "{a!r}",
        "{a:>3}",
        "{a}{b}",
        "{a.}",
        "{a._x}",
        "{a.__class__}",
        "{a[}",
        "{a[]}",
        "{a[0]x}",
        "{ a}",
        "{[0]}",
        "{.a}",
        "a\n",
        "{{a}}",
        "x" * 513,
        7,
        None,
    ],
)
def test_a_template_that_cannot_be_used_is_refused_when_it_is_declared(text):
    with pytest.raises(ConfigurationError, match=r"^dedup: "):
        ResourceTemplate(text, "dedup")


def test_a_field_that_is_no_parameter_is_refused_when_the_handler_is_registered():
    template = ResourceTemplate("o:{order.id}:{shop}")
    assert template.field_names == ("order", "shop")
    template.check_names(("order", "shop"), "invoice")
    with pytest.raises(ConfigurationError, match=r"\{shop\} in .* is no parameter of invoice.*order, store"):
        template.check_names(("order", "store"), "invoice")


def test_a_whole_name_has_a_limit():
    with pytest.raises(ArgumentsRefused, match="512 are allowed"):
        ResourceTemplate("{a}:{b}:{c}").render(dict.fromkeys("abc", "x" * 190))


def test_a_rule_reads_its_template_and_its_delay():
    rule = ResourceRule("order:{id}", limit=3, on_busy="later:1m30s")
    assert (rule.on_busy, rule.later_ms) == ("later:90", 90_000)
    assert rule.render({"id": 5}) == "order:5"
    assert ResourceRule("x", on_busy="later:0.25").on_busy == "later:0.25"
    assert ResourceRule("x").later_ms == 0


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("resource", {"template": 5}),
        ("resource", {"template": "{"}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": True}),
        ("limit", {"limit": 10_001}),
        ("on_busy", {"on_busy": "later"}),
        ("on_busy", {"on_busy": "later:"}),
        ("on_busy", {"on_busy": "later:0"}),
        ("on_busy", {"on_busy": "drop"}),
        ("on_busy", {"on_busy": None}),
        ("ordered", {"ordered": True, "on_busy": "skip"}),
        ("when_redis_away", {"when_redis_away": "maybe"}),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_by_the_name_of_the_setting(setting, wrong):
    with pytest.raises(ConfigurationError, match=f"^{setting}: "):
        ResourceRule(**{"template": "order:{id}", **wrong})
