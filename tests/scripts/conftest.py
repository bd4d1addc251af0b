"""A partition for each test, under a user that may touch no key outside of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis as redis_py

from tests.support.partition import Partition


@pytest.fixture
def partition(redis: redis_py.Redis, url: str, namespace: str) -> Iterator[Partition]:
    """The namespace of this test, with a verb for each script."""
    one = Partition(redis, url, namespace)
    yield one
    one.close()
