"""Enqueue a job, run it, read its result."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from fencepost import ArgumentsRefused, ConfigurationError, Fencepost, Job, JobNotFound, QueueFull, ResultTimeout
from tests.life.working import reached, state_of, work_off, working


async def test_an_async_handler_runs_and_its_result_comes_back(app):
    @app.job()
    async def add(a: int, b: int) -> int:
        return a + b

    job = await add.enqueue(2, b=3)
    assert job.state == "queued"
    async with working(app):
        assert await job.result(timeout=5) == 5
    assert (await job.status()).attempts == 1


async def test_a_plain_function_runs_in_a_thread(app):
    @app.job()
    def where() -> str:
        return threading.current_thread().name

    job = await where.enqueue()
    await work_off(app)
    assert (await job.result()).startswith("fencepost-run")


def test_a_script_without_an_event_loop_enqueues_and_waits_too(app):
    @app.job()
    async def greet(name: str) -> str:
        return f"hello {name}"

    job = greet.enqueue_sync("Ada")
    assert job.status_sync().state == "queued"
    worker = threading.Thread(target=lambda: __import__("asyncio").run(work_off(app)))
    worker.start()
    assert job.result_sync(timeout=5) == "hello Ada"
    worker.join()


async def test_calling_a_handler_runs_it_here_and_now_as_a_unit_test_would(app, redis):
    @app.job()
    async def double(n: int) -> int:
        return 2 * n

    assert await double(21) == 42
    assert redis.dbsize() == 0


@dataclass
class Line:
    sku: str
    price: float


@dataclass
class Order:
    id: int
    lines: list[Line]


async def test_arguments_arrive_as_the_types_the_handler_names(app):
    @app.job()
    async def total(order: Order, day: datetime) -> str:
        return f"{sum(line.price for line in order.lines)} on {day:%A}"

    monday = datetime(2025, 3, 3, 12, tzinfo=UTC)
    job = await total.enqueue(Order(7, [Line("a", 1.5), Line("b", 2.0)]), day=monday)
    await work_off(app)
    assert await job.result() == "3.5 on Monday"


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"order": Order(1, [Line("a", 1.0), Line("b", float("nan"))])}, "order.lines[1].price"),
        ({"order": "no order"}, "order"),
        ({"order": Order(1, []), "colour": "red"}, "colour"),
        ({}, "order"),
        ({"order": Order(1, [Line("x" * 70_000, 1.0)])}, "order"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_with_their_path_and_nothing_is_stored(app, redis, arguments, path):
    @app.job()
    async def total(order: Order) -> None: ...

    with pytest.raises(ArgumentsRefused) as refused:
        await total.enqueue(**arguments)
    assert refused.value.path == path
    assert redis.dbsize() == 0


async def test_a_delayed_job_waits_until_it_is_due_by_the_clock_of_redis(app, clock):
    @app.job()
    async def remind() -> str:
        return "now"

    job = await remind.options(delay="1h").enqueue()
    assert job.state == "scheduled"
    await work_off(app)
    assert await state_of(job) == "scheduled"
    clock.advance(3_601)
    await work_off(app)
    assert await job.result() == "now"


@pytest.mark.slow
async def test_a_job_starts_within_one_poll_of_its_time(app):
    @app.job()
    async def remind() -> float:
        return datetime.now(UTC).timestamp()

    async with working(app, poll_s=0.2):
        due = datetime.now(UTC) + timedelta(seconds=0.3)
        job = await remind.options(run_at=due).enqueue()
        assert 0 <= await job.result(timeout=5) - due.timestamp() < 0.5


@pytest.mark.parametrize("zone", ["Asia/Jakarta", "America/New_York", "UTC"])
async def test_a_moment_is_the_same_in_every_time_zone(app, zone):
    """report: python-arq/arq#185"""

    @app.job()
    async def remind() -> None: ...

    moment = datetime(2030, 6, 1, 9, 30, tzinfo=UTC)
    job = await remind.options(run_at=moment.astimezone(ZoneInfo(zone))).enqueue()
    assert (await job.status()).due_at == round(moment.timestamp() * 1000)


async def test_a_moment_without_a_time_zone_is_refused(app):
    """report: python-arq/arq#185"""

    @app.job()
    async def remind() -> None: ...

    with pytest.raises(ConfigurationError, match="has no time zone"):
        await remind.options(run_at=datetime(2030, 6, 1, 9, 30)).enqueue()  # noqa: DTZ001


async def test_a_higher_priority_is_served_first(app):
    order: list[str] = []

    @app.job()
    async def note(name: str) -> None:
        order.append(name)

    await note.enqueue("plain")
    await note.options(priority=9).enqueue("urgent")
    await note.options(priority=3).enqueue("soon")
    await work_off(app, concurrency=1)
    assert order == ["urgent", "soon", "plain"]


async def test_the_lowest_priority_is_served_in_the_end(app, clock):
    """A step of priority is worth a minute of waiting, no more. report: hibiken/asynq#314"""
    order: list[str] = []

    @app.job()
    async def note(name: str) -> None:
        order.append(name)

    await note.enqueue("plain and patient")
    clock.advance(121)
    await note.options(priority=2).enqueue("a newcomer two steps above")
    await work_off(app, concurrency=1)
    assert order == ["plain and patient", "a newcomer two steps above"]


async def test_options_choose_queue_and_id_for_one_job(app):
    @app.job(queue="billing")
    async def charge() -> str:
        return "charged"

    job = await charge.options(queue="urgent", job_id="charge-42").enqueue()
    assert (job.id, (await job.status()).queue) == ("charge-42", "urgent")
    again = await charge.options(queue="urgent", job_id="charge-42").enqueue()
    assert again.id == "charge-42"
    worker = await work_off(app, "urgent")
    assert worker.ended == 1


async def test_a_full_queue_refuses_and_says_so(url, namespace):
    app = Fencepost(url, namespace=namespace, queue_limit=2)

    @app.job()
    async def note() -> None: ...

    await note.enqueue()
    await note.enqueue()
    with pytest.raises(QueueFull, match="holds its limit of 2"):
        await note.enqueue()
    await app.close()


async def test_a_handle_is_found_again_by_its_id(app):
    @app.job()
    async def add(a: int, b: int) -> int:
        return a + b

    job = await add.enqueue(1, 1)
    await work_off(app)
    assert await app.get(job.id).result() == 2
    with pytest.raises(JobNotFound):
        await app.get("never-was").status()


async def test_waiting_for_a_result_ends_and_leaves_the_job_alone(app):
    @app.job()
    async def later() -> None: ...

    job: Job[None] = await later.options(delay=60).enqueue()
    with pytest.raises(ResultTimeout) as gone:
        await job.result(timeout=0.02)
    assert gone.value.state == "scheduled"


async def test_two_applications_on_one_server_do_not_see_each_other(app, url, redis):
    other = Fencepost(url, namespace=app.namespace + ".other")

    @app.job(kind="note")
    async def mine() -> str:
        return "mine"

    @other.job(kind="note")
    async def theirs() -> str:
        return "theirs"

    job = await mine.enqueue()
    await work_off(other)
    assert await state_of(job) == "queued"
    async with working(app):
        assert await job.result() == "mine"
    await reached(job, "done")
    await other.close()
    for key in redis.keys(f"{{{other.namespace}:*"):
        redis.delete(key)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dedup": ""},
        {"idempotency_key": ""},
        {"idempotency_key": 5},
        {"client": 5, "idempotency_key": "a"},
        {"run_at": 5},
    ],
)
async def test_a_key_or_moment_that_is_none_is_refused_by_name(app, wrong):
    @app.job(dedup=True)
    async def book(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        await book.options(**wrong).enqueue(1)


async def test_a_zero_is_a_dedup_key(app):
    @app.job()
    async def book(number: int) -> None: ...

    first, second = await book.options(dedup=0).enqueue(1), await book.options(dedup=0).enqueue(1)
    assert (second.id, second.duplicate) == (first.id, True)


async def test_counters_are_named_by_kind_and_verb_only_whatever_the_number_of_jobs_and_workers(app, redis):
    """report: chrisguidry/docket#164"""

    @app.job(resource="order:{n}", dedup="{n}")
    async def invoice(n: int) -> None: ...

    names = set()
    for worker in range(3):
        await invoice.enqueue_many([{"n": 100 * worker + n} for n in range(100)])
        await work_off(app)
        names.add(frozenset(redis.hkeys(app.link.store.keys.stats)))
    assert names == {frozenset({b"enqueued:invoice", b"done:invoice"})}
