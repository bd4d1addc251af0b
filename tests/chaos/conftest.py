"""Fixtures of the chaos tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost.embedded import EmbeddedServer
from tests.chaos.harness import Stage
from tests.chaos.ledgers import Books, stage_with_books

SEED = "FENCEPOST_CHAOS_SEED"


@pytest.fixture
def stage(url: str, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    """Workers on the shared server; the seed is FENCEPOST_CHAOS_SEED, 1 by default."""
    yield from _stage(url, namespace, tmp_path)


@pytest.fixture
def own_server(new_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server that the test may kill."""
    return new_server()


@pytest.fixture
def own_stage(own_server: EmbeddedServer, tmp_path: Path) -> Iterator[Stage]:
    """Workers on a server that the test may kill."""
    yield from _stage(own_server.url, "own", tmp_path)


@pytest.fixture
def books(postgres_url: str) -> Iterator[Books]:
    """The SQL side: the shop, the guard and the ledger in one PostgreSQL database."""
    books = Books(postgres_url)
    yield books
    books.close()


@pytest.fixture
def shop(own_server: EmbeddedServer, books: Books, tmp_path: Path) -> Iterator[Stage]:
    """Workers on a server that the test may kill, whose handlers write to `books`."""
    stage = stage_with_books(own_server, books, tmp_path / "stage", int(os.environ.get(SEED, "1")))
    yield stage
    stage.end()


def _stage(url: str, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    folder = tmp_path / "stage"
    folder.mkdir()
    stage = Stage(url, namespace, folder, int(os.environ.get(SEED, "1")))
    yield stage
    stage.end()
