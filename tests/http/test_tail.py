"""The reader of the event stream: one for all, only while somebody listens; it notices when the stream is another."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.api.problems import Problem
from fencepost.api.tail import Tail
from fencepost.errors import RedisUnavailable
from fencepost.job import JobSpec
from tests.support.waiting import eventually


@pytest.fixture
async def tail(app):
    return Tail(app.link, 1_000)


async def heard(listener, count, timeout=5.0):
    """The names of the next `count` events. Fails where something was missed."""
    out: list[str] = []
    async with asyncio.timeout(timeout):
        while len(out) < count:
            events, again = await listener.news(1.0)
            assert not again
            out += [one.name for one in events]
    return out


def readers(partition):
    """How many connections wait in Redis for the end of a stream."""
    return sum(one["cmd"] == "xread" for one in partition.redis.client_list())


async def test_each_listener_hears_of_its_own_job_and_of_no_other(tail, partition):
    one, two = partition.job(), partition.job()
    with await tail.listen(one) as first, await tail.listen(two) as second, await tail.listen(one) as third:
        partition.cancel(one)
        partition.cancel(two)
        assert await heard(first, 1) == await heard(second, 1) == await heard(third, 1) == ["cancelled"]
        told = await first.news(0.05)
        assert (told.events, told.again) == ([], False)


async def test_what_happened_before_is_left_to_the_history(tail, partition):
    run = partition.put("processing")
    with await tail.listen(run.job_id) as listener:
        partition.finish(run, "DONE")
        assert await heard(listener, 1) == ["done"]


async def test_an_empty_partition_is_followed_from_its_first_event(tail, partition):
    with await tail.listen("job-first") as listener:
        partition.enqueue(JobSpec(id="job-first", kind="mail"))
        assert await heard(listener, 1) == ["enqueued"]


async def test_one_reader_serves_all_and_ends_with_the_last_listener(tail, partition):
    listeners = [await tail.listen(partition.job()) for _ in range(50)]
    await eventually(lambda: readers(partition) == 1)
    for one in listeners[:-1]:
        one.close()
        one.close()
    assert tail.reading
    assert tail.listeners == 1
    listeners[-1].close()
    assert not tail.reading
    await eventually(lambda: readers(partition) == 0)


async def test_listeners_that_come_at_once_share_the_reader(tail, partition):
    ids = [partition.job() for _ in range(20)]
    listeners = await asyncio.gather(*(tail.listen(one) for one in ids))
    for one in ids:
        partition.cancel(one)
    for one in listeners:
        assert await heard(one, 1) == ["cancelled"]
    await eventually(lambda: readers(partition) == 1)
    for one in listeners:
        one.close()


async def test_a_burst_larger_than_one_reading_is_heard_whole(tail, partition):
    run = partition.put("processing")
    with await tail.listen(run.job_id) as listener:
        for n in range(700):
            partition.checkpoint(run, b"1", f"step:{n}", "step", str(n))
        told: list[str] = []
        while len(told) < 700:
            events, again = await listener.news(2.0)
            assert events
            assert not again
            told += [one.reason for one in events]
    assert told == [str(n) for n in range(700)]


async def test_an_event_that_comes_while_the_reader_rests_is_heard_without_waiting_for_the_next(tail, partition):
    run = partition.put("processing")
    with await tail.listen(run.job_id) as listener:
        for n in range(5):
            partition.checkpoint(run, b"1", f"step:{n}", "step", str(n))
            assert await heard(listener, 1, timeout=1.0) == ["step"]


async def test_a_listener_that_does_not_ask_for_too_long_is_told_to_read_the_history(tail, partition):
    run = partition.put("processing")
    with await tail.listen(run.job_id) as slow, await tail.listen(run.job_id) as quick:
        count = 0
        for n in range(1_050):
            partition.checkpoint(run, b"1", f"step:{n}", "step", str(n))
            if n % 100 == 0:
                count += len((await quick.news(0.2)).events)
        while count < 1_050:
            count += len((await quick.news(2.0)).events)
        assert await slow.news(1.0) == ([], True)
        partition.finish(run, "DONE")
        assert await heard(slow, 1) == ["done"]


def rewrite(partition, keep):
    """Leave the first `keep` entries of the stream, as when Redis comes back with an older state of itself."""
    entries = partition.redis.xrange(partition.keys.events)
    partition.redis.delete(partition.keys.events)
    for entry_id, fields in entries[:keep]:
        partition.redis.xadd(partition.keys.events, fields, id=entry_id)
    last = int(entries[keep - 1][0].split(b"-")[0]) if keep else 0
    partition.redis.hset(partition.keys.meta, "seq", last)


@pytest.mark.parametrize("keep", [0, 2])
async def test_a_stream_that_was_rewound_or_emptied_is_noticed_and_followed_from_there(tail, partition, keep):
    run = partition.put("processing")
    partition.job()
    with await tail.listen(run.job_id) as listener:
        await eventually(lambda: readers(partition) == 1)
        rewrite(partition, keep)
        async with asyncio.timeout(6):
            told = await listener.news(6)
        assert told == ([], True)
        partition.finish(run, "DONE")
        assert await heard(listener, 1) == ["done"]


async def test_a_stream_that_was_rewound_and_has_grown_past_the_place_again_is_noticed(tail, partition):
    """The numbers go on as if nothing had been; only the entry at the place is another one."""
    run = partition.put("processing")
    with await tail.listen(run.job_id) as listener:
        await eventually(lambda: readers(partition) == 1)
        pipe = partition.redis.pipeline(transaction=True)
        entries = partition.redis.xrange(partition.keys.events)
        pipe.delete(partition.keys.events)
        for entry_id, fields in entries[:-1]:
            pipe.xadd(partition.keys.events, fields, id=entry_id)
        pipe.xadd(partition.keys.events, {"t": "5", "w": "", "e": "step\tother"}, id=entries[-1][0])
        pipe.execute()
        partition.checkpoint(run, b"1", "step:x", "step", "x")
        assert await listener.news(6) == ([], True)


async def test_killed_connections_are_replaced_and_nothing_is_missed(tail, partition):
    run = partition.put("processing")
    with await tail.listen(run.job_id) as listener:
        for n in range(5):
            partition.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            partition.checkpoint(run, b"1", f"step:{n}", "step", str(n))
            assert await heard(listener, 1) == ["step"]


async def test_a_busy_stream_is_read_in_batches_and_not_entry_by_entry(tail, app, partition):
    run = partition.put("processing")
    with await tail.listen(run.job_id) as listener:
        await eventually(lambda: readers(partition) == 1)
        before = app.link.asynchronous.round_trips

        def busy():
            for n in range(1_000):
                partition.checkpoint(run, b"1", f"step:{n}", "step", "x")

        began = asyncio.get_running_loop().time()
        task = asyncio.create_task(asyncio.to_thread(busy))
        await heard(listener, 1_000, timeout=15)
        took_s = asyncio.get_running_loop().time() - began
        await task
        assert app.link.asynchronous.round_trips - before <= 40 * took_s + 5


async def test_redis_that_is_away_is_said_to_be_away_and_leaves_nothing_behind(new_server):
    from fencepost import Fencepost

    server = new_server()
    app = Fencepost(server.url, namespace="own")
    tail = Tail(app.link, 10)
    server.kill()
    with pytest.raises(RedisUnavailable):
        await tail.listen("job-1")
    assert tail.listeners == 0
    assert not tail.reading
    await app.close()


async def test_a_fault_in_the_reader_does_not_leave_its_listeners_waiting(tail, partition, monkeypatch):
    run = partition.put("processing")
    with await tail.listen(run.job_id) as listener:
        inner, calls = Tail._tell, []

        def tell(self, entry_id, flat):
            calls.append(entry_id)
            if len(calls) == 1:
                raise ValueError("an entry that nobody foresaw")
            inner(self, entry_id, flat)

        monkeypatch.setattr(Tail, "_tell", tell)
        partition.checkpoint(run, b"1", "step:x", "step", "x")
        assert (await listener.news(5)).again
        partition.finish(run, "DONE")
        async with asyncio.timeout(5):
            while not any(one.name == "done" for one in (await listener.news(5)).events):
                pass


async def test_too_many_listeners_are_refused(app, partition):
    tail = Tail(app.link, 1)
    with await tail.listen("a"):
        with pytest.raises(Problem) as refused:
            await tail.listen("a")
        assert (refused.value.status, refused.value.slug) == (503, "too-many-streams")
    with await tail.listen("a"):
        pass
