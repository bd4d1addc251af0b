"""The events as JSON lines and CSV."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from fencepost.errors import ConfigurationError
from fencepost.ledger.export import FIELDS, export
from tests.ledger.stories import everything


def test_every_event_is_one_json_line_in_order(partition, ledger, archiver):
    everything(partition)
    archiver.copy_all()
    rows = [json.loads(line) for line in export(ledger)]
    told = partition.told()
    assert [(row["name"], row["job_id"], row["reason"]) for row in rows] == [
        (one.name, one.job_id, one.reason) for one in told
    ]
    assert [row["seq"] for row in rows] == list(range(1, len(told) + 1))
    assert set(rows[0]) == set(FIELDS)


def test_csv_holds_the_same(partition, ledger, archiver):
    job_id = partition.job(resource='a thing, "quoted"'.replace(" ", "_"))
    partition.cancel(job_id, reason='with, a comma and a "quote"')
    archiver.copy_all()
    header, *rows = csv.reader(export(ledger, "csv"))
    assert tuple(header) == FIELDS
    objects = [json.loads(line) for line in export(ledger)]
    as_text = [["" if row[name] is None else str(row[name]) for name in FIELDS] for row in objects]
    assert rows == as_text
    assert rows[1][-1] == 'with, a comma and a "quote"'


def test_it_can_be_cut_by_time_kind_and_job(partition, ledger, archiver, clock):
    first = partition.job(kind="mail")
    clock.advance(10)
    second = partition.job(kind="letter")
    archiver.copy_all()
    middle = ledger.history(second)[0].at_ms

    def ids(**cut: Any) -> list[str]:
        return [json.loads(line)["job_id"] for line in export(ledger, **cut)]

    assert ids() == [first, second]
    assert ids(since_ms=middle) == ids(kind="letter") == ids(job_id=second) == [second]
    assert ids(until_ms=middle) == ids(kind="mail") == [first]
    assert ids(until_ms=middle, kind="letter") == []


def test_arguments_and_results_are_not_exported(partition, ledger, archiver):
    partition.job(payload=b'{"password":"hunter2"}')
    [run] = partition.claim()
    partition.finish(run.key, "DONE", b'"hunter2"')
    archiver.copy_all()
    assert "hunter2" not in "\n".join(export(ledger))


def test_another_format_is_refused(ledger):
    with pytest.raises(ConfigurationError, match="jsonl and csv"):
        list(export(ledger, "xml"))
