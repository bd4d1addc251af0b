"""Lists over HTTP: jobs by state and filter, dead letters, resources with their holders and lines, queues."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest

from tests.http.test_follow import SECRET, problem

STATES = ("processing", "queued", "waiting", "scheduled", "failed", "done", "cancelled")


async def pages(client, path, **params):
    """All items, page by page."""
    items = []
    while True:
        answer = await client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= params.get("limit", 50)
        items += page["items"]
        if page["cursor"] is None:
            return items
        params["cursor"] = page["cursor"]


# -- jobs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
async def test_the_jobs_of_a_state_are_listed_without_arguments_or_results(client, partition, state):
    runs = {one: partition.put(one, payload=f'{{"password":"{SECRET}"}}'.encode()) for one in STATES}
    answer = await client.get("/v1/jobs", params={"state": state})
    assert answer.status_code == 200
    assert SECRET not in answer.text
    [item] = answer.json()["items"]
    token = str(partition.record(item["id"]).token)
    assert (item["id"], item["state"], item["token"]) == (runs[state].job_id, state, token)
    assert not {"payload", "result", "error", "checkpoint", "args_preview"} & item.keys()


async def test_without_a_state_all_jobs_are_listed_state_by_state_whatever_the_page(client, partition):
    ids = [partition.put(state).job_id for state in STATES for _ in range(3)]
    for limit in (1, 2, 3, 7, 50):
        items = await pages(client, "/v1/jobs", limit=limit)
        assert [one["state"] for one in items] == [state for state in STATES for _ in range(3)]
        assert sorted(one["id"] for one in items) == sorted(ids)


async def test_filters_are_all_to_agree(client, partition):
    partition.put("failed", kind="mail")
    run = partition.put("processing", kind="bill", resource="order:1")
    partition.finish(run, "BURY", "permanent", "Refused", "no")
    queue = partition.record(run.job_id).queue
    for filters in (
        {"kind": "bill"}, {"queue": queue}, {"resource": "order:1"}, {"error_class": "Refused"},
        {"kind": "bill", "queue": queue, "resource": "order:1", "error_class": "Refused"},
    ):  # fmt: skip
        for state in ({"state": "failed"}, {}):
            assert [one["id"] for one in await pages(client, "/v1/jobs", **state, **filters)] == [run.job_id]
    assert await pages(client, "/v1/jobs", kind="bill", error_class="Oops") == []


async def test_a_preview_of_the_arguments_is_short_and_hides_secrets_before_it_is_cut(client, partition):
    ids = [
        partition.job(payload=msgspec.json.encode({"password": SECRET, "text": "x" * 500, "n": n})) for n in range(45)
    ]
    short = partition.job(payload=b'{"a":1}', queue="other")
    assert "args_preview" not in (await pages(client, "/v1/jobs", state="queued"))[0]
    items = {one["id"]: one["args_preview"] for one in await pages(client, "/v1/jobs", state="queued", preview=1)}
    assert items.keys() == {*ids, short}
    assert items[short] == '{"a":1}'
    for one in ids:
        assert len(items[one]) == 200
        assert items[one].startswith('{"password":"[redacted]","text":"xxx')
        assert items[one].endswith("…")
    problem(await client.get("/v1/jobs?preview=1&limit=101"), 422, "value-refused")


@pytest.mark.parametrize(
    "query",
    [
        "state=running", "state=", "limit=0", "limit=1001", "limit=ten", "limit=1.5", "limit=1&limit=2", "stat=done",
        "queue=a%20b", "cursor=%21", "cursor=AAAA", "kind=" + "k" * 513, "preview=yes", "limit=%D9%A1",
    ],
)  # fmt: skip
async def test_parameters_that_do_not_fit_are_refused_and_never_answered_with_everything(client, partition, query):
    partition.job()
    told = problem(await client.get(f"/v1/jobs?{query}"), 422, "value-refused")
    assert query.split("=")[0] in told["detail"]
    assert told["changed"] == "nothing"


@pytest.mark.parametrize(
    "parts",
    [
        ["", "abc", "job"], ["", "1e999999999", "job"], ["", "(1", "job"], ["", "1 LIMIT 0 1", "job"], ["", 1, 2], [],
        ["failed", "!"], ["failed", base64.urlsafe_b64encode(b'["","nan","x"]').decode().rstrip("=")], ["gone", ""],
    ],
)  # fmt: skip
async def test_a_cursor_that_somebody_made_up_is_refused(client, partition, parts):
    partition.put("failed")
    cursor = base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")
    for path in ("/v1/jobs", "/v1/jobs?state=failed", "/v1/dead", "/v1/jobs?state=done"):
        answer = await client.get(path, params={"cursor": cursor})
        assert answer.status_code in (200, 422), answer.text
        if answer.status_code == 422:
            problem(answer, 422, "value-refused")
    refused = [(await client.get(p, params={"cursor": cursor})).status_code for p in ("/v1/jobs", "/v1/dead")]
    assert refused == [422, 422]


async def test_what_an_index_names_and_is_gone_is_told_apart(client, partition):
    run = partition.put("failed")
    partition.redis.delete(partition.keys.job(run.job_id))
    page = (await client.get("/v1/jobs", params={"state": "failed"})).json()
    assert (page["items"], page["missing"]) == ([], [run.job_id])
    partition.requeue(run.job_id)  # drops it from the index


# -- dead letters -------------------------------------------------------------------------------------------------


async def test_dead_letters_are_listed_by_filter_newest_first(client, partition, clock):
    old = partition.put("failed", kind="bill").job_id
    clock.advance(3_600)
    partition.sweep()
    run = partition.put("processing")
    partition.finish(run, "BURY", "exhausted", "Timeout", "slow")
    partition.put("done")
    assert [one["id"] for one in await pages(client, "/v1/dead", limit=1)] == [run.job_id, old]
    assert [one["id"] for one in await pages(client, "/v1/dead", older_than_s=60)] == [old]
    assert [one["id"] for one in await pages(client, "/v1/dead", reason="exhausted", error_class="Timeout")] == [
        run.job_id
    ]
    assert [one["id"] for one in await pages(client, "/v1/dead", kind="bill")] == [old]
    [item] = await pages(client, "/v1/dead", kind="bill", preview=1)
    assert item["args_preview"] == '{"to":"a"}'
    for query in ("older_than_s=-1", "older_than_s=soon", "state=failed", "limit=0"):
        problem(await client.get(f"/v1/dead?{query}"), 422, "value-refused")


# -- resources ------------------------------------------------------------------------------------------------


async def test_a_resource_tells_who_holds_it_and_who_stands_in_line_in_order(client, partition):
    name = "invoice:order/7-ü"
    run = partition.put("processing", resource=name)
    waiting = [partition.job(resource=name) for _ in range(3)]
    partition.claim(3)
    partition.acquire(name, "nonce-w", wait_ms=60_000)
    answer = await client.get("/v1/resources/" + "invoice:order/7-%C3%BC")
    assert answer.status_code == 200, answer.text
    lock = answer.json()
    assert (lock["resource"], lock["limit"], lock["waiting"]) == (name, 1, 4)
    [holder] = lock["holders"]
    assert (holder["role"], holder["job_id"], holder["token"], holder["owner"]) == ("run", run.job_id, run.token, "w1")
    assert 25_000 < holder["ttl_left_ms"] <= 30_000
    assert [one["job_id"] for one in lock["waiters"]] == [*waiting, "@nonce-w"]
    assert (await client.get("/v1/resources/" + "invoice:order%2F7-%C3%BC")).json()["resource"] == name
    [listed] = await pages(client, "/v1/resources")
    assert listed["waiters"] == lock["waiters"]


async def test_a_stand_alone_lease_is_shown_with_its_token_until_it_is_free(client, partition):
    _, token, *_ = partition.acquire("stock:42", "nonce-1")
    [holder] = (await client.get("/v1/resources/stock:42")).json()["holders"]
    assert (holder["role"], holder["member"], holder["token"]) == ("lease", "@nonce-1", token)
    partition.release("nonce-1", token)
    told = problem(await client.get("/v1/resources/stock:42"), 404, "resource-free")
    assert told["resource"] == "stock:42"


async def test_resources_are_listed_by_name_in_pages(client, partition):
    for n in (3, 1, 2):
        partition.put("processing", resource=f"thing-{n}")
    assert [one["resource"] for one in await pages(client, "/v1/resources", limit=2)] == [
        "thing-1",
        "thing-2",
        "thing-3",
    ]
    assert (await client.get("/v1/resources/")).status_code == 404
    problem(await client.get("/v1/resources?limit=0"), 422, "value-refused")
    problem(await client.get("/v1/resources/thing-1?limit=1"), 422, "value-refused")


# -- queues -------------------------------------------------------------------------------------------------------


async def test_queues_tell_what_is_ready_how_long_it_waits_and_why_it_is_paused(client, partition):
    partition.job(queue="bills")
    partition.job(queue="bills")
    partition.put("scheduled")
    partition.pause("mails", "the provider is down", "ann")
    told = (await client.get("/v1/queues")).json()
    queues = {one["name"]: one for one in told["queues"]}
    assert queues["bills"]["ready"] == 2
    assert 0 <= queues["bills"]["head_waits_ms"] < 5_000
    assert queues["bills"]["paused"] is None
    assert (queues["mails"]["paused"]["reason"], queues["mails"]["paused"]["by"]) == ("the provider is down", "ann")
    assert (told["whole"], told["scheduled"], told["in_hand"]) == (True, 1, 0)
    partition.resume("mails")


# -- the document -------------------------------------------------------------------------------------------------


async def test_the_document_names_every_parameter_that_is_read(client):
    paths = (await client.get("/openapi.json")).json()["paths"]
    named = {
        path: {(one["in"], one["name"]) for one in paths[path]["get"]["parameters"]}
        for path in ("/v1/jobs/{id}", "/v1/jobs", "/v1/dead", "/v1/resources", "/v1/resources/{resource}")
    }
    assert named["/v1/jobs/{id}"] == {("path", "id"), ("query", "wait"), ("query", "history")}
    assert {name for _, name in named["/v1/jobs"]} == {
        "state", "kind", "queue", "resource", "error_class", "preview", "limit", "cursor",
    }  # fmt: skip
    assert {name for _, name in named["/v1/dead"]} == {
        "kind", "reason", "error_class", "older_than_s", "preview", "limit", "cursor",
    }  # fmt: skip
    assert named["/v1/resources/{resource}"] == {("path", "resource")}
    events = paths["/v1/jobs/{id}/events"]["get"]
    assert {one["name"] for one in events["parameters"]} == {"id", "Last-Event-ID"}
    assert "text/event-stream" in events["responses"]["200"]["content"]
    assert {"204", "404", "503"} <= events["responses"].keys()
