"""`fencepost sql …`: what it prints, for people and as JSON, and its exit codes."""

from __future__ import annotations

import pytest

from fencepost.sql.tables import METADATA
from fencepost.sql.upgrade import HEAD, ddl
from tests.edges.conftest import Cli


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


def test_prune_refuses_what_is_too_young_and_counts_what_went(cli, sqlite_url):
    cli("sql", "upgrade", sqlite_url)
    cli("sql", "prune", sqlite_url, "--older-than", "6d", code=2)
    assert "Nothing was changed" in cli.err
    assert cli("sql", "prune", sqlite_url, "--older-than", "30d") == "0 effects and 0 fences deleted\n"
    assert cli.json("sql", "prune", sqlite_url, "--older-than", "2d", "--retention", "1d") == {
        "effects": 0,
        "fences": 0,
    }


def test_missing_tables_are_exit_code_2(cli, sqlite_url):
    cli("sql", "prune", sqlite_url, "--older-than", "30d", code=2)
    assert "fencepost sql upgrade" in cli.err


def test_a_url_that_is_none_is_exit_code_2_and_is_not_repeated_whole(cli):
    cli("sql", "upgrade", "user:hunter2@host", code=2)
    assert "hunter2" not in cli.err


def test_a_server_that_is_away_is_exit_code_4(cli):
    cli("sql", "upgrade", "postgresql://nobody@127.0.0.1:1/none", code=4)
    assert "gave no answer" in cli.err
