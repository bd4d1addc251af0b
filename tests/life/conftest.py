"""Fixtures of the tutorial tests: an application on the shared server, and the events it logs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fencepost import Fencepost
from tests.life.working import LEASE_S


@pytest.fixture
async def app(url: str, namespace: str) -> AsyncIterator[Fencepost]:
    """An application of this test alone."""
    application = Fencepost(url, namespace=namespace, lease=LEASE_S)
    yield application
    await application.close()


class Events(logging.Handler):
    """The events that were logged: `events("lost")` gives the fields of each of that name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((getattr(record, "event", record.getMessage()), getattr(record, "fields", {})))

    def __call__(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.seen if event == name]


@pytest.fixture
def events() -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """The events Fencepost logs during the test."""
    logger, handler = logging.getLogger("fencepost"), Events()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)
