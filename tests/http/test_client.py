"""The client against the real service: every verb, the errors it raises, and both forms of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost import Fencepost, Permanent, Run, Worker
from fencepost.api import ApiSettings
from fencepost.client import Accepted, ApiError, AsyncClient, Client, Event, NewJob, NoAnswer
from fencepost.errors import (
    ArgumentsRefused,
    ConfigurationError,
    IdempotencyConflict,
    IllegalTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    QueueFull,
    ResultTimeout,
    StaleToken,
)
from tests.http.conftest import Live


@pytest.fixture
async def app(app: Fencepost) -> Fencepost:
    @app.job(queue="sums")
    async def refuse(why: str) -> None:
        """Fails for good."""
        raise Permanent(why)

    return app


@pytest.fixture
async def api(live: Live) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(live.url, give_up=3) as one:
        yield one


@pytest.fixture
def blocking(live: Live) -> Iterator[Client]:
    with Client(live.url, give_up=3) as one:
        yield one


async def work(app: Fencepost) -> None:
    """Do all that is to be done."""
    await Worker(app, ["sums", "default"], burst=True).run()


# -- enqueue --------------------------------------------------------------------------------------------------


async def test_a_job_is_enqueued_and_its_result_awaited(app: Fencepost, api: AsyncClient):
    job = await api.enqueue("add", {"a": 2, "b": 3})
    assert (job.kind, job.queue, job.state, job.duplicate, job.replayed) == ("add", "sums", "queued", False, False)
    waiting = asyncio.create_task(api.result(job.id, timeout=10))
    await work(app)
    assert await waiting == 5
    info = await api.job(job.id, history=True)
    assert info.ended
    assert (info.state, info.result, info.payload, info.attempts) == ("done", 5, {"a": 2, "b": 3}, 1)
    assert [event.name for event in info.history] == ["enqueued", "acquired", "done"]


async def test_code_without_an_event_loop_does_the_same(app: Fencepost, blocking: Client):
    job = await asyncio.to_thread(blocking.enqueue, "add", {"a": 2, "b": 3})
    waiting = asyncio.create_task(asyncio.to_thread(blocking.result, job.id, timeout=10))
    await work(app)
    assert await waiting == 5


async def test_the_same_key_is_the_same_job_and_another_request_with_it_is_refused(api: AsyncClient):
    key = 'form "7" \\'  # what a quoted string has to escape
    first = await api.enqueue("add", {"a": 1}, idempotency_key=key)
    again = await api.enqueue("add", {"a": 1}, idempotency_key=key)
    assert (again.id, again.replayed) == (first.id, True)
    with pytest.raises(IdempotencyConflict) as refused:
        await api.enqueue("add", {"a": 2}, idempotency_key=key)
    assert (refused.value.key, refused.value.job_id) == (key, first.id)


async def test_without_a_key_two_calls_are_two_jobs(api: AsyncClient):
    assert (await api.enqueue("add", {"a": 1})).id != (await api.enqueue("add", {"a": 1})).id


async def test_options_reach_the_job(api: AsyncClient):
    at = datetime.now(UTC) + timedelta(hours=1)
    job = await api.job((await api.enqueue("add", {"a": 1}, run_at=at, priority=7, dedup="one", queue="other")).id)
    assert (job.state, job.priority, job.queue) == ("scheduled", 7, "other")
    assert abs((job.due_at or 0) - at.timestamp() * 1000) < 2
    assert (await api.job((await api.enqueue("add", {"a": 1}, delay="2m")).id)).state == "scheduled"
    assert (await api.enqueue("add", {"a": 9}, dedup="one")).duplicate


async def test_arguments_that_do_not_fit_are_refused_with_their_path(api: AsyncClient):
    with pytest.raises(ArgumentsRefused) as refused:
        await api.enqueue("add", {"a": "two"})
    assert (refused.value.kind, refused.value.path) == ("add", "a")
    with pytest.raises(ArgumentsRefused) as refused:
        await api.enqueue("add", {"a": 1, "c": 2})
    assert refused.value.kind == "add"


@pytest.mark.parametrize(
    ("args", "path"), [({"a": float("nan")}, "a"), ({"a": [1, {2, object()}]}, "a"), ({"a": {"b": 2**70}}, "a")]
)
async def test_what_json_would_change_is_refused_before_it_is_sent(args: dict[str, Any], path: str):
    async with AsyncClient("http://127.0.0.1:9") as api:  # nobody is there
        with pytest.raises(ArgumentsRefused) as refused:
            await api.enqueue("add", args)
    assert refused.value.path.startswith(path)


async def test_an_unknown_kind_is_an_api_error_with_the_whole_problem(api: AsyncClient):
    with pytest.raises(ApiError, match="404 unknown-kind: ") as refused:
        await api.enqueue("subtract", {"a": 1})
    assert (refused.value.status, refused.value.slug) == (404, "unknown-kind")
    assert refused.value.problem["type"] == "/v1/problems/unknown-kind"


async def test_a_batch_tells_for_each_job_what_enqueue_would_have(api: AsyncClient):
    jobs = [
        NewJob(kind="add", args={"a": 1}),
        NewJob(kind="add", args={"a": "x"}),
        NewJob(kind="nothing"),
        NewJob(kind="book", args={"sku": "mug"}, idempotency_key="mine"),
    ]
    answers = await api.enqueue_many(jobs, idempotency_key="batch-1")
    first, refused, unknown, last = answers
    assert isinstance(first, Accepted)
    assert isinstance(last, Accepted)
    assert isinstance(refused, ArgumentsRefused)
    assert (refused.kind, refused.path) == ("add", "a")
    assert isinstance(unknown, ApiError)
    assert unknown.slug == "unknown-kind"
    again = await api.enqueue_many(jobs, idempotency_key="batch-1")
    assert [one.id for one in again if isinstance(one, Accepted)] == [first.id, last.id]
    assert [one.replayed for one in again if isinstance(one, Accepted)] == [True, True]


@pytest.mark.slow
async def test_a_batch_longer_than_the_service_takes_is_sent_in_parts(app: Fencepost, api: AsyncClient):
    jobs = [NewJob(kind="add", args={"a": number}) for number in range(1001)]
    answers = await api.enqueue_many(jobs, idempotency_key="long")
    ids = [one.id for one in answers if isinstance(one, Accepted)]
    assert len(set(ids)) == 1001
    assert (await api.job(ids[1000])).payload == {"a": 1000}
    again = await api.enqueue_many(jobs, idempotency_key="long")
    assert [one.id for one in again if isinstance(one, Accepted)] == ids
    assert [queue.ready for queue in await api.queues() if queue.name == "sums"] == [1001]


async def test_a_full_queue_is_said_with_its_limit(app: Fencepost, new_live: Any, url: str, namespace: str):
    small = Fencepost(url, namespace=namespace, queue_limit=1)

    @small.job(queue="sums")
    def add(a: int) -> int:
        return a

    served = small.asgi(ApiSettings(auth="off"))
    live = new_live(served, served.state.fencepost.stopping.set)
    async with AsyncClient(live.url, give_up=0) as api:
        await api.enqueue("add", {"a": 1})
        with pytest.raises(QueueFull) as refused:
            await api.enqueue("add", {"a": 2})
    assert (refused.value.queue, refused.value.limit) == ("sums", 1)


async def test_the_kinds_and_their_schemas_can_be_read(api: AsyncClient):
    kinds = {kind.kind: kind for kind in await api.kinds()}
    assert set(kinds) == {"add", "book", "refuse"}
    assert kinds["book"].resource == "stock:{sku}"
    assert set(kinds["add"].args["properties"]) == {"a", "b"}


# -- follow ---------------------------------------------------------------------------------------------------


async def test_a_result_that_does_not_come_is_told_by_its_cause(app: Fencepost, api: AsyncClient):
    failed, cancelled = await api.enqueue("refuse", {"why": "no stock"}), await api.enqueue("add", {"a": 1}, delay=60)
    with pytest.raises(ResultTimeout) as timeout:
        await api.result(cancelled.id, timeout=0.2)
    assert timeout.value.state == "scheduled"
    await api.cancel(cancelled.id, reason="changed our mind")
    await work(app)
    with pytest.raises(JobFailed, match="no stock"):
        await api.result(failed.id)
    with pytest.raises(JobCancelled, match="changed our mind"):
        await api.result(cancelled.id)
    with pytest.raises(JobNotFound) as missing:
        await api.result("no-such-job")
    assert missing.value.job_id == "no-such-job"


async def test_events_are_told_from_the_first_to_the_last(app: Fencepost, api: AsyncClient, blocking: Client):
    job = await api.enqueue("add", {"a": 1})
    told: list[Event] = []
    known = asyncio.Event()

    async def follow() -> None:
        async for event in api.events(job.id):
            told.append(event)
            known.set()

    following = asyncio.create_task(follow())
    await known.wait()
    await work(app)
    await asyncio.wait_for(following, 10)
    assert [event.name for event in told] == ["enqueued", "acquired", "done"]
    assert told[1].job_id == job.id
    assert [event async for event in api.events(job.id, after=told[0].id)] == told[1:]
    assert await asyncio.to_thread(lambda: list(blocking.events(job.id))) == told
    with pytest.raises(JobNotFound):
        await anext(api.events("no-such-job"))


async def test_lists_have_pages(app: Fencepost, api: AsyncClient):
    ids = [(await api.enqueue("refuse", {"why": str(number)})).id for number in range(3)]
    page = await api.jobs("queued", queue="sums", limit=2)
    rest = await api.jobs("queued", queue="sums", limit=2, cursor=page.cursor)
    assert [job.id for job in page.items + rest.items] == ids
    assert (await api.jobs(kind="refuse", preview=True)).items[0].args_preview == '{"why":"0"}'
    await work(app)
    assert (await api.jobs("queued")).items == []
    dead = await api.dead(kind="refuse")
    assert {job.id for job in dead.items} == set(ids)
    assert (await api.dead(error_class="KeyError")).items == []


async def test_resources_and_queues_can_be_looked_at(app: Fencepost, api: AsyncClient):
    assert await api.resource("stock:a/b") is None
    async with app.lease("stock:a/b", ttl=5) as lease:
        held = await api.resource("stock:a/b")
        assert held is not None
        assert [holder["token"] for holder in held.holders] == [str(lease.token)]
        assert [one.resource for one in (await api.resources()).items] == ["stock:a/b"]
    with pytest.raises(ApiError, match="not-found"):
        async with AsyncClient(f"{api!r}"[13:-2] + "/elsewhere") as lost:
            await lost.resource("stock:a/b")


async def test_a_service_says_whether_it_is_ready(api: AsyncClient, namespace: str):
    ready = await api.ready()
    assert (ready.ready, ready.namespace) == (True, namespace)


# -- act ------------------------------------------------------------------------------------------------------


async def test_jobs_are_cancelled_requeued_and_purged(app: Fencepost, api: AsyncClient):
    job = await api.enqueue("refuse", {"why": "x"})
    await work(app)
    assert (await api.requeue(job.id, reason="mended")).outcome == "requeued"
    with pytest.raises(IllegalTransition) as refused:
        await api.requeue(job.id, reason="mended")
    assert (refused.value.state, refused.value.verb) == ("queued", "requeue")
    assert (await api.cancel(job.id, reason="no longer wanted")).outcome == "cancelled"
    assert (await api.purge(job.id, reason="wish of the customer")).outcome == "purged"
    with pytest.raises(JobNotFound):
        await api.job(job.id)


async def test_dead_letters_are_requeued_by_filter_and_by_id(app: Fencepost, api: AsyncClient):
    first, second = [(await api.enqueue("refuse", {"why": "x"})).id for _ in range(2)]
    await work(app)
    assert (await api.requeue_dead(kind="refuse", dry_run=True, reason="look")).matched == 2
    assert (await api.requeue_dead(ids=[first], reason="mended")).done == 1
    assert (await api.purge_dead(kind="refuse", reason="old")).done == 1
    with pytest.raises(JobNotFound):
        await api.job(second)


async def test_a_queue_is_paused_and_resumed(api: AsyncClient):
    await api.enqueue("add", {"a": 1})
    assert (await api.pause("sums", reason="upgrade")).outcome == "paused"
    [queue] = [one for one in await api.queues() if one.name == "sums"]
    assert queue.paused is not None
    assert queue.paused["reason"] == "upgrade"
    assert (await api.resume("sums", reason="done")).outcome == "resumed"


async def test_a_lease_is_revoked_with_its_token_only(app: Fencepost, api: AsyncClient):
    running, go = asyncio.Event(), asyncio.Event()

    @app.job(queue="sums")
    async def hold(run: Run) -> None:
        running.set()
        await go.wait()

    job = await hold.enqueue()
    worker = Worker(app, ["sums"])
    task = asyncio.create_task(worker.run())
    await running.wait()
    token = (await api.job(job.id)).token
    with pytest.raises(StaleToken) as refused:
        await api.revoke(job.id, token - 1, reason="too early")
    assert (refused.value.token, refused.value.newest) == (token - 1, token)
    await api.pause("sums", reason="so that it is not claimed again")
    assert (await api.revoke(job.id, token, reason="it hangs")).became == "queued"
    assert (await api.job(job.id)).state == "queued"
    go.set()
    worker.stop(now=True)
    await task


# -- the client itself ----------------------------------------------------------------------------------------


def test_both_clients_have_the_same_verbs_with_the_same_parameters():
    def verbs(client: type) -> dict[str, list[str]]:
        public = {name: value for name, value in vars(client).items() if name[0] != "_"}
        return {name: list(inspect.signature(value).parameters) for name, value in public.items()}

    assert verbs(Client) == verbs(AsyncClient)
    assert list(inspect.signature(Client.cancel).parameters) == ["self", "job_id", "reason", "hard", "token"]
    assert "IllegalTransition" in (AsyncClient.cancel.__doc__ or "")
    assert inspect.iscoroutinefunction(AsyncClient.enqueue)


@pytest.mark.parametrize(
    ("url", "token"), [("localhost:8000", None), ("http://x", ""), ("http://x", "fp_a\nb"), ("http://x", "fp_ü")]
)
def test_an_address_or_a_token_that_cannot_be_is_refused_at_once(url: str, token: str | None):
    with pytest.raises(ConfigurationError):
        Client(url, token)


def test_the_token_does_not_show():
    with Client("http://127.0.0.1:9", "fp_abc_secret") as client:
        assert "secret" not in repr(client)
    assert "secret" not in str(vars(client))


def test_a_service_that_is_not_there_is_said_so():
    with Client("http://127.0.0.1:9", give_up=0.1) as client, pytest.raises(NoAnswer) as missing:
        client.enqueue("add", {"a": 1})
    assert missing.value.executed is False
    assert str(missing.value).startswith("the service gave no answer to `POST /v1/jobs/add` (")
