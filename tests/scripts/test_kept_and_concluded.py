"""What a run keeps for later ones, and jobs that the ledger ends or puts back."""

from __future__ import annotations

import pytest

from fencepost.errors import ScriptError
from fencepost.job import JobSpec

# -- kept values ------------------------------------------------------------------------------------------


def test_a_kept_value_and_its_event_come_in_one_step_and_a_repetition_tells_nothing(partition):
    run = partition.put("processing", resource="thing")
    known = len(partition.told())
    for value in (b"1", b"1", b"2", b"1"):
        assert partition.checkpoint(run, value, "outside:mail", "intent", "mail begins").word == "OK"
    told = partition.told(after=known)
    assert told == [("intent", run.job_id, "mail", run.token, run.nonce, "", "mail begins", "thing")] * 3
    assert partition.record(run.job_id).outside == {"mail": b"1"}


@pytest.mark.parametrize("field", ["state", "token", "nonce", "step:", "outside:", "steps", "", "bumped", "progress:a"])
def test_no_field_but_those_of_the_contract_can_be_written(partition, field):
    run = partition.put("processing")
    before = partition.dump()
    with pytest.raises(ScriptError, match="no field"):
        partition.checkpoint(run, b"1", field)
    assert partition.dump() == before


def test_steps_and_effects_survive_a_requeue_and_the_checkpoint_does_not(partition):
    """What was done stays done; where a run had come to is the business of its own generation."""
    run = partition.put("processing")
    queue = partition.record(run.job_id).queue
    for field in ("step:load", "outside:mail", "checkpoint", "progress"):
        partition.checkpoint(run, b"1", field)
    partition.finish(run, "BURY")
    partition.requeue(run.job_id)
    record = partition.record(run.job_id)
    assert (record.steps, record.outside, record.checkpoint, record.progress) == (
        {"load": b"1"},
        {"mail": b"1"},
        None,
        None,
    )
    [again] = partition.claim(queues=(queue,))
    assert (again.attempt, again.again) == (1, True)


@pytest.mark.parametrize("options", [{}, {"resource": "thing"}, {"generation": 4}])
@pytest.mark.parametrize("how", ["RETRY", "RELEASE", "lost", "requeued"])
def test_a_run_is_told_whether_an_earlier_one_may_have_left_something(partition, options, how):
    """Also where the answer of its claim was lost and it is handed out a second time."""
    partition.job(**options)
    [first] = partition.claim()
    assert not first.again
    if how == "lost":
        partition.take_back(first.key)
    elif how == "requeued":
        partition.finish(first.key, "BURY")
        partition.requeue(first.job_id)
    else:
        partition.finish(first.key, how)
    call = partition.store.claim(partition.request(1))
    for _ in range(2):
        [second] = partition.run(call).jobs
        assert second.again
        assert second.attempt == (2 if how == "RETRY" else 1)


def test_the_first_run_of_a_plain_job_is_the_first_in_a_replay_too(partition):
    partition.job()
    call = partition.store.claim(partition.request(1))
    assert [partition.run(call).jobs[0].again for _ in range(2)] == [False, False]


# -- conclude ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["scheduled", "queued", "waiting", "processing"])
@pytest.mark.parametrize("to", ["done", "failed", "cancelled"])
def test_a_job_is_ended_as_the_ledger_says_and_its_run_is_dead(partition, state, to):
    run = partition.put(state, resource="thing", dedup="k")
    before = partition.record(run.job_id)
    known = len(partition.told())
    assert partition.conclude(run.job_id, to, reason="as known", result=b"[1]") == ("CONCLUDED", state)
    record = partition.record(run.job_id)
    assert (record.state, record.reason, record.result) == (to, "as known", b"[1]")
    assert record.finished_at >= before.created_at
    assert partition.redis.pttl(partition.keys.job(run.job_id)) > 0
    assert not partition.redis.exists(
        partition.keys.dedup("k"), partition.keys.later, partition.keys.ready(before.queue)
    )
    assert (partition.redis.zscore(partition.keys.dead, run.job_id) is not None) == (to == "failed")
    told = partition.told(after=known)[0]
    assert told[:3] + told[6:] == ("concluded", run.job_id, "mail", to, "thing")
    assert told.token == str(record.token)
    assert partition.stats()["concluded:mail"] == 1
    assert f"{to}:mail" not in partition.stats()
    if state == "processing":
        assert record.token > int(run.token)
        assert partition.finish(run, "RETRY") == ("STALE", str(record.token))
        assert partition.renew(run) == [("STALE", str(record.token))]
    assert partition.enqueue(JobSpec(id="new", kind="mail", dedup="k"))[0][0] == "QUEUED"


def test_what_waited_behind_a_concluded_run_gets_its_place(partition):
    run = partition.put("processing", resource="thing")
    next_one = partition.job(resource="thing")
    partition.claim()
    partition.redis.delete(partition.keys.bell("default"))
    assert partition.conclude(run.job_id).word == "CONCLUDED"
    assert partition.redis.llen(partition.keys.bell("default")) == 1, "an idle worker is woken for it"
    assert [one.job_id for one in partition.claim()] == [next_one]


@pytest.mark.parametrize("holder", [0, 1])
def test_a_holder_and_the_one_behind_it_can_be_ended_in_one_call(partition, holder):
    """The first item hands the place to the second, which has to leave the queue it came into just now."""
    run = partition.put("processing", resource="thing")
    behind = partition.job(resource="thing")
    partition.claim()
    ended = [(run.job_id, 1, "done", "", b""), (behind, 1, "done", "", b"")]
    answers = partition.run(partition.store.conclude(ended[::-1] if holder else ended))
    assert sorted(answers) == [("CONCLUDED", "processing"), ("CONCLUDED", "waiting")]
    keys = partition.keys
    assert not partition.redis.exists(keys.ready("default"), keys.leases, keys.slots("thing"), keys.line("thing"))


@pytest.mark.parametrize(("known", "word"), [(1, "NEWER"), (2, "CONCLUDED"), (3, "CONCLUDED")])
def test_a_job_that_was_requeued_since_is_left_alone(partition, known, word):
    run = partition.put("failed")
    partition.requeue(run.job_id)
    before = partition.dump()
    answer = partition.conclude(run.job_id, generation=known)
    assert answer == (word, "2" if word == "NEWER" else "queued")
    assert (partition.dump() == before) == (word == "NEWER")


def test_a_job_that_the_ledger_puts_back_keeps_its_generation(partition):
    job_id = partition.job(durable=True, generation=4)
    record = partition.record(job_id)
    assert (record.durable, record.generation) == (True, 4)
    assert partition.conclude(job_id, generation=3) == ("NEWER", "4")
    [run] = partition.claim()
    partition.finish(run.key, "BURY")
    assert partition.requeue(job_id) == [("REQUEUED", "5")]
    assert partition.record(job_id).generation == 5


def test_a_state_that_is_not_final_is_refused_before_anything_is_ended(partition):
    first, second = partition.job(), partition.job()
    before = partition.dump()
    with pytest.raises(ScriptError, match="queued is no final state"):
        partition.run(partition.store.conclude([(first, 1, "done", "", b""), (second, 1, "queued", "", b"")]))
    assert partition.dump() == before


def test_a_torn_record_is_ended_with_the_others(partition):
    """Without a queue it stands in no list; the items beside it must not be left half done."""
    torn, whole = partition.job(), partition.job()
    partition.redis.zrem(partition.keys.ready("default"), torn)
    partition.redis.hdel(partition.keys.job(torn), "queue", "kind")
    ended = [(whole, 1, "done", "", b""), (torn, 1, "done", "", b"")]
    assert partition.run(partition.store.conclude(ended)) == [("CONCLUDED", "queued")] * 2
    assert [partition.state(one) for one in (torn, whole)] == ["done", "done"]
