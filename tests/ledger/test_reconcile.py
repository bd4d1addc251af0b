"""After a loss of Redis: what was accepted comes back, what has ended stays ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py
from sqlalchemy import event, update

from fencepost.job import JobSpec
from fencepost.ledger import Archiver, Ledger, reconcile
from fencepost.ledger.reconcile import Reconciled, Reconciler
from fencepost.ledger.verify import verify
from fencepost.sql.tables import effects, jobs
from fencepost.store import RunKey
from tests.support.partition import Partition


class Scene:
    """A partition with its ledger: jobs are accepted as a durable enqueue does it, and Redis can be set back."""

    def __init__(self, partition: Partition, ledger: Ledger, archiver: Archiver, redis: redis_py.Redis) -> None:
        self.partition, self.ledger, self.archiver, self.redis = partition, ledger, archiver, redis

    def job(self, **options: Any) -> str:
        """Accept a durable job: in SQL, then in Redis."""
        spec = self.spec(**options)
        self.ledger.accept([spec])
        [(word, job_id, _)] = self.partition.enqueue(spec)
        assert (word in ("QUEUED", "SCHEDULED"), job_id) == (True, spec.id)
        return job_id

    def spec(self, **options: Any) -> JobSpec:
        return JobSpec(**{"id": self.partition.name("job-"), "kind": "mail", "durable": True, **options})

    def run(self, job_id: str) -> RunKey:
        """Claim this job, the only one there is."""
        [claimed] = self.partition.claim()
        assert claimed.job_id == job_id
        return claimed.key

    def end(self, job_id: str, word: str) -> None:
        assert self.partition.finish(self.run(job_id), word).word == "OK"
        self.archiver.copy_all()

    def copy(self) -> dict[str, tuple[bytes, int]]:
        """All keys of the partition, as a backup holds them."""
        keys = list(self.redis.scan_iter(f"{self.partition.keys.prefix}*"))
        return {key: (self.redis.dump(key) or b"", max(0, self.redis.pttl(key))) for key in keys}

    def restore(self, copy: dict[str, tuple[bytes, int]]) -> None:
        """Set Redis back to a copy."""
        self.redis.flushall()
        for key, (value, ttl_ms) in copy.items():
            self.redis.restore(key, ttl_ms, value)

    def reconcile(self, **options: Any) -> Reconciled:
        quiet_s = options.pop("quiet_s", 0.0)
        reconciler = Reconciler(self.ledger, self.partition.store, self.partition.driver, quiet_s=quiet_s)
        report = reconciler.run(**{"everything": True, **options})
        self.archiver.copy_all()
        verdict = verify(self.ledger)
        assert verdict.ok, verdict.findings
        return report

    def known(self, job_id: str) -> tuple[str, int]:
        """State and generation, as the ledger has them."""
        job = self.ledger.job(job_id)
        assert job is not None
        return job.state, job.generation


@pytest.fixture
def scene(partition: Partition, ledger: Ledger, archiver: Archiver, redis: redis_py.Redis) -> Scene:
    return Scene(partition, ledger, archiver, redis)


class TestLost:
    def test_everything_that_was_open_comes_back_under_its_own_id(self, scene: Scene, redis: redis_py.Redis):
        queued, running = scene.job(payload=b'{"to":"a"}', priority=3), scene.job(resource="order:1", queue="mails")
        scene.partition.claim(queues=("mails",))
        scene.archiver.copy_all()
        assert scene.known(running) == ("processing", 1)
        redis.flushall()
        assert scene.reconcile().counts == {"lost": 2}
        assert {scene.partition.state(queued), scene.partition.state(running)} == {"queued"}
        record = scene.partition.record(queued)
        assert (record.payload, record.priority, record.durable) == (b'{"to":"a"}', 3, True)
        assert scene.partition.record(running).resource == "order:1"
        assert (scene.known(queued), scene.known(running)) == (("queued", 1), ("queued", 1))
        assert scene.reconcile().counts == {}

    def test_what_redis_never_had_is_brought_when_it_has_been_quiet_for_a_while(self, scene: Scene):
        spec = scene.spec()
        scene.ledger.accept([spec])
        assert scene.reconcile(everything=False, quiet_s=60).counts == {}
        assert scene.partition.state(spec.id) is None
        assert scene.reconcile(everything=False).counts == {"lost": 1}
        assert scene.partition.state(spec.id) == "queued"

    @pytest.mark.parametrize(("word", "state"), [("DONE", "done"), ("BURY", "failed"), ("CANCEL", "cancelled")])
    def test_what_has_ended_is_not_revived(self, scene: Scene, redis: redis_py.Redis, word: str, state: str):
        job_id = scene.job()
        scene.end(job_id, word)
        redis.flushall()
        assert scene.reconcile().counts == {}
        assert scene.partition.state(job_id) is None
        assert scene.known(job_id) == (state, 1)

    def test_an_end_that_was_told_but_not_copied_yet_counts(self, scene: Scene):
        """The events are copied after Redis was asked and before anything is judged."""
        job_id = scene.job(retention_ms=0)
        scene.archiver.copy_all()
        assert scene.partition.finish(scene.run(job_id), "DONE").word == "OK"
        assert scene.partition.state(job_id) is None
        assert scene.reconcile().counts == {}
        assert scene.known(job_id) == ("done", 1)

    def test_a_delay_goes_on_where_it_was(self, scene: Scene, redis: redis_py.Redis):
        job_id = scene.job(delay_ms=3_600_000)
        with scene.ledger.begin("test") as connection:
            connection.execute(update(jobs).values(created_at_ms=jobs.c.created_at_ms - 1_800_000))
        moment = scene.job(run_at_ms=4_000_000_000_000)
        redis.flushall()
        assert scene.reconcile().counts == {"lost": 2}
        record = scene.partition.record(job_id)
        assert record.state == "scheduled"
        assert 1_790_000 < record.due_at - record.created_at <= 1_800_000
        assert scene.partition.record(moment).due_at == 4_000_000_000_000

    def test_a_requeued_job_comes_back_in_its_generation(self, scene: Scene, redis: redis_py.Redis):
        job_id = scene.job(delay_ms=1_000)
        scene.partition.cancel(job_id)
        scene.partition.requeue(job_id)
        scene.archiver.copy_all()
        assert scene.known(job_id) == ("queued", 2)
        redis.flushall()
        assert scene.reconcile().counts == {"lost": 1}
        record = scene.partition.record(job_id)
        assert (record.state, record.generation) == ("queued", 2)
        assert scene.known(job_id) == ("queued", 2)

    def test_a_dry_run_lists_and_changes_nothing(self, scene: Scene, redis: redis_py.Redis):
        job_id = scene.job()
        scene.archiver.copy_all()
        redis.flushall()
        report = scene.reconcile(dry_run=True)
        assert [(one.job_id, one.what, one.sql, one.redis) for one in report.divergences] == [
            (job_id, "lost", "queued", "")
        ]
        assert scene.partition.state(job_id) is None
        assert scene.reconcile().counts == {"lost": 1}


class TestOneThatStoodStill:
    """What it read is old: meanwhile another may have put the job back, which ran, and is gone by now."""

    @pytest.fixture
    def stall(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float, Any], None]]:
        """Let the reconciler stand still once, right after it has read the rows it judges: `stall(seconds, meanwhile)`.
        Only the clock moves, and what others do meanwhile is done."""
        waits: list[tuple[float, Any]] = []
        ahead_s = 0.0
        monkeypatch.setattr(reconcile, "boottime_s", lambda: ahead_s)

        def after(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            nonlocal ahead_s
            if waits and "FROM fencepost_jobs" in statement and "job_id IN" in statement and "spec" in statement:
                seconds, meanwhile = waits.pop()
                ahead_s += seconds
                meanwhile()

        event.listen(ledger.engine, "after_cursor_execute", after)
        yield lambda seconds, meanwhile: waits.append((seconds, meanwhile))
        event.remove(ledger.engine, "after_cursor_execute", after)
        assert not waits, "it never stood still"

    def test_a_job_that_was_restored_and_ended_meanwhile_is_not_pushed_again(
        self, scene: Scene, redis: redis_py.Redis, stall: Callable[[float, Any], None]
    ):
        job_id = scene.job(retention_ms=0)
        scene.archiver.copy_all()
        redis.flushall()

        def meanwhile() -> None:
            assert scene.reconcile().counts == {"lost": 1}
            scene.end(job_id, "DONE")
            assert scene.partition.state(job_id) is None

        stall(3.0, meanwhile)
        assert scene.reconcile().counts == {}
        assert scene.partition.state(job_id) is None
        assert scene.partition.claim() == []
        assert scene.known(job_id) == ("done", 1)

    def test_a_job_that_was_requeued_meanwhile_is_left_alone(self, scene: Scene, stall: Callable[[float, Any], None]):
        job_id = scene.job()
        scene.end(job_id, "BURY")
        older = scene.copy()
        scene.partition.requeue(job_id)
        scene.archiver.copy_all()
        scene.restore(older)

        def meanwhile() -> None:
            assert scene.reconcile().counts == {"undone": 1}
            scene.end(job_id, "BURY")

        stall(3.0, meanwhile)
        scene.reconcile()
        assert scene.partition.state(job_id) == "failed"
        assert scene.known(job_id) == ("failed", 2)

    def test_a_short_pause_is_none_and_after_a_long_one_the_next_round_acts(
        self, scene: Scene, redis: redis_py.Redis, stall: Callable[[float, Any], None]
    ):
        jobs_ = [scene.job(), scene.job()]
        scene.archiver.copy_all()
        redis.flushall()
        stall(3_600.0, lambda: None)
        assert scene.reconcile().counts == {}
        assert [scene.partition.state(one) for one in jobs_] == [None, None]
        assert [scene.known(one) for one in jobs_] == [("queued", 1), ("queued", 1)]
        stall(2.0, lambda: None)
        assert scene.reconcile().counts == {"lost": 2}
        assert [scene.partition.state(one) for one in jobs_] == ["queued", "queued"]


class TestKeysThatAreTaken:
    def test_a_lost_job_whose_dedup_key_another_has_by_now_ends_as_its_duplicate(
        self, scene: Scene, redis: redis_py.Redis
    ):
        lost = scene.job(dedup="mail:1")
        redis.flushall()
        other = scene.job(dedup="mail:1")
        assert scene.reconcile().counts == {"duplicate": 1}
        assert scene.known(lost) == ("cancelled", 1)
        job = scene.ledger.job(lost)
        assert job is not None
        assert job.reason == "duplicate"
        assert scene.partition.state(other) == "queued"
        assert scene.reconcile().counts == {}

    def test_a_request_that_was_repeated_meanwhile_is_one_job(self, scene: Scene, redis: redis_py.Redis):
        lost = scene.job(idem="a:1", fingerprint="x")
        redis.flushall()
        scene.job(idem="a:1", fingerprint="x")
        assert scene.reconcile().counts == {"duplicate": 1}
        assert scene.known(lost) == ("cancelled", 1)

    def test_a_key_that_another_request_took_meanwhile_does_not_cost_the_job(self, scene: Scene, redis: redis_py.Redis):
        lost = scene.job(idem="a:1", fingerprint="x")
        redis.flushall()
        scene.job(idem="a:1", fingerprint="y")
        assert scene.reconcile().counts == {"lost": 1}
        assert scene.partition.state(lost) == "queued"

    def test_a_key_that_outlived_its_job_brings_the_job_back(self, scene: Scene, redis: redis_py.Redis):
        lost = scene.job(idem="a:1", fingerprint="x", dedup="mail:1")
        scene.archiver.copy_all()
        redis.delete(scene.partition.keys.job(lost))
        assert scene.reconcile().counts == {"lost": 1}
        assert scene.partition.state(lost) == "queued"


class TestAnOlderCopy:
    @pytest.mark.parametrize("durable", [True, False])
    def test_what_has_ended_is_ended_again_before_anybody_runs_it(self, scene: Scene, durable: bool):
        job_id = scene.job() if durable else scene.partition.job()
        older = scene.copy()
        scene.end(job_id, "DONE")
        scene.restore(older)
        assert scene.partition.state(job_id) == "queued"
        assert scene.reconcile().counts == {"revived": 1}
        record = scene.partition.record(job_id)
        assert (record.state, record.reason, record.result) == ("done", "ledger", None)
        assert scene.partition.claim() == []
        assert scene.known(job_id) == ("done", 1)
        assert scene.reconcile().counts == {}

    def test_a_run_that_the_copy_brings_back_is_dead(self, scene: Scene):
        job_id = scene.job(resource="order:1")
        run = scene.run(job_id)
        older = scene.copy()
        assert scene.partition.finish(run, "BURY").word == "OK"
        scene.archiver.copy_all()
        scene.restore(older)
        assert scene.reconcile().counts == {"revived": 1}
        assert scene.partition.finish(run, "DONE").word == "STALE"
        record = scene.partition.record(job_id)
        assert (record.state, record.reason) == ("failed", "permanent")
        assert scene.known(job_id) == ("failed", 1)

    def test_the_result_comes_from_the_guarded_effect_where_there_is_exactly_one(self, scene: Scene):
        one, two = scene.job(), scene.job()
        older = scene.copy()
        for claimed in scene.partition.claim(2):
            assert scene.partition.finish(claimed.key, "DONE").word == "OK"
        scene.archiver.copy_all()
        with scene.ledger.begin("test") as connection:
            for job_id, name in ((one, "a"), (two, "a"), (two, "b")):
                row = {"namespace": scene.ledger.namespace, "effect_key": f"{job_id}:{name}", "job_id": job_id}
                connection.execute(
                    effects.insert(), row | {"token": 1, "nonce": "n", "result": '"no. 7"', "created_at_ms": 1}
                )
        scene.restore(older)
        assert scene.reconcile().counts == {"revived": 2}
        assert scene.partition.record(one).result == b'"no. 7"'
        assert scene.partition.record(two).result is None

    def test_a_requeue_that_the_copy_does_not_know_is_made_again(self, scene: Scene):
        job_id = scene.job()
        scene.end(job_id, "BURY")
        older = scene.copy()
        scene.partition.requeue(job_id)
        scene.archiver.copy_all()
        assert scene.known(job_id) == ("queued", 2)
        scene.restore(older)
        assert scene.reconcile().counts == {"undone": 1}
        record = scene.partition.record(job_id)
        assert (record.state, record.generation) == ("queued", 2)
        assert scene.known(job_id) == ("queued", 2)

    def test_a_job_that_was_requeued_after_its_end_goes_on(self, scene: Scene):
        job_id = scene.job()
        scene.end(job_id, "BURY")
        scene.partition.requeue(job_id)
        assert scene.reconcile().counts == {}
        assert scene.partition.state(job_id) == "queued"

    def test_an_id_that_is_used_anew_after_its_retention_is_another_job(self, scene: Scene, redis: redis_py.Redis):
        job_id = scene.job()
        scene.end(job_id, "DONE")
        redis.delete(scene.partition.keys.job(job_id))
        with scene.ledger.begin("test") as connection:
            connection.execute(update(jobs).values(finished_at_ms=jobs.c.finished_at_ms - 90_000_000))
        scene.partition.job(id=job_id)
        assert scene.reconcile().counts == {}
        assert scene.partition.state(job_id) == "queued"

    def test_jobs_that_ended_otherwise_are_only_named(self, scene: Scene):
        job_id = scene.job()
        older = scene.copy()
        scene.end(job_id, "DONE")
        scene.restore(older)
        assert scene.partition.finish(scene.run(job_id), "BURY").word == "OK"
        report = scene.reconcile()
        assert [(one.job_id, one.what, one.sql, one.redis) for one in report.divergences] == [
            (job_id, "differs", "done", "failed")
        ]
        assert scene.known(job_id) == ("done", 1)


def test_an_end_whose_event_was_lost_is_learnt_from_the_job_itself(scene: Scene, redis: redis_py.Redis):
    job_id = scene.job()
    scene.archiver.copy_all()
    assert scene.partition.finish(scene.run(job_id), "BURY").word == "OK"
    redis.xtrim(scene.partition.keys.events, maxlen=0)
    report = scene.reconcile(everything=False)
    assert [(one.job_id, one.what, one.sql, one.redis) for one in report.divergences] == [
        (job_id, "untold", "queued", "failed")
    ]
    job = scene.ledger.job(job_id)
    assert job is not None
    assert (job.state, job.reason) == ("failed", "permanent")
    assert job.finished_at_ms == scene.partition.record(job_id).finished_at


def test_more_jobs_than_one_call_takes_all_come_back(scene: Scene, redis: redis_py.Redis):
    specs = [scene.spec() for _ in range(1_203)]
    for at in range(0, len(specs), 500):
        scene.ledger.accept(specs[at : at + 500])
        scene.partition.enqueue(*specs[at : at + 500])
    redis.flushall()
    report = scene.reconcile()
    assert (report.counts, len(report.divergences)) == ({"lost": 1_203}, 1_000)
    assert redis.zcard(scene.partition.keys.ready("default")) == 1_203
