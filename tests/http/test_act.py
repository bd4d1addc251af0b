"""Operators over HTTP: each action answers what became of each job, names who did it and why, and is fenced."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fencepost.api import ApiSettings, asgi
from fencepost.api.service import Caller, Service
from fencepost.credentials import opened
from tests.http.conftest import in_process

BECAUSE = {"reason": "the provider is down"}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Caller:
    """Who calls: a credential with a name."""
    caller = Caller("k3j4aaaaaaaa", "deploy-bot", frozenset({"operate"}))

    async def admit(self, request, scope):
        assert scope == "operate"
        return caller

    monkeypatch.setattr(Service, "admit", admit)
    return caller


def entries(partition):
    """(who, event lines) of each entry, the newest last."""
    return [
        (fields[b"w"].decode(), fields[b"e"].decode()) for _, fields in partition.redis.xrange(partition.keys.events)
    ]


def refused(answer, status, slug):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["type"], problem["status"], problem["changed"]) == (f"/v1/problems/{slug}", status, "nothing")
    return problem


# -- one job --------------------------------------------------------------------------------------------------


async def test_a_waiting_job_is_cancelled_and_the_event_names_who_did_it_and_why(client, partition, named):
    job_id = partition.job()
    answer = await client.post(f"/v1/jobs/{job_id}/cancel", json=BECAUSE)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"id": job_id, "outcome": "cancelled", "state_before": "queued"}
    who, line = entries(partition)[-1]
    assert who == "deploy-bot (k3j4aaaaaaaa)"
    assert line.startswith(f"cancelled\t{job_id}\t")
    assert "the provider is down" in line


async def test_a_running_job_is_asked_to_stop_or_taken_at_once(client, partition):
    run = partition.put("processing")
    answer = await client.post(f"/v1/jobs/{run.job_id}/cancel", json=BECAUSE)
    assert answer.json()["outcome"] == "asked"
    assert [one.word for one in partition.renew(run)] == ["CANCEL"]
    answer = await client.post(f"/v1/jobs/{run.job_id}/cancel", json={**BECAUSE, "hard": True, "token": run.token})
    assert answer.json() == {"id": run.job_id, "outcome": "cancelled", "state_before": "processing"}
    assert partition.finish(run, "DONE").word == "STALE"


async def test_a_hard_cancel_that_names_an_older_run_leaves_the_newer_one_alone(client, partition):
    old = partition.put("processing")
    partition.take_back(old)
    [new] = partition.claim(queues=(partition.record(old.job_id).queue,))
    before = partition.dump()
    body = {**BECAUSE, "hard": True, "token": old.token}
    problem = refused(await client.post(f"/v1/jobs/{old.job_id}/cancel", json=body), 409, "stale-token")
    assert (problem["token"], problem["newest"]) == (old.token, new.token)
    assert partition.dump() == before


async def test_a_dead_letter_is_requeued_and_the_reason_stands_behind_its_generation(client, partition, named):
    job_id = partition.put("failed").job_id
    answer = await client.post(
        f"/v1/jobs/{job_id}/requeue", json={"reason": "it is back: try\tagain".replace("\t", " ")}
    )
    assert answer.json() == {"id": job_id, "outcome": "requeued", "generation": 2}
    who, line = entries(partition)[-1]
    assert who == "deploy-bot (k3j4aaaaaaaa)"
    assert line.split("\t")[6] == "generation 2: it is back: try again"


async def test_an_ended_job_is_purged_once(client, partition):
    job_id = partition.put("done").job_id
    answer = await client.post(f"/v1/jobs/{job_id}/purge", json=BECAUSE)
    assert answer.json() == {"id": job_id, "outcome": "purged", "state_before": "done"}
    assert partition.record(job_id) is None
    refused(await client.post(f"/v1/jobs/{job_id}/purge", json=BECAUSE), 404, "job-not-found")


@pytest.mark.parametrize(("action", "state"), [("cancel", "done"), ("requeue", "processing"), ("purge", "queued")])
async def test_an_action_that_the_state_does_not_allow_is_a_conflict_and_changes_nothing(
    client, partition, action, state
):
    run = partition.put(state)
    before = partition.dump()
    problem = refused(await client.post(f"/v1/jobs/{run.job_id}/{action}", json=BECAUSE), 409, "illegal-transition")
    assert (problem["job_id"], problem["state"]) == (run.job_id, state)
    assert partition.dump() == before


async def test_a_dead_letter_whose_dedup_key_has_a_newer_owner_is_a_conflict_that_names_the_owner(client, partition):
    job_id, owner = partition.put("failed", dedup="k").job_id, partition.job(dedup="k")
    problem = refused(await client.post(f"/v1/jobs/{job_id}/requeue", json=BECAUSE), 409, "duplicate")
    assert problem["owner"] == owner


@pytest.mark.parametrize("action", ["cancel", "requeue", "purge"])
async def test_a_job_that_nobody_knows_is_not_found(client, partition, action):
    refused(await client.post(f"/v1/jobs/nobody/{action}", json=BECAUSE), 404, "job-not-found")


async def test_a_request_that_is_sent_again_under_its_key_gets_its_answer_again(client, partition):
    failed, run = partition.put("failed").job_id, partition.put("processing")
    calls = [
        (f"/v1/jobs/{failed}/requeue", BECAUSE),
        ("/v1/leases/revoke", {**BECAUSE, "id": run.job_id, "token": run.token}),
        (f"/v1/jobs/{run.job_id}/cancel", BECAUSE),
    ]
    for path, body in calls:
        key = {"Idempotency-Key": '"8e03978e-40d5"'}
        first = await client.post(path, json=body, headers=key)
        assert first.status_code == 200, first.text
        before, told = partition.matter(), partition.told()
        again = await client.post(path, json=body, headers=key)
        assert again.json() == first.json()
        assert (partition.matter(), partition.told()) == (before, told)
    refused(await client.post(path, json=body, headers={"Idempotency-Key": ""}), 400, "idempotency-key-malformed")


# -- bulk -----------------------------------------------------------------------------------------------------


async def test_a_bulk_requeue_counts_first_and_then_does_what_it_counted(client, partition, named):
    one, two = partition.put("failed").job_id, partition.put("failed", kind="sms").job_id
    body = {**BECAUSE, "filter": {"kind": "sms"}, "dry_run": True}
    looked = (await client.post("/v1/dead/requeue", json=body)).json()
    assert (looked["verb"], looked["dry_run"], looked["matched"], looked["done"]) == ("requeue", True, 1, 0)
    assert partition.state(two) == "failed"
    done = (await client.post("/v1/dead/requeue", json={**body, "dry_run": False})).json()
    assert (done["matched"], done["done"], done["verdict"]) == (1, 1, "ok")
    assert (partition.state(one), partition.state(two)) == ("failed", "queued")
    assert entries(partition)[-1][0] == "deploy-bot (k3j4aaaaaaaa)"


async def test_a_bulk_purge_counts_first_and_then_forgets_what_it_counted(client, partition):
    one, two = partition.put("failed").job_id, partition.put("failed", kind="sms").job_id
    body = {**BECAUSE, "filter": {"kind": "sms", "reason": "permanent"}, "dry_run": True}
    looked = (await client.post("/v1/dead/purge", json=body)).json()
    assert (looked["verb"], looked["dry_run"], looked["matched"], looked["done"]) == ("purge", True, 1, 0)
    assert partition.state(two) == "failed"
    done = (await client.post("/v1/dead/purge", json={**body, "dry_run": False})).json()
    assert (done["matched"], done["done"]) == (1, 1)
    assert (partition.state(one), partition.state(two)) == ("failed", None)


async def test_a_bulk_action_by_ids_tells_the_outcome_of_each(client, partition, named):
    failed, live = partition.put("failed").job_id, partition.put("processing").job_id
    answer = await client.post("/v1/dead/purge", json={**BECAUSE, "ids": [live, "nobody", failed]})
    report = answer.json()
    assert [(one["id"], one["word"]) for one in report["outcomes"]] == [
        (live, "illegal"), ("nobody", "gone"), (failed, "purged"),
    ]  # fmt: skip
    assert (report["done"], report["verdict"]) == (1, "partial")
    who, line = entries(partition)[-1]
    assert who == "deploy-bot (k3j4aaaaaaaa)"
    assert line.split("\t")[:2] == ["purged", failed]
    assert line.split("\t")[6] == BECAUSE["reason"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"filter": {}, "ids": ["a"]},
        {"ids": ["a"], "dry_run": True},
        {"ids": []},
        {"ids": ["a"] * 1_001},
        {"filter": {"knd": "sms"}},
        {"filter": {"older_than_s": -1}},
        {"filter": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("action", ["requeue", "purge"])
async def test_a_bulk_action_that_does_not_say_what_is_meant_touches_nothing(client, partition, action, body):
    """A filter with a word that is none, taken for an empty one, would purge everything."""
    partition.put("failed")
    before = partition.dump()
    refused(await client.post(f"/v1/dead/{action}", json={**BECAUSE, **body}), 422, "body-refused")
    assert partition.dump() == before


# -- queues and holders ---------------------------------------------------------------------------------------


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(client, partition, named):
    job_id = partition.job()
    paused = (await client.post("/v1/queues/default/pause", json=BECAUSE)).json()
    assert (paused["queue"], paused["outcome"]) == ("default", "paused")
    assert partition.claim() == []
    assert entries(partition)[-1] == (
        "deploy-bot (k3j4aaaaaaaa)",
        "queue_paused\t/default\t\t\t\t\tthe provider is down\t",
    )
    again = (await client.post("/v1/queues/default/pause", json={"reason": "another"})).json()
    assert again == paused
    resumed = (await client.post("/v1/queues/default/resume", json=BECAUSE)).json()
    assert resumed == {**paused, "outcome": "resumed"}
    assert [one.job_id for one in partition.claim()] == [job_id]
    assert (await client.post("/v1/queues/default/resume", json=BECAUSE)).json() == {
        "queue": "default", "outcome": "running",
    }  # fmt: skip


async def test_a_queue_that_cannot_be_one_is_refused(client, partition):
    refused(await client.post("/v1/queues/a%20b/pause", json=BECAUSE), 422, "value-refused")


async def test_a_run_is_revoked_by_the_token_that_the_caller_saw_and_by_no_other(client, partition, named):
    run = partition.put("processing")
    older = str(int(run.token) - 1)
    body = {**BECAUSE, "id": run.job_id, "token": older}
    problem = refused(await client.post("/v1/leases/revoke", json=body), 409, "stale-token")
    assert problem["newest"] == run.token
    assert partition.state(run.job_id) == "processing"
    answer = await client.post("/v1/leases/revoke", json={**body, "token": run.token})
    assert answer.json() == {"id": run.job_id, "outcome": "revoked", "became": "queued"}
    who, line = entries(partition)[-1]
    assert who == "deploy-bot (k3j4aaaaaaaa)"
    assert line.split("\t")[6] == "revoked from w1: the provider is down"
    assert partition.finish(run, "DONE").word == "EXPIRED"
    refused(await client.post("/v1/leases/revoke", json={**body, "token": run.token}), 409, "illegal-transition")


async def test_a_stand_alone_lease_is_revoked_while_its_holder_works(client, app, partition):
    lost = asyncio.Event()
    loop = asyncio.get_running_loop()
    lease = app.lease("stock", ttl=2.0, on_lost=lambda why: loop.call_soon_threadsafe(lost.set))
    async with lease:
        body = {**BECAUSE, "id": f"@{lease.nonce}", "token": str(lease.token)}
        assert (await client.post("/v1/leases/revoke", json=body)).json()["became"] == "ended"
        assert partition.acquire("stock", "next")[0] == "HELD"
        await asyncio.wait_for(lost.wait(), 10)
    assert lease.lost == "stale"


# -- all of them ----------------------------------------------------------------------------------------------

ROUTES = (
    "/v1/jobs/x/cancel", "/v1/jobs/x/requeue", "/v1/jobs/x/purge", "/v1/dead/requeue", "/v1/dead/purge",
    "/v1/queues/x/pause", "/v1/queues/x/resume", "/v1/leases/revoke",
)  # fmt: skip


@pytest.mark.parametrize("reason", [None, "", "   ", "two\nlines", "x" * 201, 7])
@pytest.mark.parametrize("path", ROUTES)
async def test_no_action_is_done_without_a_reason_of_one_line(client, partition, path, reason):
    before = partition.dump()
    more: dict[str, Any] = {"/v1/dead/requeue": {"filter": {}}, "/v1/dead/purge": {"filter": {}}}.get(path, {})
    more = {"id": "x", "token": "5"} if path == "/v1/leases/revoke" else more
    body = more if reason is None else {**more, "reason": reason}
    answer = await client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    assert "reason" in answer.json()["detail"]
    assert partition.dump() == before


@pytest.mark.parametrize("path", ROUTES)
async def test_a_caller_without_the_scope_operate_is_not_served(client, partition, monkeypatch, path):
    asked = []

    async def admit(self, request, scope):
        asked.append(scope)
        raise PermissionError

    monkeypatch.setattr(Service, "admit", admit)
    with pytest.raises(PermissionError):
        await client.post(path, json=BECAUSE)
    assert asked == ["operate"]


async def test_a_credential_acts_under_its_own_name_and_only_with_the_scope(app, partition, new_token):
    reader, bot = new_token("read", name="reader"), new_token("operate", name="deploy-bot")
    path, job_id = "/v1/queues/default/pause", partition.job()
    held = opened(bot)
    assert held is not None
    async with in_process(asgi(app, ApiSettings())) as client:
        refused(await client.post(path, json=BECAUSE), 401, "unauthenticated")
        told = entries(partition)
        answer = await client.post(path, json=BECAUSE, headers={"Authorization": f"Bearer {reader}"})
        assert refused(answer, 403, "forbidden")["scope"] == "operate"
        assert entries(partition) == told
        for done in (path, f"/v1/jobs/{job_id}/cancel"):
            answer = await client.post(done, json=BECAUSE, headers={"Authorization": f"Bearer {bot}"})
            assert answer.status_code == 200, answer.text
            assert entries(partition)[-1][0] == f"deploy-bot ({held.id})"


def test_the_document_describes_bodies_and_parameters_of_each_action(served):
    paths = served.openapi()["paths"]
    for path in ROUTES:
        template = path.replace("/jobs/x/", "/jobs/{id}/").replace("/queues/x/", "/queues/{queue}/")
        described = paths[template]["post"]
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        assert "reason" in schema["required"]
        assert schema["additionalProperties"] is False
        assert "$ref" not in str(schema)
        named = {one["name"] for one in described.get("parameters", ()) if one["in"] == "path"}
        assert all(f"{{{name}}}" in template for name in named)
        assert len(named) == template.count("{")
        assert {"200", "422", "503"} <= described["responses"].keys()
