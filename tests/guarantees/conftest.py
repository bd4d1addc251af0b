"""The stage of the stories; after each one the partition must be whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis as redis_py

from tests.guarantees import snapshot
from tests.guarantees.stage import Stage
from tests.support import MovedClock, StoppedClock
from tests.support.clock import OffsetFile


@contextmanager
def checked(stage: Stage) -> Iterator[Stage]:
    """Check the partition against invariant I13 at the end."""
    yield stage
    left = snapshot.problems(stage.look())
    stage.close()
    assert not left, "the story left a broken partition:\n" + "\n".join(left)


@pytest.fixture
def stage(
    redis: redis_py.Redis, url: str, namespace: str, clock_shim: Path | str, clock_offset: OffsetFile
) -> Iterator[Stage]:
    """The partition of this test, with workers, and a clock that stands still wherever the story does not move it."""
    if isinstance(clock_shim, str):
        pytest.skip(clock_shim)
    try:
        with checked(Stage(redis, url, namespace, StoppedClock(redis, clock_offset))) as one:
            yield one
    finally:
        clock_offset.still_us = 0  # it runs again, at the right time: perhaps backwards, but no key outlives the test


@pytest.fixture
def live_stage(redis: redis_py.Redis, url: str, namespace: str, clock: MovedClock) -> Iterator[Stage]:
    """A stage whose clock runs, for what blocks on the server."""
    with checked(Stage(redis, url, namespace, clock)) as one:
        yield one
