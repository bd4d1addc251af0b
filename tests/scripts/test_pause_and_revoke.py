"""What pause, resume and revoke do beside their answer: who is served, who is charged, who gets a freed place."""

from __future__ import annotations

import pytest

from fencepost.store import RunKey
from tests.support.partition import Partition


def bells(p: Partition, queue: str) -> int:
    return int(p.redis.llen(p.keys.bell(queue)))


# -- pause ----------------------------------------------------------------------------------------------------


def test_a_paused_queue_hands_out_nothing_whoever_asks_and_the_others_go_on(partition):
    held, free = partition.job(queue="a"), partition.job(queue="aa")
    assert partition.pause("a").word == "PAUSED"
    assert [one.job_id for one in partition.claim(5, queues=("a", "aa"))] == [free]
    run = partition.put("processing")
    served = partition.run(partition.finishing(run, "DONE", wanted=5, queues=("a",)))
    assert (served.replies, served.jobs) == ([("OK", "")], [])
    assert partition.resume("a").word == "RESUMED"
    assert [one.job_id for one in partition.claim(5, queues=("a", "aa"))] == [held]


def test_the_name_of_a_paused_queue_is_compared_as_a_whole(partition):
    for queue in ("a", "a.b", "b", "ab"):
        partition.job(queue=queue)
    partition.pause("a.b")
    assert [one.queue for one in partition.claim(5, queues=("a.b", "a", "b", "ab"))] == ["a", "b", "ab"]


def test_what_runs_when_its_queue_is_paused_goes_on_to_its_end(partition):
    run = partition.put("processing", resource="thing")
    partition.pause(partition.record(run.job_id).queue)
    assert partition.renew(run) == [("OK", "")]
    assert partition.checkpoint(run) == ("OK", "")
    assert partition.finish(run, "DONE") == ("OK", "")


def test_a_claim_that_was_answered_before_the_pause_is_replayed(partition):
    """The reply was lost: the runs are the worker's, and nobody else would finish them."""
    job_id = partition.job()
    request = partition.request(1)
    partition.run(partition.store.claim(request))
    partition.pause("default")
    assert [one.job_id for one in partition.run(partition.store.claim(request)).jobs] == [job_id]


def test_delayed_and_retried_jobs_of_a_paused_queue_come_up_and_stay(partition):
    due = partition.job(delay_ms=60_000)
    run = partition.put("processing")
    queue = partition.record(run.job_id).queue
    for name in ("default", queue):
        partition.pause(name)
    partition.redis.zadd(partition.keys.later, {due: 1}, xx=True)
    assert partition.finish(run, "RETRY") == ("OK", "")
    assert partition.claim(5, queues=("default", queue)) == []
    assert [partition.state(one) for one in (due, run.job_id)] == ["queued", "queued"]


def test_a_paused_queue_wakes_nobody_and_a_resumed_one_wakes_a_worker_for_each_ready_job(partition):
    partition.pause("default")
    for _ in range(3):
        partition.job()
    assert bells(partition, "default") == 0
    partition.resume("default")
    assert bells(partition, "default") == 3
    for _ in range(20):
        partition.job()
    partition.redis.delete(partition.keys.bell("default"))
    partition.pause("default")
    partition.resume("default")
    assert bells(partition, "default") == 8


def test_a_freed_place_passes_by_who_waits_for_it_in_a_paused_queue(partition):
    """Reserved for a job that nobody may claim, it would be held up for half a minute a job."""
    _, token, _ = partition.acquire("thing", "holder")
    paused = [partition.job(queue="a", resource="thing") for _ in range(3)]
    free = partition.job(queue="b", resource="thing")
    assert partition.claim(9, queues=("a", "b")) == []
    partition.pause("a")
    partition.release("holder", token)
    assert [partition.state(one) for one in paused] == ["queued"] * 3
    assert [one.job_id for one in partition.claim(9, queues=("a", "b"))] == [free]
    assert [(t.job_id, t.reason) for t in partition.told() if t.name == "handed_over"] == [
        *((one, "paused") for one in paused),
        (free, ""),
    ]
    assert "orphan:line" not in partition.stats()
    partition.resume("a")
    assert partition.claim(9, queues=("a", "b")) == []
    assert [partition.state(one) for one in paused] == ["waiting"] * 3


def test_pausing_again_keeps_the_first_reason_and_moment_and_tells_nothing(partition):
    first = partition.pause("default", "one", "ann")
    kept, told = partition.redis.hgetall(partition.keys.meta), partition.told()
    assert partition.pause("default", "two", "bob") == first
    assert (partition.redis.hgetall(partition.keys.meta), partition.told()) == (kept, told)


def test_who_paused_and_who_resumed_and_why_are_told_beside_the_queue(partition):
    partition.pause("a", "one\ttwo\nthree", "ann")
    partition.pause("b", "more", "bob")
    partition.resume("a", "fine", "cleo")
    entries = partition.redis.xrange(partition.keys.events)
    assert [fields[b"w"] for _, fields in entries] == [b"ann", b"bob", b"cleo"]
    assert [(t.name, t.job_id, t.reason) for t in partition.told()] == [
        ("queue_paused", "/a", "one two three"),
        ("queue_paused", "/b", "more"),
        ("queue_resumed", "/a", "fine"),
    ]
    partition.resume("b")
    assert not partition.redis.hexists(partition.keys.meta, "paused")
    assert not partition.redis.hexists(partition.keys.meta, "pauses")


@pytest.mark.parametrize("queue", ["a b", "a\nb", "a\tb"])
def test_a_name_that_would_read_as_two_is_refused(partition, queue):
    with pytest.raises(Exception, match="blank"):
        partition.pause(queue)
    assert not partition.redis.exists(partition.keys.meta)


# -- revoke ---------------------------------------------------------------------------------------------------


def test_a_revoked_run_is_dead_and_its_job_is_first_in_its_queue_with_nothing_charged(partition):
    run = partition.put("processing", resource="thing")
    queue = partition.record(run.job_id).queue
    behind = [partition.job(queue=queue) for _ in range(2)]
    assert partition.revoke(run.job_id, run.token, reason="it hangs") == ("REVOKED", "queued")
    record = partition.record(run.job_id)
    assert (record.state, record.nonce, record.attempts, record.crashes, record.releases) == ("queued", "", 0, 0, 1)
    assert record.token > int(run.token)
    assert partition.renew(run) == [("EXPIRED", "")]
    assert partition.checkpoint(run) == ("EXPIRED", "")
    assert partition.finish(run, "DONE") == ("EXPIRED", "")
    again, *rest = partition.claim(3, queues=(queue,))
    assert (again.job_id, again.attempt, again.crashes) == (run.job_id, 1, 0)
    assert [one.job_id for one in rest] == behind
    assert partition.finish(run, "DONE") == ("STALE", again.token)
    assert partition.finish(again.key, "DONE") == ("OK", "")
    assert partition.stats()["revoked:mail"] == 1
    assert "crashed:mail" not in partition.stats()
    [lost] = [t for t in partition.told() if t.name == "lost"]
    assert (lost.token, lost.nonce, lost.attempt, lost.reason) == (
        run.token,
        run.nonce,
        "1",
        "revoked from w1: it hangs",
    )


def test_the_place_of_a_revoked_run_is_kept_for_its_job(partition):
    run = partition.put("processing", resource="thing")
    other = partition.job(resource="thing")
    assert partition.claim() == []
    partition.revoke(run.job_id, run.token)
    assert partition.acquire("thing", "quick")[0] == "BUSY"
    [again] = partition.claim(2, queues=("default", partition.record(run.job_id).queue))
    assert again.job_id == run.job_id
    assert partition.state(other) == "waiting"


def test_a_revoked_run_that_was_asked_to_stop_ends_and_its_place_goes_on(partition):
    run = partition.put("processing", resource="thing", dedup="a")
    other = partition.job(resource="thing")
    partition.claim()
    partition.cancel(run.job_id, reason="enough")
    assert partition.revoke(run.job_id, run.token) == ("REVOKED", "cancelled")
    record = partition.record(run.job_id)
    assert (record.state, record.reason) == ("cancelled", "enough")
    assert [one.job_id for one in partition.claim()] == [other]


def test_a_repeated_revoke_does_not_touch_the_run_that_came_after(partition):
    run = partition.put("processing")
    partition.revoke(run.job_id, run.token, request="ask")
    [again] = partition.claim(queues=(partition.record(run.job_id).queue,))
    before = partition.dump()
    assert partition.revoke(run.job_id, run.token, request="ask") == ("REVOKED", "queued")
    assert partition.revoke(run.job_id, run.token, request="another") == ("STALE", again.token)
    assert partition.dump() == before


def test_a_run_whose_token_was_raised_is_revoked_by_the_newest_one_only(partition):
    run = partition.put("processing")
    newest = partition.bump(run, int(run.token) + 1_000_000_000).detail
    assert partition.revoke(run.job_id, run.token) == ("STALE", newest)
    assert partition.revoke(run.job_id, newest) == ("REVOKED", "queued")
    for key in (run, run._replace(token=newest)):
        assert partition.finish(key, "DONE") == ("EXPIRED", "")


def test_a_revoked_lease_is_handed_to_the_first_in_line_and_its_holder_may_write_nothing(partition):
    _, token, _ = partition.acquire("thing", "me")
    partition.acquire("thing", "next", wait_ms=60_000)
    key = RunKey("@me", token, "me")
    assert partition.revoke("@me", token, reason="it hangs") == ("REVOKED", "ended")
    word, newer, _ = partition.acquire("thing", "next", wait_ms=60_000)
    assert word == "HELD"
    assert int(newer) > int(token)
    assert [one.word for one in partition.run(partition.store.renew(30_000, "somebody", [key]))] == ["STALE"]
    assert partition.bump(key, int(token)).word == "STALE"
    assert partition.release("me", token).word == "STALE"
    assert partition.acquire("thing", "third")[:2] == ("BUSY", "@next")
    assert 0 < partition.redis.pttl(partition.keys.lease("me")) <= 60_000
    [lost] = [t for t in partition.told() if t.name == "lost"]
    assert (lost.job_id, lost.token, lost.reason) == ("@me", token, "revoked from somebody: it hangs")


def test_who_lost_a_lease_by_hand_may_ask_for_it_again_under_the_same_nonce(partition):
    """A try of the first call that was under way all the time: it is a new grant under a token of its own."""
    _, token, _ = partition.acquire("thing", "me")
    partition.revoke("@me", token)
    word, newer, _ = partition.acquire("thing", "me")
    assert word == "HELD"
    assert int(newer) > int(token)
    assert partition.release("me", token).word == "STALE"
    assert partition.release("me", newer).word == "OK"


def test_who_lost_a_lease_by_hand_and_waits_for_it_again_waits_like_anybody_else(partition):
    """found by the model: of the revoked lease the token was left, as if the waiter had been served."""
    _, token, _ = partition.acquire("thing", "me")
    partition.revoke("@me", token)
    partition.acquire("thing", "other")
    assert partition.acquire("thing", "me", wait_ms=60_000)[0] == "WAIT"
    assert partition.dump()["lease:me"].value.keys() == {"state", "resource", "owner", "ttl_ms", "limit"}
    assert partition.revoke("@me", token) == ("ILLEGAL", "waiting")


def test_a_request_is_not_taken_for_one_that_only_begins_like_it(partition):
    """report: a key "k" was told the answer of a key "k x", and the run that it meant went on."""
    job_id = partition.job(queue="q")
    [first] = partition.claim(queues=("q",))
    assert partition.revoke(job_id, first.token, request="k x").word == "REVOKED"
    [again] = partition.claim(queues=("q",))
    assert partition.revoke(job_id, again.token, request="k").detail == "queued"
    assert partition.redis.hget(partition.keys.job(job_id), "state") == b"queued"
    assert partition.revoke(job_id, "5", request="k").detail == "queued"
