"""The stage of the stories; after each one the partition must be whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis as redis_py

from tests.guarantees import snapshot
from tests.guarantees.stage import Stage
from tests.support import MovedClock


@pytest.fixture
def stage(redis: redis_py.Redis, url: str, namespace: str, clock: MovedClock) -> Iterator[Stage]:
    """The partition of this test, with workers and a clock; checked against invariant I13 at the end."""
    one = Stage(redis, url, namespace, clock)
    yield one
    left = snapshot.problems(one.look())
    one.close()
    assert not left, "the story left a broken partition:\n" + "\n".join(left)
