"""One job over HTTP: what is shown of it, what is hidden, and how long a caller waits for its end."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time

import msgspec
import pytest

from fencepost import Fencepost
from fencepost.api import ApiSettings, asgi
from fencepost.api.tail import Tail
from tests.http.conftest import in_process
from tests.support.waiting import eventually

SECRET = "hunter2-hunter2"


def problem(answer, status, slug):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == f"/v1/problems/{slug}"
    return answer.json()


async def test_a_queued_job_is_shown_with_its_arguments_its_place_and_where_that_is_known_from(client, app):
    first = await app.handler("add").enqueue(1, 2)
    job = await app.handler("add").enqueue(3)
    answer = await client.get(f"/v1/jobs/{job.id}")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    told = answer.json()
    assert (told["id"], told["state"], told["kind"], told["queue"]) == (job.id, "queued", "add", "sums")
    assert (told["payload"], told["position"], told["source"]) == ({"a": 3}, 1, "redis")
    assert told["token"] == "0"
    assert "history" not in told
    assert "lease" not in told
    assert (await client.get(f"/v1/jobs/{first.id}")).json()["position"] == 0


async def test_a_job_that_never_was_is_not_found_and_never_called_queued(client):
    """report: celery/celery#4450"""
    for unknown in ("0198c0de-0000-7000-8000-000000000000", "batch", "a%00b", "x" * 500, "%F0%9F%92%A9"):
        problem(await client.get(f"/v1/jobs/{unknown}"), 404, "job-not-found")
    problem(await client.get("/v1/jobs/unknown", params={"wait": 5}), 404, "job-not-found")


async def test_no_state_is_told_while_redis_is_away_and_the_job_is_there_after_it(new_server):
    """report: celery/celery#4450"""
    server = new_server()
    async with _own(server) as app:
        job = await app.handler("nap").enqueue()
        async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
            assert (await client.get(f"/v1/jobs/{job.id}")).json()["state"] == "queued"
            server.kill()
            told = problem(await client.get(f"/v1/jobs/{job.id}"), 503, "redis-unavailable")
            assert told["changed"] == "nothing"
            problem(await client.get(f"/v1/jobs/{job.id}", params={"wait": 1}), 503, "redis-unavailable")
            problem(await client.get("/v1/jobs/unknown"), 503, "redis-unavailable")
            await asyncio.to_thread(server.restart)
            assert (await client.get(f"/v1/jobs/{job.id}")).json()["state"] == "queued"


@contextlib.asynccontextmanager
async def _own(server):
    """An application on a server of this test alone."""
    app = Fencepost(server.url, namespace="own", give_up=2.0)

    @app.job()
    async def nap() -> None: ...

    yield app
    await app.close()


# -- what is shown ------------------------------------------------------------------------------------------------


async def test_secrets_are_hidden_in_arguments_results_errors_progress_steps_and_events(client, partition):
    payload = msgspec.json.encode({"user": "ann", "login": {"password": SECRET, "apiKey": "k-0123456789"}})
    run = partition.put("processing", payload=payload)
    hidden = msgspec.json.encode({"token": SECRET, "n": 1})
    for field in ("progress", "checkpoint", "step:sign in"):
        assert partition.checkpoint(run, hidden, field).word == "OK"
    assert partition.finish(run, "BURY", "permanent", "Oops", f"no user with {SECRET} at k-0123456789").word == "OK"
    partition.requeue(run.job_id)
    partition.cancel(run.job_id, reason=f"{SECRET} was leaked")
    answer = await client.get(f"/v1/jobs/{run.job_id}", params={"history": 1})
    assert SECRET not in answer.text
    assert "k-0123456789" not in answer.text
    told = answer.json()
    assert told["payload"] == {"user": "ann", "login": {"password": "[redacted]", "apiKey": "[redacted]"}}
    assert told["history"][-1]["reason"] == "[redacted] was leaked"


async def test_a_result_is_shown_with_its_secrets_hidden_and_what_is_no_json_is_not_shown(client, partition):
    run = partition.put("processing", payload=b"\xffnot json " + SECRET.encode())
    assert partition.finish(run, "DONE", msgspec.json.encode({"session": SECRET, "sum": 3})).word == "OK"
    answer = await client.get(f"/v1/jobs/{run.job_id}")
    assert SECRET not in answer.text
    assert answer.json()["result"] == {"session": "[redacted]", "sum": 3}
    assert answer.json()["payload"] == "[redacted]"


@pytest.mark.usefixtures("declared")
async def test_names_that_the_application_declares_as_secret_are_hidden_as_well(client, partition):
    run = partition.put("failed", payload=msgspec.json.encode({"tax_id": SECRET, "n": 1}))
    told = (await client.get(f"/v1/jobs/{run.job_id}")).json()
    assert told["payload"] == {"tax_id": "[redacted]", "n": 1}
    listed = await client.get("/v1/jobs", params={"preview": 1})
    assert listed.json()["items"][0]["args_preview"] == '{"tax_id":"[redacted]","n":1}'


@pytest.fixture
def declared(app):
    app.redact = ("tax_id",)


async def test_the_error_of_a_failed_job_is_told_with_the_values_of_its_secret_arguments_hidden(client, partition):
    run = partition.put("processing", payload=msgspec.json.encode({"password": SECRET}))
    partition.finish(run, "BURY", "permanent", "Oops", f"login with {SECRET!r} failed")
    told = (await client.get(f"/v1/jobs/{run.job_id}")).json()
    assert (told["state"], told["reason"], told["error_class"]) == ("failed", "permanent", "Oops")
    assert told["error"] == "login with '[redacted]' failed"


async def test_a_running_job_tells_how_long_its_lease_still_holds(client, partition):
    run = partition.put("processing")
    told = (await client.get(f"/v1/jobs/{run.job_id}")).json()
    assert told["state"] == "processing"
    assert (told["token"], told["nonce"], told["worker"]) == (run.token, run.nonce, "w1")
    assert told["lease"]["state"] == "held"
    assert 25 < told["lease"]["left_s"] <= 30


async def test_a_lease_that_ran_out_is_said_to_have_run_out_and_for_how_long(client, partition):
    run = partition.put("processing")
    now = partition.redis.time()[0] * 1000
    partition.redis.zadd(partition.keys.leases, {run.job_id: now - 32_100}, xx=True)
    lease = (await client.get(f"/v1/jobs/{run.job_id}")).json()["lease"]
    assert lease["state"] == "ran_out"
    assert 31 <= lease["ran_out_for_s"] <= 36
    said = re.match(r"lease ran out (\d+) s ago; what its worker still writes is refused", lease["text"])
    assert said
    assert abs(int(said[1]) - lease["ran_out_for_s"]) <= 0.6
    assert partition.finish(run, "DONE").word == "EXPIRED"  # and so it is


async def test_a_run_without_a_lease_is_told_to_have_none(client, partition):
    run = partition.put("processing")
    partition.redis.zrem(partition.keys.leases, run.job_id)
    assert (await client.get(f"/v1/jobs/{run.job_id}")).json()["lease"]["state"] == "missing"
    partition.heal(run.job_id)


async def test_the_history_is_told_when_asked_for_oldest_first_and_back_to_the_enqueue(client, partition):
    run = partition.put("failed")
    told = (await client.get(f"/v1/jobs/{run.job_id}", params={"history": "1"})).json()
    assert [one["name"] for one in told["history"]] == ["enqueued", "acquired", "failed"]
    assert told["history_whole"] is True
    assert told["history"][1]["token"] == run.token


@pytest.mark.parametrize(
    "query", ["wait=-1", "wait=soon", "wait=nan", "wait=inf", "wait=", "wait=1&wait=2", "history=2", "hystory=1"]
)
async def test_parameters_that_do_not_fit_are_refused_by_name(client, query):
    told = problem(await client.get(f"/v1/jobs/any?{query}"), 422, "value-refused")
    assert query.split("=")[0] in told["detail"]


# -- waiting ------------------------------------------------------------------------------------------------------


async def test_a_caller_that_waits_is_answered_as_soon_as_the_job_has_ended(client, partition, service):
    run = partition.put("processing")
    asked = asyncio.create_task(client.get(f"/v1/jobs/{run.job_id}", params={"wait": 15}))
    await eventually(lambda: service.tail.listeners == 1)
    partition.checkpoint(run, b"0.5", "progress")
    partition.job()
    began = time.monotonic()
    partition.finish(run, "DONE", b'"fine"')
    told = (await asked).json()
    assert (told["state"], told["result"]) == ("done", "fine")
    assert time.monotonic() - began < 2
    assert service.tail.listeners == 0
    assert not service.tail.reading


async def test_a_job_that_ends_just_before_its_caller_begins_to_listen_is_seen(client, partition, monkeypatch):
    run, inner = partition.put("processing"), Tail.listen

    async def listen(self, job_id):
        partition.finish(run, "DONE")
        return await inner(self, job_id)

    monkeypatch.setattr(Tail, "listen", listen)
    began = time.monotonic()
    assert (await client.get(f"/v1/jobs/{run.job_id}", params={"wait": 15})).json()["state"] == "done"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
async def test_a_caller_that_waits_for_a_job_that_has_ended_is_answered_at_once(client, partition, state):
    run = partition.put(state)
    began = time.monotonic()
    assert (await client.get(f"/v1/jobs/{run.job_id}", params={"wait": 15})).json()["state"] == state
    assert time.monotonic() - began < 2


async def test_a_wait_ends_with_the_state_that_the_job_has_by_then(client, partition, service):
    job_id = partition.job()
    asked = asyncio.create_task(client.get(f"/v1/jobs/{job_id}", params={"wait": 0.4}))
    await eventually(lambda: service.tail.listeners == 1)
    partition.claim()
    assert (await asked).json()["state"] == "processing"
    assert service.tail.listeners == 0


async def test_a_wait_is_cut_to_what_the_service_allows(app, partition):
    job_id = partition.job()
    async with in_process(asgi(app, ApiSettings(auth="off", max_wait_s=0.2))) as client:
        began = time.monotonic()
        assert (await client.get(f"/v1/jobs/{job_id}?wait=9999999999")).json()["state"] == "queued"
        assert time.monotonic() - began < 3


async def test_waits_end_when_the_service_stops(client, partition, service):
    job_id = partition.job()
    asked = asyncio.create_task(client.get(f"/v1/jobs/{job_id}", params={"wait": 30}))
    await eventually(lambda: service.tail.listeners == 1)
    service.stopping.set()
    assert (await asyncio.wait_for(asked, 3)).json()["state"] == "queued"
    service.stopping.clear()


async def test_a_caller_that_goes_away_is_not_waited_for(live, service, partition):
    job_id = partition.job()
    async with live.client() as client:
        asked = asyncio.create_task(client.get(f"/v1/jobs/{job_id}", params={"wait": 30}))
        await eventually(lambda: service.tail.listeners == 1)
        asked.cancel()
    await eventually(lambda: service.tail.listeners == 0)
    await eventually(lambda: not service.tail.reading)


async def test_no_more_may_wait_than_the_service_allows(app, partition):
    job_id = partition.job()
    served = asgi(app, ApiSettings(auth="off", max_streams=1))
    tail = served.state.fencepost.tail
    async with in_process(served) as client:
        first = asyncio.create_task(client.get(f"/v1/jobs/{job_id}", params={"wait": 15}))
        await eventually(lambda: tail.listeners == 1)
        refused = await client.get(f"/v1/jobs/{job_id}", params={"wait": 15})
        assert problem(refused, 503, "too-many-streams")["changed"] == "nothing"
        assert refused.headers["retry-after"] == "5"
        assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 200
        partition.cancel(job_id)
        assert (await first).json()["state"] == "cancelled"
        assert (await client.get(f"/v1/jobs/{job_id}", params={"wait": 15})).json()["state"] == "cancelled"


async def test_a_scope_is_needed_to_read(app, partition):
    job_id = partition.job()
    async with in_process(asgi(app, ApiSettings())) as client:
        for path in (f"/v1/jobs/{job_id}", "/v1/jobs", "/v1/dead", "/v1/resources", "/v1/resources/a", "/v1/queues"):
            problem(await client.get(path), 401, "unauthenticated")
        problem(await client.get(f"/v1/jobs/{job_id}/events"), 401, "unauthenticated")
