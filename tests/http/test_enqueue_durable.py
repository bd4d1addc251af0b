"""Durable kinds over HTTP: in SQL before the caller has an answer, also while Redis is away."""

from __future__ import annotations

import pytest

from fencepost import Fencepost
from fencepost.api import ApiSettings, asgi
from fencepost.ledger.reconcile import Reconciler
from tests.http.conftest import in_process
from tests.http.test_enqueue import problem


@pytest.fixture
def make(namespace):
    """Make an application with the durable kind `bill`."""

    def make(url: str, ledger: str) -> Fencepost:
        application = Fencepost(url, namespace=namespace, ledger=ledger, give_up=0.3)

        @application.job(durability="ledger", dedup="order:{order}")
        async def bill(order: int) -> None: ...

        return application

    return make


def client_of(app):
    return in_process(asgi(app, ApiSettings(auth="off")))


async def test_a_durable_job_is_in_the_ledger_when_its_caller_has_the_answer(make, url, sqlite_url):
    app = make(url, sqlite_url)
    async with client_of(app) as client:
        answer = await client.post("/v1/jobs/bill", json={"args": {"order": 1}})
        assert answer.status_code == 202
        assert app.ledger.job(answer.json()["id"]).state == "accepted"
        again = await client.post("/v1/jobs/bill", json={"args": {"order": 1}})
        assert (again.json()["duplicate"], again.json()["id"]) == (True, answer.json()["id"])
    await app.close()


async def test_while_redis_is_away_a_durable_job_is_accepted_and_a_repeat_is_one_job_in_the_end(
    make, url, sqlite_url, partition
):
    away = make("redis://127.0.0.1:1/0", sqlite_url)
    async with client_of(away) as client:
        ids = []
        for _ in range(2):
            answer = await client.post("/v1/jobs/bill", json={"args": {"order": 1}}, headers={"Idempotency-Key": "k1"})
            assert answer.status_code == 202, answer.text
            ids.append(answer.json()["id"])
    Reconciler(away.ledger, partition.store, partition.driver, quiet_s=0).run()
    kept = [job_id for job_id in ids if partition.redis.exists(partition.keys.job(job_id))]
    assert len(kept) == 1
    await away.close()
    back = make(url, sqlite_url)
    async with client_of(back) as client:
        answer = await client.post("/v1/jobs/bill", json={"args": {"order": 1}}, headers={"Idempotency-Key": "k1"})
        assert (answer.json()["id"], answer.headers["idempotent-replayed"]) == (kept[0], "true")
    await back.close()


async def test_a_ledger_without_its_tables_is_no_fault_of_the_caller(make, url, postgres_url, redis):
    app = make(url, postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    async with client_of(app) as client:
        answer = await client.post("/v1/jobs/bill", json={"args": {"order": 1}})
        told = problem(answer, 500, "misconfigured")
        assert "Nothing was enqueued" in told["detail"]
        answer = await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "bill", "args": {"order": 1}}]})
        assert answer.json()["jobs"][0]["problem"]["type"] == "/v1/problems/misconfigured"
    assert redis.keys("*:job:*") == []
    await app.close()
