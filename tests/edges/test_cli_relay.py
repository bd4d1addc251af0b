"""`relay` publishes an outbox; `ledger reconcile` brings back what Redis lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from fencepost.codec import spec_to_text
from fencepost.job import JobSpec
from fencepost.ledger import Ledger
from fencepost.sql.engines import now_ms
from fencepost.sql.tables import outbox
from fencepost.sql.upgrade import upgrade


@pytest.fixture
def shop(sqlite_url, namespace):
    """A database with two rows in its outbox: one new, and one that may have been published two days ago."""
    upgrade(sqlite_url)
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        for name, age_ms, tries in (("new", 0, 0), ("old", 2 * 86_400_000, 1)):
            text = spec_to_text(JobSpec(id=name, kind="mail"))
            row = {"job_id": name, "namespace": namespace, "spec": text, "tries": tries}
            connection.execute(outbox.insert(), row | {"created_at_ms": now_ms() - age_ms})
    engine.dispose()
    return sqlite_url


def test_once_publishes_what_is_there_and_names_what_it_holds(cli, partition, shop):
    told = cli.json("relay", shop, "--status")
    assert (told["rows"], told["held"]) == (2, 0)
    assert 172_800_000 <= told["oldest_ms"] < 172_900_000
    out = cli("relay", shop, "--once", code=5)
    assert out == "1 published, 0 were there already, 1 held, 0 failed\n"
    assert (partition.state("new"), partition.state("old")) == ("queued", None)
    [held] = cli.json("relay", shop, "--held")
    assert held["job_id"] == "old"
    assert "may have reached Redis" in cli("relay", shop, "--held")
    assert cli("relay", shop, "--publish", "old") == "1 of 1 were held; 1 published\n"
    assert partition.state("old") == "queued"
    assert cli.json("relay", shop, "--once")["seen"] == 0
    assert cli("relay", shop, "--publish", "old", code=5) == "0 of 1 were held; 0 published\n"


def test_without_an_outbox_it_says_what_to_give(cli):
    cli("relay", "--once", code=2)
    assert "Give SQL_URL, or an --app that has an outbox." in cli.err


def test_a_missing_file_is_not_made(cli, tmp_path):
    for words in (("--once",), ("--status",), ("--held",)):
        cli("relay", "sqlite:///typo.sqlite", *words, code=2)
        assert "no such file" in cli.err
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_tables_is_refused_before_it_runs(cli, sqlite_url):
    Path(sqlite_url.removeprefix("sqlite:///")).touch()
    cli("relay", sqlite_url, code=2)
    assert "fencepost sql upgrade" in cli.err


def test_away_is_exit_code_4(cli, shop, monkeypatch):
    monkeypatch.setenv("FENCEPOST_REDIS_URL", "redis://127.0.0.1:1/0")
    assert "away: " in cli("relay", shop, "--once", code=4)


def test_it_runs_until_a_signal_comes(partition, shop, url, namespace):
    command = [sys.executable, "-m", "fencepost", "relay", shop, "--url", url, "--namespace", namespace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("publishing from sqlite:///")
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(10) == 0
    assert "published" in rest


def test_reconcile_lists_with_dry_run_and_brings_back_without(cli, partition, redis, sqlite_url, namespace):
    ledger = Ledger(sqlite_url, namespace)
    ledger.accept([JobSpec(id="lost", kind="mail", durable=True)])
    with ledger.begin("test") as connection:
        connection.exec_driver_sql("UPDATE fencepost_jobs SET updated_at_ms = 1")
    ledger.close()
    out = cli("ledger", "reconcile", "--ledger", sqlite_url, "--dry-run", code=1)
    assert [" ".join(line.split()) for line in out.splitlines()[1:]] == [
        "lost lost accepted absent",
        "1 open durable jobs and 0 jobs in Redis compared: 1 lost",
        "no job was changed; the ledger copied what it had not copied yet",
    ]
    assert partition.state("lost") is None
    assert cli.json("ledger", "reconcile", "--ledger", sqlite_url)["counts"] == {"lost": 1}
    assert partition.state("lost") == "queued"
