"""Ways to fence a write that are in use, between two holders, in every order that two interruptions can make.

Here the damage has to happen: a stage on which nothing ever breaks would prove nothing about the guard.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.guard import wrong_ways
from tests.guard.interleaving import switches
from tests.guard.scene import Claim, scene_on

WAYS = ("no_fence", "check_last", "plain_check", "lte_token", "one_transaction", "right_way")
# What each way lets through in some order: lost updates, stale writes, or nothing.
MATRIX = [
    ("postgresql", "READ COMMITTED", "lost", "lost", "lost stale", "lost stale", "", ""),
    ("postgresql", "REPEATABLE READ", "", "", "stale", "stale", "", ""),
    ("postgresql", "SERIALIZABLE", "", "", "stale", "stale", "", ""),
    ("mariadb", "REPEATABLE READ", "lost", "lost", "lost stale", "lost stale", "", ""),
    ("mariadb", "READ COMMITTED", "lost", "lost", "lost stale", "lost stale", "", ""),
    ("sqlite", "IMMEDIATE", "", "", "", "stale", "", ""),
    ("sqlite", "DEFERRED", "", "", "", "stale", "", ""),
    # Python's sqlite3, as it comes, opens no transaction for a SELECT: the check of the right way is a plain one there.
    ("sqlite", "DRIVER", "lost", "lost", "lost stale", "lost stale", "", "lost stale"),
]
# What the database itself says to one of the two who check last. Without such a word, both are told that all is well.
REFUSAL = {
    ("postgresql", "REPEATABLE READ"): {"40001"},
    ("postgresql", "SERIALIZABLE"): {"40001"},
    ("sqlite", "IMMEDIATE"): {"database is locked"},
    ("sqlite", "DEFERRED"): {"database is locked"},
    ("sqlite", "DRIVER"): {"database is locked"},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


def play_all(scene, way, a, b):
    """Play every order of two claims: the kinds of damage that were seen, and how often each pair of outcomes."""
    damage: set[str] = set()
    seen: Counter[tuple[str, str]] = Counter()
    alone = scene.actor("A", lambda engine: way(engine, a))
    scene.interleaving.finish()
    for turns in switches(("A", "B"), len(alone.trace)):
        scene.reset()
        actors = [scene.actor(name, lambda e, claim=claim: way(e, claim)) for name, claim in (("A", a), ("B", b))]
        scene.interleaving.play(turns)
        seen[actors[0].outcome(), actors[1].outcome()] += 1
        damage |= {one.split()[0].rstrip(":") for one in scene.damage}
    return damage, seen


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: f"{row[0]}-{row[1].lower().replace(' ', '-')}")
def test_what_each_way_lets_through(row, new_database):
    """The matrix of the ways, as measured: which of them lose updates, which let a stale holder write."""
    kind, isolation, *expected = row
    found = {}
    with scene_on(new_database(kind), isolation) as scene:
        for name in WAYS:
            tokens = (34, 34) if name == "lte_token" else (33, 34)
            scene.reset()
            damage, seen = play_all(
                scene, getattr(wrong_ways, name), Claim("job1", tokens[0], "a"), Claim("job2", tokens[1], "b")
            )
            found[name] = " ".join(sorted(damage))
            if name == "check_last":
                words = {word for outcomes in seen for word in outcomes} - {"done", "stale"}
                assert words == REFUSAL.get((kind, isolation), set())
    assert found == dict(zip(WAYS, expected, strict=True))


@pytest.mark.parametrize("way", ["check_last", "right_way"])
def test_without_an_effect_row_the_work_of_a_job_is_done_by_each_of_its_attempts(way, postgres_url):
    """A fence alone keeps the order; that the first attempt has done it already is written nowhere."""
    with scene_on(postgres_url, "READ COMMITTED") as scene:
        damage, seen = play_all(scene, getattr(wrong_ways, way), Claim("job1", 33, "a"), Claim("job1", 34, "b"))
    assert "doubled" in damage
    assert seen["done", "done"] > 0
