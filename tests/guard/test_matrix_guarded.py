"""The guard between two holders, in every order of their statements that two interruptions can make, on each database.

The holders never notice by themselves that they lost the lease, so all that stands between them and the damage is SQL.
FENCEPOST_MATRIX_INTERRUPTIONS=3 plays the orders of three interruptions too (minutes instead of seconds).
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from fencepost.errors import SectionRepeat, StaleToken
from fencepost.fence import Guarded
from tests.guard.holders import Lease, PaperHolder
from tests.guard.interleaving import switches
from tests.guard.scene import ISOLATION_LEVELS, QUIET, START, add_one, scene_on

INTERRUPTIONS = int(os.environ.get("FENCEPOST_MATRIX_INTERRUPTIONS", "2"))
POINTS = 7  # start, install, COMMIT, read, update, verify, COMMIT
POINTS_OF_ONE_JOB = POINTS + 2  # look for the effect, and write it
PLACES = [(kind, isolation) for kind, levels in ISOLATION_LEVELS.items() for isolation in levels]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 if INTERRUPTIONS == 2 else 1800)]


@pytest.fixture(params=PLACES, ids=lambda place: " ".join(place).lower().replace(" ", "-"))
def scene(request, new_database, monkeypatch):
    """The scene on each database at each isolation level. Nothing pauses before it is tried again."""
    monkeypatch.setattr("fencepost.fence.section.pause_s", lambda: 0.0)
    kind, isolation = request.param
    with scene_on(new_database(kind), isolation) as scene:
        yield scene


def guarded(holder):
    """A section that adds one, done again as long as the database asks for it, as a worker would."""

    def work(engine):
        while True:
            try:
                with Guarded(holder, engine, "add") as effect:
                    if effect.first:
                        add_one(effect.session, holder.claim)
                        effect.result = holder.nonce
            except SectionRepeat:
                continue
            except StaleToken:
                return "stale"
            return "done" if effect.first else f"found {effect.result}"

    return work


def play_all(scene, make, expect, points=POINTS):
    """Play every order. make() gives both holders; expect(a, b, holders) says what is wrong with the outcomes."""
    seen: Counter[tuple[str, str]] = Counter()
    for turns in switches(("A", "B"), points, INTERRUPTIONS):
        scene.reset()
        holders = make()
        a, b = (scene.actor(name, guarded(holder)) for name, holder in zip("AB", holders, strict=True))
        scene.interleaving.play(turns)
        outcomes = (a.outcome(), b.outcome())
        seen[outcomes] += 1
        story = f"{turns}: {outcomes}, {scene.entries()}\n{a.trace}\n{b.trace}"
        assert scene.damage == [], story
        assert scene.value() == START + len(scene.entries()), story
        assert expect(*outcomes), story
        assert [note for h in holders for note in h.notes if note[1]] == [
            (f"{entry.job}:add", True) for entry in sorted(scene.entries())
        ], story
    return seen


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


def test_a_job_that_two_attempts_work_on_counts_once(scene):
    """Both run job1. Whoever commits second finds the effect of the first, or is refused."""

    def make():
        lease = Lease(owner="b", newest=34)
        return PaperHolder(lease, "job1", 33, "a"), PaperHolder(lease, "job1", 34, "b")

    scene.quiet = QUIET
    allowed = {("done", "found a"), ("stale", "done"), ("found b", "done")}
    seen = play_all(scene, make, lambda a, b: (a, b) in allowed, POINTS_OF_ONE_JOB)
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
    raised = [bump for lease in leases for bump in lease.bumps if bump[0] == "b"]
    # Above READ COMMITTED, PostgreSQL refuses the locking read itself (40001); the section then starts from install.
    snapshots = scene.url.startswith("postgresql") and scene.isolation != "READ COMMITTED"
    assert {where for _, where, _ in raised} == ({"install"} if snapshots else {"install", "verify"})
    assert max(Counter(id(lease) for lease in leases for bump in lease.bumps if bump[0] == "b").values()) <= 2
