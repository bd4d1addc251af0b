"""After a loss of Redis, the hard cases: keys of a revived job, generations that fell, two servers on one ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py
from sqlalchemy import update

from fencepost.errors import ConfigurationError
from fencepost.ledger import Archiver, Ledger
from fencepost.ledger import archiver as archiving
from fencepost.ledger.reconcile import Reconciler
from fencepost.ledger.verify import verify
from fencepost.sql.tables import effects, jobs, marks
from tests.ledger.copies import cursor_of
from tests.ledger.test_reconcile import Scene
from tests.support.partition import Partition


@pytest.fixture
def scene(partition: Partition, ledger: Ledger, archiver: Archiver, redis: redis_py.Redis) -> Scene:
    return Scene(partition, ledger, archiver, redis)


class TestKeysOfARevivedJob:
    @pytest.mark.parametrize(
        "rounds", [{"everything": True}, {"everything": False}, {"untold": True, "everything": False}]
    )
    @pytest.mark.parametrize("noticed", [False, True])
    def test_a_job_whose_dedup_key_an_ended_one_got_back_is_not_cancelled_for_it(
        self, scene: Scene, rounds: dict[str, bool], noticed: bool
    ):
        first = scene.job(dedup="mail:1")
        scene.archiver.copy_all()
        older = scene.copy()
        scene.end(first, "DONE")
        second = scene.job(dedup="mail:1")
        if "untold" not in rounds:
            scene.archiver.copy_all()
        scene.restore(older)
        if noticed:  # by another worker: the rounds of this one are not for everything
            scene.archiver.copy_all()
        assert scene.reconcile(**rounds).counts == {"revived": 1, "lost": 1}
        assert (scene.known(first), scene.partition.state(first)) == (("done", 1), "done")
        assert (scene.known(second), scene.partition.state(second)) == (("queued", 1), "queued")
        assert scene.reconcile().counts == {}

    def test_a_key_whose_owner_the_ledger_does_not_know_costs_the_job_in_a_full_round_only(
        self, scene: Scene, redis: redis_py.Redis
    ):
        lost = scene.job(dedup="mail:1")
        scene.archiver.copy_all()
        redis.delete(scene.partition.keys.job(lost))
        other = scene.partition.job(dedup="mail:1")
        scene.archiver.copy_all()
        with scene.ledger.begin("test") as connection:
            connection.execute(jobs.delete().where(jobs.c.job_id == other))
        reconciler = Reconciler(scene.ledger, scene.partition.store, scene.partition.driver, quiet_s=0.0)
        assert reconciler.run().counts == {}
        assert scene.known(lost) == ("accepted", 1)
        assert reconciler.run(everything=True).counts == {"duplicate": 1}
        assert scene.known(lost) == ("cancelled", 1)

    def test_a_lost_job_ends_in_any_round_where_its_dedup_key_belongs_to_one_that_lives(self, scene: Scene):
        older = scene.copy()
        lost = scene.job(dedup="mail:1")
        scene.restore(older)
        scene.job(dedup="mail:1")
        scene.archiver.copy_all()
        assert scene.reconcile(everything=False).counts == {"duplicate": 1}
        assert scene.known(lost) == ("cancelled", 1)

    @pytest.mark.parametrize(("told", "what"), [(True, "lost"), (False, "duplicate")])
    def test_an_idempotency_key_that_came_back_costs_only_a_job_that_was_never_accepted(
        self, scene: Scene, redis: redis_py.Redis, told: bool, what: str
    ):
        """One that Redis never told of, within the life of the key, is a repeated request whose answer was lost."""
        first = scene.job(idem="a:1", fingerprint="x")
        older = scene.copy()
        scene.end(first, "DONE")
        redis.delete(*redis.keys(f"{scene.partition.keys.prefix}idem:*"))  # its life is over
        second = scene.spec(idem="a:1", fingerprint="x")
        scene.ledger.accept([second])
        with scene.ledger.begin("test") as connection:
            connection.execute(
                update(jobs).where(jobs.c.job_id == first).values(created_at_ms=jobs.c.created_at_ms - 5)
            )
        if told:
            scene.partition.enqueue(second)
            scene.archiver.copy_all()
        scene.restore(older)
        reconciler = Reconciler(scene.ledger, scene.partition.store, scene.partition.driver, quiet_s=0.0)
        assert reconciler.run(everything=True).counts == {"revived": 1, what: 1}
        assert scene.partition.state(second.id) == ("queued" if told else None)


class TestGenerations:
    def test_a_requeue_that_was_undone_is_made_again_in_the_generation_of_the_ledger(self, scene: Scene):
        job_id = scene.job()
        scene.end(job_id, "BURY")
        older = scene.copy()
        for _ in range(2):
            scene.partition.requeue(job_id)
            scene.end(job_id, "BURY")
        scene.partition.requeue(job_id)
        scene.archiver.copy_all()
        assert scene.known(job_id) == ("queued", 4)
        scene.restore(older)
        assert scene.reconcile().counts == {"undone": 1}
        assert scene.partition.record(job_id).generation == 4
        scene.end(job_id, "BURY")
        assert [tuple(one) for one in scene.partition.requeue(job_id)] == [("REQUEUED", "5")]
        scene.archiver.copy_all()
        assert scene.reconcile().counts == {}
        assert (scene.known(job_id), scene.partition.state(job_id)) == (("queued", 5), "queued")
        scene.end(job_id, "DONE")
        assert scene.known(job_id) == ("done", 5)

    def test_an_undone_requeue_whose_dedup_key_a_live_job_has_by_now_ends_as_its_duplicate(self, scene: Scene):
        job_id = scene.job(dedup="mail:1")
        scene.end(job_id, "BURY")
        older = scene.copy()
        scene.partition.requeue(job_id)
        scene.archiver.copy_all()
        scene.restore(older)
        other = scene.job(dedup="mail:1")
        assert scene.reconcile().counts == {"duplicate": 1}
        assert (scene.known(job_id), scene.known(other)) == (("cancelled", 2), ("queued", 1))
        assert scene.partition.state(job_id) == "failed"

    def test_a_requeue_that_is_refused_is_named(self, scene: Scene, redis: redis_py.Redis):
        job_id = scene.job(dedup="mail:1")
        scene.end(job_id, "BURY")
        older = scene.copy()
        scene.partition.requeue(job_id)
        scene.archiver.copy_all()
        scene.restore(older)
        other = scene.partition.job(dedup="mail:1")
        redis.xtrim(scene.partition.keys.events, maxlen=0)  # so that the ledger never hears of the other one
        reconciler = Reconciler(scene.ledger, scene.partition.store, scene.partition.driver, quiet_s=0.0)
        report = reconciler.run(everything=True)
        assert [(one.job_id, one.what, one.sql, one.redis) for one in report.divergences] == [
            (job_id, "differs", "queued", "DUPLICATE")
        ]
        assert (scene.known(job_id), scene.partition.state(other)) == (("queued", 2), "queued")


@pytest.mark.parametrize(
    ("stored", "result"),
    [(['"no. 7"'], b'"no. 7"'), ([None], None), ([None, '"no. 7"'], None), (['"no. 7"', '"no. 8"'], None)],
)
def test_only_a_single_effect_that_stored_a_result_gives_it(
    scene: Scene, stored: list[str | None], result: bytes | None
):
    job_id = scene.job()
    older = scene.copy()
    scene.end(job_id, "DONE")
    with scene.ledger.begin("test") as connection:
        for number, text in enumerate(stored):
            row = {"namespace": scene.ledger.namespace, "effect_key": f"{job_id}:{number}", "job_id": job_id}
            connection.execute(effects.insert(), row | {"token": 1, "nonce": "n", "result": text, "created_at_ms": 1})
    scene.restore(older)
    assert scene.reconcile().counts == {"revived": 1}
    record = scene.partition.record(job_id)
    assert (record.state, record.reason, record.result) == ("done", "ledger", result)


def test_after_a_rewind_a_job_from_a_clock_that_is_ahead_comes_back_at_once(scene: Scene, redis: redis_py.Redis):
    job_id = scene.job()
    ahead_ms = 3_600_000
    with scene.ledger.begin("test") as connection:
        moved = {name: jobs.c[name] + ahead_ms for name in ("created_at_ms", "updated_at_ms")}
        connection.execute(update(jobs).values(moved))
    redis.flushall()
    assert scene.reconcile().counts == {"lost": 1}
    assert scene.partition.state(job_id) == "queued"


class TestTwoServersOnOneLedger:
    @pytest.fixture
    def other(self, new_server: Callable[..., Any], namespace: str, ledger: Ledger) -> Iterator[Scene]:
        """The same namespace on another server, fed into the same ledger."""
        url = new_server().url
        redis = redis_py.Redis.from_url(url)
        partition = Partition(redis, url, namespace)
        yield Scene(partition, ledger, Archiver(ledger, partition.store, partition.driver), redis)
        partition.close()
        redis.close()

    def _incarnation(self, scene: Scene) -> str:
        raw: Any = scene.redis.hget(scene.partition.keys.meta, "incarnation")
        return str(raw.decode())

    def _take_turns(self, scene: Scene, other: Scene) -> None:
        """Until the second one would come back for the second time."""
        scene.job()
        other.job()
        scene.archiver.copy_all()
        assert other.archiver.copy_all().rewound
        assert scene.archiver.copy_all().rewound

    def test_the_one_that_comes_back_again_is_stopped_and_told_once(
        self, scene: Scene, other: Scene, caplog: pytest.LogCaptureFixture
    ):
        self._take_turns(scene, other)
        here, there = self._incarnation(scene), self._incarnation(other)
        before = cursor_of(scene.ledger)
        for _ in range(3):
            with pytest.raises(ConfigurationError, match="another namespace") as stopped:
                other.archiver.copy_some()
        assert here in str(stopped.value)
        assert there in str(stopped.value)
        assert [one.levelname for one in caplog.records if "ledger_shared" in one.getMessage()] == ["ERROR"]
        assert cursor_of(scene.ledger) == before

    def test_nothing_is_reconciled_from_its_side_and_the_first_one_goes_on(self, scene: Scene, other: Scene):
        self._take_turns(scene, other)
        mine = scene.job()
        scene.archiver.copy_all()
        reconciler = Reconciler(other.ledger, other.partition.store, other.partition.driver, quiet_s=0.0)
        for options in ({"everything": True}, {}, {"everything": True, "dry_run": True}):
            with pytest.raises(ConfigurationError):
                reconciler.run(**options)
        assert other.partition.state(mine) is None
        assert scene.known(mine) == ("queued", 1)
        assert verify(scene.ledger).ok

    def test_it_is_let_in_when_the_first_one_has_been_silent_for_long(
        self, scene: Scene, other: Scene, monkeypatch: pytest.MonkeyPatch
    ):
        self._take_turns(scene, other)
        monkeypatch.setattr(archiving, "_SHARED_MS", 60_000)
        monkeypatch.setattr(archiving, "_SHARED_AGAIN_MS", 30_000)
        with pytest.raises(ConfigurationError):
            other.archiver.copy_some()
        with scene.ledger.begin("test") as connection:  # 50 s later: the first one still told of something lately
            connection.execute(update(marks).values(at_ms=marks.c.at_ms - 50_000))
        with pytest.raises(ConfigurationError):
            other.archiver.copy_some()
        with scene.ledger.begin("test") as connection:  # and 50 s later again, as it was refreshed
            connection.execute(update(marks).values(at_ms=marks.c.at_ms - 50_000))
        with pytest.raises(ConfigurationError):
            other.archiver.copy_some()
        with scene.ledger.begin("test") as connection:
            connection.execute(update(marks).values(at_ms=marks.c.at_ms - 61_000))
        assert other.archiver.copy_some().rewound

    def test_an_epoch_of_which_nothing_is_copied_yet_is_not_taken_over_by_another_server(
        self, scene: Scene, other: Scene
    ):
        scene.job()
        other.job()
        scene.archiver.copy_all()
        assert other.archiver.copy_some().rewound
        assert scene.archiver.copy_some().rewound
        with pytest.raises(ConfigurationError):
            other.archiver.copy_some()

    def test_an_older_copy_of_a_server_that_was_lost_comes_back_once(self, scene: Scene, redis: redis_py.Redis):
        job_id = scene.job()
        older = scene.copy()
        scene.archiver.copy_all()
        redis.flushall()
        late = scene.job()  # on the new, empty server
        scene.archiver.copy_all()
        scene.restore(older)
        scene.reconcile()
        assert {scene.partition.state(job_id), scene.partition.state(late)} == {"queued"}
        assert scene.reconcile().counts == {}


class TestAnEndThatARewindTookBack:
    def test_it_stays_an_end_and_verify_says_how_it_came_and_still_sees_damage(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ):
        """The round saw the job as done in Redis, and before the event was copied Redis had forgotten it again."""
        oldest = scene.copy()
        scene.job()
        scene.archiver.copy_all()
        scene.restore(oldest)
        job_id = scene.job()
        scene.archiver.copy_all()  # a rewind that was noticed
        older = scene.copy()
        assert scene.partition.finish(scene.run(job_id), "DONE").word == "OK"
        reconciler = Reconciler(scene.ledger, scene.partition.store, scene.partition.driver, quiet_s=0.0)
        catch_up = reconciler._catch_up

        def after_a_rewind() -> Any:
            scene.restore(older)
            return catch_up()

        monkeypatch.setattr(reconciler, "_catch_up", after_a_rewind)
        assert reconciler.run().counts["untold"] == 1
        assert scene.known(job_id) == ("done", 1)
        scene.end(job_id, "DONE")  # it lives there, and runs once more
        scene.archiver.copy_all()

        verdict = verify(scene.ledger)
        assert verdict.ok, verdict.findings
        assert ("untold", job_id) in {(note.what, note.job_id) for note in verdict.notes}
        with scene.ledger.begin("damage") as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(token=jobs.c.token + 1))
        assert {(one.what, one.job_id) for one in verify(scene.ledger).findings} == {("row_differs", job_id)}
