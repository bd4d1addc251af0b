"""A partition and a ledger for each test, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis as redis_py

from fencepost.ledger import Archiver, Ledger
from fencepost.sql.upgrade import upgrade
from tests.support.partition import Partition


@pytest.fixture
def partition(redis: redis_py.Redis, url: str, namespace: str) -> Iterator[Partition]:
    """The namespace of this test, with a verb for each script."""
    one = Partition(redis, url, namespace)
    yield one
    one.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, new_database: Callable[..., str]) -> str:
    """A database with all tables, on each engine a ledger can be kept in."""
    url = new_database(str(request.param))
    upgrade(url)
    return url


@pytest.fixture
def ledger(ledger_url: str, namespace: str) -> Iterator[Ledger]:
    """The ledger of this test's namespace."""
    one = Ledger(ledger_url, namespace)
    yield one
    one.close()


@pytest.fixture
def archiver(ledger: Ledger, partition: Partition) -> Archiver:
    """The archiver of this test's partition."""
    return Archiver(ledger, partition.store, partition.driver)
