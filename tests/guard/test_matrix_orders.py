"""Single orders of the matrix, statement by statement: token 33 is paused in the middle, token 34 works meanwhile."""

from __future__ import annotations

import sqlite3
import time

import pymysql
import pytest
from pymysql.constants import CLIENT
from sqlalchemy import make_url, text

from fencepost.errors import SectionRepeat, StaleToken
from fencepost.fence import Guarded
from tests.guard import wrong_ways
from tests.guard.holders import Lease, PaperHolder
from tests.guard.scene import START, Claim, add_one, scene_on

OLD, NEW = Claim("job1", 33, "a"), Claim("job2", 34, "b")
LOCKING = [
    ("postgresql", "READ COMMITTED"),
    ("postgresql", "REPEATABLE READ"),
    ("postgresql", "SERIALIZABLE"),
    ("mariadb", "REPEATABLE READ"),
    ("mariadb", "READ COMMITTED"),
]
SNAPSHOTS = [place for place in LOCKING if place[0] == "postgresql" and place[1] != "READ COMMITTED"]
WITHOUT_SNAPSHOTS = [place for place in LOCKING if place not in SNAPSHOTS]


@pytest.fixture
def scene(request, new_database):
    kind, isolation = request.param
    with scene_on(new_database(kind), isolation) as scene:
        yield scene


def on(places):
    return pytest.mark.parametrize(
        "scene", places, indirect=True, ids=lambda place: " ".join(place).lower().replace(" ", "-")
    )


def place_of(scene):
    return scene.url.partition("+")[0], scene.isolation


def actors_of(scene, way):
    a = scene.actor("A", lambda engine: way(engine, OLD))
    b = scene.actor("B", lambda engine: way(engine, NEW))
    return a, b, scene.interleaving


@on([("postgresql", "READ COMMITTED"), ("mariadb", "REPEATABLE READ"), ("sqlite", "IMMEDIATE")])
def test_the_same_order_gives_the_same_story(scene):
    """The stepper leaves nothing to luck, not even who waits for whom."""
    stories = []
    for _ in range(2):
        scene.reset()
        a, b, play = actors_of(scene, wrong_ways.right_way)
        play.play([("A", 4), ("B", 3), ("A", 1), ("B", 9)])
        stories.append((a.outcome(), a.trace, b.outcome(), b.trace, scene.entries()))
    assert stories[0] == stories[1]


@on(WITHOUT_SNAPSHOTS)
def test_the_token_that_is_checked_last_loses_an_update_without_an_error(scene):
    """Both tokens are accepted in their right order, 33 and then 34, and one addition is gone."""
    a, b, play = actors_of(scene, wrong_ways.check_last)
    play.run("A", before="fencepost_fences")
    play.run("B", before="fencepost_fences")
    play.run("A")
    play.run("B")
    assert (a.outcome(), b.outcome()) == ("done", "done")
    assert [entry.token for entry in scene.entries()] == [33, 34]
    assert scene.value() == START + 1
    assert scene.damage == ["lost update: 100 was read, but 101 was there"]


@on(SNAPSHOTS)
def test_postgresql_refuses_it_where_transactions_have_a_snapshot(scene):
    a, b, play = actors_of(scene, wrong_ways.check_last)
    play.run("A", before="fencepost_fences")
    play.run("B", before="fencepost_fences")
    play.run("A")
    play.run("B")
    play.finish()
    assert (a.outcome(), b.outcome()) == ("done", "40001")
    assert (scene.value(), scene.damage) == (START + 1, [])


@on(LOCKING)
def test_the_token_taken_at_the_start_of_one_transaction_makes_the_newer_holder_wait(scene):
    """It holds, but while the old holder's transaction is open, the new one stands; snapshots end it with 40001."""
    a, b, play = actors_of(scene, wrong_ways.one_transaction)
    play.run("A", before="UPDATE account")
    play.run("B")
    assert play.blocked("B")
    play.run("A")
    play.finish()
    snapshots = place_of(scene) in SNAPSHOTS
    assert (a.outcome(), b.outcome()) == ("done", "40001" if snapshots else "done")
    assert (scene.value(), scene.damage) == (START + (1 if snapshots else 2), [])


@on(LOCKING)
def test_behind_the_guard_the_newer_holder_does_not_wait_and_the_stale_one_is_refused(scene):
    """A has read and will write; B comes, is done at once, and A's verification refuses it."""
    lease = Lease(owner="b", newest=34)

    def work(holder):
        def section(engine):
            with Guarded(holder, engine, "add") as effect:
                add_one(effect.session, holder.claim)

        return section

    a = scene.actor("A", work(PaperHolder(lease, *OLD)))
    b = scene.actor("B", work(PaperHolder(lease, *NEW)))
    play = scene.interleaving
    play.run("A", before="UPDATE account")
    play.run("B")
    assert b.done
    play.finish()
    assert b.outcome() is None
    assert type(a.error) is (SectionRepeat if place_of(scene) in SNAPSHOTS else StaleToken)
    assert [entry.token for entry in scene.entries()] == [34]
    assert (scene.value(), scene.damage) == (START + 1, [])


@on([("mariadb", "REPEATABLE READ")])
def test_a_plain_select_of_mariadb_shows_the_old_token_where_a_locking_one_shows_the_new(scene):
    fence = "SELECT token FROM fencepost_fences"
    old, new = scene.engines["A"].connect(), scene.engines["B"].connect()
    with old, new:
        wrong_ways.install(old, OLD)
        old.commit()
        assert old.execute(text(fence)).scalar_one() == 33  # the snapshot begins
        wrong_ways.install(new, NEW)
        new.commit()
        assert old.execute(text(fence)).scalar_one() == 33
        assert old.execute(text(f"{fence} FOR UPDATE")).scalar_one() == 34


@pytest.mark.parametrize(
    ("flags", "same_values", "stale_upsert"),
    [(0, 0, 0), (CLIENT.FOUND_ROWS, 1, 1)],
    ids=["changed-rows", "found-rows"],
)
def test_the_row_count_of_mysql_tells_nothing_about_the_token(mariadb_url, flags, same_values, stale_upsert):
    """As PyMySQL comes, taking the own token again counts 0, as if refused; as SQLAlchemy sets it up, a refused one
    counts 1, as if taken."""
    url = make_url(mariadb_url)
    with scene_on(mariadb_url, "REPEATABLE READ") as scene:
        raw = pymysql.connect(host=url.host, port=url.port, user="root", database=url.database, client_flag=flags)
        with raw, raw.cursor() as cursor:
            cursor.execute("INSERT INTO fencepost_fences VALUES ('n', 'r', 34, 'b', 0)")
            mine = (
                "UPDATE fencepost_fences SET token = 34, nonce = 'b' WHERE token < 34 OR (token = 34 AND nonce = 'b')"
            )
            assert cursor.execute(mine) == same_values
            upsert = (
                "INSERT INTO fencepost_fences VALUES ('n', 'r', 33, 'a', 0) ON DUPLICATE KEY UPDATE"
                " nonce = IF(token < VALUES(token), VALUES(nonce), nonce), token = GREATEST(token, VALUES(token))"
            )
            assert cursor.execute(upsert) == stale_upsert
            raw.commit()
        assert scene.witness.execute(text("SELECT token, nonce FROM fencepost_fences")).one() == (34, "b")


@on([("sqlite", "DRIVER")])
def test_on_sqlite_a_check_without_begin_lets_the_stale_write_in(scene):
    """Python's sqlite3, as it comes, opens no transaction for a SELECT: between check and write there is room."""
    a, b, play = actors_of(scene, wrong_ways.right_way)
    play.run("A", before="UPDATE account")  # it has checked, and is the newest
    play.run("B", before="UPDATE account")  # a newer one has come, and read
    play.run("A")
    play.run("B")
    assert (a.outcome(), b.outcome()) == ("done", "done")
    assert [one.split(":")[0] for one in scene.damage] == ["stale write", "lost update"]


def test_on_sqlite_a_deferred_transaction_is_refused_at_once_whatever_its_timeout(sqlite_url):
    """Who has read before another wrote cannot become a writer; waiting would not help, and SQLite does not wait."""
    path = sqlite_url.removeprefix("sqlite:///")
    with scene_on(sqlite_url, "IMMEDIATE"):
        old = sqlite3.connect(path, timeout=15, isolation_level=None)
        new = sqlite3.connect(path, timeout=15, isolation_level=None)
        old.execute("BEGIN DEFERRED")
        old.execute("SELECT value FROM account").fetchone()
        new.execute("UPDATE account SET value = value + 1")
        began = time.monotonic()
        with pytest.raises(sqlite3.OperationalError, match="locked") as refused:
            old.execute("UPDATE account SET value = value + 1")
        assert time.monotonic() - began < 5
        assert refused.value.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"
        old.close()
        new.close()


@on([("sqlite", "IMMEDIATE"), ("sqlite", "DEFERRED"), ("sqlite", "DRIVER")])
def test_on_sqlite_the_guard_is_the_one_writer_from_the_start_whatever_the_driver_does(scene):
    """While A is in its section, B cannot even put its token there; then it is B's turn, on what A has left."""
    lease = Lease(owner="b", newest=34)
    holder = PaperHolder(lease, *OLD)
    with Guarded(holder, scene.engines["A"], "add") as effect:
        before = effect.session.execute(text("SELECT value FROM account")).scalar_one()
        with scene.engines["B"].connect() as other, pytest.raises(Exception, match="locked"):
            other.execute(text("UPDATE account SET value = 0"))
        add_one(effect.session, holder.claim, before)
    newer = PaperHolder(lease, *NEW)
    with Guarded(newer, scene.engines["B"], "add") as effect:
        add_one(effect.session, newer.claim)
    scene.look()
    assert (scene.value(), scene.damage) == (START + 2, [])
