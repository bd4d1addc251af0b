"""An operator changes many jobs at once: each has an outcome of its own, and nothing stops the rest."""

from __future__ import annotations

import pytest

from fencepost.errors import ConfigurationError
from fencepost.operate import DeadFilter


@pytest.fixture
def graveyard(partition):
    """Fill the dead letters: `graveyard(count, reason=, error_class=, kind=)` returns the ids."""

    def bury(count, *, reason="permanent", error_class="Oops", kind="mail"):
        ids: list[str] = []
        while len(ids) < count:
            jobs = [partition.job(kind=kind) for _ in range(min(100, count - len(ids)))]
            claims = partition.claim(len(jobs))
            outcomes = [partition.outcome(one.key, "BURY", reason, error_class, "it broke") for one in claims]
            partition.run(partition.store.finish(outcomes, partition.request()))
            ids += jobs
        return ids

    return bury


def test_replay_of_all_goes_past_records_that_are_gone_and_drops_them(partition, operator, graveyard):
    """report: rq/rq#1963"""
    ids = graveyard(1_000)
    lost = ids[50:1000:100]
    partition.redis.delete(*map(partition.keys.job, lost))
    assert len(operator.run_sync(operator.dead(limit=1_000)).items) == 990
    report = operator.run_sync(operator.requeue_all(DeadFilter()))
    assert (report.matched, report.done) == (990, 990)
    assert sorted(report.missing) == sorted(lost)
    assert report.verdict == "partial"
    assert partition.redis.zcard(partition.keys.dead) == 0
    assert partition.redis.zcard(partition.keys.ready("default")) == 990
    assert operator.run_sync(operator.requeue_all(DeadFilter())).verdict == "ok"


def test_a_dry_run_counts_and_changes_nothing(partition, operator, graveyard):
    ids = graveyard(5)
    partition.redis.delete(partition.keys.job(ids[0]))
    before = partition.dump()
    for report in (
        operator.run_sync(operator.requeue_all(DeadFilter(), dry_run=True)),
        operator.run_sync(operator.purge_all(DeadFilter(), dry_run=True)),
    ):
        assert (report.dry_run, report.matched, report.done, report.missing) == (True, 4, 0, [ids[0]])
    assert partition.dump() == before


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ({}, 9),
        ({"kind": "sms"}, 4),
        ({"reason": "exhausted"}, 3),
        ({"error_class": "Timeout"}, 4),
        ({"kind": "mail", "reason": "permanent"}, 2),
        ({"kind": "mail", "reason": "no-such"}, 0),
        ({"older_than_s": 3600}, 0),
    ],
)
def test_a_filter_means_the_dead_letters_that_agree_with_all_its_parts(operator, graveyard, chosen, count):
    graveyard(2)
    graveyard(3, reason="exhausted")
    graveyard(4, kind="sms", error_class="Timeout")
    assert len(operator.run_sync(operator.dead(DeadFilter(**chosen))).items) == count
    assert operator.run_sync(operator.purge_all(DeadFilter(**chosen))).done == count
    assert len(operator.run_sync(operator.dead()).items) == 9 - count


def test_older_than_leaves_what_failed_lately(operator, graveyard, clock):
    old = graveyard(2)
    clock.advance(7_200)
    new = graveyard(2)
    chosen = DeadFilter(older_than_s=3_600)
    assert [one.id for one in operator.run_sync(operator.dead(chosen)).items] == old[::-1]
    assert operator.run_sync(operator.purge_all(chosen)).done == 2
    assert [one.id for one in operator.run_sync(operator.dead()).items] == new[::-1]


def test_the_same_dead_letter_is_replayed_once_however_often_it_is_asked_for(partition, operator, graveyard):
    """report: laravel/horizon#310"""
    [job_id] = graveyard(1)
    first = operator.run_sync(operator.requeue([job_id, job_id]))
    second = operator.run_sync(operator.requeue([job_id]))
    assert [(one.id, one.word, one.detail) for one in first.outcomes] == [(job_id, "requeued", "2")]
    assert [(one.word, one.detail) for one in second.outcomes] == [("illegal", "queued")]
    assert (first.verdict, second.verdict) == ("ok", "refused")
    assert partition.redis.zcard(partition.keys.ready("default")) == 1


def test_a_replayed_job_has_fresh_counters_and_its_history(partition, operator):
    """report: taskforcesh/bullmq#3555"""
    job_id = partition.job(max_crashes=0)
    partition.take_back(partition.claim()[0].key)
    view = operator.run_sync(operator.job(job_id))
    assert (view.record.state, view.record.reason, view.record.crashes) == ("failed", "poison", 1)
    operator.run_sync(operator.requeue([job_id]))
    [again] = partition.claim()
    view = operator.run_sync(operator.job(job_id, history=True))
    assert (view.record.attempts, view.record.crashes, view.record.generation) == (1, 0, 2)
    assert [one.name for one in view.history] == ["enqueued", "acquired", "lost", "failed", "requeued", "acquired"]
    assert int(again.token) > int(view.history[1].token)


def test_each_id_has_its_own_outcome_in_the_order_given(partition, operator):
    failed, live = partition.put("failed").job_id, partition.put("processing").job_id
    report = operator.run_sync(operator.purge([live, "no-such-job", failed]))
    assert [(one.id, one.word) for one in report.outcomes] == [
        (live, "illegal"),
        ("no-such-job", "gone"),
        (failed, "purged"),
    ]
    assert (report.matched, report.done, report.verdict) == (3, 1, "partial")
    assert operator.run_sync(operator.purge(["no-such-job"])).verdict == "missing"


def test_a_dead_letter_whose_dedup_key_has_a_newer_owner_is_not_replayed(partition, operator):
    job_id = partition.put("failed", dedup="k1").job_id
    newer = partition.job(dedup="k1")
    report = operator.run_sync(operator.requeue_all(DeadFilter()))
    assert [(one.id, one.word, one.detail) for one in report.refused] == [(job_id, "duplicate", newer)]
    assert report.verdict == "refused"


def test_cancelling_tells_for_each_job_whether_it_ended_or_was_asked(partition, operator):
    queued, running, done = (partition.put(state).job_id for state in ("queued", "processing", "done"))
    report = operator.run_sync(operator.cancel([queued, running, done]))
    assert [one.word for one in report.outcomes] == ["cancelled", "asked", "illegal"]
    report = operator.run_sync(operator.cancel([running], hard=True, reason="by hand"))
    assert [one.word for one in report.outcomes] == ["cancelled"]
    assert partition.record(running).reason == "by hand"


def test_a_reason_of_more_than_a_line_is_refused(partition, operator):
    with pytest.raises(ConfigurationError, match="reason"):
        operator.run_sync(operator.cancel([partition.job()], reason="two\nlines"))
