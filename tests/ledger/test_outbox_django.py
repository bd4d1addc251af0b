"""Django: a job enqueued inside `transaction.atomic()` exists if and only if that commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, select

from fencepost import ConfigurationError, Fencepost
from fencepost.sql.tables import outbox
from fencepost.sql.upgrade import upgrade
from tests.support import wait_until

django = pytest.importorskip("django")


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, new_database: Callable[..., str]) -> Iterator[tuple[str, Any]]:
    """The URL of a shop's database, and Django's connection to it."""
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    text = new_database(str(request.param))
    upgrade(text)
    url = make_url(text)
    engine = {"sqlite": "sqlite3", "postgresql": "postgresql"}[url.get_backend_name()]
    given: dict[str, object] = {"ENGINE": f"django.db.backends.{engine}", "NAME": url.database, "HOST": url.host or ""}
    given |= {"PORT": url.port or "", "USER": url.username or ""}
    connections.settings = connections.configure_settings({"default": given})
    if hasattr(connections._connections, "default"):
        delattr(connections._connections, "default")
    yield text, connections["default"]
    connections["default"].close()


@pytest.fixture
def app(url: str, namespace: str, shop: tuple[str, Any]) -> Iterator[Fencepost]:
    application = Fencepost(url, namespace=namespace, outbox=shop[0])
    application.job(kind="invoice")(lambda order_id: None)
    yield application
    application.close_sync()


def answers(url: str) -> dict[str, str | None]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {row.job_id: row.answer for row in connection.execute(select(outbox))}
    engine.dispose()
    return found


def test_a_job_is_published_after_the_outermost_block_and_only_then(app: Fencepost, shop: tuple[str, Any]):
    from django.db import transaction

    url, connection = shop
    invoice = app.handler("invoice")
    with transaction.atomic():
        kept = invoice.enqueue_in_sync(connection, order_id=1)
        with transaction.atomic():
            also = invoice.enqueue_in_sync(connection, order_id=2)
        with transaction.atomic():
            invoice.enqueue_in_sync(connection, order_id=3)
            transaction.set_rollback(True)
        assert answers(url) == {}
    wait_until(lambda: answers(url) == {kept.id: "QUEUED", also.id: "QUEUED"})
    assert kept.status_sync().state == "queued"


def test_outside_a_block_it_is_refused(app: Fencepost, shop: tuple[str, Any]):
    with pytest.raises(ConfigurationError, match=r"transaction\.atomic\(\)"):
        app.handler("invoice").enqueue_in_sync(shop[1], order_id=1)
    assert answers(shop[0]) == {}
