"""Fixtures of the guard: a database of each engine with its tables, and each kind of connection to it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fencepost.sql.channel import at_once
from tests.guard.holding import Base, Kind, Writer


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test of a synchronous connection runs without an event loop, which the guard would refuse to block."""
    kind = pyfuncitem.funcargs.get("kind")
    test = getattr(pyfuncitem.obj, "__wrapped__", None)
    if not isinstance(kind, Kind) or kind.asynchronous or not inspect.iscoroutinefunction(test):
        return None
    at_once(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True


@pytest.fixture
def new_base(new_database: Callable[..., str]) -> Iterator[Callable[[str], Base]]:
    """Make a user's database with the guard's tables: `new_base("sqlite" | "postgresql" | "mariadb")`."""
    made: list[Base] = []

    def make(engine: str) -> Base:
        made.append(Base(new_database(engine)))
        return made[-1]

    yield make
    for base in made:
        base.engine.dispose()


@pytest.fixture(scope="session")
def shared_base(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Base]]:
    """One database of each server for all tests that leave no connection open: to make one takes longer than a test."""
    made: dict[str, Base] = {}

    def get(engine: str) -> Base:
        if engine not in made:
            name = {"postgresql": "postgres_server", "mariadb": "mariadb_server"}[engine]
            made[engine] = Base(request.getfixturevalue(name).new_database())
        made[engine].empty()
        return made[engine]

    yield get
    for base in made.values():
        base.engine.dispose()


@pytest.fixture
def base(kind: Kind, shared_base: Callable[[str], Base], new_base: Callable[[str], Base]) -> Base:
    """The database of this test's kind of connection, empty."""
    return new_base("sqlite") if kind.engine == "sqlite" else shared_base(kind.engine)


@pytest.fixture
async def factory(kind: Kind, base: Base) -> AsyncIterator[Any]:
    """What a user gives to `guarded`, for this test's kind of connection."""
    made, close = kind.make(base.url)
    yield made
    closing = close()
    if inspect.isawaitable(closing):
        await closing


@pytest.fixture
def run() -> Writer:
    """The holder whose section is tried."""
    return Writer()
