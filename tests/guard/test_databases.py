"""The databases that the tests of the guard, the ledger and the outbox run on."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.support.processes import gone


def tables_of(url: str) -> list[str]:
    return inspect(create_engine(url, poolclass=NullPool)).get_table_names()


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_database_of_its_own(any_database, turn):
    assert tables_of(any_database) == []
    engine = create_engine(any_database, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE mark (turn INTEGER)"))
    assert tables_of(any_database) == ["mark"]


def test_a_connection_left_open_does_not_hold_up_the_end_of_a_test(mariadb_server):
    url = mariadb_server.new_database()
    connection = create_engine(url, poolclass=NullPool).connect()
    connection.execute(text("CREATE TABLE mark (turn INTEGER)"))
    connection.execute(text("SELECT * FROM mark"))  # holds a metadata lock until the transaction ends
    mariadb_server.drop(url)
    with pytest.raises(OperationalError):
        connection.execute(text("SELECT 1"))
    connection.invalidate()
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_server_comes_back_on_its_port_with_its_data(new_postgres, end):
    server = new_postgres(fsync="on", full_page_writes="on")
    url, pid = server.new_database(), server.pid
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text("CREATE TABLE mark (turn INTEGER)"))
    getattr(server, end)()
    assert gone(pid)
    with pytest.raises(OperationalError):
        tables_of(url)
    server.start()
    assert tables_of(url) == ["mark"]
