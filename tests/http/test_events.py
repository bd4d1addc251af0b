"""The events of a job as they come: from its first on, none lost, none twice, and an end."""

from __future__ import annotations

import asyncio
import random

import httpx2
import pytest

from fencepost import Fencepost
from fencepost.api import ApiSettings, asgi, stream
from fencepost.driver import Connections, SyncDriver
from fencepost.errors import RedisUnavailable
from fencepost.ledger import Archiver
from tests.http.sse import Events, following
from tests.http.test_follow import problem
from tests.support.partition import Partition
from tests.support.servers import raw_client
from tests.support.waiting import eventually

HIDDEN = "hunter2-hunter2"


@pytest.fixture
async def caller(live):
    async with live.client() as one:
        yield one


def names(messages):
    return [one.event for one in messages]


def ids_of(partition, job_id):
    """The id of each of the job's events, from the stream itself."""
    out = []
    for entry_id, fields in partition.redis.xrange(partition.keys.events):
        lines = fields[b"e"].decode().split("\n")
        first = int(entry_id.split(b"-")[0]) - len(lines) + 1
        at = fields[b"t"].decode()
        out += [f"{first + n}.{at}" for n, line in enumerate(lines) if line.split("\t")[1] == job_id]
    return out


async def test_the_history_comes_first_then_what_happens_and_then_the_end(caller, partition):
    run = partition.put("processing")
    async with following(caller, run.job_id) as events:
        assert events.response.headers["content-type"].startswith("text/event-stream")
        assert events.response.headers["cache-control"] == "no-store"
        assert events.response.headers["x-accel-buffering"] == "no"
        first, second = await events(), await events()
        assert names([first, second]) == ["enqueued", "acquired"]
        assert second.data["token"] == run.token
        assert second.data["job_id"] == run.job_id
        partition.finish(run, "RETRY", 0, "Oops", "it broke")
        assert (await events()).event == "retry_scheduled"
        [again] = partition.claim(queues=(partition.record(run.job_id).queue,))
        assert (await events()).event == "acquired"
        partition.finish(again.key, "DONE")
        done, end = await events.rest()
    assert names([done, end]) == ["done", "end"]
    assert end.data == {"id": run.job_id, "state": "done"}
    sent = [first.id, second.id, done.id]
    known = ids_of(partition, run.job_id)
    assert sent == [known[0], known[1], known[-1]]
    assert end.id == f"{done.id}.end"


async def test_who_comes_back_after_the_end_is_told_that_there_is_no_more(caller, partition):
    run = partition.put("failed")
    async with following(caller, run.job_id) as events:
        *rest, end = await events.rest()
    assert names(rest) == ["enqueued", "acquired", "failed"]
    answer = await caller.get(f"/v1/jobs/{run.job_id}/events", headers={"Last-Event-ID": end.id})
    assert (answer.status_code, answer.content) == (204, b"")
    partition.requeue(run.job_id)
    async with following(caller, run.job_id, end.id) as events:
        assert (await events()).event == "requeued"
        partition.cancel(run.job_id)
        assert names(await events.rest()) == ["cancelled", "end"]


async def test_who_lost_the_connection_before_the_end_gets_just_the_end(caller, partition):
    run = partition.put("done")
    last = ids_of(partition, run.job_id)[-1]
    async with following(caller, run.job_id, last) as events:
        assert [(one.event, one.id) for one in await events.rest()] == [("end", f"{last}.end")]


async def test_an_id_that_is_not_known_gives_everything_again(caller, partition):
    run = partition.put("done")
    for unknown in ("nonsense", "1.1", "999999999.1", ".end", "4", "1.1.end"):
        async with following(caller, run.job_id, unknown) as events:
            assert names(await events.rest()) == ["enqueued", "acquired", "done", "end"]


async def test_a_caller_that_loses_its_connection_at_any_place_misses_nothing_and_gets_nothing_twice(caller, partition):
    """A job with 60 events, while others happen; the connection is cut 20 times and resumed by the last id."""
    run, draw = partition.put("processing"), random.Random(36)
    other = partition.put("processing")

    async def go_on():
        for n in range(56):
            partition.checkpoint(run, b"1", f"step:{n}", "step", str(n))
            partition.checkpoint(other, b"1", f"step:{n}", "step", str(n))
            await asyncio.sleep(0.002)
        partition.finish(run, "DONE")

    async def follow():
        got, last = [], ""
        while True:
            wanted = draw.randint(0, 5)
            async with following(caller, run.job_id, last) as events:
                for _ in range(wanted):
                    one = await events()
                    got.append(one)
                    last = one.id
                    if one.event == "end":
                        return got

    got, _ = await asyncio.gather(follow(), go_on())
    assert [one.id for one in got[:-1]] == ids_of(partition, run.job_id)
    assert [one.data["reason"] for one in got if one.event == "step"] == [str(n) for n in range(56)]


async def test_an_event_between_the_reading_of_the_history_and_the_first_news_is_not_lost(
    caller, partition, service, monkeypatch
):
    """The job moves at the worst moment: just after its history was read."""
    from fencepost.api.story import Stories

    run = partition.put("processing")
    inner = Stories.story

    async def story(self, job_id, **options):
        told = await inner(self, job_id, **options)
        await asyncio.to_thread(partition.finish, run, "DONE")
        monkeypatch.setattr(Stories, "story", inner)
        return told

    monkeypatch.setattr(Stories, "story", story)
    async with following(caller, run.job_id) as events:
        assert names(await events.rest()) == ["enqueued", "acquired", "done", "end"]


async def test_a_history_that_could_not_be_read_again_is_read_a_moment_later(
    caller, partition, live, service, monkeypatch
):
    from fencepost.api.story import Stories

    run, inner, tries = partition.put("processing"), Stories.story, []
    async with following(caller, run.job_id) as events:
        assert names([await events(), await events()]) == ["enqueued", "acquired"]

        async def story(self, job_id, **options):
            tries.append(job_id)
            if len(tries) < 3:
                raise RedisUnavailable("look", "it is away", None)
            return await inner(self, job_id, **options)

        monkeypatch.setattr(Stories, "story", story)
        [[listener]] = service.tail._listeners.values()
        monkeypatch.setattr(listener, "tell", lambda _: listener.tell_again())  # as when it was told too much at once
        partition.finish(run, "DONE")
        assert names(await events.rest()) == ["done", "end"]
    assert len(tries) == 3


async def test_refusals_come_as_problems_before_the_first_byte(caller, partition, service):
    problem(await caller.get("/v1/jobs/unknown/events"), 404, "job-not-found")
    assert service.tail.listeners == 0


async def test_no_more_streams_are_open_than_the_service_allows_and_a_closed_one_makes_room(app, new_live, partition):
    served = asgi(app, ApiSettings(auth="off", max_streams=2))
    service = served.state.fencepost
    live = new_live(served, service.stopping.set)
    job_id = partition.job()
    async with live.client() as caller:
        async with following(caller, job_id) as one, following(caller, job_id) as two:
            assert (await one()).event == (await two()).event == "enqueued"
            answer = await caller.get(f"/v1/jobs/{job_id}/events")
            problem(answer, 503, "too-many-streams")
        await eventually(lambda: service.tail.listeners == 0)
        await eventually(lambda: not service.tail.reading)
        async with following(caller, job_id) as three:
            assert (await three()).event == "enqueued"


async def test_streams_close_when_the_service_stops_and_the_caller_can_go_on_elsewhere(live, partition):
    job_id = partition.job()
    async with live.client() as caller, following(caller, job_id) as events:
        first = await events()
        stopping = asyncio.create_task(asyncio.to_thread(live.stop))
        assert await events.rest() == []
        await asyncio.wait_for(stopping, 10)
    assert first.id == ids_of(partition, job_id)[0]


async def test_a_silent_stream_is_kept_open_by_comments(caller, partition, monkeypatch):
    monkeypatch.setattr(stream, "PING_S", 0.1)
    job_id = partition.job()
    async with following(caller, job_id) as events:
        said = [await events(comments=True) for _ in range(4)]
    assert [one.comment or one.event for one in said] == ["fencepost", "enqueued", "ping", "ping"]


async def test_secrets_do_not_come_with_events(caller, partition):
    run = partition.put("processing", payload=f'{{"password":"{HIDDEN}"}}'.encode())
    partition.cancel(run.job_id, reason=f"{HIDDEN} was leaked", hard=True)
    async with following(caller, run.job_id) as events:
        messages = await events.rest()
    assert messages[-2].data["reason"] == "[redacted] was leaked"
    assert not any(HIDDEN in str(one) for one in messages)


async def test_a_job_without_any_event_left_is_over_at_once_or_followed_from_now_on(caller, partition):
    over, job_id = partition.put("done").job_id, partition.job()
    partition.redis.xtrim(partition.keys.events, maxlen=0)
    async with following(caller, over) as events:
        [end] = await events.rest()
    assert (end.event, end.data["state"]) == ("end", "done")
    answer = await caller.get(f"/v1/jobs/{over}/events", headers={"Last-Event-ID": end.id})
    assert answer.status_code == 204
    async with following(caller, job_id) as events:
        await events(comments=True)
        partition.cancel(job_id)
        assert names(await events.rest()) == ["cancelled", "end"]


async def test_a_purged_job_ends_its_stream(caller, partition):
    run = partition.put("failed")
    async with following(caller, run.job_id) as events:
        assert names(await events.rest())[-1] == "end"
    partition.purge(run.job_id)
    problem(await caller.get(f"/v1/jobs/{run.job_id}/events"), 404, "job-not-found")


async def test_a_story_whose_beginning_only_the_ledger_knows_is_not_told_without_it(
    caller, app, partition, sqlite_url, tmp_path
):
    """Else the caller would go on behind the events that it was not told, and never get them."""
    run = partition.put("processing")
    app.ledger_url = f"sqlite:///{tmp_path}/no/such/folder/ledger.sqlite"
    async with following(caller, run.job_id) as events:
        assert (await events()).event == "enqueued"
    partition.redis.xtrim(partition.keys.events, maxlen=1, approximate=False)
    problem(await caller.get(f"/v1/jobs/{run.job_id}/events"), 503, "ledger-unavailable")
    assert (await caller.get(f"/v1/jobs/{run.job_id}")).status_code == 200


# -- restarts of Redis --------------------------------------------------------------------------------------------


class Own:
    """A service on a Redis of its own that a test may restart."""

    def __init__(self, server, app, live):
        self.server, self.app, self.live = server, app, live
        self.client = raw_client(server.url)
        self.partition = Partition(self.client, server.url, "own")
        self.partition.driver.close()
        self.partition.driver = SyncDriver(Connections(server.url))  # the restricted user would not outlive a restart

    def close(self):
        self.partition.driver.close()
        self.client.close()


@pytest.fixture
async def own(new_server, new_live, tmp_path, sqlite_url):
    """With a ledger, and a Redis that keeps nothing but what is saved by hand."""
    server = new_server(config={"appendonly": "no", "save": ""})
    app = Fencepost(server.url, namespace="own", give_up=2.0, ledger=sqlite_url)
    served = asgi(app, ApiSettings(auth="off"))
    one = Own(server, app, new_live(served, served.state.fencepost.stopping.set))
    yield one
    one.live.stop()
    one.close()
    await app.close()


@pytest.mark.slow
async def test_a_stream_outlives_a_restart_of_redis_and_goes_on_with_what_the_ledger_kept(own):
    run = own.partition.put("processing")
    archiver = Archiver(own.app.ledger, own.partition.store, own.partition.driver)
    own.client.save()
    async with own.live.client() as caller, following(caller, run.job_id) as events:
        assert names([await events(), await events()]) == ["enqueued", "acquired"]
        own.partition.checkpoint(run, b"1", "step:a", "step", "a")  # the snapshot has not got this
        lost = await events()
        assert lost.event == "step"
        archiver.copy_all()
        own.server.kill()
        await asyncio.to_thread(own.server.restart)
        own.partition.checkpoint(run, b"1", "step:b", "step", "b")
        after = await events()
        assert (after.event, after.data["reason"]) == ("step", "b")
        assert int(after.id.split(".")[0]) == int(lost.id.split(".")[0])  # the number was given out again
        archiver.copy_all()
        own.partition.finish(run, "DONE")
        assert names(await events.rest()) == ["done", "end"]
        async with following(caller, run.job_id, lost.id) as resumed:
            assert [one.data.get("reason", "") for one in await resumed.rest()] == ["b", "", ""]


@pytest.mark.slow
async def test_the_stream_of_a_job_that_redis_lost_for_good_says_so_and_ends(own):
    run = own.partition.put("processing")
    async with own.live.client() as caller, following(caller, run.job_id) as events:
        assert names([await events(), await events()]) == ["enqueued", "acquired"]
        own.server.kill()
        await asyncio.to_thread(own.server.restart)
        [end] = await events.rest(8)
    assert (end.event, end.data["state"]) == ("end", "gone")


@pytest.mark.slow
async def test_a_lost_job_is_told_up_to_where_it_was_lost(own):
    run = own.partition.put("processing")
    Archiver(own.app.ledger, own.partition.store, own.partition.driver).copy_all()
    own.server.kill()
    await asyncio.to_thread(own.server.restart)
    async with own.live.client() as caller, following(caller, run.job_id) as events:
        messages = await events.rest()
    assert names(messages) == ["enqueued", "acquired", "end"]
    assert messages[-1].data["state"] == "lost"


@pytest.mark.slow
async def test_after_a_restart_without_data_the_ledger_tells_the_whole_story(own):
    run = own.partition.put("done")
    Archiver(own.app.ledger, own.partition.store, own.partition.driver).copy_all()
    known = ids_of(own.partition, run.job_id)
    own.server.kill()
    async with own.live.client() as caller:
        problem(await caller.get(f"/v1/jobs/{run.job_id}/events"), 503, "redis-unavailable")
        await asyncio.to_thread(own.server.restart)
        async with following(caller, run.job_id) as events:
            messages = await events.rest()
    assert names(messages) == ["enqueued", "acquired", "done", "end"]
    assert [one.id for one in messages] == [*known, f"{known[-1]}.end"]


def test_the_reader_of_these_tests_takes_fields_in_any_order_as_a_browser_does():
    raw = httpx2.Response(200, content=b": hi\n\nid: 1.2\nevent: done\ndata: {}\n\n")
    events = Events(raw)
    message = asyncio.run(events())
    assert (message.event, message.id, message.data) == ("done", "1.2", {})
