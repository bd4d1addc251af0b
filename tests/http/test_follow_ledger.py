"""What Redis has forgotten or lost: the ledger tells of it, and never that a job still waits or runs."""

from __future__ import annotations

import msgspec
import pytest

from fencepost import Fencepost
from fencepost.job import JobSpec
from fencepost.ledger import Archiver
from fencepost.sql.upgrade import upgrade
from tests.http.test_follow import problem


@pytest.fixture
async def app(url, namespace, sqlite_url):
    """An application with a ledger."""
    application = Fencepost(url, namespace=namespace, lease=2.0, give_up=5.0, ledger=sqlite_url)

    @application.job(durability="ledger")
    async def bill(order: int, password: str = "") -> None: ...

    yield application
    await application.close()


@pytest.fixture
def archiver(app, partition):
    """Copies the events into the application's ledger when a test says so."""
    return Archiver(app.ledger, partition.store, partition.driver)


def forget(partition, job_id):
    """As when its retention is over."""
    partition.redis.delete(partition.keys.job(job_id))


def lose_everything(partition):
    """As when Redis comes back empty."""
    for key in partition.redis.scan_iter(f"{partition.keys.prefix}*"):
        partition.redis.delete(key)


async def read(client, job_id, **params):
    answer = await client.get(f"/v1/jobs/{job_id}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_job_that_is_done_and_forgotten_is_done_and_its_result_expired(client, partition, archiver):
    """report: celery/celery#4450"""
    run = partition.put("done")
    assert "result_expired" not in await read(client, run.job_id)
    archiver.copy_all()
    forget(partition, run.job_id)
    told = await read(client, run.job_id)
    assert (told["state"], told["source"], told["result_expired"]) == ("done", "ledger", True)
    assert "result" not in told
    assert told["finished_at"] > 0
    told = await read(client, run.job_id, wait=15)
    assert told["state"] == "done"


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_other_ends_are_told_without_a_word_of_results(client, partition, archiver, state):
    run = partition.put(state)
    archiver.copy_all()
    forget(partition, run.job_id)
    told = await read(client, run.job_id)
    assert (told["state"], told["source"]) == (state, "ledger")
    assert "result_expired" not in told


async def test_a_ledger_that_is_behind_does_not_bring_a_finished_job_back_to_running(client, partition, archiver):
    """report: celery/celery#4450"""
    run = partition.put("processing")
    archiver.copy_all()
    partition.finish(run, "DONE")
    forget(partition, run.job_id)
    told = await read(client, run.job_id)
    assert (told["state"], told["source"], told["result_expired"]) == ("done", "ledger", True)


async def test_a_running_job_that_redis_lost_is_called_lost_and_not_running(client, partition, archiver):
    run = partition.put("processing")
    archiver.copy_all()
    lose_everything(partition)
    told = await read(client, run.job_id, history=1)
    assert (told["state"], told["last_known_state"], told["comes_back"]) == ("lost", "processing", False)
    assert [one["name"] for one in told["history"]] == ["enqueued", "acquired"]


async def test_a_durable_job_that_redis_lost_is_said_to_come_back(client, app, partition, archiver):
    job = await app.handler("bill").enqueue(7, password="hunter2-hunter2")
    archiver.copy_all()
    lose_everything(partition)
    told = await read(client, job.id)
    assert (told["state"], told["last_known_state"], told["comes_back"]) == ("lost", "queued", True)
    assert told["payload"] == {"order": 7, "password": "[redacted]"}


async def test_a_job_that_the_ledger_accepted_and_redis_has_not_yet_is_queued(client, app):
    payload = msgspec.json.encode({"order": 1})
    assert app.ledger is not None
    app.ledger.accept([JobSpec(id="job-accepted", kind="bill", payload=payload, durable=True)])
    told = await read(client, "job-accepted")
    assert (told["state"], told["source"]) == ("queued", "ledger")
    assert "last_known_state" not in told


async def test_after_a_restart_without_its_data_redis_is_asked_and_the_ledger_tells_the_history(
    client, partition, archiver
):
    run = partition.put("done")
    archiver.copy_all()
    before = (await read(client, run.job_id, history=1))["history"]
    lose_everything(partition)
    told = await read(client, run.job_id, history=1)
    assert told["history"] == before
    assert told["history_whole"] is True
    assert [one["name"] for one in before] == ["enqueued", "acquired", "done"]


async def test_events_that_are_in_both_are_told_once_and_newer_ones_of_the_stream_follow(client, partition, archiver):
    run = partition.put("failed")
    archiver.copy_all()
    partition.requeue(run.job_id)
    told = await read(client, run.job_id, history=1)
    assert [one["name"] for one in told["history"]] == ["enqueued", "acquired", "failed", "requeued"]


async def test_no_older_state_is_told_while_redis_is_away(new_server, sqlite_url):
    """report: celery/celery#4450"""
    from fencepost.api import ApiSettings, asgi
    from tests.http.conftest import in_process

    server = new_server()
    app = Fencepost(server.url, namespace="own", give_up=2.0, ledger=sqlite_url)
    assert app.ledger is not None
    app.ledger.accept([JobSpec(id="job-1", kind="bill", durable=True)])
    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        assert (await read(client, "job-1"))["state"] == "queued"
        server.kill()
        problem(await client.get("/v1/jobs/job-1"), 503, "redis-unavailable")
    await app.close()


async def test_an_id_that_no_database_could_look_up_is_not_found(client, app, postgres_url):
    upgrade(postgres_url)
    app.ledger_url = postgres_url
    for unknown in ("a%00b", "%ED%A0%80", "a%20b"):
        problem(await client.get(f"/v1/jobs/{unknown}"), 404, "job-not-found")


async def test_a_ledger_that_is_away_makes_no_job_unknown(client, app, partition, tmp_path):
    run = partition.put("done")
    app.ledger_url = f"sqlite:///{tmp_path}/no/such/folder/ledger.sqlite"
    assert (await read(client, run.job_id, history=1))["history_whole"] is True
    problem(await client.get("/v1/jobs/unknown"), 503, "ledger-unavailable")
