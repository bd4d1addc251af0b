"""`job` shows what only SQL remembers, and the commands that look at SQL say what is wrong with it."""

from __future__ import annotations

import secrets
import sys

import pytest

from fencepost import Fencepost
from fencepost.codec import spec_to_text
from fencepost.errors import ConfigurationError
from fencepost.job import JobSpec
from fencepost.ledger import Archiver, Ledger
from fencepost.sql.engines import now_ms, open_engine
from fencepost.sql.tables import outbox
from fencepost.sql.upgrade import upgrade

SHOP = """
import os
from fencepost import Fencepost
where, namespace = os.environ["FENCEPOST_REDIS_URL"], os.environ["FENCEPOST_NAMESPACE"]
app = Fencepost(where, namespace=namespace, ledger={0!r}, outbox={0!r})
"""


@pytest.fixture
def remembering(cli, tmp_path, monkeypatch, sqlite_url):
    """The name of an application with a ledger and an outbox in one file."""
    name = f"remembering_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(SHOP.format(sqlite_url))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def ledger(sqlite_url, namespace):
    upgrade(sqlite_url)
    one = Ledger(sqlite_url, namespace)
    yield one
    one.close()


def test_a_job_that_only_the_ledger_has_is_shown_with_its_history(cli, partition, ledger, remembering):
    job_id = partition.put("done").job_id
    Archiver(ledger, partition.store, partition.driver).copy_all()
    partition.redis.delete(partition.keys.job(job_id), partition.keys.events)
    shown = cli.json("job", job_id, "--history", "--app", remembering)
    assert (shown["id"], shown["state"], shown["other"]) == (job_id, "done", {"source": "ledger"})
    assert [one["name"] for one in shown["history"]] == ["enqueued", "acquired", "done"]
    assert shown["history_whole"] is True
    assert "ledger" in cli("job", job_id, "--app", remembering)


def test_the_history_joins_what_each_side_has(cli, partition, ledger, remembering):
    job_id = partition.job()
    Archiver(ledger, partition.store, partition.driver).copy_all()
    partition.redis.xtrim(partition.keys.events, maxlen=0, approximate=False)
    [run] = partition.claim()
    shown = cli.json("job", job_id, "--history", "--app", remembering)
    assert [one["name"] for one in shown["history"]] == ["enqueued", "acquired"]
    assert shown["history"][1]["token"] == str(run.key.token)


def test_a_job_that_only_the_outbox_has_is_shown(cli, ledger, remembering, sqlite_url, namespace):
    engine = open_engine(sqlite_url)
    row = {"job_id": "new", "namespace": namespace, "spec": spec_to_text(JobSpec(id="new", kind="mail"))}
    with engine.begin() as connection:
        connection.execute(outbox.insert(), row | {"created_at_ms": now_ms()})
    engine.dispose()
    shown = cli.json("job", "new", "--app", remembering)
    assert (shown["state"], shown["other"]) == ("outbox", {"source": "outbox"})


def test_a_job_that_nobody_has_is_exit_code_3_and_makes_no_file(cli, remembering, tmp_path):
    cli("job", "nobody", "--app", remembering, code=3)
    cli("doctor", "--app", remembering, code=1)  # the outbox has no tables
    assert [one.name for one in tmp_path.glob("**/*.sqlite*")] == []


def test_the_doctor_says_in_one_line_what_is_wrong_with_sql(cli, remembering, tmp_path):
    away = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    (tmp_path / f"{remembering}.py").write_text(SHOP.format(away))
    out = cli("doctor", "--app", remembering, "-v")
    told = [line for line in out.splitlines() if "cannot be asked" in line]
    assert len(told) == 2
    assert all(line.endswith(".") and not line.endswith("..") and ". Nothing" not in line for line in told)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("mysql+pymysql://localhost/shop", "a ledger cannot be kept in mysql"),
        ("redis://localhost:6379/0", "is no SQL URL"),
        ("ledger.sqlite", "is no SQL URL"),
        ("sqlite://", "would not outlive the process"),
    ],
)
def test_an_application_refuses_a_wrong_ledger_when_it_is_made(wrong, why):
    with pytest.raises(ConfigurationError, match=f"ledger: .*{why}"):
        Fencepost(ledger=wrong)
