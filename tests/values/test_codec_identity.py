"""Whether two requests are the same."""

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.codec import canonical_key, request_fingerprint

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)
arguments = st.dictionaries(st.sampled_from("abcd"), plain)


def turned(value):
    """The same data with every dict in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(item) for key, item in reversed(value.items())}
    return [turned(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=40)
@given(arguments)
def test_the_order_of_keys_makes_no_difference(given_arguments):
    other = turned(given_arguments)
    assert canonical_key("k", given_arguments) == canonical_key("k", other)
    one, two = (json.dumps(value, indent=indent).encode() for value, indent in ((given_arguments, None), (other, 2)))
    assert request_fingerprint("k", one) == request_fingerprint("k", two)


@settings(max_examples=40)
@given(arguments, arguments)
def test_different_arguments_have_different_keys(one, other):
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    if same or (json.dumps(one) + json.dumps(other)).isascii():
        assert (canonical_key("k", one) == canonical_key("k", other)) == same or _differ_in_spelling(one, other)


def _differ_in_spelling(one, other):
    import unicodedata

    def spelled(value):
        return unicodedata.normalize("NFC", json.dumps(value, sort_keys=True, ensure_ascii=False))

    return spelled(one) == spelled(other)


@pytest.mark.parametrize(
    ("one", "other"), [(1, "1"), (1, 1.0), (True, 1), (None, "null"), ([1], "[1]"), ({}, []), ("a", "A"), ("", " ")]
)
def test_values_that_look_alike_are_told_apart(one, other):
    assert canonical_key("k", {"a": one}) != canonical_key("k", {"a": other})


def test_two_unicode_spellings_of_a_text_give_one_key_but_are_two_requests():
    composed, decomposed = {"x": {"é": ["é"]}}, {"x": {"e\u0301": ["e\u0301"]}}
    assert canonical_key("k", composed) == canonical_key("k", decomposed)
    payloads = [json.dumps(value).encode() for value in (composed, decomposed)]
    assert request_fingerprint("k", payloads[0]) != request_fingerprint("k", payloads[1])


def test_a_dict_that_holds_both_spellings_keeps_both():
    both = {"x": {"é": 1, "e\u0301": 2}}
    assert canonical_key("k", both) != canonical_key("k", {"x": {"é": 2}})


def test_a_short_key_can_be_read_and_a_long_or_foreign_one_is_hashed():
    assert canonical_key("invoice", {"b": Decimal("1.10"), "a": 1}) == 'invoice:{"a":1,"b":"1.10"}'
    for odd in ("x" * 200, "日本", "\x7f"):
        key = canonical_key("invoice", {"a": odd})
        assert key.startswith("invoice:#")
        assert len(key) == len("invoice:#") + 32


def test_sets_have_one_key_whatever_their_order():
    assert canonical_key("k", {"a": {"x", "y", "z"}}) == canonical_key("k", {"a": {"z", "y", "x"}})


def test_a_fingerprint_depends_on_kind_and_queue():
    requests = [("a", b"{}", ""), ("b", b"{}", ""), ("a", b"{}", "q"), ("a", b"[]", "")]
    prints = {request_fingerprint(kind, payload, queue) for kind, payload, queue in requests}
    assert len(prints) == 4
