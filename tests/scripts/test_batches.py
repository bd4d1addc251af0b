"""A script is a batch by nature: each item has its own outcome, in order, and items of one batch see each other."""

from __future__ import annotations

import itertools

import pytest

from fencepost.job import JobSpec
from fencepost.store import RunKey


def spec(job_id: str, **options: object) -> JobSpec:
    return JobSpec(id=job_id, kind="mail", payload=b"{}", **options)  # type: ignore[arg-type]


def test_five_hundred_jobs_go_in_at_once_and_come_out_in_order(partition):
    jobs = [spec(f"j{i:03}") for i in range(500)]
    assert partition.enqueue(*jobs) == [("QUEUED", one.id, "queued") for one in jobs]
    runs = partition.claim(500)
    assert [run.job_id for run in runs] == [one.id for one in jobs]
    outcomes = [partition.outcome(run.key, "DONE") for run in runs]
    answers = partition.run(partition.store.finish(outcomes, partition.request()))
    assert answers.replies == [("OK", "")] * 500
    assert partition.redis.zcard(partition.keys.leases) == 0
    assert partition.stats() == {"enqueued:mail": 500, "done:mail": 500}


def test_repeated_ids_dedup_keys_and_requests_of_one_batch_are_told_apart_item_by_item(partition):
    """report: janbjorge/pgqueuer#678"""
    answers = partition.enqueue(
        spec("a"),
        spec("a"),
        spec("b", dedup="k"),
        spec("c", dedup="k"),
        spec("d", idem="i", fingerprint="1"),
        spec("e", idem="i", fingerprint="1"),
        spec("f", idem="i", fingerprint="2"),
        spec("g", dedup="k", idem="j", fingerprint="1"),
        spec("h", idem="j", fingerprint="1"),
        spec("l", delay_ms=60_000),
        spec("l"),
    )
    assert answers == [
        ("QUEUED", "a", "queued"),
        ("QUEUED", "a", "queued"),
        ("QUEUED", "b", "queued"),
        ("DUPLICATE", "b", "queued"),
        ("QUEUED", "d", "queued"),
        ("REPLAYED", "d", "queued"),
        ("CONFLICT", "d", ""),
        ("DUPLICATE", "b", "queued"),
        ("REPLAYED", "b", "queued"),
        ("SCHEDULED", "l", "scheduled"),
        ("SCHEDULED", "l", "scheduled"),
    ]
    stored = {key.removeprefix("job:") for key in partition.dump() if key.startswith("job:")}
    assert stored == {"a", "b", "d", "l"}
    assert partition.stats() == {"enqueued:mail": 4, "duplicate:mail": 2}


def test_a_batch_of_five_hundred_with_duplicates_of_each_sort_sent_twice_adds_nothing_twice(partition):
    jobs = [
        spec(f"j{i % 400}", dedup=f"k{i % 100}" if i % 3 == 0 else None, priority=i % 4, delay_ms=60_000 * (i % 5 == 0))
        for i in range(500)
    ]
    call = partition.store.enqueue(jobs)
    first = partition.run(call)
    before = partition.matter()
    assert len(first) == 500
    second = partition.run(call)
    assert partition.matter() == before
    for (word, job_id, state), (word2, job_id2, state2) in zip(first, second, strict=True):
        assert (job_id, state) == (job_id2, state2)
        assert word == word2
    stored = [key for key in before if key.startswith("job:")]
    assert partition.stats()["enqueued:mail"] == len(stored)


def test_a_full_queue_takes_what_still_fits_and_says_so_for_each_item(partition):
    partition.enqueue(spec("a"), spec("b"))
    answers = partition.enqueue(spec("c"), spec("b"), spec("d"), spec("x", queue="other"), queue_limit=3)
    assert [word for word, _, _ in answers] == ["QUEUED", "QUEUED", "FULL", "QUEUED"]
    assert partition.record("d") is None


def test_a_priority_passes_what_came_less_than_a_minute_a_step_earlier_and_equals_keep_their_order(partition):
    partition.enqueue(*(spec(f"{priority}{turn}", priority=priority) for turn in "ab" for priority in (0, 9, 4)))
    assert [run.job_id for run in partition.claim(6)] == ["9a", "9b", "4a", "4b", "0a", "0b"]


# -- finish -----------------------------------------------------------------------------------------------


def test_one_finish_writes_mixed_outcomes_and_each_gets_its_own_reply(partition):
    runs = [partition.put("processing", resource=f"thing-{i}") for i in range(5)]
    stale = runs[0]._replace(token="5")
    expired = partition.put("processing")
    partition.take_back(expired)
    words = ["DONE", "RETRY", "BURY", "RELEASE", "CANCEL"]
    outcomes = [partition.outcome(run, word) for run, word in zip(runs, words, strict=True)]
    outcomes[1:1] = [partition.outcome(stale, "BURY"), partition.outcome(expired, "DONE")]
    outcomes += [partition.outcome(RunKey("nobody", "5", "n.1"), "DONE"), partition.outcome(runs[0], "DONE")]
    served = partition.run(partition.store.finish(outcomes, partition.request()))
    assert [word for word, _ in served.replies] == [
        "OK", "STALE", "EXPIRED", "OK", "OK", "OK", "OK", "GONE", "REPLAY",
    ]  # fmt: skip
    assert [partition.state(run.job_id) for run in runs] == ["done", "queued", "failed", "queued", "cancelled"]
    assert partition.stats()["done:mail"] == 1


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(["DONE", "RETRY", "BURY"], 2)))
def test_of_two_outcomes_of_one_run_in_one_batch_the_first_counts_and_the_other_is_refused(partition, first, second):
    """As in two calls: it is no repetition of the first, so it must not be called a replay."""
    apart, together = partition.put("processing"), partition.put("processing")
    partition.finish(apart, first)
    assert partition.finish(apart, second).word in ("STALE", "EXPIRED")
    outcomes = [partition.outcome(together, word) for word in (first, second, first)]
    replies = partition.run(partition.store.finish(outcomes, partition.request())).replies
    assert replies == [("OK", ""), ("STALE", together.token), ("REPLAY", "")]
    assert partition.state(together.job_id) == partition.state(apart.job_id)
    assert partition.stats()[f"refused:{second.lower()}"] == 2


def test_a_bad_item_is_refused_before_anything_of_its_batch_is_written(partition):
    run = partition.put("processing")
    before = partition.matter()
    outcomes = [partition.outcome(run, "DONE"), partition.outcome(run, "NONSENSE", "x")]
    with pytest.raises(Exception, match="bad item NONSENSE"):
        partition.run(partition.store.finish(outcomes, partition.request()))
    assert partition.matter() == before


# -- claim ------------------------------------------------------------------------------------------------


def test_a_claim_of_many_jobs_on_few_resources_takes_one_of_each_and_parks_the_rest_in_order(partition):
    jobs = [spec(f"r{i % 7}-{i // 7:02}", resource=f"thing-{i % 7}") for i in range(70)]
    partition.enqueue(*jobs)
    runs = partition.claim(100)
    assert [run.job_id for run in runs] == [f"r{i}-00" for i in range(7)]
    for turn in range(1, 10):
        served = partition.run(
            partition.store.finish([partition.outcome(run.key, "DONE") for run in runs], partition.request(100))
        )
        runs = served.jobs
        assert sorted(run.job_id for run in runs) == [f"r{i}-{turn:02}" for i in range(7)]
        assert all(run.attempt == 1 for run in runs), "waiting charges no attempt"
    assert partition.redis.zcard(partition.keys.line("thing-0")) == 0


def test_a_limit_of_three_lets_three_run_in_one_claim_and_never_a_fourth(partition):
    """report: rails/solid_queue#761"""
    partition.enqueue(*(spec(f"j{i}", resource="thing", limit=3) for i in range(8)))
    runs = partition.claim(8)
    ended: list[str] = []
    while runs:
        assert len(runs) <= 3
        assert partition.redis.zcard(partition.keys.slots("thing")) == 3 or len(ended) >= 5
        partition.finish(runs[0].key, "DONE")
        ended.append(runs.pop(0).job_id)
        runs += partition.claim(8)
    assert ended == [f"j{i}" for i in range(8)]


def test_a_claim_serves_its_queues_in_order_and_caps_each(partition):
    partition.enqueue(*(spec(f"{queue}{i}", queue=queue) for queue in ("low", "high") for i in range(5)))
    request = partition.request(6, queues=("high", "low"), most=4)
    assert [run.job_id for run in partition.run(partition.store.claim(request)).jobs] == [
        "high0", "high1", "high2", "high3", "low0", "low1",
    ]  # fmt: skip


def test_jobs_that_cannot_run_do_not_make_one_claim_endless(partition):
    """A claim looks at no more than the jobs it wants and 200; what is behind them comes with the next one."""
    partition.acquire("thing", "holder")
    for part in range(2):
        partition.enqueue(*(spec(f"w{part}-{i}", resource="thing") for i in range(300)))
    free = partition.job()
    assert partition.claim(1) == []
    assert partition.redis.zcard(partition.keys.line("thing")) == 201
    for _ in range(2):
        found = partition.claim(1)
    assert [run.job_id for run in found] == [free]


def test_a_renewal_of_many_runs_answers_each_in_order(partition):
    good = [partition.put("processing") for _ in range(3)]
    asked = partition.put("processing")
    partition.cancel(asked.job_id, reason="enough")
    _, token, _ = partition.acquire("alone", "n")
    runs = [
        good[0],
        RunKey("nobody", "5", "n.1"),
        asked,
        good[1]._replace(token="5"),
        RunKey("@n", token, "n"),
        good[2],
    ]
    assert partition.renew(*runs) == [
        ("OK", ""), ("GONE", ""), ("CANCEL", "enough"), ("STALE", good[1].token), ("OK", ""), ("OK", ""),
    ]  # fmt: skip


def test_a_bulk_requeue_goes_on_behind_ids_whose_record_is_over(partition):
    """report: rq/rq#1963"""
    dead = [partition.put("failed").job_id for _ in range(20)]
    for gone in dead[::5]:
        partition.redis.delete(partition.keys.job(gone))
    answers = partition.requeue(*dead)
    assert [word for word, _ in answers].count("GONE") == 4
    assert [word for word, _ in answers].count("REQUEUED") == 16
    assert partition.redis.zcard(partition.keys.dead) == 0


def test_a_claim_sent_again_hands_out_the_same_runs_but_those_that_are_over(partition):
    for _ in range(4):
        partition.job()
    call = partition.store.claim(partition.request(4))
    runs = partition.run(call).jobs
    partition.finish(runs[1].key, "DONE")
    partition.take_back(runs[2].key)
    again = partition.run(call).jobs
    assert [run.key for run in again] == [runs[0].key, runs[3].key]
    assert [run.payload for run in again] == [runs[0].payload, runs[3].payload]


def test_a_claim_for_more_jobs_than_lua_can_unpack_leaves_none_without_a_lease(partition):
    for first in range(0, 4_500, 500):
        partition.enqueue(*(spec(f"j{n}") for n in range(first, first + 500)))
    runs = partition.claim(4_500, most=4_500)
    assert len(runs) == partition.redis.zcard(partition.keys.leases) == 4_500


def test_a_claim_that_met_too_many_jobs_that_cannot_run_says_to_ask_again_at_once(partition):
    assert partition.acquire("thing", "me")[0] == "HELD"
    partition.enqueue(*(spec(f"j{n}", resource="thing") for n in range(250)), spec("free"))
    first, second, third = partition.serve(1), partition.serve(1), partition.serve(1)
    assert (first.jobs, first.due_in_s) == ([], 0.0)
    assert ([run.job_id for run in second.jobs], third.jobs, third.due_in_s) == (["free"], [], None)
