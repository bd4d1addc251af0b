"""`fencepost sql …`: what it prints, for people and as JSON, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.job import JobSpec
from fencepost.sql.engines import open_engine
from fencepost.sql.tables import METADATA, effects
from fencepost.sql.upgrade import HEAD, ddl, upgrade
from tests.edges.conftest import Cli
from tests.ledger.test_prune import DAY_MS, left, write


@pytest.fixture
def cli(capsys) -> Cli:
    return Cli(capsys)


def test_upgrade_makes_the_tables_and_says_so_once(cli, any_database):
    assert cli("sql", "upgrade", any_database).startswith(f"to revision {HEAD}: made fencepost_cursors, ")
    assert cli("sql", "upgrade", any_database) == f"at revision {HEAD}: nothing to do\n"
    assert cli.json("sql", "upgrade", any_database) == {"before": HEAD, "after": HEAD, "made": []}


def test_ddl_prints_all_or_a_part(cli):
    assert cli("sql", "ddl") == ddl("postgresql")
    printed = cli("sql", "ddl", "--dialect", "mysql", "--part", "guard")
    assert printed == ddl("mysql", ["guard"])
    assert printed.count("CREATE TABLE") == 2
    assert cli.json("sql", "ddl")["sql"].count("CREATE TABLE") == len(METADATA.tables)


def test_mariadb_is_a_name_for_mysql(cli):
    assert cli("sql", "ddl", "--dialect", "mariadb") == ddl("mysql")


@pytest.fixture
def shop(sqlite_url, url, namespace, monkeypatch):
    """A database with an effect that is 10 days old, of a job that is in work with a retention of 60 days."""
    monkeypatch.setenv("FENCEPOST_REDIS_URL", url)
    monkeypatch.setenv("FENCEPOST_NAMESPACE", namespace)
    upgrade(sqlite_url)
    engine = open_engine(sqlite_url)
    write(engine, effects, "charge", 10, namespace=namespace, job_id="long")
    yield engine
    engine.dispose()


def test_the_effect_of_a_job_in_work_is_not_deleted_until_redis_has_the_job_no_more(cli, shop, sqlite_url, partition):
    partition.enqueue(JobSpec(id="long", kind="mail", retention_ms=60 * DAY_MS, failed_retention_ms=60 * DAY_MS))
    [run] = partition.claim()
    words = ("sql", "prune", sqlite_url, "--older-than", "8d")
    stays = "0 effects and 0 fences deleted; 1 old effects stay, their jobs may run again\n"
    assert cli(*words) == stays
    partition.finish(run.key, "DONE")
    assert cli(*words) == stays, "its record is kept for 60 days"
    assert left(shop) == {"charge"}
    partition.purge("long")
    assert cli.json(*words) == {"effects": 1, "fences": 0, "kept": 0}


def test_prune_deletes_nothing_while_redis_is_away(cli, shop, sqlite_url):
    cli("sql", "prune", sqlite_url, "--older-than", "8d", "--url", "redis://127.0.0.1:1/0", code=4)
    assert left(shop) == {"charge"}


def test_prune_takes_no_age_below_the_retention_of_any_kind(cli, shop, sqlite_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pruned_shop.py").write_text(
        "from fencepost import Fencepost\napp = Fencepost()\n@app.job(retention='60d')\ndef mail() -> None: ...\n"
    )
    cli("sql", "prune", sqlite_url, "--older-than", "6d", code=2)
    assert "6 days are less than the 7 days" in cli.err
    cli("sql", "prune", sqlite_url, "--older-than", "6d", "--retention", "1d", code=2)
    cli("sql", "prune", sqlite_url, "--older-than", "30d", "--app", "pruned_shop", code=2)
    assert "30 days are less than the 60 days" in cli.err


def test_missing_tables_are_exit_code_2(cli, shop, new_database):
    empty = new_database("sqlite")
    cli("sql", "prune", empty, "--older-than", "30d", code=2)
    assert "no such file" in cli.err
    path = Path(empty.removeprefix("sqlite:///"))
    assert not path.exists()
    path.touch()
    cli("sql", "prune", empty, "--older-than", "30d", code=2)
    assert "fencepost sql upgrade" in cli.err


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("postgres://localhost/shop", "Write postgresql+psycopg://"),
        ("mysql://localhost/shop", "Write mysql+pymysql://"),
        ("redis://localhost:6379/0", "is no SQL URL. Nothing was changed. Write sqlite:///shop.sqlite"),
        ("shop.sqlite", "is no SQL URL. Nothing was changed. Write sqlite:///shop.sqlite"),
    ],
)
def test_a_wrong_url_is_told_what_to_write(cli, wrong, hint):
    cli("sql", "upgrade", wrong, code=2)
    assert hint in cli.err


def test_a_url_that_is_none_is_exit_code_2_and_is_not_repeated_whole(cli):
    cli("sql", "upgrade", "user:hunter2@host", code=2)
    assert "hunter2" not in cli.err


def test_a_server_that_is_away_is_exit_code_4(cli):
    cli("sql", "upgrade", "postgresql://nobody@127.0.0.1:1/none", code=4)
    assert "gave no answer" in cli.err
    assert cli.err.endswith("Nothing was changed. Check host, port, database and user, and whether the server runs.\n")
