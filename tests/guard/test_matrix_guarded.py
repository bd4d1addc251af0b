"""The guard between two holders, in every order of their statements that two interruptions can make, on each database.

The holders never notice by themselves that they lost the lease, so all that stands between them and the damage is SQL.
FENCEPOST_MATRIX_INTERRUPTIONS=3 plays the orders of three interruptions too (minutes instead of seconds).
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.guard.holders import Lease, PaperHolder
from tests.guard.playing import INTERRUPTIONS, STOPS_OF_ONE_JOB, awaited, guarded, owned, play_all
from tests.guard.scene import ISOLATION_LEVELS, QUIET, scene_on

PLACES = [(kind, isolation) for kind, levels in ISOLATION_LEVELS.items() for isolation in levels]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 if INTERRUPTIONS == 2 else 1800)]


@pytest.fixture(params=PLACES, ids=lambda place: " ".join(place).lower().replace(" ", "-"))
def scene(request, new_database, monkeypatch):
    """The scene on each database at each isolation level. Nothing pauses before it is tried again."""
    monkeypatch.setattr("fencepost.fence.section.pause_s", lambda: 0.0)
    kind, isolation = request.param
    with scene_on(new_database(kind), isolation) as scene:
        yield scene


def test_a_late_write_never_lands_on_what_the_newer_holder_has_read(scene):
    """A is paused with token 33 while B works with 34 on the same account for another job.

    report: redisson/redisson#775: one lost renewal was enough to have two holders.
    """

    def make():
        lease = Lease(owner="b", newest=34)
        return PaperHolder(lease, "job1", 33, "a"), PaperHolder(lease, "job2", 34, "b")

    seen = play_all(scene, make, lambda a, b: b == "done" and a in ("done", "stale"))
    assert seen["stale", "done"] > 0
    assert seen["done", "done"] > 0


@pytest.mark.parametrize("section", [guarded, owned], ids=lambda section: section.__name__)
def test_a_job_that_two_attempts_work_on_counts_once(scene, section):
    """Both run job1. Whoever commits second finds the effect of the first, or is refused.

    owned: in the user's own transaction, with install and effect.
    """
    once_only(scene, section)


def test_a_job_that_two_attempts_work_on_counts_once_on_event_loops_too(postgres_url, monkeypatch):
    """The same with asyncpg: each attempt on a loop of its own."""
    monkeypatch.setattr("fencepost.fence.section.pause_s", lambda: 0.0)
    with scene_on(postgres_url, "READ COMMITTED") as scene:
        once_only(scene, awaited)


def once_only(scene, section):
    def make():
        lease = Lease(owner="b", newest=34)
        return PaperHolder(lease, "job1", 33, "a"), PaperHolder(lease, "job1", 34, "b")

    scene.quiet = QUIET
    allowed = {("done", "found a"), ("stale", "done"), ("found b", "done")}
    seen = play_all(scene, make, lambda a, b: (a, b) in allowed, STOPS_OF_ONE_JOB, section)
    assert seen["done", "found a"] > 0
    assert seen["stale", "done"] > 0


def test_two_holders_to_whom_a_rewound_redis_gave_the_same_number_are_told_apart(scene):
    """Both hold token 34. The owner gets a higher one and ends its work; the other is refused once it has done so."""

    def make():
        lease = Lease(owner="b", newest=34)
        return PaperHolder(lease, "job1", 34, "a"), PaperHolder(lease, "job2", 34, "b")

    seen = play_all(scene, make, lambda a, b: b == "done" and a in ("done", "stale"))
    assert seen["stale", "done"] > 0


def test_an_owner_whose_number_a_rewind_made_too_low_ends_its_work_all_the_same(scene):
    """A holds 40 from before the rewind, the owner B only 34. B's token is raised above 40 where it meets it."""
    leases = []

    def make():
        leases.append(Lease(owner="b", newest=34))
        return PaperHolder(leases[-1], "job1", 40, "a"), PaperHolder(leases[-1], "job2", 34, "b")

    play_all(scene, make, lambda a, b: b == "done" and a in ("done", "stale"))
    raised = [where for lease in leases for who, where, _ in lease.bumps if who == "b"]
    # Above READ COMMITTED, PostgreSQL refuses the locking read itself (40001); the section then starts from install.
    snapshots = scene.url.startswith("postgresql") and scene.isolation != "READ COMMITTED"
    assert set(raised) == ({"install"} if snapshots else {"install", "verify"})
    assert max(Counter(id(lease) for lease in leases for who, _, _ in lease.bumps if who == "b").values()) == 1
