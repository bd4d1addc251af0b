"""`fencepost enqueue`: checked by the handler's signature where the code is there, raw where it is not."""

from __future__ import annotations

import json

import pytest


def arguments(partition, told):
    return json.loads(partition.record(told["id"]).payload)


def test_a_job_gets_the_queue_the_resource_and_the_types_of_its_kind(cli, shop, partition):
    told = cli.json("enqueue", "add", "a=2", "name=42", 'tags=["x"]', "--app", shop)
    assert (told["state"], told["duplicate"], told["replayed"]) == ("queued", False, False)
    assert partition.record(told["id"]).queue == "sums"
    assert arguments(partition, told) == {"a": 2, "name": "42", "tags": ["x"]}
    told = cli.json("enqueue", "book", "sku=0042", "--app", shop)
    assert partition.record(told["id"]).resource == "stock:0042"


def test_the_arguments_may_be_one_json_object(cli, shop, partition):
    told = cli.json("enqueue", "add", "--json-args", '{"a": 1, "b": 2}', "--app", shop)
    assert arguments(partition, told) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("given", "code", "problem"),
    [
        (["a=x"], 1, "argument `a` refused: Expected `int`, got `str`"),
        ([], 1, "argument `a` refused: it is missing"),
        (["a=1", "tgas=x"], 1, "did you mean `tags`"),
        (["a=1", "tags=[1]"], 1, "`tags[0]`"),
        (["a"], 2, "'a' is not NAME=VALUE"),
        (["a=1", "a=2"], 2, "a is given twice"),
        (["a=1", "--json-args", "{}"], 2, "not both"),
        (["--json-args", "[1]"], 2, "not a JSON object"),
        (["a=1", "--delay", "soon"], 2, "'soon' is not a length of time"),
        (["a=1", "--run-at", "2030-01-01T00:00:00"], 2, "has no time zone"),
        (["a=1", "--run-at", "tomorrow"], 2, "is no moment"),
        (["a=1", "--resource", "r"], 2, "goes with --raw"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_stored(cli, shop, partition, given, code, problem):
    cli("enqueue", "add", *given, "--app", shop, code=code)
    assert problem in cli.err
    assert partition.dump() == {}


def test_an_unknown_kind_is_told_with_the_kinds_there_are(cli, shop):
    cli("enqueue", "ad", "--app", shop, code=2)
    assert "known: add, book" in cli.err


def test_options_reach_the_job(cli, shop, partition):
    told = cli.json("enqueue", "add", "a=1", "--app", shop, "--delay", "90s", "--priority", "3", "--queue", "other")
    record = partition.record(told["id"])
    assert (told["state"], record.priority, record.queue) == ("scheduled", 3, "other")
    assert record.due_at - record.created_at == 90_000


def test_a_duplicate_and_a_replay_show_the_job_that_is_there(cli, shop):
    first = cli.json("enqueue", "book", "sku=1", "--app", shop)
    again = cli.json("enqueue", "book", "sku=1", "--app", shop)
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    first = cli.json("enqueue", "add", "a=1", "--idempotency-key", "k", "--app", shop)
    again = cli.json("enqueue", "add", "a=1", "--idempotency-key", "k", "--app", shop)
    assert (again["id"], again["replayed"]) == (first["id"], True)
    assert ", replayed" in cli("enqueue", "add", "a=1", "--idempotency-key", "k", "--app", shop)
    cli("enqueue", "add", "a=2", "--idempotency-key", "k", "--app", shop, code=1)
    assert "belongs to job" in cli.err


def test_without_the_code_nothing_is_guessed(cli, partition):
    cli("enqueue", "add", "a=1", code=2)
    assert "Give --app module:app, or say --raw" in cli.err
    assert partition.dump() == {}


def test_raw_sends_exactly_what_is_said(cli, partition):
    told = cli.json(
        "enqueue", "add", "a=1", "name=x", "ok=true", "--raw", "--queue", "q", "--resource", "r", "--dedup", "d",
        "--priority", "9", "--delay", "1m", "--idempotency-key", "k",
    )  # fmt: skip
    record = partition.record(told["id"])
    assert arguments(partition, told) == {"a": 1, "name": "x", "ok": True}
    assert (record.kind, record.queue, record.resource, record.dedup) == ("add", "q", "r", "add:d")
    assert (record.priority, record.state) == (9, "scheduled")


def test_raw_and_code_share_dedup_and_idempotency_keys(cli, shop):
    first = cli.json("enqueue", "add", "a=1", "--dedup", "d", "--app", shop)
    assert cli.json("enqueue", "add", "a=1", "--dedup", "d", "--raw")["id"] == first["id"]
    first = cli.json("enqueue", "add", "a=1", "--idempotency-key", "k", "--app", shop)
    assert cli.json("enqueue", "add", "a=1", "--idempotency-key", "k", "--raw")["id"] == first["id"]


def test_raw_arguments_that_are_too_large_are_refused(cli, partition):
    cli("enqueue", "add", f"a={'x' * 70_000}", "--raw", code=1)
    assert "65536 are allowed" in cli.err
    assert partition.dump() == {}


@pytest.mark.parametrize("option", ["--dedup", "--idempotency-key"])
@pytest.mark.parametrize("how", ["raw", "app"])
def test_an_empty_key_is_refused_not_taken_for_none(cli, partition, shop, option, how):
    """A script whose variable was not set: without a key its retry would be a second job."""
    cli("enqueue", "add", "a=1", option, "", *(["--raw"] if how == "raw" else ["--app", shop]), code=2)
    assert partition.dump() == {}
