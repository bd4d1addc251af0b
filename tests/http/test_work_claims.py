"""Claims of workers in other languages: long polls, lost answers, callers who hang up, and whose run it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from fencepost import Fencepost
from fencepost.api import ApiSettings
from fencepost.api.service import Service
from fencepost.operate import Operator
from tests.http.conftest import Live, bearer, in_process
from tests.http.elsewhere import claim, declare, enqueue, key, post
from tests.support.partition import Partition
from tests.support.waiting import eventually


@pytest.fixture
def app(app: Fencepost) -> Fencepost:
    return declare(app)


async def test_a_claim_tells_all_that_a_worker_needs(app: Fencepost, client: httpx2.AsyncClient):
    job = await enqueue(app, "row", name="ann")
    answer = (await post(client, "claims", {"worker": "w", "queues": ["far"], "lease_s": 60})).json()
    [run] = answer["jobs"]
    record = await job.status()
    assert run == {
        "job_id": job.id, "kind": "row", "queue": "far", "args": {"name": "ann"}, "token": str(record.token),
        "nonce": answer["jobs"][0]["nonce"], "attempt": 1, "crashes": 0, "version": 1, "resource": "boat:ann",
        "checkpoint": None, "lease_s": 60.0,
    }  # fmt: skip
    assert isinstance(run["token"], str)


async def test_the_same_claim_gets_the_same_runs_and_another_one_gets_others(
    app: Fencepost, client: httpx2.AsyncClient
):
    for _ in range(3):
        await enqueue(app)
    first = await claim(client, claim_id="claim-0001", wanted=2)
    assert await claim(client, claim_id="claim-0001", wanted=2) == first
    assert len({run["job_id"] for run in first}) == 2
    [other] = await claim(client, claim_id="claim-0002", wanted=2)
    assert other["job_id"] not in {run["job_id"] for run in first}


async def test_two_claims_of_one_worker_at_a_time_can_both_be_repeated(app: Fencepost, client: httpx2.AsyncClient):
    """A worker with several threads sends them side by side; the answer of either may be lost."""
    await enqueue(app)
    first = await claim(client, claim_id="claim-of-one")
    await enqueue(app)
    second = await claim(client, claim_id="claim-of-two")
    assert await claim(client, claim_id="claim-of-one") == first
    assert await claim(client, claim_id="claim-of-two") == second


async def test_a_long_poll_answers_as_soon_as_there_is_a_job(live: Live, app: Fencepost):
    async with live.client(timeout=20) as client:
        waiting = asyncio.create_task(claim(client, wait_s=15))
        await eventually(lambda: _listed(app, "http-local-w"))
        job = await enqueue(app)
        async with asyncio.timeout(5):
            [run] = await waiting
        assert run["job_id"] == job.id


async def _listed(app: Fencepost, worker: str) -> bool:
    return worker in [one.id for one in await Operator(app).run(Operator(app).workers())]


async def test_a_long_poll_ends_empty_after_its_time(live: Live):
    async with live.client(timeout=20) as client:
        assert await claim(client, wait_s=0.2) == []


async def test_a_long_poll_ends_when_the_service_stops(live: Live, service: Service, app: Fencepost):
    async with live.client(timeout=30) as client:
        waiting = asyncio.create_task(claim(client, wait_s=25))
        await eventually(lambda: _listed(app, "http-local-w"))
        live.stop()
        async with asyncio.timeout(5):
            assert await waiting == []


async def test_a_worker_that_hangs_up_during_a_long_poll_takes_no_job_with_it(live: Live, app: Fencepost):
    """Whether its claim was on its way or not: the next worker gets the job, and no crash is charged."""
    for _ in range(5):
        async with live.client(timeout=20) as client:
            waiting = asyncio.create_task(claim(client, worker="hasty", wait_s=15))
            await eventually(lambda: _listed(app, "http-local-hasty"))
            job = await enqueue(app)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        async with live.client(timeout=20) as client:
            runs = await claim(client, worker="patient", wait_s=1.0)
            if not runs:  # the hasty one's answer was on its way already: its lease must run out
                runs = await claim(client, worker="patient", wait_s=10)
            [run] = runs
            assert run["job_id"] == job.id
            await post(client, "finish", key(run))


async def test_what_was_claimed_for_a_caller_who_is_gone_is_handed_back_at_once(
    served: Any, service: Service, app: Fencepost, monkeypatch: pytest.MonkeyPatch
):
    """The connection ends while the claim is with Redis."""
    job = await enqueue(app)
    hung_up = asyncio.Event()
    driver = service.app.link.asynchronous
    real = driver.run

    async def run(call: Any, give_up_s: float | None = None) -> Any:
        answer = await real(call, give_up_s)
        if call.verb == "claim" and answer.jobs:
            hung_up.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return answer

    monkeypatch.setattr(type(driver), "run", lambda self, call, give_up_s=None: run(call, give_up_s))
    body = b'{"worker":"w","queues":["far"],"wait_s":5}'
    sent = iter([{"type": "http.request", "body": body, "more_body": False}])
    answers: list[Any] = []

    async def receive() -> Any:
        for message in sent:
            return message
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answers.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/claims", "raw_path": b"/v1/claims", "query_string": b"",
        "root_path": "", "scheme": "http", "http_version": "1.1", "client": None, "server": None,
        "asgi": {"version": "3.0"},
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    await served(scope, receive, send)
    record = await job.status()
    assert (record.state, record.attempts, record.crashes, record.releases) == ("queued", 0, 0, 1)


async def test_a_short_lease_of_one_caller_leaves_the_grace_of_all_others_alone(
    app: Fencepost, client: httpx2.AsyncClient, partition: Partition
):
    """After an outage every live worker has one lease to renew in; it is measured by the application's."""
    await claim(client, lease_s=1)
    await claim(client, lease_s=3600)
    assert partition.redis.hget(partition.keys.meta, "lease_ms") in (None, b"2000")


async def test_kinds_that_the_worker_does_not_know_are_put_back_uncharged(app: Fencepost, client: httpx2.AsyncClient):
    known, unknown = await enqueue(app), await enqueue(app, "swim")
    runs = await claim(client, kinds=["ferry"], wanted=5)
    assert [run["job_id"] for run in runs] == [known.id]
    record = await unknown.status()
    assert (record.state, record.attempts, record.releases) == ("scheduled", 0, 1)


# -- who calls ------------------------------------------------------------------------------------------------


class TestWithTokens:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings()

    async def test_no_credential_gets_the_runs_of_another_by_its_name_and_claim(
        self, served: Any, app: Fencepost, new_token: Callable[..., str]
    ):
        one, two = new_token("work"), new_token("work")
        await enqueue(app)
        async with in_process(served, headers=bearer(one)) as client:
            [run] = await claim(client, claim_id="claim-0001")
        async with in_process(served, headers=bearer(two)) as client:
            assert await claim(client, claim_id="claim-0001") == []
        async with in_process(served, headers=bearer(one)) as client:
            assert await claim(client, claim_id="claim-0001") == [run]

    @pytest.mark.parametrize("verb", ["claims", "renew", "finish", "retry", "checkpoint", "release"])
    async def test_without_the_scope_nothing_is_done(self, verb: str, served: Any, new_token: Callable[..., str]):
        async with in_process(served, headers=bearer(new_token("read", "operate", "enqueue:*"))) as client:
            answer = await post(client, verb, {})
            assert (answer.status_code, answer.json()["scope"]) == (403, "work")
        async with in_process(served) as client:
            assert (await post(client, verb, {})).status_code == 401
