"""The client on a network that loses requests and answers: nothing is done twice, and what is not known is said."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from fencepost import Fencepost, Worker
from fencepost.client import ApiError, AsyncClient, Client, NewJob, NoAnswer
from fencepost.client.following import Following
from fencepost.client.sending import Call, Pause
from fencepost.errors import RedisUnavailable
from tests.http.conftest import Live

PASS, NO_REQUEST, NO_REPLY, CUT = "pass", "no_request", "no_reply", "cut"


class Losing(httpx2.AsyncHTTPTransport):
    """Calls the real service, and loses what the test says. A fault of the form (status, headers, body) answers itself.
    CUT breaks the answer off after its first chunk."""

    def __init__(self, *faults: Any) -> None:
        super().__init__()
        self.faults, self.seen = deque(faults), list[httpx2.Request]()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(request)
        fault = self.faults.popleft() if self.faults else PASS
        if isinstance(fault, tuple):
            return httpx2.Response(fault[0], headers=fault[1], content=fault[2], request=request)
        if fault == NO_REQUEST:
            raise httpx2.ConnectError("the connection was refused", request=request)
        response = await super().handle_async_request(request)
        if fault == NO_REPLY:
            await response.aread()
            raise httpx2.ReadError("the connection was reset", request=request)
        if fault == CUT:
            response.stream = Cut(response.stream)
        return response


class Cut(httpx2.AsyncByteStream):
    """The beginning of a stream: three events."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = b""
        async for chunk in self._inner:
            seen += chunk
            if seen.count(b"\nid: ") + seen.startswith(b"id: ") >= 2:
                yield seen[: seen.rindex(b"\nid: ") + 5]  # the last event comes only in part
                raise httpx2.ReadError("the connection was reset")

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.fixture
def lossy(live: Live) -> Any:
    """Make a client that loses: `async with lossy(NO_REPLY) as (client, transport)`."""

    class Lossy:
        def __init__(self, *faults: Any, give_up: float = 5.0) -> None:
            self.transport = Losing(*faults)
            self.client = AsyncClient(live.url, give_up=give_up, transport=self.transport)

        async def __aenter__(self) -> tuple[AsyncClient, Losing]:
            return self.client, self.transport

        async def __aexit__(self, *_: object) -> None:
            await self.client.close()

    return Lossy


def busy(status: int, *, after: str = "", changed: str = "") -> tuple[int, dict[str, str], bytes]:
    headers = {"Retry-After": after} if after else {}
    return status, headers, (b'{"type": "/v1/problems/x", "changed": "%s"}' % changed.encode() if changed else b"busy")


async def count(client: AsyncClient) -> int:
    return len((await client.jobs("queued")).items)


async def test_an_enqueue_whose_answer_is_lost_is_sent_again_and_adds_one_job(lossy: Any):
    async with lossy(NO_REPLY, NO_REQUEST, NO_REPLY) as (client, transport):
        job = await client.enqueue("add", {"a": 1})
        keys = {request.headers["idempotency-key"] for request in transport.seen}
        assert (len(transport.seen), len(keys), job.replayed) == (4, 1, True)
        assert await count(client) == 1


async def test_a_batch_whose_answer_is_lost_is_sent_again_and_adds_nothing_twice(lossy: Any):
    async with lossy(NO_REPLY, PASS) as (client, _):
        answers = await client.enqueue_many([NewJob(kind="add", args={"a": number}) for number in range(3)])
        assert len(answers) == 3
        assert await count(client) == 3


async def test_what_is_not_safe_to_repeat_is_not_repeated_and_the_error_says_unknown(app: Fencepost, lossy: Any):
    async with lossy() as (client, transport):
        job = await client.enqueue("add", {"a": 1})
        await client.cancel(job.id, reason="for the test")
        transport.seen.clear()
        transport.faults.append(NO_REPLY)
        with pytest.raises(NoAnswer, match="Whether it was carried out is unknown") as lost:
            await client.purge(job.id, reason="for the test")
        assert (lost.value.executed, len(transport.seen)) == (None, 1)


async def test_what_never_reached_the_service_is_sent_again_whatever_it_is(app: Fencepost, lossy: Any):
    async with lossy() as (client, transport):
        job = await client.enqueue("add", {"a": 1})
        await client.cancel(job.id, reason="for the test")
        transport.faults += [NO_REQUEST, busy(429), busy(503, changed="nothing")]
        assert (await client.purge(job.id, reason="for the test")).outcome == "purged"


@pytest.mark.parametrize("fault", [busy(502), busy(503), busy(504), busy(503, changed="unknown")])
async def test_a_refusal_by_a_proxy_leaves_open_what_happened_so_only_what_is_safe_is_repeated(lossy: Any, fault: Any):
    async with lossy(fault) as (client, transport):
        await client.enqueue("add", {"a": 1})
        assert len(transport.seen) == 2
        transport.faults.append(fault)
        with pytest.raises(ApiError):
            await client.purge_dead(reason="for the test")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500])
async def test_a_refusal_that_would_come_again_is_not_repeated(lossy: Any, status: int):
    async with lossy(busy(status)) as (client, transport):
        with pytest.raises(ApiError) as refused:
            await client.enqueue("add", {"a": 1})
        assert (refused.value.status, refused.value.slug, len(transport.seen)) == (status, "", 1)


async def test_the_pause_that_the_service_asks_for_is_kept(lossy: Any):
    async with lossy(busy(429, after="1")) as (client, _):
        began_s = time.monotonic()
        await client.enqueue("add", {"a": 1})
        assert time.monotonic() - began_s >= 1


async def test_a_pause_longer_than_the_patience_is_not_begun(lossy: Any):
    async with lossy(busy(503, after="30"), give_up=2) as (client, _):
        began_s = time.monotonic()
        with pytest.raises(ApiError, match="503"):
            await client.enqueue("add", {"a": 1})
        assert time.monotonic() - began_s < 1.5


async def test_an_answer_that_is_not_the_service_s_is_no_success(lossy: Any):
    async with lossy((200, {}, b"<html>welcome</html>")) as (client, _):
        with pytest.raises(NoAnswer, match="cannot be read"):
            await client.job("some-job")


async def test_redis_that_is_away_is_told_as_in_python(app: Fencepost, new_server: Any, new_live: Any):
    from fencepost.api import ApiSettings

    server = new_server()
    other = Fencepost(server.url, give_up=0.2)

    @other.job(queue="sums")
    def add(a: int) -> int:
        return a

    served = other.asgi(ApiSettings(auth="off"))
    live = new_live(served, served.state.fencepost.stopping.set)
    async with AsyncClient(live.url, give_up=0) as client:
        server.stop()
        with pytest.raises(RedisUnavailable, match="POST /v1/jobs/add") as away:
            await client.enqueue("add", {"a": 1})
        assert away.value.executed is False
        ready = await client.ready()
        assert not ready.ready


# -- events ---------------------------------------------------------------------------------------------------


async def test_events_go_on_where_the_connection_broke_off(app: Fencepost, lossy: Any):
    async with lossy() as (client, transport):
        job = await client.enqueue("add", {"a": 1})
        transport.faults += [NO_REQUEST, CUT, NO_REPLY, busy(503, after="1")]
        told = []

        async def follow() -> None:
            async for event in client.events(job.id):
                told.append(event)

        following = asyncio.create_task(follow())
        await Worker(app, ["sums"], burst=True).run()
        await asyncio.wait_for(following, 15)
        assert [event.name for event in told] == ["enqueued", "acquired", "done"]
        asked = [request.headers.get("last-event-id") for request in transport.seen[1:]]
        assert asked[:3] == [None, None, told[0].id]


def test_a_quiet_stream_that_breaks_is_followed_further_however_long_it_was():
    following = Following("job", None, give_up_s=0.5)

    def until_it_gives_up() -> int:
        return next(number for number in range(100) if following.broken(None) > 60)

    following.began()
    with pytest.raises(NoAnswer, match="the stream ended"):
        until_it_gives_up()
    following.began()  # the service is back: from here on it may be away for as long again
    assert following.broken(httpx2.ReadError("reset")) > 0
    with pytest.raises(NoAnswer):
        until_it_gives_up()


async def test_an_end_that_was_seen_already_ends_the_following(app: Fencepost, lossy: Any):
    async with lossy() as (client, _):
        job = await client.enqueue("add", {"a": 1})
        await Worker(app, ["sums"], burst=True).run()
        last = [event async for event in client.events(job.id)][-1]
        assert [event async for event in client.events(job.id, after=f"{last.id}.end")] == []


# -- without an event loop ------------------------------------------------------------------------------------


class LosingSync(httpx2.HTTPTransport):
    """As Losing, for a few faults."""

    def __init__(self, *faults: str) -> None:
        super().__init__()
        self.faults = deque(faults)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        fault = self.faults.popleft() if self.faults else PASS
        if fault == NO_REQUEST:
            raise httpx2.ConnectError("the connection was refused", request=request)
        response = super().handle_request(request)
        if fault == NO_REPLY:
            response.read()
            raise httpx2.ReadError("the connection was reset", request=request)
        return response


async def test_the_blocking_client_repeats_what_the_other_does(app: Fencepost, live: Live):
    def story() -> tuple[int, list[str]]:
        transport = LosingSync(NO_REQUEST, NO_REPLY)
        with Client(live.url, transport=transport) as client:
            job = client.enqueue("add", {"a": 1})
            waiting = len(client.jobs("queued").items)
            transport.faults += [NO_REQUEST, NO_REPLY]
            asyncio.run_coroutine_threadsafe(Worker(app, ["sums"], burst=True).run(), loop).result(10)
            return waiting, [event.name for event in client.events(job.id)]

    loop = asyncio.get_running_loop()
    assert await asyncio.to_thread(story) == (1, ["enqueued", "acquired", "done"])


async def test_a_plan_may_be_made_of_own_calls(live: Live):
    def both() -> Any:
        first = yield Call("GET", "/livez", len)
        yield Pause(0)
        return first + (yield Call("GET", "/livez", len))

    async with AsyncClient(live.url) as client:
        assert await client.send(both()) == 2 * len(b'{"live":true}')
