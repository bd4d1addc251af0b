"""How the tables come into a database: by the command, or by statements that are printed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import insert, inspect, select, text, update

from fencepost.errors import ConfigurationError, LedgerUnavailable
from fencepost.ledger import Ledger
from fencepost.sql import upgrade as module
from fencepost.sql.engines import open_engine
from fencepost.sql.tables import METADATA, PARTS, effects, fences
from fencepost.sql.upgrade import DIALECTS, HEAD, ddl, missing, upgrade


def tables_of(url: str) -> set[str]:
    engine = open_engine(url)
    with engine.connect() as connection:
        found = set(inspect(connection).get_table_names())
    engine.dispose()
    return found


def differences(url: str) -> list[Any]:
    """What Alembic would still change to make the tables what `fencepost.sql.tables` says."""
    engine = open_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "include_name": lambda name, kind, _: name != "fencepost_version"}
        )
        found: list[Any] = compare_metadata(context, METADATA)
    engine.dispose()
    return found


def test_the_migrations_make_what_the_code_expects(any_database):
    done = upgrade(any_database)
    assert (done.before, done.after) == ("", HEAD)
    assert set(done.made) == set(METADATA.tables)
    assert differences(any_database) == []


def test_a_second_upgrade_changes_nothing(any_database):
    upgrade(any_database)
    assert upgrade(any_database) == (HEAD, HEAD, [])


def test_the_head_is_the_newest_revision_of_the_folder():
    config = Config()
    config.set_main_option("script_location", str(Path(module.__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_upgrades_at_the_same_time_do_not_disturb_each_other(postgres_url):
    """As when several processes of a deploy run it. The engines are apart, so only the database keeps them in order."""
    problems: list[BaseException] = []
    start = threading.Barrier(2)

    def run() -> None:
        engine = open_engine(postgres_url)
        try:
            start.wait()
            with engine.begin() as connection:
                module._lock(connection)
                if not module.revision(connection):
                    with module._one_at_a_time:
                        module._run(connection)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            problems.append(error)
        engine.dispose()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert problems == []
    assert differences(postgres_url) == []


@pytest.mark.parametrize("part", PARTS)
def test_the_printed_statements_make_the_same_tables(any_database, part):
    """Printed, run by hand, adopted by a later upgrade."""
    engine = open_engine(any_database)
    dialect = {"mariadb": "mysql"}.get(engine.dialect.name, engine.dialect.name)
    with engine.begin() as connection:
        for statement in ddl(dialect, [part]).split(";\n"):
            if statement.strip():
                connection.execute(text(statement.partition("-- " + part)[2] or statement))
        assert missing(connection, part) == []
    engine.dispose()
    done = upgrade(any_database)
    assert set(done.made) == set(METADATA.tables) - {table.name for table in PARTS[part]}
    assert [one for one in differences(any_database) if "comment" not in str(one)] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_printed_statements_name_every_table_of_every_part(dialect):
    printed = ddl(dialect)
    assert [name for name in METADATA.tables if f"CREATE TABLE {name} (" not in printed] == []
    assert "\t" not in printed


def test_an_unknown_dialect_is_refused():
    with pytest.raises(ConfigurationError, match="postgresql, sqlite, mysql"):
        ddl("oracle")


def test_tables_of_a_newer_fencepost_are_left_alone(sqlite_url):
    upgrade(sqlite_url)
    engine = open_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(update(module._version).values(version_num="9999"))
    with pytest.raises(ConfigurationError, match="revision '9999'"):
        upgrade(engine)
    engine.dispose()


def test_a_server_that_is_away_is_named_as_such():
    with pytest.raises(LedgerUnavailable, match="Connection refused"):
        upgrade("postgresql+psycopg://nobody@127.0.0.1:1/none")


def test_a_ledger_on_a_server_asks_for_the_command(postgres_url, namespace):
    ledger = Ledger(postgres_url, namespace)
    with pytest.raises(ConfigurationError, match=r"fencepost_events.* Run `fencepost sql upgrade postgresql"):
        ledger.job("j")
    assert tables_of(postgres_url) == set()
    ledger.close()


def test_the_message_does_not_show_the_password(postgres_url, namespace):
    ledger = Ledger(postgres_url.replace("postgres@", "postgres:hunter2@"), namespace)
    with pytest.raises(ConfigurationError) as refused:
        ledger.job("j")
    assert "hunter2" not in str(refused.value)
    ledger.close()


def test_a_ledger_in_a_file_makes_its_tables_by_itself(sqlite_url, namespace):
    ledger = Ledger(sqlite_url, namespace)
    assert ledger.job("j") is None
    assert tables_of(sqlite_url) >= set(METADATA.tables)
    ledger.close()


def test_a_ledger_cannot_be_kept_in_mariadb(namespace):
    with pytest.raises(ConfigurationError, match="cannot be kept in"):
        Ledger("mariadb+pymysql://root@127.0.0.1/none", namespace)


def test_keys_differ_by_case_and_by_trailing_spaces_on_every_database(any_database):
    """MariaDB would take "Order" and "order" for one key if it were not told otherwise."""
    upgrade(any_database)
    engine = open_engine(any_database)
    names = ["order", "Order", "ördér", "orde\u0301r"]
    with engine.begin() as connection:
        for name in names:
            who = {"namespace": "n", "token": 1, "nonce": "x"}
            connection.execute(insert(fences).values(resource=name, updated_at_ms=1, **who))
            connection.execute(insert(effects).values(effect_key=name, job_id="j", created_at_ms=1, **who))
        assert set(connection.scalars(select(fences.c.resource))) == set(names)
    engine.dispose()
