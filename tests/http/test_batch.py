"""POST /v1/jobs/batch: an outcome for each item in the order of the items, and a repeat adds nothing twice."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from fencepost import Fencepost
from fencepost.api import ApiSettings, asgi
from tests.http.conftest import bearer, in_process
from tests.http.test_enqueue import problem
from tests.life.working import work_off
from tests.support.waiting import eventually


@pytest.fixture
def settings():
    return ApiSettings(auth="off", max_batch=200)


@pytest.fixture
async def app(app):
    """Also the kinds `note` (any text) and `invoice` (with a key only)."""

    @app.job()
    async def note(text: str) -> None: ...

    @app.job(idempotency="required")
    async def invoice(order: int) -> None: ...

    return app


def slugs(told):
    """The status of each item, and of the refused ones the last part of the problem's type."""
    return [
        (one["status"], one["problem"]["type"].rpartition("/")[2]) if "problem" in one else (one["status"], "")
        for one in told["jobs"]
    ]


async def test_outcomes_come_in_the_order_of_the_items_and_a_bad_one_keeps_no_other_out(app, client, redis):
    """report: janbjorge/pgqueuer#678, taskforcesh/bullmq#3451"""
    items: list[Any] = [{"kind": "add", "args": {"a": n}} for n in range(100)]
    items[10] = {"kind": "book", "args": {"sku": "one"}}
    items[40] = {"kind": "book", "args": {"sku": "one"}}  # a duplicate
    items[50] = {"kind": "note", "args": {"text": "x" * 70_000}}  # too large
    items[60] = {"kind": "add", "args": {"a": "ten"}}  # does not fit
    items[61] = 7
    items[62] = {"kind": "add", "args": {"a": 1}, "delya": 5}
    items[63] = {"kind": "nobody"}
    items[64] = {"kind": "add", "args": {"a": 1}, "priority": 11}
    answer = await client.post("/v1/jobs/batch", json={"jobs": items}, headers={"Idempotency-Key": "b1"})
    assert answer.status_code == 200
    told = answer.json()
    assert (told["accepted"], told["refused"]) == (94, 6)
    refused = {n: slug for n, (status, slug) in enumerate(slugs(told)) if status != 202}
    assert refused == {
        50: "arguments-refused", 60: "arguments-refused", 61: "body-refused", 62: "body-refused", 63: "unknown-kind",
        64: "value-refused",
    }  # fmt: skip
    assert told["jobs"][60]["problem"]["path"] == "args.a"
    assert told["jobs"][60]["status"] == told["jobs"][60]["problem"]["status"] == 422
    assert told["jobs"][40]["job"]["duplicate"] is True
    assert told["jobs"][40]["job"]["id"] == told["jobs"][10]["job"]["id"]
    payloads = [(await app.get(told["jobs"][n]["job"]["id"]).status()).payload for n in (0, 41, 99)]
    assert payloads == [b'{"a":0}', b'{"a":41}', b'{"a":99}']
    before = len(redis.keys("*:job:*"))
    assert before == 93
    again = (await client.post("/v1/jobs/batch", json={"jobs": items}, headers={"Idempotency-Key": "b1"})).json()
    assert len(redis.keys("*:job:*")) == before
    assert slugs(again) == slugs(told)
    for first, second in zip(told["jobs"], again["jobs"], strict=True):
        if "job" in first:
            assert second["job"] == first["job"] | {"replayed": True, "duplicate": False}


async def test_without_a_key_of_the_batch_the_items_may_bring_their_own(client, redis):
    items: list[Any] = [{"kind": "invoice", "args": {"order": n}, "idempotency_key": f"order-{n}"} for n in range(3)]
    first = (await client.post("/v1/jobs/batch", json={"jobs": items})).json()
    assert first["accepted"] == 3
    items.reverse()
    again = (await client.post("/v1/jobs/batch", json={"jobs": items})).json()
    assert [one["job"]["id"] for one in again["jobs"]] == [one["job"]["id"] for one in reversed(first["jobs"])]
    assert all(one["job"]["replayed"] for one in again["jobs"])
    items[0]["args"]["order"] = 99
    items[1]["idempotency_key"] = ""
    del items[2]["idempotency_key"]
    told = (await client.post("/v1/jobs/batch", json={"jobs": items})).json()
    assert slugs(told) == [
        (422, "idempotency-conflict"), (400, "idempotency-key-malformed"), (400, "idempotency-key-missing"),
    ]  # fmt: skip
    assert len(redis.keys("*:job:*")) == 3


async def test_the_same_key_twice_in_one_batch_is_one_job_or_a_conflict(client, redis):
    item = {"kind": "add", "args": {"a": 1}, "idempotency_key": "k"}
    told = (await client.post("/v1/jobs/batch", json={"jobs": [item, item, item | {"args": {"a": 2}}]})).json()
    assert slugs(told) == [(202, ""), (202, ""), (422, "idempotency-conflict")]
    assert told["jobs"][1]["job"] == told["jobs"][0]["job"] | {"replayed": True}
    assert len(redis.keys("*:job:*")) == 1


async def test_a_key_of_a_single_call_and_of_a_batch_do_not_stand_for_one_request(client):
    item = {"kind": "add", "args": {"a": 1}}
    single = await client.post("/v1/jobs/add", json={"args": {"a": 1}}, headers={"Idempotency-Key": "k#0"})
    assert single.status_code == 202
    told = (await client.post("/v1/jobs/batch", json={"jobs": [item]}, headers={"Idempotency-Key": "k"})).json()
    assert slugs(told) == [(422, "idempotency-conflict")]


async def test_an_item_whose_place_in_the_batch_changed_is_a_conflict_under_the_batchs_key(client):
    items = [{"kind": "add", "args": {"a": n}} for n in range(2)]
    headers = {"Idempotency-Key": "b"}
    assert (await client.post("/v1/jobs/batch", json={"jobs": items}, headers=headers)).json()["accepted"] == 2
    told = (await client.post("/v1/jobs/batch", json={"jobs": items[::-1]}, headers=headers)).json()
    assert slugs(told) == [(422, "idempotency-conflict")] * 2


async def test_the_scope_is_checked_for_each_item(app, new_token):
    async with in_process(asgi(app, ApiSettings()), headers=bearer(new_token("enqueue:add"))) as client:
        items = [{"kind": "add", "args": {"a": 1}}, {"kind": "note", "args": {"text": "t"}}, {"kind": "nobody"}]
        answer = await client.post("/v1/jobs/batch", json={"jobs": items})
        assert answer.status_code == 200
        told = answer.json()
        assert slugs(told) == [(202, ""), (403, "forbidden"), (403, "forbidden")]
        assert told["jobs"][1]["problem"]["scope"] == "enqueue:note"
    async with in_process(asgi(app, ApiSettings())) as client:
        problem(await client.post("/v1/jobs/batch", json={"jobs": items}), 401, "unauthenticated")


async def test_more_items_than_allowed_are_refused_as_a_whole(client, redis):
    items = [{"kind": "add", "args": {"a": n}} for n in range(201)]
    told = problem(await client.post("/v1/jobs/batch", json={"jobs": items}), 422, "batch-too-large")
    assert "201 jobs, 200 are allowed" in told["detail"]
    assert redis.keys("*:job:*") == []
    answer = await client.post("/v1/jobs/batch", json={"jobs": []})
    assert answer.json() == {"jobs": [], "accepted": 0, "refused": 0}
    bodies: list[Any] = [{}, {"jobs": {}}, {"jobs": [], "more": 1}]
    for body in bodies:
        problem(await client.post("/v1/jobs/batch", json=body), 422, "body-refused")


async def test_where_redis_keeps_all_items_out_the_call_has_failed(namespace):
    app = Fencepost("redis://127.0.0.1:1/0", namespace=namespace, give_up=0.2)

    @app.job()
    async def add(a: int) -> None: ...

    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        items = [{"kind": "add", "args": {"a": 1}}, {"kind": "add", "args": {"a": "x"}}]
        answer = await client.post("/v1/jobs/batch", json={"jobs": items})
        assert problem(answer, 503, "redis-unavailable")["changed"] == "nothing"
        told = (await client.post("/v1/jobs/batch", json={"jobs": items[1:]})).json()
        assert slugs(told) == [(422, "arguments-refused")]
    await app.close()


async def test_a_full_queue_refuses_the_items_that_have_no_room(url, namespace):
    app = Fencepost(url, namespace=namespace, queue_limit=2)

    @app.job()
    async def add(a: int) -> None: ...

    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        items = [{"kind": "add", "args": {"a": n}} for n in range(3)]
        told = (await client.post("/v1/jobs/batch", json={"jobs": items})).json()
        assert slugs(told) == [(202, ""), (202, ""), (503, "queue-full")]
    await app.close()


async def test_a_batch_whose_connection_is_cut_adds_nothing_and_its_repeat_everything_once(app, live, redis):
    """report: taskforcesh/bullmq#3451"""
    host, _, port = live.url.removeprefix("http://").partition(":")
    body = json.dumps({"jobs": [{"kind": "add", "args": {"a": n}} for n in range(100)]}).encode()
    head = (
        f"POST /v1/jobs/batch HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: cut\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    for share in (0.3, 0.9):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head + body[: int(len(body) * share)])
    async with live.client() as client:
        assert (await client.get("/livez")).status_code == 200  # those before were seen by the server
        assert redis.keys("*:job:*") == []
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head + body)  # the answer is not waited for
        await eventually(lambda: len(redis.keys("*:job:*")) == 100)
        headers = {"Idempotency-Key": "cut", "Content-Type": "application/json"}
        told = (await client.post("/v1/jobs/batch", content=body, headers=headers)).json()
        assert (told["accepted"], all(one["job"]["replayed"] for one in told["jobs"])) == (100, True)
        assert len(redis.keys("*:job:*")) == 100


async def test_what_a_batch_accepted_is_worked_off(app, client):
    items = [{"kind": "add", "args": {"a": n}} for n in range(20)]
    told = (await client.post("/v1/jobs/batch", json={"jobs": items})).json()
    await work_off(app, "sums")
    results = await asyncio.gather(*(app.get(one["job"]["id"]).result(5) for one in told["jobs"]))
    assert results == [n + 1 for n in range(20)]


async def test_a_batch_takes_the_longest_key_there_is(client):
    body = {"jobs": [{"kind": "add", "args": {"a": 1}}, {"kind": "add", "args": {"a": 2}}]}
    headers = {"Idempotency-Key": "k" * 255}
    first = (await client.post("/v1/jobs/batch", json=body, headers=headers)).json()
    again = (await client.post("/v1/jobs/batch", json=body, headers=headers)).json()
    assert first["accepted"] == again["accepted"] == 2
    assert [one["job"]["id"] for one in first["jobs"]] == [one["job"]["id"] for one in again["jobs"]]
    assert first["jobs"][0]["job"]["id"] != first["jobs"][1]["job"]["id"]
