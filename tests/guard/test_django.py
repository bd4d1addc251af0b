"""Django: a section with `connection` as its factory, and `fence.effect` inside `transaction.atomic()`."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from fencepost import fence
from fencepost.errors import ConfigurationError, StaleToken
from tests.guard.holding import Writer, raised

django = pytest.importorskip("django")


@pytest.fixture(scope="session")
def settings():
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    return settings


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request, settings, new_base, shared_base):
    """The user's database as seen from outside, and `connection` of Django to it."""
    from django.db import connections

    base = new_base("sqlite") if request.param == "sqlite" else shared_base("postgresql")
    url = make_url(base.url)
    engine = {"sqlite": "sqlite3", "postgresql": "postgresql"}[request.param]
    given: dict[str, object] = {"ENGINE": f"django.db.backends.{engine}", "NAME": url.database, "HOST": url.host or ""}
    given |= {"PORT": url.port or "", "USER": url.username or ""}
    connections.settings = connections.configure_settings({"default": given})
    for alias in list(connections):
        if hasattr(connections._connections, alias):
            delattr(connections._connections, alias)
    yield base, connections["default"]
    connections["default"].close()


@pytest.fixture
def run():
    return Writer()


def write(connection, note):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO done (note) VALUES (%s)", [note])


def test_a_guarded_section_does_its_work_once(shop, run):
    base, connection = shop
    for factory in (connection, lambda: connection):
        with run.guarded(factory) as effect:
            if effect.first:
                write(effect.session, "x")
                effect.result = [1, "ü"]
    assert base.done == ["x"]
    assert effect.result == [1, "ü"]
    assert run.notes == [("j1:invoice", True), ("j1:invoice", False)]
    assert not connection.in_atomic_block


def test_the_proxy_that_django_gives_to_everybody_is_a_connection(shop, run):
    from django.db import connection

    with run.guarded(connection):
        write(connection, "x")
    assert shop[0].done == ["x"]


def test_an_error_in_the_block_undoes_it(shop, run):
    base, connection = shop

    def work(effect):
        write(effect.session, "x")
        raise KeyError("no")

    with pytest.raises(KeyError):
        run.guarded(connection).call_sync(work)
    assert (base.done, base.effects) == ([], [])
    write(connection, "y")  # the connection is usable, and in Django's autocommit again
    assert base.done == ["y"]


def test_a_stale_holder_is_refused_and_the_owner_catches_up(shop, run):
    base, connection = shop
    base.install(50, "n-newer")
    with pytest.raises(StaleToken), run.guarded(connection):
        write(connection, "x")
    run.on_bump = raised
    with run.guarded(connection):
        write(connection, "y")
    assert base.done == ["y"]
    assert base.fences == [("order:1", 150, "n-ours")]


def test_an_effect_inside_atomic_is_told_of_after_its_commit(shop, run):
    from django.db import transaction

    base, connection = shop
    fence.install_sync(connection, run)
    with transaction.atomic():
        with fence.effect(connection, run, "invoice") as effect:
            write(connection, "x")
            effect.result = 1
        assert run.notes == []
    assert run.notes == [("j1:invoice", True)]
    assert base.done == ["x"]


def test_an_atomic_block_that_rolls_back_leaves_no_effect_and_tells_of_none(shop, run):
    from django.db import transaction

    base, connection = shop
    fence.install_sync(connection, run)

    @transaction.atomic
    def work():
        with fence.effect(connection, run, "invoice"):
            write(connection, "x")
        raise KeyError("no")

    with pytest.raises(KeyError):
        work()
    assert (base.done, base.effects, run.notes) == ([], [], [])


def test_outside_atomic_the_effect_is_refused_and_inside_it_install_is(shop, run):
    from django.db import transaction

    base, connection = shop
    with pytest.raises(ConfigurationError, match=r"with transaction.atomic\(\)"), fence.effect(connection, run, "k"):
        raise AssertionError("entered")
    with transaction.atomic(), pytest.raises(ConfigurationError, match="open transaction"):
        fence.install_sync(connection, run)
    with transaction.atomic(), pytest.raises(ConfigurationError, match="open transaction"), run.guarded(connection):
        raise AssertionError("entered")
    assert base.state == {"done": [], "fences": [], "effects": []}


def test_missing_tables_are_named(shop, run):
    base, connection = shop
    base.do("ALTER TABLE fencepost_fences RENAME TO elsewhere")
    try:
        with pytest.raises(ConfigurationError, match="fencepost sql upgrade"), run.guarded(connection):
            raise AssertionError("entered")
    finally:
        base.do("ALTER TABLE elsewhere RENAME TO fencepost_fences")
