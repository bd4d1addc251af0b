"""What each outcome leaves in the record of its job, and what becomes of its place in the queue and at the resource."""

from __future__ import annotations

import pytest

from tests.support.partition import Partition


@pytest.mark.parametrize(
    ("word", "values", "state", "attempts", "releases", "reason", "error"),
    [
        ("DONE", (b"[1]",), "done", 1, 0, None, None),
        ("BURY", ("permanent", "Oops", "it broke"), "failed", 1, 0, "permanent", "it broke"),
        ("CANCEL", ("enough",), "cancelled", 1, 0, "enough", None),
        ("RETRY", (0, "Oops", "it broke"), "queued", 1, 0, None, "it broke"),
        ("RETRY", (9_000, "Oops", "it broke"), "scheduled", 1, 0, None, "it broke"),
        ("RELEASE", (0, "shutdown"), "queued", 0, 1, None, None),
        ("RELEASE", (9_000, "snooze"), "scheduled", 0, 1, None, None),
    ],
)
def test_an_outcome_writes_its_own_fields_and_charges_an_attempt_only_where_one_was_used(
    partition, word, values, state, attempts, releases, reason, error
):
    run = partition.put("processing")
    assert partition.finish(run, word, *values).word == "OK"
    record = partition.record(run.job_id)
    assert (record.state, record.attempts, record.releases, record.crashes) == (state, attempts, releases, 0)
    assert (record.reason, record.error) == (reason, error)
    assert record.result == (b"[1]" if word == "DONE" else None)
    assert (record.due_at is not None) == (state == "scheduled")
    assert record.token == int(run.token)


def test_a_lost_run_charges_a_crash_and_no_attempt_until_the_crashes_are_used_up(partition):
    """report: boringnode/queue#30"""
    job_id = partition.job(max_crashes=2)
    for crashes in (1, 2, 3):
        [run] = partition.claim()
        assert (run.attempt, run.crashes) == (1, crashes - 1)
        partition.take_back(run.key)
        record = partition.record(job_id)
        assert (record.crashes, record.attempts) == (crashes, 0)
    assert (record.state, record.reason) == ("failed", "poison")
    assert "the lease ran out 3 times" in record.error
    assert partition.redis.zscore(partition.keys.dead, job_id) is not None
    assert record.payload == b'{"to":"a"}'


def test_a_released_job_keeps_its_place_and_a_retried_one_goes_behind_those_that_wait(partition):
    first = partition.job()
    [run] = partition.claim()
    second = partition.job()
    partition.finish(run.key, "RELEASE")
    [run] = partition.claim()
    assert run.job_id == first
    partition.finish(run.key, "RETRY")
    assert [one.job_id for one in partition.claim(2)] == [second, first]


@pytest.mark.parametrize(("ordered", "next_in_line"), [(True, 0), (False, 1)])
def test_a_retry_keeps_its_place_at_the_resource_only_if_order_matters(partition, ordered, next_in_line):
    jobs = [partition.job(resource="thing", ordered=ordered) for _ in range(2)]
    [run] = partition.claim(2)
    assert run.job_id == jobs[0]
    partition.finish(run.key, "RETRY")
    assert [one.job_id for one in partition.claim(2)] == [jobs[next_in_line]]


def test_a_lost_run_is_the_first_to_get_its_resource_back(partition):
    jobs = [partition.job(resource="thing") for _ in range(3)]
    [run] = partition.claim(3)
    partition.take_back(run.key)
    assert [one.job_id for one in partition.claim(3)] == [jobs[0]]


def test_a_checkpoint_and_the_crashes_go_to_the_next_run(partition):
    run = partition.put("processing")
    queue = partition.record(run.job_id).queue
    partition.checkpoint(run, b'{"page":3}')
    partition.checkpoint(run, b"0.5", "progress")
    partition.take_back(run)
    [again] = partition.claim(queues=(queue,))
    assert (again.checkpoint, again.crashes, again.attempt) == (b'{"page":3}', 1, 1)


def test_a_run_that_finishes_although_it_was_asked_to_cancel_is_done(partition):
    """The cancel was a request, and it came too late. What the run did stands."""
    run = partition.put("processing")
    assert partition.cancel(run.job_id).word == "ASKED"
    assert partition.finish(run, "DONE") == ("OK", "")
    assert partition.state(run.job_id) == "done"


def test_each_outcome_is_told_with_the_run_it_belongs_to(partition: Partition):
    names = {"DONE": "done", "BURY": "failed", "CANCEL": "cancelled", "RETRY": "retry_scheduled", "RELEASE": "released"}
    for word, name in names.items():
        run = partition.put("processing", resource="thing")
        partition.finish(run, word)
        told = [t for t in partition.told() if t.job_id == run.job_id]
        assert [t.name for t in told] == ["enqueued", "acquired", name]
        assert told[2][1:5] == (run.job_id, "mail", run.token, run.nonce)
        assert told[1][1:6] == (run.job_id, "mail", run.token, run.nonce, "1")
