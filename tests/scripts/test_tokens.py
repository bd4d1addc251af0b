"""The fencing token: one counter per partition that only rises, whatever happens to the clock or to the counter."""

from __future__ import annotations

import pytest

from fencepost.store import RunKey
from tests.support.partition import Partition

LIMIT = 2**53


def newest(p: Partition) -> int:
    return int(p.redis.hget(p.keys.meta, "token"))


def claim_token(p: Partition, **options: object) -> int:
    p.job(**options)
    [run] = p.claim()
    return int(run.token)


def test_tokens_rise_over_jobs_resources_retries_requeues_leases_and_workers(partition):
    tokens = []
    for turn in range(3):
        first = partition.put("processing", resource=f"thing-{turn}")
        queue = partition.record(first.job_id).queue
        tokens.append(int(first.token))
        partition.finish(first, "RETRY")
        [again] = partition.claim(queues=(queue,), worker=f"w{turn}")
        tokens.append(int(again.token))
        _, lease, _ = partition.acquire("alone", f"n{turn}")
        tokens.append(int(lease))
        partition.release(f"n{turn}", lease)
        partition.finish(again.key, "BURY")
        partition.requeue(first.job_id)
        [third] = partition.claim(queues=(queue,))
        tokens.append(int(third.token))
    assert tokens == sorted(set(tokens))
    assert newest(partition) == tokens[-1]


def test_a_reclaim_a_hard_cancel_and_a_handed_over_lease_mint_a_token_each(partition):
    run = partition.put("processing")
    seen = [int(run.token)]
    partition.take_back(run)
    seen.append(partition.record(run.job_id).token)
    second = partition.put("processing")
    seen.append(int(second.token))
    partition.cancel(second.job_id, hard=True)
    seen.append(partition.record(second.job_id).token)
    _, held, _ = partition.acquire("thing", "first")
    partition.acquire("thing", "second", wait_ms=60_000)
    partition.release("first", held)
    _, handed, _ = partition.acquire("thing", "second", wait_ms=60_000)
    seen += [int(held), int(handed)]
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("write", ["renew", "checkpoint", "soft cancel"])
def test_a_token_is_constant_through_what_only_prolongs_a_run(partition, write):
    run = partition.put("processing")
    if write == "renew":
        partition.renew(run)
    elif write == "checkpoint":
        partition.checkpoint(run)
    else:
        partition.cancel(run.job_id)
    assert partition.record(run.job_id).token == int(run.token)
    assert newest(partition) == int(run.token)


def test_many_tokens_of_one_call_are_all_different_and_in_order(partition):
    for _ in range(50):
        partition.job()
    tokens = [int(one.token) for one in partition.claim(50)]
    assert tokens == sorted(set(tokens))
    assert newest(partition) == tokens[-1]


def test_a_token_is_near_the_servers_microseconds(partition):
    before = partition.redis.time()
    token = claim_token(partition)
    after = partition.redis.time()
    assert before[0] * 1_000_000 + before[1] <= token <= after[0] * 1_000_000 + after[1]


def test_tokens_go_on_rising_when_the_partitions_record_is_lost(partition):
    """No immortal counter is needed: the clock is the floor."""
    old = claim_token(partition)
    seq = int(partition.redis.hget(partition.keys.meta, "seq"))
    partition.redis.delete(partition.keys.meta)
    assert claim_token(partition) > old
    assert int(partition.redis.hget(partition.keys.meta, "seq")) > seq, "events go on behind the last one there is"


def test_tokens_go_on_rising_by_one_when_the_clock_goes_back(partition, clock):
    old = claim_token(partition)
    clock.advance(-600)
    tokens = [claim_token(partition) for _ in range(3)]
    assert tokens[0] > old
    assert [later - tokens[0] for later in tokens] == [0, 1, 2]


def test_the_clock_of_a_partition_stands_still_when_the_servers_goes_back(partition, clock):
    """What lapsed or came due before the step back still has, and a new lease ends by the partition's own clock."""
    lapsed, lives, due = partition.put("processing"), partition.put("processing"), partition.job(delay_ms=60_000)
    partition.sweep()
    last_ms = int(partition.redis.hget(partition.keys.meta, "last_us")) // 1000
    partition.redis.zadd(partition.keys.leases, {lapsed.job_id: last_ms - 1})
    partition.redis.zadd(partition.keys.later, {due: last_ms - 1})
    clock.advance(-600)
    assert partition.checkpoint(lapsed) == ("EXPIRED", "")
    assert partition.checkpoint(lives) == ("OK", "")
    [run] = partition.claim()
    assert run.job_id == due
    assert partition.redis.zscore(partition.keys.leases, due) == last_ms + 30_000
    assert partition.state(lapsed.job_id) == "queued"


def test_tokens_near_the_largest_exact_number_keep_every_digit(partition):
    """Lua's own conversion would give 9.007199254741e+15."""
    partition.redis.hset(partition.keys.meta, "token", str(LIMIT - 10))
    runs = [partition.put("processing", resource=f"thing-{i}") for i in range(4)]
    _, lease, _ = partition.acquire("alone", "n")
    assert [run.token for run in runs] == [str(LIMIT - 9 + i) for i in range(4)]
    assert lease == str(LIMIT - 5)
    for run in runs:
        assert partition.redis.hget(partition.keys.job(run.job_id), "token").decode() == run.token
        assert partition.renew(run) == [("OK", "")]
        assert partition.finish(run, "DONE") == ("OK", "")
    stale = RunKey(runs[0].job_id, str(LIMIT), "other.1")
    assert partition.finish(stale, "DONE") == ("STALE", runs[0].token)
    assert {t.token for t in partition.told() if t.name == "acquired"} == {*(run.token for run in runs), lease}


@pytest.mark.parametrize("spelling", ["0{}", "{}.0", " {}", "{} ", "{}e0", "{:.14g}", "{:x}", "", "nan"])
def test_a_token_is_compared_as_text_so_no_other_spelling_of_the_number_passes(partition, spelling):
    run = partition.put("processing")
    key = run._replace(token=spelling.format(int(run.token)))
    assert partition.finish(key, "DONE") == ("STALE", run.token)
    assert partition.renew(key) == [("STALE", run.token)]
    assert partition.state(run.job_id) == "processing"


def test_numbers_in_replies_and_keys_are_whole_numbers_in_plain_digits(partition):
    partition.put("processing", resource="thing")
    partition.put("scheduled")
    partition.acquire("alone", "n")
    for key, stored in partition.dump().items():
        values = stored.value.values() if stored.type == "hash" else []
        for value in values:
            assert not (isinstance(value, str) and value[:1].isdigit() and ("e+" in value or "." in value[:3])), key
        if stored.type == "zset":
            assert all(score == int(score) for _, score in stored.value), key
