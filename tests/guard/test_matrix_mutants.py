"""The guard with one part taken out, on the stage of test_matrix_guarded: what the part prevents happens."""

from __future__ import annotations

import pytest

from fencepost.fence import section, statements
from fencepost.sql.channel import Statement
from tests.guard.holders import Lease, PaperHolder
from tests.guard.playing import STOPS_OF_ONE_JOB, play_all
from tests.guard.scene import QUIET, scene_on

PLACES = [("postgresql", "READ COMMITTED"), ("mariadb", "REPEATABLE READ")]
TWO_JOBS, ONE_JOB, ONE_NUMBER = (("job1", 33), ("job2", 34)), (("job1", 33), ("job1", 34)), (("job1", 34), ("job2", 34))

conclude, install = statements.conclude, statements.install


def the_lock_of_the_verifying_read(patch):
    def read(dialect, claim):
        rows = yield Statement(statements._READ_FENCE, claim.params("namespace", "resource"))
        return rows[0] if rows else None

    patch.setattr(statements, "_locked_fence", read)


def the_comparison_of_nonces(patch):
    judge = statements.judge
    patch.setattr(
        statements, "judge", lambda claim, fence: judge(claim._replace(nonce=fence[1]) if fence else claim, fence)
    )


def the_install_before_the_work(patch):
    """Its token is taken at the end instead, where it is checked."""

    async def nothing(hands, holder, channel, name, resource):
        return section.claim_of(holder, name, resource)

    def late(dialect, claim, mark, result):
        verdict = yield from install(dialect, claim)
        return (yield from conclude(dialect, claim, mark, result)) if verdict.word == "mine" else verdict

    patch.setattr(section, "install", nothing)
    patch.setattr(statements, "conclude", late)


def the_verification(patch):
    def unverified(dialect, claim, mark, result):
        plan = conclude(dialect, claim, mark, result)
        statement, rows = next(plan), []
        while True:
            rows = yield statement
            if "fencepost_fences" in statement.text:
                rows = [(claim.token, claim.nonce)]
            try:
                statement = plan.send(rows)
            except StopIteration as end:
                return end.value

    patch.setattr(statements, "conclude", unverified)


def the_effect_row(patch):
    def without(dialect, claim, mark, result):
        return statements.judge(claim, (yield from statements._locked_fence(dialect, claim)))

    patch.setattr(statements, "conclude", without)


MUTANTS = [
    (the_lock_of_the_verifying_read, TWO_JOBS, "stale write"),
    (the_comparison_of_nonces, ONE_NUMBER, "stale write"),
    (the_install_before_the_work, TWO_JOBS, "lost update"),
    (the_verification, TWO_JOBS, "stale write"),
    (the_effect_row, ONE_JOB, "doubled"),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[0])
@pytest.mark.parametrize(
    ("take_out", "claims", "damage"), MUTANTS, ids=[mutant[0].__name__.replace("_", "-") for mutant in MUTANTS]
)
def test_without_one_of_its_parts_the_guard_lets_damage_through(
    take_out, claims, damage, place, new_database, monkeypatch
):
    monkeypatch.setattr("fencepost.fence.section.pause_s", lambda: 0.0)
    (job_a, token_a), (job_b, token_b) = claims

    def make():
        lease = Lease(owner="b", newest=34)
        return PaperHolder(lease, job_a, token_a, "a"), PaperHolder(lease, job_b, token_b, "b")

    with scene_on(new_database(place[0]), place[1]) as scene, monkeypatch.context() as patch:
        scene.quiet = QUIET
        take_out(patch)
        with pytest.raises(AssertionError, match=damage):
            play_all(scene, make, lambda a, b: True, STOPS_OF_ONE_JOB)
