"""A job as it is sent and as it is read back."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.errors import ConfigurationError
from fencepost.job import JobRecord, JobSpec

HASH = {
    "state": "processing",
    "kind": "invoice",
    "queue": "billing",
    "payload": '{"order_id":1}',
    "version": "2",
    "created_at": "1735689600000",
    "score": "1735689600000000",
    "resource": "order:1",
    "ordered": "1",
    "attempts": "2",
    "token": "9007199254740991",
    "nonce": "00ff.3",
    "progress": "0.5",
    "error": "ValueError: é",
    "color": "blue",
}


def test_a_hash_reads_the_same_from_a_client_that_decodes_text_and_one_that_does_not():
    raw = {name.encode(): value.encode() for name, value in HASH.items()}
    assert JobRecord.from_hash("j1", raw) == JobRecord.from_hash("j1", HASH)


def test_a_record_is_typed_and_keeps_fields_it_does_not_know():
    record = JobRecord.from_hash("j1", HASH)
    assert record.payload == b'{"order_id":1}'
    assert (record.version, record.attempts, record.token) == (2, 2, 2**53 - 1)
    assert record.ordered is True
    assert record.finished_at is None
    assert record.other == {"color": "blue"}


def test_an_empty_hash_gives_a_record_of_defaults():
    assert JobRecord.from_hash("j1", {}) == JobRecord(id="j1")


def test_payload_bytes_that_are_no_text_are_kept():
    assert JobRecord.from_hash("j1", {b"payload": b"\x9c\xff"}).payload == b"\x9c\xff"


def test_steps_and_effects_outside_are_told_apart_by_name_and_opened_for_json():
    fields = {"step:load": '{"rows":3}', "outside:mail": '{"state":"unknown"}', "step:a:b": "1", "steps": "?"}
    plain = JobRecord.from_hash("j1", fields)
    assert plain.steps == {"load": b'{"rows":3}', "a:b": b"1"}
    assert plain.outside == {"mail": b'{"state":"unknown"}'}
    assert plain.other == {"steps": "?"}
    shown = plain.to_json()
    assert (shown["steps"], shown["outside"]) == ({"load": {"rows": 3}, "a:b": 1}, {"mail": {"state": "unknown"}})
    assert JobRecord.from_hash("j1", {"step:odd": "\udcff"}).to_json()["steps"] == {"odd": "[redacted]"}
    assert not {"steps", "outside"} & JobRecord.from_hash("j1", HASH).to_json().keys()


def test_a_generation_of_the_hash_counts_above_the_one_in_the_options():
    record = JobRecord.from_hash("j1", {"generation": "5", "opts": "durable=1\ngeneration=2", "bumped": "n.1 12 "})
    assert (record.generation, record.durable, record.bumped) == (5, True, "n.1 12 ")


def test_a_number_in_floating_form_is_read_and_one_that_is_none_is_kept_as_text():
    record = JobRecord.from_hash("j1", {"created_at": "1.7e+12", "attempts": "many", "due_at": "inf"})
    assert (record.created_at, record.attempts, record.due_at) == (1_700_000_000_000, 0, None)
    assert record.other == {"attempts": "many", "due_at": "inf"}


def test_the_json_form_opens_what_is_json_and_hides_other_bytes_because_nobody_knows_what_they_hold():
    record = JobRecord.from_hash("j1", {**HASH, "result": b"\xff"})
    shown = json.loads(json.dumps(record.to_json()))
    assert shown["payload"] == {"order_id": 1}
    assert shown["result"] == "[redacted]"
    assert shown["token"] == "9007199254740991"
    assert shown["other"] == {"color": "blue"}
    assert "finished_at" not in shown


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(JobRecord.__struct_fields__).map(str.encode) | st.binary(), st.binary()))
def test_any_hash_can_be_read_and_shown(fields):
    json.dumps(JobRecord.from_hash("j1", fields).to_json()).encode()


def test_the_json_form_hides_the_secrets_of_the_arguments_wherever_they_come_back():
    record = JobRecord(
        id="j1", payload=b'{"login":{"password":"hunter2"},"pin":4711,"tax_id":"DE-99"}', result=b'{"said":"hunter2!"}',
        progress=b'["at hunter2"]', checkpoint=b'{"tokens":["abc"],"n":4711}', error="no hunter2 at 4711",
        reason="hunter2", cancel="hunter2", dedup="k:hunter2", resource="login:7", token=8, nonce="n1",
        steps={"ask": b'"hunter2"'}, outside={"mail": b'{"key":"hunter2"}'}, other={"api_key": "x", "y": "hunter2"},
    )  # fmt: skip
    shown = record.to_json(("tax-id",))
    assert not {"hunter2", "4711", "DE-99", "abc"} & set(re.findall(r"[\w-]+", json.dumps(shown)))
    assert (shown["token"], shown["nonce"], shown["resource"]) == ("8", "n1", "login:7")
    assert shown["result"] == {"said": "[redacted]!"}
    assert record.to_json()["payload"]["tax_id"] == "DE-99"


def test_a_spec_needs_only_an_id_and_a_kind():
    JobSpec(id="j1", kind="invoice").check()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("priority", 10),
        ("priority", -1),
        ("priority", True),
        ("delay_ms", 1.5),
        ("run_at_ms", -1),
        ("limit", 0),
        ("idem_ttl_ms", 0),
        ("generation", 0),
        ("id", ""),
        ("kind", "a b"),
        ("queue", "{x}"),
        ("queue", "a\tb"),
        ("resource", ""),
        ("dedup", "x" * 513),
        ("idem", "key without a fingerprint"),
    ],
)
def test_a_spec_outside_its_bounds_is_refused_by_the_name_of_the_setting(setting, value):
    with pytest.raises(ConfigurationError, match=f"^{setting}: ") as caught:
        JobSpec(**{"id": "j1", "kind": "invoice", setting: value}).check()
    assert caught.value.setting == setting
