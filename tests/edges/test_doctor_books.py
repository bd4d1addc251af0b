"""The doctor and SQL: what is missing stops a worker, what is away does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost import Fencepost, UnsafeSetup
from fencepost.doctor import books, check_or_refuse
from fencepost.sql.upgrade import upgrade
from tests.support.databases import free_port

AWAY = "postgresql+psycopg://nobody@127.0.0.1:{port}/nowhere"


@pytest.fixture
def app_of(url: str, namespace: str) -> Iterator[Callable[..., Fencepost]]:
    made: list[Fencepost] = []

    def make(**settings: Any) -> Fencepost:
        made.append(Fencepost(url, namespace=namespace, **settings))
        return made[-1]

    yield make
    for app in made:
        app.close_sync()


def found(app: Fencepost) -> dict[str, str]:
    return {one.check: one.level for one in books(app)}


def test_without_a_ledger_there_is_nothing_to_say(app_of):
    assert books(app_of()) == []


def test_a_ledger_and_an_outbox_that_are_there_are_well(app_of, postgres_url: str, sqlite_url: str):
    upgrade(postgres_url)
    assert found(app_of(ledger=postgres_url, outbox=postgres_url)) == {"ledger": "ok", "outbox": "ok"}
    assert found(app_of(ledger=sqlite_url)) == {"ledger": "ok"}


async def test_missing_tables_stop_a_worker_and_the_command_that_makes_them_is_named(app_of, postgres_url: str):
    app = app_of(ledger=postgres_url, outbox=postgres_url)
    assert found(app) == {"ledger": "error", "outbox": "error"}
    with pytest.raises(UnsafeSetup, match="fencepost sql upgrade"):
        await check_or_refuse(app)
    await app.close()


async def test_a_database_that_is_away_stops_nobody(app_of):
    away = AWAY.format(port=free_port())
    app = app_of(ledger=away, outbox=away)
    assert found(app) == {"ledger": "warning", "outbox": "warning"}
    await check_or_refuse(app)
    await app.close()


@pytest.mark.parametrize(("skew_ms", "level"), [(0, None), (5_000, "warning"), (-90_000_000, "error")])
def test_a_clock_that_differs_is_told_and_one_of_another_day_is_refused(
    app_of, postgres_url: str, monkeypatch: pytest.MonkeyPatch, skew_ms: int, level: str | None
):
    upgrade(postgres_url)
    from fencepost.doctor import books as module_function

    real = module_function.__globals__["wall_ms"]
    monkeypatch.setitem(module_function.__globals__, "wall_ms", lambda: real() + skew_ms)
    assert found(app_of(ledger=postgres_url)).get("ledger_clock") == level
