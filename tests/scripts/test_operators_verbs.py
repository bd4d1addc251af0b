"""What operators may do with a job in each state, and what a resource answers in each of its states."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.driver import Call
from fencepost.job import JobSpec
from fencepost.states import TERMINAL
from tests.support.partition import STATES, Partition

ENDED = ("done", "failed", "cancelled")
VERBS = ("cancel", "cancel hard", "requeue", "purge", "heal", "enqueue")


def call_of(p: Partition, verb: str, job_id: str) -> Call[Any]:
    calls: dict[str, Call[Any]] = {
        "cancel": p.store.cancel(job_id, "ask"),
        "cancel hard": p.store.cancel(job_id, "ask", hard=True),
        "requeue": p.store.requeue([job_id], "ask"),
        "purge": p.store.purge([job_id], "tidy"),
        "heal": p.store.heal([job_id]),
        "enqueue": p.store.enqueue([JobSpec(id=job_id, kind="other", payload=b"{}")]),
    }
    return calls[verb]


def answer_of(verb: str, state: str, job_id: str) -> tuple[str, ...]:
    ended = state in ENDED
    if verb.startswith("cancel"):
        if ended:
            return ("ILLEGAL", state)
        return ("ASKED" if verb == "cancel" and state == "processing" else "CANCELLED", state)
    if verb == "requeue":
        return ("REQUEUED", "2") if state in ("failed", "cancelled") else ("ILLEGAL", state)
    if verb == "purge":
        return ("PURGED" if ended else "ILLEGAL", state)
    if verb == "heal":
        return ("SOUND", state)
    return ("SCHEDULED" if state == "scheduled" else "QUEUED", job_id, state)


def one_answer(answer: Any) -> tuple[str, ...]:
    return tuple(answer if isinstance(answer[0], str) else answer[0])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_answers_for_each_state_and_answers_again_without_a_further_change(partition, verb, state):
    run = partition.put(state, resource="thing", dedup="thing")
    partition.put("waiting", resource="innocent")
    before, counted, known = partition.matter(), partition.stats(), len(partition.told())
    call, wanted = call_of(partition, verb, run.job_id), answer_of(verb, state, run.job_id)
    assert one_answer(partition.run(call)) == wanted
    if wanted[0] in ("ILLEGAL", "SOUND") or verb == "enqueue":
        assert (partition.matter(), partition.stats(), len(partition.told())) == (before, counted, known)
    else:
        assert partition.matter() != before
        assert len(partition.told()) == known + 1
    after, counted, known = partition.matter(), partition.stats(), len(partition.told())
    again = ("GONE", "") if wanted[0] == "PURGED" else wanted
    assert one_answer(partition.run(call)) == again
    assert (partition.matter(), partition.stats(), len(partition.told())) == (after, counted, known)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "enqueue"])
def test_a_job_that_does_not_exist_is_gone_for_every_verb(partition, verb):
    partition.put("failed")
    before, counted = partition.matter(), partition.stats()
    for _ in range(2):
        assert one_answer(partition.run(call_of(partition, verb, "nobody"))) == ("GONE", "")
        assert (partition.matter(), partition.stats()) == (before, counted)


@pytest.mark.parametrize("state", [state for state in STATES if state != "queued"])
def test_a_claim_hands_out_only_what_is_queued_whatever_stands_in_the_queue(partition, state):
    """An entry that a half restored partition left behind is dropped and counted, not run."""
    run = partition.put(state)
    before = partition.matter()
    partition.redis.zadd(partition.keys.ready("stray"), {run.job_id: 5})
    assert partition.claim(5, queues=("stray",)) == []
    assert partition.matter() == before
    assert partition.stats()["orphan:ready"] == 1


def test_a_hard_cancel_frees_the_place_and_hands_it_over_in_the_same_step(partition):
    run = partition.put("processing", resource="thing", dedup="thing")
    waiter = partition.job(resource="thing")
    assert partition.claim() == []
    partition.cancel(run.job_id, hard=True, reason="stop it")
    assert partition.state(waiter) == "queued"
    record = partition.record(run.job_id)
    assert (record.state, record.reason, record.nonce) == ("cancelled", "stop it", "")
    assert record.token > int(run.token)
    assert partition.redis.exists(partition.keys.dedup("thing")) == 0
    assert [one.job_id for one in partition.claim()] == [waiter]


def test_a_requeued_job_starts_with_fresh_counters_and_keeps_its_history(partition):
    """report: taskforcesh/bullmq#3555"""
    run = partition.put("failed", dedup="thing", max_crashes=3)
    partition.redis.hset(partition.keys.job(run.job_id), mapping={"crashes": 3, "releases": 9})
    assert partition.requeue(run.job_id) == [("REQUEUED", "2")]
    record = partition.record(run.job_id)
    assert (record.attempts, record.crashes, record.releases, record.generation) == (0, 0, 0, 2)
    assert (record.error, record.reason, record.finished_at) == ("it broke", None, None)
    assert partition.redis.pttl(partition.keys.job(run.job_id)) == -1
    assert partition.redis.get(partition.keys.dedup("thing")) == run.job_id.encode()
    [again] = partition.claim(queues=(record.queue,))
    assert (again.attempt, again.crashes) == (1, 0)


def test_a_requeue_starts_no_generation_below_the_least_that_is_asked_for(partition):
    low, high = partition.put("failed").job_id, partition.put("failed").job_id
    for _ in range(3):
        partition.requeue(high)
        partition.cancel(high)
    answers = partition.run(partition.store.requeue([low, high], "ask", 3))
    assert [tuple(one) for one in answers] == [("REQUEUED", "3"), ("REQUEUED", "5")]
    assert [partition.record(one).generation for one in (low, high)] == [3, 5]
    partition.cancel(low)
    assert partition.requeue(low) == [("REQUEUED", "4")]


def test_a_requeue_from_two_sessions_starts_one_run(partition):
    """report: laravel/horizon#310"""
    run = partition.put("failed")
    assert partition.requeue(run.job_id, request="first") == [("REQUEUED", "2")]
    assert partition.requeue(run.job_id, request="second") == [("ILLEGAL", "queued")]
    assert partition.requeue(run.job_id, request="first") == [("REQUEUED", "2")]
    queue = partition.record(run.job_id).queue
    assert partition.redis.zcard(partition.keys.ready(queue)) == 1
    assert partition.stats()["requeued:mail"] == 1


def test_a_purge_frees_only_a_dedup_key_that_is_still_its_own(partition):
    """report: taskforcesh/bullmq#3232"""
    old = partition.put("failed", dedup="thing")
    owner = partition.job(dedup="thing", delay_ms=3_600_000)
    assert partition.purge(old.job_id) == [("PURGED", "failed")]
    [(word, job_id, _)] = partition.enqueue(JobSpec(id="third", kind="mail", dedup="thing"))
    assert (word, job_id) == ("DUPLICATE", owner)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_job_has_a_ttl_its_place_in_one_list_and_no_key_of_a_live_one(partition, state):
    run = partition.put(state, resource="thing", dedup="thing", retention_ms=50_000, failed_retention_ms=70_000)
    left = partition.redis.pttl(partition.keys.job(run.job_id))
    limit = 70_000 if state == "failed" else 50_000
    assert limit - 20_000 < left <= limit
    listed = partition.redis.zscore(partition.keys.dead, run.job_id) is not None
    assert listed == (state == "failed")
    assert (run.job_id.encode() in partition.redis.lrange(partition.keys.recent, 0, -1)) == (state != "failed")
    assert not partition.redis.exists(partition.keys.dedup("thing"), partition.keys.slots("thing"))


# -- stand-alone leases -----------------------------------------------------------------------------------


def held_by_a_job(p: Partition) -> None:
    p.put("processing", resource="thing")


def held_by_a_lease(p: Partition) -> None:
    p.acquire("thing", "holder")


def reserved_for_a_job(p: Partition) -> None:
    _, token, _ = p.acquire("thing", "holder")
    p.job(resource="thing")
    p.claim()
    p.release("holder", token)


@pytest.mark.parametrize("taken", [held_by_a_job, held_by_a_lease, reserved_for_a_job])
def test_a_resource_that_is_taken_is_busy_or_makes_one_wait_whoever_has_it(partition, taken):
    taken(partition)
    before = partition.matter()
    holder, until = partition.redis.zrange(partition.keys.slots("thing"), 0, 0, withscores=True)[0]
    for _ in range(2):
        assert partition.acquire("thing", "me") == ("BUSY", holder.decode(), str(int(until)))
        assert partition.matter() == before
    assert partition.acquire("thing", "me", wait_ms=60_000) == ("WAIT", "0", "")
    assert partition.acquire("thing", "you", wait_ms=60_000) == ("WAIT", "1", "")
    assert partition.acquire("thing", "me", wait_ms=-1) == ("LEFT", "", "")
    assert partition.acquire("thing", "you", wait_ms=60_000) == ("WAIT", "0", "")


def test_a_resource_with_a_limit_has_that_many_holders(partition):
    words = [partition.acquire("thing", f"n{i}", limit=3)[0] for i in range(5)]
    assert words == ["HELD", "HELD", "HELD", "BUSY", "BUSY"]


def test_who_leaves_a_line_after_being_served_is_told_that_it_holds_the_place(partition):
    """The answer is HELD and not LEFT, so the caller knows that there is something to release."""
    _, token, _ = partition.acquire("thing", "holder")
    partition.acquire("thing", "me", wait_ms=60_000)
    partition.release("holder", token)
    word, mine, _ = partition.acquire("thing", "me", wait_ms=-1)
    assert word == "HELD"
    assert partition.release("me", mine) == ("OK", "")
