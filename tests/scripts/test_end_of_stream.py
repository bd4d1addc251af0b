"""The end of the event stream: what the ledger has not copied yet stays, up to a cap, and what goes is counted."""

from __future__ import annotations

import random

import pytest

from tests.support.partition import Partition


def test_the_ledgers_cursor_goes_to_the_partition_and_losses_are_counted_once(partition):
    for _ in range(3):
        partition.put("done")
    seq = int(partition.redis.hget(partition.keys.meta, "seq"))
    assert partition.archived(seq + 1, 5) == ("AHEAD", str(seq))
    assert "events_lost:ledger" not in partition.stats()
    assert partition.redis.hget(partition.keys.meta, "archived") is None
    for _ in range(2):
        assert partition.archived(seq - 2, 5) == ("OK", str(seq))
    assert partition.stats()["events_lost:ledger"] == 5
    assert partition.archived(seq, 0) == ("OK", str(seq))
    assert partition.redis.hget(partition.keys.meta, "archived") == b"%d" % seq
    assert partition.archived(seq - 1, 2) == ("OK", str(seq)), "a ledger that was restored goes on from where it is"
    assert partition.stats()["events_lost:ledger"] == 7


class Tail:
    """A stream with an entry for every 50 events, without having to make them; and which numbers it still has."""

    STEP = 50

    def __init__(self, p: Partition, seq: int) -> None:
        self.p, self.seq = p, seq
        pipe = p.redis.pipeline(transaction=False)
        for number in range(self.STEP, seq + 1, self.STEP):
            pipe.xadd(p.keys.events, {"t": 1, "w": "", "e": "\n".join("x" * self.STEP)}, id=f"{number}-0")
        pipe.execute()
        p.redis.hset(p.keys.meta, "seq", seq)

    def go_on(self, entries: int) -> None:
        """As if so many calls had told 50 events each; the last one is a real call, so that it may trim."""
        pipe = self.p.redis.pipeline(transaction=False)
        for number in range(self.seq + self.STEP, self.seq + entries * self.STEP + 1, self.STEP):
            pipe.xadd(self.p.keys.events, {"t": 1, "w": "", "e": "x"}, id=f"{number}-0")
        pipe.execute()
        self.seq += entries * self.STEP
        # The next event is the first of its thousand: that is when the end of the stream is looked at.
        self.seq = self.seq // 1000 * 1000 + 999
        self.p.redis.hset(self.p.keys.meta, "seq", self.seq)
        self.p.job()
        self.seq += 1
        assert int(self.p.redis.hget(self.p.keys.meta, "seq")) == self.seq

    def first(self) -> int:
        """The number of the last event of the oldest entry."""
        return int(self.p.redis.xrange(self.p.keys.events, count=1)[0][0].partition(b"-")[0])

    def numbers(self) -> set[int]:
        return {int(entry.partition(b"-")[0]) for entry, _ in self.p.redis.xrange(self.p.keys.events)}


SLACK = 100 * Tail.STEP + 1_000  # Redis trims whole nodes of 100 entries


def test_without_a_ledger_about_100_000_events_are_kept(partition):
    tail = Tail(partition, 130_000)
    tail.go_on(20)
    assert tail.seq - 100_000 - SLACK < tail.first() <= tail.seq - 100_000 + Tail.STEP
    assert "events_dropped:ledger" not in partition.stats()


@pytest.mark.parametrize("seed", range(6))
def test_no_event_that_the_ledger_lacks_is_dropped_below_the_cap_and_each_above_it_is_counted(partition, seed):
    draw = random.Random(seed)
    tail = Tail(partition, 120_000)
    archived, cap, gone, told = 0, 1_000_000, set(), set(tail.numbers())
    for _ in range(12):
        if draw.random() < 0.6:
            archived = draw.randint(archived, tail.seq)
            cap = draw.choice([1_000, 100_000, 110_000, 130_000, 1_000_000])
            assert partition.archived(archived, 0, cap).word == "OK"
        tail.go_on(draw.choice([20, 100, 300]))
        kept = tail.numbers()
        told = told | kept if archived else kept
        if archived:
            gone |= set(range(archived + 1, tail.seq - max(cap, 100_000) + 1))
        lost = {one for one in told - kept if one > archived} - gone
        assert not lost, f"{min(lost)} to {max(lost)} are in neither; archived to {archived}, at {tail.seq}"
        assert {one for one in told if one > tail.seq - 100_000} <= kept
        assert partition.stats().get("events_dropped:ledger", 0) == len(gone)
        may_go = (
            tail.seq - 100_000
            if archived >= tail.seq - 100_000 or not archived
            else max(archived, tail.seq - max(cap, 100_000))
        )
        assert tail.first() > may_go - SLACK, "the stream grows for ever"


@pytest.mark.parametrize("cap", [100_000, 120_000, 5_000])
def test_what_goes_beyond_the_cap_is_counted_to_the_last_event(partition, cap):
    """A cap below what is kept anyway is that: no more is dropped than without a ledger."""
    tail = Tail(partition, 150_000)
    partition.archived(1_000, 0, cap)
    tail.go_on(20)
    assert partition.stats()["events_dropped:ledger"] == tail.seq - max(cap, 100_000) - 1_000
    before = tail.seq
    assert tail.seq - max(cap, 100_000) - SLACK < tail.first() <= tail.seq - max(cap, 100_000) + Tail.STEP
    tail.go_on(20)
    assert partition.stats()["events_dropped:ledger"] == tail.seq - max(cap, 100_000) - 1_000
    assert tail.seq > before
    partition.archived(tail.seq)
    dropped_so_far = partition.stats()["events_dropped:ledger"]
    tail.go_on(100)
    assert partition.stats()["events_dropped:ledger"] == dropped_so_far


def test_the_entry_at_the_ledgers_cursor_stays_so_that_a_rewind_can_be_told_from_a_gap(partition):
    """Entry by entry over more than a node of the stream: Redis trims by whole nodes, which would hide an error."""
    tail = Tail(partition, 150_000)
    for cursor in range(30_000, 36_000 + Tail.STEP, Tail.STEP):
        partition.archived(cursor)
        tail.go_on(20)
        assert partition.redis.xrange(partition.keys.events, cursor, cursor), cursor
    assert cursor - SLACK < tail.first() <= cursor
