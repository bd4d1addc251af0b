"""`fencepost ledger …`: what it prints, for people and as JSON, and its exit codes."""

from __future__ import annotations

import csv
import json
import os
import signal
import stat
import subprocess
import sys

import pytest
from sqlalchemy import update

from fencepost.job import JobSpec
from fencepost.ledger.verify import verify
from fencepost.sql.tables import events
from tests.edges.conftest import Cli
from tests.ledger.copies import Past, copied_lines, cursor_of, told_lines
from tests.ledger.stories import everything
from tests.ledger.test_prune import DAY_MS, age
from tests.support.waiting import wait_until


@pytest.fixture
def cli(monkeypatch, capsys, url, namespace, ledger_url) -> Cli:
    """The command line with the server, the namespace and the ledger of the test as its defaults."""
    monkeypatch.setenv("FENCEPOST_REDIS_URL", url)
    monkeypatch.setenv("FENCEPOST_NAMESPACE", namespace)
    monkeypatch.setenv("FENCEPOST_LEDGER_URL", ledger_url)
    return Cli(capsys)


@pytest.fixture
def told(partition, cli) -> dict[str, str]:
    jobs = everything(partition)
    cli("ledger", "run", "--once")
    return jobs


def test_run_once_copies_what_is_there(cli, partition, ledger):
    partition.put("done")
    assert cli("ledger", "run", "--once") == "3 events copied, 0 lost\n"
    assert cli.json("ledger", "run", "--once")["events"] == 0
    assert copied_lines(ledger) == told_lines(partition)


def test_status_says_how_far_it_is(cli, partition, ledger):
    partition.put("done")
    assert cli.json("ledger", "status")["behind"] == 3
    cli("ledger", "run", "--once")
    ledger.accept([JobSpec(id="accepted", kind="mail")])
    shown = cli.json("ledger", "status")
    assert (shown["copied"], shown["lost"], shown["rewinds"], shown["epoch"], shown["behind"]) == (3, 0, 0, 1, 0)
    assert (shown["jobs"], shown["open_durable"]) == ({"accepted": 1, "done": 1}, 1)
    assert "behind        0\n" in cli("ledger", "status")


def test_a_ledger_in_order_is_exit_code_0(cli, told):
    shown = cli.json("ledger", "verify")
    assert (shown["ok"], shown["findings"], shown["gaps"]) == (True, [], [])
    assert cli("ledger", "verify").endswith("in order\n")


def test_a_damaged_ledger_is_exit_code_1_and_the_job_is_named(cli, told, ledger):
    with ledger.begin("damage") as connection:
        connection.execute(
            update(events).where(events.c.job_id == told["done"], events.c.name == "done").values(nonce="x")
        )
    [one] = cli.json("ledger", "verify", code=1)["findings"]
    assert (one["what"], one["job_id"]) == ("wrong_hand", told["done"])
    out = cli("ledger", "verify", code=1)
    assert f"broken: wrong_hand: {told['done']}: event " in out
    assert out.endswith("NOT in order: 1 findings, 0 gaps\n")


def test_gaps_are_named_and_count_only_if_asked(cli, partition):
    partition.job()
    cli("ledger", "run", "--once")
    for _ in range(3):
        partition.job()
    partition.redis.xdel(partition.keys.events, "2-0", "3-0")
    assert cli("ledger", "run", "--once") == "1 events copied, 2 lost\n"
    assert "gap: the events 2 to 3 of epoch 1 were gone before they were copied\n" in cli("ledger", "verify")
    assert cli.json("ledger", "verify", "--strict", code=1)["ok"] is False


def test_verify_and_export_need_no_redis(cli, told, monkeypatch, ledger_url, namespace, partition):
    monkeypatch.delenv("FENCEPOST_REDIS_URL")
    monkeypatch.delenv("FENCEPOST_LEDGER_URL")
    monkeypatch.setenv("FENCEPOST_DATA", "/nowhere/at/all")  # a private server could not start here
    for words in (("verify",), ("export",), ("status",)):
        cli("ledger", *words, "--ledger", ledger_url, "--namespace", namespace)


def test_export_writes_every_event(cli, told, partition, tmp_path):
    lines = [json.loads(line) for line in cli("ledger", "export").splitlines()]
    assert [one["name"] for one in lines] == [one.name for one in partition.told()]
    path = tmp_path / "events.csv"
    assert cli("ledger", "export", "--format", "csv", "--job", told["retried"], "--output", str(path)) == ""
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert {row["job_id"] for row in rows} == {told["retried"]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert cli("ledger", "export", "--until", "2020-01-01T00:00:00Z") == ""
    assert cli("ledger", "export", "--since", "1h", "--kind", "no-such-kind") == ""


@pytest.mark.parametrize("text", ["yesterday", "2026-01-01", "2026-01-01T00:00:00"])
def test_what_is_no_moment_is_told_how_one_looks(cli, told, text):
    cli("ledger", "export", "--since", text, code=2)
    assert f"since: {text!r} {'is no moment' if text == 'yesterday' else 'has no time zone'}" in cli.err
    assert "Write 2030-01-01T09:00:00+01:00, or how long ago" in cli.err


def test_a_namespace_of_which_the_ledger_has_nothing_is_no_success(cli, told, ledger, namespace):
    there = f"no events of namespace 'typo' in {ledger.where}; it has: {namespace}\n"
    for words, code in (
        (("verify",), 1),
        (("status",), 1),
        (("export",), 1),
        (("export", "--job", told["done"]), 3),
    ):
        assert cli("ledger", *words, "--namespace", "typo", code=code) == ""
        assert cli.err.endswith(there)


def test_an_empty_ledger_proves_nothing(cli, ledger):
    cli("ledger", "verify", code=1)
    assert "it has none of any namespace" in cli.err


def test_export_of_a_job_that_is_not_there_is_exit_code_3(cli, told):
    cli("ledger", "export", "--job", "nobody", code=3)
    assert "nobody was not found" in cli.err


@pytest.mark.parametrize(
    "words",
    [("verify",), ("status",), ("export",), ("prune", "--older-than", "90d"), ("reconcile",)],
)
def test_reading_makes_no_file(cli, tmp_path, words):
    path = tmp_path / "typo.sqlite"
    cli("ledger", *words, "--ledger", f"sqlite:///{path}", code=2)
    assert f"no such file: {path}; nothing was created" in cli.err
    assert not path.exists()


def test_a_ledger_in_memory_is_refused(cli):
    for url in ("sqlite://", "sqlite:///:memory:"):
        cli("ledger", "run", "--once", "--ledger", url, code=2)
        assert "would not outlive the process" in cli.err


def test_prune_refuses_what_redis_may_have_and_deletes_the_rest(cli, told, ledger, partition):
    cli("ledger", "prune", "--older-than", "1d", code=2)
    assert "1 days are less than the 7 days" in cli.err
    assert "Nothing was changed" in cli.err
    age(ledger, 100 * DAY_MS)
    cli("ledger", "prune", "--older-than", "90d", "--url", "redis://127.0.0.1:1/0", code=4)
    cli("ledger", "prune", "--older-than", "90d")
    assert ledger.job(told["done"]) is not None, "Redis still has it"
    partition.purge(told["done"])
    assert cli.json("ledger", "prune", "--older-than", "90d")["jobs"] == 1
    assert ledger.job(told["done"]) is None
    for key in partition.redis.scan_iter(f"{partition.keys.job('')}*"):
        partition.redis.delete(key)
    gone = cli.json("ledger", "prune", "--older-than", "90d")
    assert gone["jobs"] > 7
    assert cli("ledger", "prune", "--older-than", "90d").startswith("0 jobs and 0 events deleted that ended before ")
    assert verify(ledger).ok


def test_reconcile_lists_what_differs_and_brings_back_what_was_lost(cli, partition, ledger):
    spec = JobSpec(id="durable", kind="mail", durable=True)
    past = Past(partition)
    ledger.accept([spec])
    partition.enqueue(spec)
    cli("ledger", "run", "--once")
    assert cli("ledger", "reconcile", "--dry-run").startswith("nothing differs\n")
    past.restore()
    dry = cli.json("ledger", "reconcile", "--dry-run", code=1)
    assert dry["divergences"] == [{"job_id": "durable", "what": "lost", "sql": "queued", "redis": ""}]
    assert partition.state("durable") is None
    out = cli("ledger", "reconcile")
    assert "durable  lost  queued  absent\n" in out
    assert out.endswith("compared: 1 lost, put back\n")
    assert partition.state("durable") == "queued"


def test_a_database_that_is_away_is_exit_code_4(cli, ledger):
    cli("ledger", "verify", "--ledger", "postgresql://nobody@127.0.0.1:1/none", code=4)
    assert cli.err.startswith("fencepost: the SQL database gave no answer")
    assert "Nothing was changed. Check host, port, database and user" in cli.err
    assert "job id" not in cli.err


def test_nobody_says_where_the_ledger_is(cli, monkeypatch):
    monkeypatch.delenv("FENCEPOST_LEDGER_URL")
    cli("ledger", "status", code=2)
    assert "--ledger URL" in cli.err


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_run_keeps_the_ledger_until_a_signal_comes(partition, ledger, ledger_url, url):
    environment = {**os.environ, "FENCEPOST_REDIS_URL": url, "FENCEPOST_LEDGER_URL": ledger_url}
    command = [sys.executable, "-m", "fencepost", "ledger", "run", "--namespace", partition.namespace]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("keeping the ledger ")
        ledger.accept([JobSpec(id="durable", kind="mail", durable=True)])
        partition.enqueue(JobSpec(id="durable", kind="mail", durable=True))
        wait_until(lambda: ledger.job("durable").state == "queued", timeout=20)
        Past(partition)
        partition.redis.flushall()
        wait_until(lambda: partition.state("durable") == "queued", timeout=20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert cursor_of(ledger).rewinds == 1
