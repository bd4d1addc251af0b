"""An operator reads: one job with all that is known of it, lists by state, locks, workers, sizes."""

from __future__ import annotations

import pytest

from fencepost import Fencepost
from fencepost.errors import ConfigurationError, JobNotFound
from fencepost.operate import Operator
from tests.support.partition import STATES


def all_pages(operator, **options):
    """Every item of a list, read with its cursors."""
    items, cursor = [], None
    for _ in range(100):
        page = operator.run_sync(operator.jobs(cursor=cursor, **options))
        assert len(page.items) <= options["limit"]
        items += page.items
        cursor = page.cursor
        if cursor is None:
            return [record.id for record in items]
    raise AssertionError("the pages do not end")


def test_a_job_is_shown_with_its_lease_and_its_history(partition, operator):
    run = partition.put("queued", resource="stock:1")
    [again] = partition.claim(queues=(partition.record(run.job_id).queue,), worker="w9")
    view = operator.run_sync(operator.job(run.job_id, history=True))
    assert view.record.state == "processing"
    assert view.record.worker == "w9"
    assert 0 < view.lease_left_ms <= 30_000
    assert [event.name for event in view.history] == ["enqueued", "acquired", "retry_scheduled", "acquired"]
    assert [event.token for event in view.history[1::2]] == [run.token, again.token]
    assert view.history[-1].by == "w9"
    assert view.history[-1].resource == "stock:1"
    assert view.whole
    assert [one.seq for one in view.history] == sorted({one.seq for one in view.history})


async def test_the_same_plan_runs_on_an_event_loop(partition, operator, app):
    job_id = partition.job()
    assert (await operator.run(operator.job(job_id))).record.state == "queued"
    await app.close()


def test_a_job_that_was_never_there_is_not_found(operator):
    with pytest.raises(JobNotFound, match="no-such-job"):
        operator.run_sync(operator.job("no-such-job", history=True))


def test_a_job_in_line_tells_how_many_come_before_it(partition, operator):
    first, second = partition.job(queue="a"), partition.job(queue="a")
    assert operator.run_sync(operator.job(first)).position == 0
    assert operator.run_sync(operator.job(second)).position == 1
    waiting = partition.put("waiting", resource="r1")
    assert operator.run_sync(operator.job(waiting.job_id)).position == 0


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_a_list_of_exactly_its_jobs(partition, operator, state):
    runs = {name: [partition.put(name).job_id for _ in range(2)] for name in STATES}
    page = operator.run_sync(operator.jobs(state))
    assert sorted(record.id for record in page.items) == sorted(runs[state])
    assert all(record.state == state for record in page.items)
    assert page.cursor is None
    assert page.missing == []
    assert not any(record.payload or record.result for record in page.items)


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_the_pages_of_a_list_hold_every_job_once_and_in_order(partition, operator, limit):
    jobs = [partition.job(queue=queue) for queue in ("a", "b") for _ in range(5)]
    assert all_pages(operator, state="queued", limit=limit) == jobs
    assert all_pages(operator, state="queued", queue="b", limit=limit) == jobs[5:]


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_jobs_that_are_due_at_the_same_moment_are_paged_all_the_same(partition, operator, limit):
    moment = partition.redis.time()[0] * 1000 + 3_600_000
    jobs = [partition.job(run_at_ms=moment) for _ in range(9)]
    assert sorted(all_pages(operator, state="scheduled", limit=limit)) == sorted(jobs)


def test_a_page_goes_on_where_it_stood_when_jobs_leave_and_come_meanwhile(partition, operator):
    jobs = [partition.job() for _ in range(6)]
    page = operator.run_sync(operator.jobs("queued", limit=3))
    partition.claim(4)
    late = partition.job()
    rest = operator.run_sync(operator.jobs("queued", limit=9, cursor=page.cursor))
    assert [record.id for record in page.items] == jobs[:3]
    assert [record.id for record in rest.items] == [*jobs[4:], late]


def test_ended_jobs_come_newest_first_and_new_ones_do_not_shift_the_pages(partition, operator):
    done = [partition.put("done").job_id for _ in range(5)]
    page = operator.run_sync(operator.jobs("done", limit=2))
    partition.put("done")
    rest = operator.run_sync(operator.jobs("done", limit=10, cursor=page.cursor))
    assert [record.id for record in page.items + rest.items] == done[::-1]


def test_a_list_takes_only_the_kind_that_is_asked_for(partition, operator):
    for number in range(30):
        partition.job(kind="even" if number % 2 == 0 else "odd")
    page = operator.run_sync(operator.jobs("queued", kind="odd", limit=5))
    assert [record.kind for record in page.items] == ["odd"] * 5
    rest = operator.run_sync(operator.jobs("queued", kind="odd", limit=50, cursor=page.cursor))
    assert len(rest.items) == 10


def test_a_list_survives_index_entries_whose_record_is_gone(partition, operator):
    failed = [partition.put("failed").job_id for _ in range(4)]
    partition.redis.delete(partition.keys.job(failed[1]))
    before = partition.dump()
    page = operator.run_sync(operator.dead())
    assert [record.id for record in page.items] == [failed[3], failed[2], failed[0]]
    assert page.missing == [failed[1]]
    assert partition.dump() == before, "reading changes nothing"


@pytest.mark.parametrize(("name", "value"), [("limit", 0), ("limit", 1001), ("cursor", "???"), ("cursor", "W10")])
def test_a_limit_or_cursor_that_cannot_be_is_refused(operator, name, value):
    with pytest.raises(ConfigurationError, match=name):
        operator.run_sync(operator.jobs("queued", **{name: value}))


def test_a_state_that_does_not_exist_is_refused_with_the_names_of_those_that_do(operator):
    with pytest.raises(ConfigurationError, match=r"lost.*is no state.*Use one of scheduled, queued"):
        operator.run_sync(operator.jobs("lost"))


# -- locks ----------------------------------------------------------------------------------------------------


def test_a_lock_names_its_holder_token_time_left_and_the_waiters_in_order(partition, operator):
    jobs = [partition.job(resource="stock:42", kind="sync") for _ in range(3)]
    [claimed] = partition.claim(3, worker="w7", lease_ms=20_000)
    assert partition.acquire("stock:42", "n1", wait_ms=9_000)[0] == "WAIT"
    [lock] = operator.run_sync(operator.locks()).items
    [holder] = lock.holders
    assert (lock.resource, lock.limit, lock.waiting) == ("stock:42", 1, 3)
    assert (holder.role, holder.job_id, holder.token, holder.owner) == ("run", jobs[0], claimed.token, "w7")
    assert 15_000 < holder.ttl_left_ms <= 20_000
    assert [waiter.job_id for waiter in lock.waiters] == [*jobs[1:], "@n1"]
    assert lock.waiters[2].owner == "somebody"


def test_a_reserved_place_and_a_lease_without_a_job_are_locks_too(partition, operator):
    assert partition.acquire("alone", "n1", ttl_ms=5_000)[0] == "HELD"
    first = partition.put("processing", resource="shared")
    second = partition.job(resource="shared", queue=partition.record(first.job_id).queue)
    partition.claim(queues=(partition.record(first.job_id).queue,))
    partition.finish(first, "DONE")
    alone, shared = operator.run_sync(operator.locks()).items
    assert (alone.holders[0].role, alone.holders[0].owner) == ("lease", "somebody")
    assert (shared.holders[0].role, shared.holders[0].job_id) == ("reserved", second)


def test_locks_are_paged_by_name_and_can_be_asked_for_one_by_one(partition, operator):
    for number in range(5):
        partition.put("processing", resource=f"r{number}", limit=2)
    page = operator.run_sync(operator.locks(limit=2))
    rest = operator.run_sync(operator.locks(limit=5, cursor=page.cursor))
    assert [lock.resource for lock in page.items + rest.items] == [f"r{number}" for number in range(5)]
    assert page.items[0].limit == 2
    assert rest.cursor is None
    [one] = operator.run_sync(operator.locks("r3")).items
    assert one.holders[0].role == "run"
    assert operator.run_sync(operator.locks("nobody-has-it")).items == []


# -- workers and sizes ----------------------------------------------------------------------------------------

ABOUT = '{"host": "h1", "pid": 17, "queues": ["a", "b"]}'


def test_workers_are_shown_with_what_they_serve_and_what_they_have_in_hand(partition, operator):
    for _ in range(3):
        partition.job(queue="a")
    partition.claim(2, worker="w1", upkeep=ABOUT, queues=("a", "b"))
    partition.serve(0, worker="w2", upkeep="not json")
    first, second = sorted(operator.run_sync(operator.workers()), key=lambda one: one.id)
    assert (first.id, first.alive, first.running, first.host, first.pid) == ("w1", True, 2, "h1", 17)
    assert first.queues == ["a", "b"]
    assert (second.running, second.queues) == (0, [])


def test_a_worker_that_fell_silent_is_shown_as_not_alive(partition, operator, clock):
    partition.serve(0, worker="w1", upkeep=ABOUT)
    clock.advance(11)
    [one] = operator.run_sync(operator.workers())
    assert not one.alive
    assert one.seen_ms_ago >= 11_000


def test_the_overview_counts_queues_lists_and_events_by_kind(partition, operator):
    partition.job(queue="nobody-serves-it")
    partition.put("scheduled")
    partition.put("failed")
    partition.serve(0, worker="w1", upkeep=ABOUT)
    seen = operator.run_sync(operator.overview())
    by_name = {one.name: one for one in seen.queues}
    assert seen.whole
    assert by_name["nobody-serves-it"].ready == 1
    assert by_name["nobody-serves-it"].workers == 0
    assert by_name["nobody-serves-it"].head_waits_ms >= 0
    assert (by_name["a"].ready, by_name["a"].workers, by_name["a"].head_waits_ms) == (0, 1, None)
    assert (seen.scheduled, seen.in_hand, seen.failed) == (1, 0, 1)
    assert seen.counters["enqueued"] == {"mail": 3}
    assert int(seen.meta["token"]) > 0


def test_a_short_scan_says_that_it_did_not_see_all_queues(partition, operator):
    for number in range(50):
        partition.job(queue=f"q{number}")
    seen = operator.run_sync(operator.overview(steps=0))
    assert not seen.whole
    assert seen.queues == []


def test_the_queues_of_the_handlers_are_always_shown(partition, url, namespace):
    app = Fencepost(url, namespace=namespace)

    @app.job(queue="billing")
    def bill(order_id: int) -> None: ...

    try:
        seen = Operator(app).run_sync(Operator(app).overview(steps=0))
    finally:
        app.close_sync()
    assert [one.name for one in seen.queues] == ["billing"]
