"""What a hostile or careless caller tries: ids that meet, line feeds, waits past a credential, keys used anew."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from fencepost import Fencepost, credentials
from fencepost.api import ApiSettings
from fencepost.operate.plan import run_sync
from tests.http.conftest import Live, bearer
from tests.http.elsewhere import claim, enqueue, key, post
from tests.support.partition import Partition
from tests.support.waiting import eventually


@pytest.fixture
def app(app: Fencepost) -> Fencepost:
    @app.job(queue="far", remote=True, resource="pool", limit=2)
    def swim(number: int = 0) -> None:
        """Two at a time."""

    @app.job(queue="far", remote=True)
    def walk(number: int = 0) -> None:
        """Any number at a time."""

    return app


def withdraw(app: Fencepost, token: str) -> None:
    """Revoke the credential of a token."""
    held = credentials.opened(token)
    assert held is not None
    run_sync(app.link.synchronous, credentials.revoke(app.link.store, held.id, reason="gone", actor="tests"))


async def test_workers_that_choose_the_same_claim_id_do_not_meet(app: Fencepost, client: httpx2.AsyncClient):
    """What tells runs apart is the service's: else they would share one place of a resource."""
    for number in range(5):
        await enqueue(app, "swim", number=number)
    runs = []
    for worker in "abcd":
        runs += await claim(client, worker=worker, claim_id="claim-0001")
    assert len(runs) == 2
    assert len({run["nonce"] for run in runs}) == 2


async def test_a_claim_id_used_twice_by_one_worker_takes_no_second_place(
    app: Fencepost, client: httpx2.AsyncClient, partition: Partition
):
    first = await enqueue(app, "swim", number=1)
    await enqueue(app, "swim", number=2)
    [run] = await claim(client, claim_id="claim-0001")
    assert run["job_id"] == first.id
    [worker] = partition.redis.keys(app.link.store.keys.worker("http-*"))
    partition.redis.delete(worker)  # the lane has forgotten the claim, so it counts as a new one
    assert await claim(client, claim_id="claim-0001") == []
    assert partition.redis.zcard(app.link.store.keys.slots("pool")) == 1


async def test_an_older_token_is_not_told_that_its_end_was_written(app: Fencepost, client: httpx2.AsyncClient):
    job = await enqueue(app, "walk")
    [run] = await claim(client)
    assert (await post(client, "finish", {**key(run), "result": 1})).json()["replayed"] is False
    late = await post(client, "finish", {**key(run), "token": "1", "result": 2})
    assert (late.status_code, late.json()["type"]) == (409, "/v1/problems/stale-token")
    again = await post(client, "finish", {**key(run), "result": 1})
    assert again.json() == {"state": "done", "replayed": True}
    assert await job.result() == 1


async def test_after_its_own_end_a_run_is_told_that_it_has_ended(app: Fencepost, client: httpx2.AsyncClient):
    await enqueue(app, "walk")
    [run] = await claim(client)
    await post(client, "finish", {**key(run), "result": 1})
    answer = await post(client, "release", key(run))
    assert answer.status_code == 409
    assert "has reported its end before" in answer.json()["detail"]


@pytest.mark.parametrize("field", ["job_id", "token", "nonce", "worker"])
@pytest.mark.parametrize("verb", ["finish", "retry", "checkpoint", "release"])
async def test_a_line_feed_behind_an_id_is_refused(client: httpx2.AsyncClient, partition: Partition, verb, field):
    """The pattern of an id still fits before a last line feed; it would break a line of the event stream."""
    body: dict[str, Any] = {"job_id": "j", "token": "1", "nonce": "n", "worker": "w"}
    more: dict[str, dict[str, Any]] = {"retry": {"error": {}}, "checkpoint": {"value": 1}}
    body |= more.get(verb, {})
    answer = await post(client, verb, {**body, field: body[field] + "\n"})
    assert (answer.status_code, answer.json()["type"]) == (422, "/v1/problems/body-refused")
    assert partition.redis.xlen(partition.keys.events) == 0


async def test_a_refused_write_is_one_line_of_events_whatever_it_was_called(partition: Partition):
    from fencepost.store import RunKey

    partition.renew(RunKey("no\nsuch\tjob", "1\n", "n\n"))
    [(_, fields)] = partition.redis.xrange(partition.keys.events)
    line = fields[b"e"].decode()
    assert "\n" not in line
    assert line.count("\t") == 7


async def test_a_spent_claim_answers_at_once(app: Fencepost, client: httpx2.AsyncClient):
    await enqueue(app, "walk")
    [run] = await claim(client, claim_id="claim-0001")
    await post(client, "finish", {**key(run), "result": None})
    await enqueue(app, "walk")
    async with asyncio.timeout(5):
        assert await claim(client, claim_id="claim-0001", wait_s=30) == []
    assert len(await claim(client, claim_id="claim-0002")) == 1


class TestWithTokens:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings()

    async def test_a_long_poll_of_a_revoked_credential_gets_no_job(self, live: Live, app: Fencepost, new_token):
        token = new_token("work")
        body = {"worker": "w", "queues": ["far"], "wait_s": 20}
        async with live.client(headers=bearer(token), timeout=30) as client:
            waiting = asyncio.create_task(client.post("/v1/claims", json=body))
            await eventually(lambda: _known(app))
            withdraw(app, token)
            assert (await waiting).status_code == 401
        job = await enqueue(app, "walk")
        assert (await job.status()).state == "queued"

    async def test_a_stream_of_a_revoked_credential_ends(self, live: Live, app: Fencepost, new_token):
        token = new_token("read")
        job = await enqueue(app, "walk")
        path = f"/v1/jobs/{job.id}/events"
        async with live.client(headers=bearer(token), timeout=30) as client, client.stream("GET", path) as answer:
            lines = answer.aiter_lines()
            seen = [await anext(lines)]
            withdraw(app, token)
            seen += [line async for line in lines]
        assert "event: enqueued" in seen
        assert "event: end" not in seen

    async def test_a_wait_of_a_revoked_credential_tells_nothing(self, live: Live, app: Fencepost, new_token):
        token = new_token("read")
        job = await enqueue(app, "walk")
        async with live.client(headers=bearer(token), timeout=30) as client:
            waiting = asyncio.create_task(client.get(f"/v1/jobs/{job.id}?wait=20"))
            assert (await client.get(f"/v1/jobs/{job.id}")).status_code == 200
            withdraw(app, token)
            assert (await waiting).status_code == 401


def _known(app: Fencepost) -> bool:
    """Whether a worker has claimed over HTTP."""
    keys = app.link.store.keys
    return bool(app.link.synchronous.run(app.link.store.read(["ZCARD", keys.workers], int)))


async def test_a_key_of_an_action_stands_for_its_request_and_not_for_another(
    app: Fencepost, client: httpx2.AsyncClient
):
    """A second revocation under a key that was used before, with the token of another run, is done."""
    job = await enqueue(app, "walk")
    [first] = await claim(client)
    body = {"id": job.id, "token": first["token"], "reason": "stuck"}
    headers = {"Idempotency-Key": "k x"}
    for _ in range(2):
        answer = await client.post("/v1/leases/revoke", json=body, headers=headers)
        assert (answer.status_code, answer.json()["outcome"]) == (200, "revoked")
    [second] = await claim(client)
    body = {**body, "token": second["token"]}
    for name in ("k", "k x"):
        answer = await client.post("/v1/leases/revoke", json=body, headers={"Idempotency-Key": name})
        assert answer.status_code in (200, 409)
        assert (await job.status()).state == "queued"
