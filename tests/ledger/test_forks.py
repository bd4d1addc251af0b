"""A process that opened its databases and then forks, as web servers with a preloaded application do."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import text

from fencepost.sql.engines import open_engine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_a_forked_child_speaks_on_a_connection_of_its_own_and_leaves_its_parents_alone(postgres_url: str):
    engine = open_engine(postgres_url)

    def backend() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())

    mine = backend()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(backend()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        theirs = int(pipe.read())
    os.waitpid(child, 0)
    assert theirs != mine
    assert backend() == mine, "the parent's connection was closed by the child"
    engine.dispose()
