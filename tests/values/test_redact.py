"""What is secret by its name, and that nothing of it is left in data and texts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import ConfigurationError
from fencepost.redact import HIDDEN, checked_names, is_secret, redact, redact_json, redact_text, secrets_of

NESTED = {"user": "ann", "login": {"Password": "hunter2", "tries": 3}, "keys": [{"apiKey": "k-1234"}, {"n": None}]}


@pytest.mark.parametrize(
    "name",
    [
        "password", "PASSWORD", "userPassword", "user-password", "new_password", "passwordConfirm", "db.password",
        "passwd", "pwd", "secret", "clientSecret", "token", "accessToken", "refresh_token", "TOKENS", "csrf_token",
        "api_key", "API_KEY", "apiKey", "apikey", "APIKey", "api_keys", "X-Api-Key", "authorization", "auth",
        "credentials", "private_key", "PrivateKey", "access_key", "accessKeyId2", "session", "sessionId", "cookie",
        "Set-Cookie", "card", "cardNumber", "credit_card_number", "card_no", "pan", "cvv", "cvc", "iban", "ssn", "pin",
        "pinCode", "otp", "totp", "token1", "password_hash", "secret_value", "passwords", "jwt",
    ],
)  # fmt: skip
def test_such_a_name_hides_what_stands_under_it(name):
    if name == "accessKeyId2":
        assert not is_secret(name)  # the id of a key is told to everybody
    else:
        assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "token_count", "tokenizer", "max_tokens", "maxTokens", "total_tokens", "page_token", "fencing_token", "author",
        "authority", "authors", "passenger", "passage", "compass", "secretary", "cardinal", "cardboard", "postcard",
        "pinned", "spin", "company", "panel", "japan", "keyboard", "key", "monkey", "api", "access", "sessions_left",
        "session_count", "cookie_banner", "order_id", "options", "hash", "value", "", "_", "2", "account", "ibanez",
    ],
)  # fmt: skip
def test_a_name_that_only_looks_alike_hides_nothing(name):
    assert not is_secret(name)


def test_an_application_can_name_more_in_any_spelling():
    more = checked_names(["tax_id", "Salary", "value", "new"])
    assert all(is_secret(name, more) for name in ("taxId", "customer.tax-id", "salary", "value", "the_new"))
    assert not is_secret("taxi", more)


@pytest.mark.parametrize("names", ["tax_id", [""], ["--"], [7], [None]])
def test_names_that_could_match_nothing_are_refused(names):
    with pytest.raises(ConfigurationError, match="redact"):
        checked_names(names)


def test_secrets_are_hidden_at_any_depth_and_the_rest_is_kept():
    before = json.dumps(NESTED)
    assert redact(NESTED) == {
        "user": "ann", "login": {"Password": HIDDEN, "tries": 3}, "keys": [{"apiKey": HIDDEN}, {"n": None}],
    }  # fmt: skip
    assert json.dumps(NESTED) == before


def test_a_whole_object_under_a_secret_name_is_hidden_and_nothing_is_left_as_it_is():
    assert redact({"card": {"holder": "ann", "no": 1}, "token": None, "pin": "", "otp": 0}) == {
        "card": HIDDEN, "token": None, "pin": "", "otp": HIDDEN,
    }  # fmt: skip


def test_stored_json_is_opened_and_bytes_that_are_none_are_hidden_whole():
    assert redact_json(b'{"a":{"token":"t"}}') == {"a": {"token": HIDDEN}}
    assert redact_json(b'{"password": "hunter2"') == HIDDEN
    assert redact_json(b"\xff") == HIDDEN
    assert redact_json(b"") is None
    assert redact_json(b"[" * 100_000 + b"]" * 100_000) == HIDDEN
    deep = redact_json(b'{"a":' * 900 + b'"hunter2"' + b"}" * 900)
    assert "hunter2" not in json.dumps(deep)


def test_known_secrets_are_hidden_in_values_under_harmless_names():
    known = set(secrets_of({"password": "hunter2", "pin": 4711}))
    assert redact({"echo": "was hunter2", "n": 4711, "m": 47110, "ok": True}, known=known) == {
        "echo": f"was {HIDDEN}", "n": HIDDEN, "m": 47110, "ok": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "secret", ["hunter2", "a'b\"c\\d", "zeile\nzwei", "schlüssel-ß", "p@ss w/rd&x", "🔑🔑🔑🔑", "redacted"]
)
def test_a_text_has_no_secret_in_whatever_way_it_was_written_there(secret):
    payload = json.dumps({"login": [{"password": secret}], "user": "ann"}).encode()
    told = [secret, repr(secret), json.dumps(secret), json.dumps(secret, ensure_ascii=False), ascii({"p": secret})]
    clean = redact_text(f"ann failed: {' | '.join(told)}", payload)
    assert clean.count(HIDDEN) == len(told)
    assert clean.startswith("ann failed: ")
    rest = clean.replace(HIDDEN, "")
    assert not any(one in rest for one in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]))


def test_a_secret_in_a_query_is_hidden_as_well():
    assert redact_text("GET /?k=p%40ss+w%2Frd and p%40ss%20w%2Frd", {"token": "p@ss w/rd"}) == (
        f"GET /?k={HIDDEN} and {HIDDEN}"
    )


def test_what_is_shorter_than_four_characters_is_left_in_texts():
    assert redact_text("row 123 of abc", {"pin": 123, "token": "abc"}) == "row 123 of abc"


def test_the_longest_secret_is_hidden_first_and_a_mark_is_not_looked_at_again():
    payload = {"token": "abcd", "secret": "abcdefgh", "pwd": "redacted"}
    assert redact_text("abcdefgh abcd redacted", payload) == f"{HIDDEN} {HIDDEN} {HIDDEN}"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("redis://:hunter2@db:6379/0 is away", f"redis://:{HIDDEN}@db:6379/0 is away"),
        ("postgresql+psycopg://ann:hun@ter2@db/shop", f"postgresql+psycopg://ann:{HIDDEN}@db/shop"),
        ("http://db:6379/a@b", "http://db:6379/a@b"),
        ("Authorization: Bearer eyJhbGciOi.J9x-_1", f"Authorization: Bearer {HIDDEN}"),
        ("Basic dXNlcjpwYXNz=", f"Basic {HIDDEN}"),
        ("Basic information, bearer certificates", "Basic information, bearer certificates"),
        ("Login(user='ann', password='hunter 2')", f"Login(user='ann', password={HIDDEN})"),
        ("?api_key=k1&page=2", f"?api_key={HIDDEN}&page=2"),
        ("host=db password=hunter2 user=ann", f"host=db password={HIDDEN} user=ann"),
        ("token=4 is stale, fencing_token=5", "token=4 is stale, fencing_token=5"),
        ("fp_abcdefgh2345_" + "Ab-_" * 10, f"fp_abcdefgh2345_{HIDDEN}"),
    ],
)
def test_a_text_alone_shows_some_secrets_by_their_form(text, clean):
    assert redact_text(text) == clean
    assert redact({"said": [text]}) == {"said": [clean]}


@pytest.mark.parametrize(
    "text", ["a" * 300_000, "://" * 100_000, "password=" * 40_000, "Bearer " * 50_000, "'" * 300_000]
)
@pytest.mark.timeout(5)
def test_a_long_hostile_text_is_cleaned_in_reasonable_time(text):
    redact_text(text, {"token": "zzzz"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.text(st.characters(exclude_categories=["Cs"]), min_size=4))
def test_no_secret_stays_in_any_data_or_text(value, secret):
    data = {"a": [value, {"clientSecret": [secret]}], "echo": secret}
    shown = redact(data, known=set(secrets_of(data)))
    assert shown["a"][1] == {"clientSecret": HIDDEN}
    assert secret not in shown["echo"].replace(HIDDEN, "")
    assert secret not in redact_text(f"<{secret}>", json.dumps(data).encode()).replace(HIDDEN, "")


@given(st.text(), st.binary() | JSON)
def test_cleaning_never_raises(text, payload):
    redact_text(text, payload)
    redact_json(payload if isinstance(payload, bytes) else None)
