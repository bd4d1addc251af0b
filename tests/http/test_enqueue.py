"""POST /v1/jobs/{kind}: a job for a body, quickly; what does not fit is refused with its place in the body."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import quote

import msgspec
import pytest
from fastapi import FastAPI

from fencepost import ConfigurationError, Fencepost
from fencepost.api import ApiSettings, asgi, fencepost_router
from tests.http.conftest import bearer, in_process
from tests.life.working import work_off


def problem(answer, status, slug):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == f"/v1/problems/{slug}"
    return answer.json()


class Line(msgspec.Struct):
    price: float


class Order(msgspec.Struct):
    lines: list[Line] = []


@pytest.fixture
async def app(app):
    """Also the kinds `ping` (no arguments), `bill` (nested arguments) and `note` (any argument)."""

    @app.job()
    async def ping() -> None: ...

    @app.job(queue="bills")
    async def bill(order: Order, at: datetime | None = None) -> None: ...

    @app.job()
    async def note(value) -> None: ...

    return app


async def test_a_job_is_accepted_and_the_answer_says_where_it_can_be_followed(app, client):
    answer = await client.post("/v1/jobs/add", json={"args": {"a": 2, "b": 3}})
    assert answer.status_code == 202
    told = answer.json()
    job_id = told.pop("id")
    assert answer.headers["location"] == f"/v1/jobs/{job_id}"
    assert "idempotent-replayed" not in answer.headers
    assert told == {
        "kind": "add", "queue": "sums", "state": "queued", "duplicate": False, "replayed": False,
        "links": {"self": f"/v1/jobs/{job_id}", "events": f"/v1/jobs/{job_id}/events"},
    }  # fmt: skip
    await work_off(app, "sums")
    assert await app.get(job_id).result() == 5
    assert (await client.get(answer.headers["location"])).json()["state"] == "done"


async def test_a_kind_without_arguments_takes_an_empty_body_an_empty_object_or_empty_arguments(app, client):
    for content in (b"", b"{}", b'{"args":{}}'):
        answer = await client.post("/v1/jobs/ping", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 202, answer.text
        record = await app.get(answer.json()["id"]).status()
        assert (record.kind, record.payload) == ("ping", b"{}")
    assert (await client.post("/v1/jobs/ping")).status_code == 202  # no body needs no Content-Type


async def test_the_options_are_those_of_python(app, client):
    body = {"args": {"a": 1}, "delay": "2m", "priority": 7, "dedup": "one", "queue": "slow"}
    answer = await client.post("/v1/jobs/add", json=body)
    assert (answer.status_code, answer.json()["state"], answer.json()["queue"]) == (202, "scheduled", "slow")
    record = await app.get(answer.json()["id"]).status()
    assert (record.priority, record.dedup, record.queue) == (7, "add:one", "slow")
    assert record.due_at is not None
    assert record.created_at is not None
    assert record.due_at - record.created_at == 120_000
    answer = await client.post("/v1/jobs/add", json={"args": {"a": 1}, "delay": 60})
    record = await app.get(answer.json()["id"]).status()
    assert record.due_at == record.created_at + 60_000


async def test_a_live_job_with_the_dedup_key_is_told_instead_of_a_new_one(app, client):
    first = (await client.post("/v1/jobs/book", json={"args": {"sku": "s1"}})).json()
    again = await client.post("/v1/jobs/book", json={"args": {"sku": "s1"}})
    assert (again.status_code, again.json()["id"], again.json()["duplicate"]) == (202, first["id"], True)
    assert again.headers["location"] == f"/v1/jobs/{first['id']}"
    for dedup, duplicate in ((False, False), (True, True), ("sku:{sku}", False)):
        answer = await client.post("/v1/jobs/book", json={"args": {"sku": "s1"}, "dedup": dedup})
        assert answer.json()["duplicate"] is duplicate, dedup


# -- moments --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["Asia/Jakarta", "America/New_York", "UTC"])
def zone(request, monkeypatch):
    """The time zone of this process."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()
    assert os.environ.get("TZ") != "Asia/Jakarta"


async def test_a_moment_is_the_same_in_every_zone_and_one_without_a_zone_is_refused(app, client, zone):
    """report: python-arq/arq#185"""
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=30)
    for offset_h in (0, 7, -5):
        text = due.astimezone(timezone(timedelta(hours=offset_h))).isoformat()
        answer = await client.post("/v1/jobs/ping", json={"run_at": text})
        assert (answer.status_code, answer.json()["state"]) == (202, "scheduled"), text
        assert (await app.get(answer.json()["id"]).status()).due_at == due.timestamp() * 1_000
    text = due.replace(tzinfo=None).isoformat()
    told = problem(await client.post("/v1/jobs/ping", json={"run_at": text}), 422, "value-refused")
    assert told["path"] == "run_at"
    assert "has no time zone" in told["detail"]
    told = problem(
        await client.post("/v1/jobs/bill", json={"args": {"order": {}, "at": text}}), 422, "arguments-refused"
    )
    assert told["path"] == "args.at"


@pytest.mark.parametrize("text", ["tomorrow", "2026-13-01T00:00:00Z", "1796095645", ""])
async def test_a_text_that_is_no_moment_is_refused(client, text):
    told = problem(await client.post("/v1/jobs/ping", json={"run_at": text}), 422, "value-refused")
    assert told["path"] == "run_at"


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "args", "path"),
    [
        ("add", {"a": "x"}, "args.a"),
        ("add", {"a": 1, "c": 2}, "args.c"),
        ("add", {}, "args.a"),
        ("bill", {"order": {"lines": [{"price": 1}, {"price": 2}, {"price": "three"}]}}, "args.order.lines[2].price"),
        ("note", {"value": "x" * 70_000}, "args.value"),
        ("note", {"value": 1e400}, "args"),
        ("book", {"sku": ""}, "args.sku"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_with_their_place(client, redis, kind, args, path):
    content = f'{{"args":{_text(args)}}}'
    answer = await client.post(f"/v1/jobs/{kind}", content=content, headers={"Content-Type": "application/json"})
    told = problem(answer, 422, "arguments-refused")
    assert told["path"] == path
    assert told["changed"] == "nothing"
    assert redis.keys("*:job:*") == []


def _text(args):
    return json.dumps(args).replace("Infinity", "1e400")


@pytest.mark.parametrize("content", [b'{"args":[1]}', b'{"args":"a"}', b'{"args":null}', b'{"args":7}'])
async def test_arguments_are_an_object_by_name(client, content):
    answer = await client.post("/v1/jobs/ping", content=content, headers={"Content-Type": "application/json"})
    told = problem(answer, 422, "arguments-refused")
    assert told["path"] == "args"


@pytest.mark.parametrize(
    ("option", "value", "path"),
    [
        ("delay", -1, "delay"), ("delay", "soon", "delay"), ("delay", 1e12, "delay"), ("priority", 10, "priority"),
        ("priority", -1, "priority"), ("dedup", "", "dedup"), ("dedup", "x" * 513, "dedup"), ("queue", "a b", "queue"),
        ("dedup", "{nobody}", "dedup"), ("resource", "r", "resource"), ("run_at", "2026-11-30", "run_at"),
    ],
)  # fmt: skip
async def test_a_value_outside_its_bounds_is_refused_by_name(client, redis, option, value, path):
    told = problem(await client.post("/v1/jobs/add", json={"args": {"a": 1}, option: value}), 422, "value-refused")
    assert told["path"] == path
    assert redis.keys("*:job:*") == []


@pytest.mark.parametrize(
    ("content", "status", "slug", "word"),
    [
        (b'{"args":{"a":1},"dealy":5}', 422, "body-refused", "dealy"),
        (b'{"args":{"a":1},"priority":"high"}', 422, "body-refused", "priority"),
        (b'{"args":{"a":1},"delay":true}', 422, "body-refused", "delay"),
        (b"[]", 422, "body-refused", "object"),
        (b'{"args":{"a":1}', 400, "no-json", "JSON"),
        (b'{"args":' + b"[" * 100_000, 400, "no-json", "JSON"),
        (b"\xff", 400, "no-json", "JSON"),
    ],
)
async def test_a_body_of_another_shape_is_refused(client, content, status, slug, word):
    answer = await client.post("/v1/jobs/add", content=content, headers={"Content-Type": "application/json"})
    assert word in problem(answer, status, slug)["detail"]


async def test_deep_arguments_are_refused_and_never_an_error_of_the_service(client):
    for depth in (60, 63, 64, 65, 200, 900, 1_000, 1_100, 5_000):
        content = b'{"args":{"value":' + b"[" * depth + b"]" * depth + b"}}"
        for headers in ({}, {"Idempotency-Key": f"deep-{depth}"}):
            headers = {"Content-Type": "application/json"} | headers
            answer = await client.post("/v1/jobs/note", content=content, headers=headers)
            assert answer.status_code == (202 if depth < 64 else answer.status_code), answer.text
            assert answer.status_code in (202, 400, 422), (depth, answer.text)
            assert (answer.status_code == 202) is (depth < 65)


async def test_a_member_that_comes_twice_cannot_hide_what_is_no_json(client, redis):
    """The last one counts, but the key of the request stands for the whole body."""
    content = b'{"args":{"a":"\xff"},"args":{"value":1}}'
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    problem(await client.post("/v1/jobs/note", content=content, headers=headers), 400, "no-json")
    assert redis.keys("*:job:*") == []


async def test_delay_and_moment_together_are_refused(client):
    body = {"delay": 5, "run_at": "2030-01-01T00:00:00Z"}
    assert problem(await client.post("/v1/jobs/ping", json=body), 422, "value-refused")["path"] == "delay"


async def test_a_full_queue_says_when_to_come_again(url, namespace):
    app = Fencepost(url, namespace=namespace, queue_limit=1)

    @app.job(queue="small")
    async def ping() -> None: ...

    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        assert (await client.post("/v1/jobs/ping")).status_code == 202
        answer = await client.post("/v1/jobs/ping")
        told = problem(answer, 503, "queue-full")
        assert (told["queue"], told["changed"], answer.headers["retry-after"]) == ("small", "nothing", "1")
    await app.close()


async def test_while_redis_is_away_nothing_is_called_accepted(namespace):
    app = Fencepost("redis://127.0.0.1:1/0", namespace=namespace, give_up=0.2)

    @app.job()
    async def ping() -> None: ...

    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        answer = await client.post("/v1/jobs/ping")
        told = problem(answer, 503, "redis-unavailable")
        assert (told["changed"], answer.headers["retry-after"]) == ("nothing", "1")
    await app.close()


# -- kinds ----------------------------------------------------------------------------------------------------


async def test_an_unknown_kind_is_told_with_those_that_the_caller_may_enqueue(app, new_token):
    token = new_token("enqueue:add", "enqueue:nothing")
    async with in_process(asgi(app, ApiSettings()), headers=bearer(token)) as client:
        told = problem(await client.post("/v1/jobs/nothing"), 404, "unknown-kind")
        assert "add" in told["detail"]
        assert "book" not in told["detail"]
        told = problem(await client.post("/v1/jobs/book", json={"args": {"sku": "1"}}), 403, "forbidden")
        assert told["scope"] == "enqueue:book"
        assert (await client.post("/v1/jobs/add", json={"args": {"a": 1}})).status_code == 202
        assert [one["kind"] for one in (await client.get("/v1/kinds")).json()["kinds"]] == ["add"]


async def test_only_the_kinds_of_the_settings_are_offered(app):
    async with in_process(asgi(app, ApiSettings(auth="off", kinds=("ping",)))) as client:
        assert (await client.post("/v1/jobs/ping")).status_code == 202
        problem(await client.post("/v1/jobs/add", json={"args": {"a": 1}}), 404, "unknown-kind")
        assert [one["kind"] for one in (await client.get("/v1/kinds")).json()["kinds"]] == ["ping"]


async def test_a_kind_that_is_registered_later_is_served(app, client):
    @app.job()
    async def late() -> None: ...

    assert (await client.post("/v1/jobs/late")).status_code == 202


@pytest.mark.parametrize("kind", ["mail:send", "größe", "{id}", "100%", "v1.2~x", "a\\b"])
async def test_a_kind_may_have_any_name_that_fits_a_path(app, kind):
    @app.job(kind=kind)
    async def handler(n: int = 0) -> None: ...

    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        answer = await client.post(f"/v1/jobs/{quote(kind, safe='')}", json={"args": {"n": 1}})
        if "{" in kind:  # which the scripts do not take as a name; the refusal names the kind
            problem(answer, 422, "value-refused")
        else:
            assert (answer.status_code, answer.json()["kind"]) == (202, kind)


async def test_a_kind_whose_name_is_a_path_of_its_own_hides_no_other_route(app):
    @app.job(kind="x/cancel")
    async def handler() -> None: ...

    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        answer = await client.post("/v1/jobs/x/cancel", json={"reason": "tests"})
        problem(answer, 404, "job-not-found")
        answer = await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "x/cancel"}]})
        assert answer.json()["accepted"] == 1


def test_a_kind_named_batch_is_refused_when_the_service_is_made(app):
    @app.job(kind="batch")
    async def handler() -> None: ...

    with pytest.raises(ConfigurationError, match="path of batches"):
        asgi(app, ApiSettings(auth="off"))
    asgi(app, ApiSettings(auth="off", kinds=("add",)))  # where it is not offered, it may have any name


async def test_the_list_of_kinds_tells_what_a_caller_needs(app, client):
    @app.job(queue="mails", resource="user:{user}", idempotency="required", priority=3, timeout="2m")
    async def mail(user: int, text: str = "hello") -> None: ...

    told = (await client.get("/v1/kinds")).json()
    assert told["idempotency_ttl_s"] == 86_400
    [entry] = [one for one in told["kinds"] if one["kind"] == "mail"]
    args = entry.pop("args")
    assert entry == {
        "kind": "mail", "queue": "mails", "resource": "user:{user}", "caller_resource": False, "priority": 3,
        "idempotency": "required", "timeout_s": 120.0, "attempts": 5, "durable": False,
    }  # fmt: skip
    assert args["required"] == ["user"]
    assert args["properties"]["text"] == {"type": "string", "default": "hello"}


# -- resources that callers name ------------------------------------------------------------------------------


async def test_a_caller_names_the_resource_only_where_the_kind_lets_it(app, client):
    @app.job(caller_resource=True)
    async def free() -> None: ...

    @app.job(caller_resource=True, resource="tenant:{tenant}", limit=3, on_busy="skip")
    async def rebuild(tenant: int) -> None: ...

    answer = await client.post("/v1/jobs/free", json={"resource": "cache:7"})
    record = await app.get(answer.json()["id"]).status()
    assert (record.resource, record.limit, record.on_busy) == ("cache:7", 1, "wait")
    answer = await client.post("/v1/jobs/rebuild", json={"args": {"tenant": 1}, "resource": "tenant:all"})
    record = await app.get(answer.json()["id"]).status()
    assert (record.resource, record.limit, record.on_busy) == ("tenant:all", 3, "skip")
    answer = await client.post("/v1/jobs/rebuild", json={"args": {"tenant": 1}})
    assert (await app.get(answer.json()["id"]).status()).resource == "tenant:1"
    for name in ("", "a b", "a{b}", "x" * 513, "a\nb"):
        told = problem(await client.post("/v1/jobs/free", json={"resource": name}), 422, "value-refused")
        assert told["path"] == "resource", name
    told = problem(await client.post("/v1/jobs/ping", json={"resource": "cache:7"}), 422, "value-refused")
    assert "caller_resource" in told["detail"]


async def test_in_python_the_resource_is_an_option_with_the_same_rule(app):
    @app.job(caller_resource=True)
    async def free() -> None: ...

    job = await free.options(resource="cafe\u0301:1").enqueue()
    assert (await job.status()).resource == "caf\u00e9:1"
    with pytest.raises(ConfigurationError, match="does not let its callers name the resource"):
        await app.handler("ping").options(resource="cache:7").enqueue()
    with pytest.raises(ConfigurationError, match="a text is needed, got int"):
        await free.options(resource=7).enqueue()


# -- mounted --------------------------------------------------------------------------------------------------


async def test_under_a_prefix_or_a_mount_the_location_has_it(app):
    host = FastAPI()
    host.include_router(fencepost_router(app, ApiSettings(auth="off")), prefix="/queue")
    host.mount("/größe", asgi(app, ApiSettings(auth="off")))
    async with in_process(host) as client:
        for root in ("/queue", "/gr%C3%B6%C3%9Fe"):
            answer = await client.post(f"{root}/v1/jobs/ping")
            assert answer.headers["location"] == f"{root}/v1/jobs/{answer.json()['id']}"
            assert (await client.get(answer.headers["location"])).status_code == 200
            answer = await client.post(f"{root}/v1/jobs/batch", json={"jobs": [{"kind": "ping"}]})
            assert answer.json()["jobs"][0]["job"]["links"]["self"].startswith(f"{root}/v1/jobs/")
