"""An application and its operator on the namespace of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis as redis_py

from fencepost import Fencepost
from fencepost.operate import Operator
from tests.support.partition import Partition


@pytest.fixture
def partition(redis: redis_py.Redis, url: str, namespace: str) -> Iterator[Partition]:
    """The namespace of this test, with a verb for each script."""
    one = Partition(redis, url, namespace)
    yield one
    one.close()


@pytest.fixture
def app(url: str, namespace: str) -> Iterator[Fencepost]:
    """An application without handlers on the namespace of this test."""
    one = Fencepost(url, namespace=namespace)
    yield one
    one.close_sync()


@pytest.fixture
def operator(app: Fencepost) -> Operator:
    return Operator(app)
