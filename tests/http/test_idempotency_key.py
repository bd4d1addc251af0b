"""The header Idempotency-Key: the same request gets the same job, another one with the same key is refused."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost import Fencepost
from fencepost.api import ApiSettings, asgi
from fencepost.api.problems import Problem
from fencepost.api.requests import idempotency_key
from fencepost.codec import request_fingerprint
from fencepost.ledger import Archiver
from tests.http.conftest import bearer, in_process
from tests.http.test_enqueue import problem
from tests.life.working import reached, taken, work_off, working
from tests.support.proxy import DROP_REPLY, FaultProxy


@pytest.fixture
async def app(app):
    """Also the kinds `invoice` (with a key only), and `other` with the same arguments."""

    @app.job(idempotency="required")
    async def invoice(order: int, note: str = "") -> str:
        return f"invoice {order}"

    @app.job()
    async def other(order: int, note: str = "") -> None: ...

    return app


def keyed(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key, "Content-Type": "application/json"}


async def post(client, kind="invoice", key="k1", content='{"args":{"order":1,"note":"a"},"priority":2}'):
    return await client.post(f"/v1/jobs/{kind}", content=content, headers=keyed(key))


async def test_the_same_request_gets_the_same_job_in_its_present_state(app, client):
    first = await post(client)
    assert (first.status_code, first.json()["replayed"], first.json()["state"]) == (202, False, "queued")
    assert "idempotent-replayed" not in first.headers
    again = await post(client)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert again.headers["location"] == first.headers["location"]
    assert again.json() == first.json() | {"replayed": True}
    run = await taken(app)
    assert run.job_id == first.json()["id"]
    assert (await post(client)).json()["state"] == "processing"
    assert (await client.post(f"/v1/jobs/{run.job_id}/cancel", json={"reason": "t", "hard": True})).status_code == 200
    assert (await post(client)).json()["state"] == "cancelled"


async def test_permuted_keys_and_other_spacing_are_the_same_request(client):
    first = await post(client)
    again = await post(client, content='{ "priority": 2,\n "args": {"note": "\\u0061", "order": 1} }')
    assert (again.json()["id"], again.json()["replayed"]) == (first.json()["id"], True)


async def test_another_body_or_kind_is_refused_while_the_first_waits_while_it_runs_and_after_it(app, client):
    """report: idempot-dev/idempot-js#191: a conflict is told as one, whatever the first request is doing"""
    released = asyncio.Event()

    @app.job(queue="slow", idempotency="required")
    async def slow(order: int, note: str = "") -> None:
        await released.wait()

    async def check():
        for kind, content in (
            ("slow", '{"args":{"order":2}}'),
            ("slow", '{"args":{"order":1},"priority":1}'),
            ("slow", '{"args":{"order":1,"note":""}}'),
            ("invoice", '{"args":{"order":1}}'),
            ("other", '{"args":{"order":1}}'),
        ):
            answer = await post(client, kind, content=content)
            told = problem(answer, 422, "idempotency-conflict")
            assert (told["job_id"], told["changed"]) == (job_id, "nothing")
        again = await post(client, "slow", content='{"args":{"order":1}}')
        assert (again.status_code, again.json()["id"]) == (202, job_id)

    job_id = (await post(client, "slow", content='{"args":{"order":1}}')).json()["id"]
    await check()
    async with working(app, "slow"):
        await reached(app.get(job_id), "processing")
        await check()
        released.set()
        await reached(app.get(job_id), "done")
        await check()


async def test_another_callers_same_key_is_another_key(app, new_token):
    """report: idempot-dev/idempot-js#191"""
    served = asgi(app, ApiSettings())
    ids = set()
    for name in ("ann", "bob"):
        async with in_process(served, headers=bearer(new_token("enqueue:*", name=name))) as client:
            first = await post(client)
            assert (first.status_code, first.json()["replayed"]) == (202, False)
            assert (await post(client)).json()["id"] == first.json()["id"]
            ids.add(first.json()["id"])
    assert len(ids) == 2


async def test_many_at_once_are_one_job(app, client, redis):
    answers = await asyncio.gather(*(post(client) for _ in range(30)))
    assert {one.status_code for one in answers} == {202}
    assert len({one.json()["id"] for one in answers}) == 1
    assert sum(not one.json()["replayed"] for one in answers) == 1
    assert len(redis.keys("*:job:*")) == 1


async def test_a_kind_that_needs_a_key_is_refused_without_one(client, redis):
    told = problem(await client.post("/v1/jobs/invoice", json={"args": {"order": 1}}), 400, "idempotency-key-missing")
    assert "Idempotency-Key" in told["detail"]
    assert redis.keys("*:job:*") == []
    assert (await client.post("/v1/jobs/other", json={"args": {"order": 1}})).status_code == 202


@pytest.mark.parametrize("key", ["", " ", '""', '"open', '"a" b', "x" * 256, "ä", '"\\x"'])
async def test_a_key_that_cannot_be_used_is_refused(client, redis, key):
    headers = {"Idempotency-Key": key.encode("latin-1"), "Content-Type": "application/json"}
    answer = await client.post("/v1/jobs/other", content='{"args":{"order":1}}', headers=headers)
    problem(answer, 400, "idempotency-key-malformed")
    assert redis.keys("*:job:*") == []


async def test_two_keys_in_one_request_are_refused(client):
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b"), ("Content-Type", "application/json")]
    answer = await client.post("/v1/jobs/other", content='{"args":{"order":1}}', headers=headers)
    assert "more than once" in problem(answer, 400, "idempotency-key-malformed")["detail"]


async def test_a_quoted_key_is_the_same_as_the_bare_one(client):
    first = await post(client, key="8e03978e-40d5")
    assert (await post(client, key='"8e03978e-40d5"')).json()["id"] == first.json()["id"]
    assert (await post(client, key='8e03978e"40d5"')).json()["id"] != first.json()["id"]  # inside, quotes mean nothing
    first = await post(client, key='"say \\"hi\\" {x}"')
    assert (await post(client, key='say "hi" {x}')).json()["id"] == first.json()["id"]


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255).map(str.strip))
def test_what_is_quoted_by_the_rules_comes_out_as_it_was(text):
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    if not text:
        with pytest.raises(Problem):
            idempotency_key(text)
    else:
        assert idempotency_key(f'"{quoted}"') == text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def _permuted(value, draw):
    if isinstance(value, dict):
        items = list(value.items())
        draw.shuffle(items)
        return {key: _permuted(one, draw) for key, one in items}
    return [_permuted(one, draw) for one in value] if isinstance(value, list) else value


@given(_JSON, _JSON, st.randoms(use_true_random=False))
def test_a_fingerprint_stands_for_the_whole_body_but_for_the_order_of_keys(one, other, draw: random.Random):
    def fingerprint(value, where="POST /v1/jobs/a"):
        return request_fingerprint(where, msgspec.json.encode({"args": {"value": value}}))

    assert fingerprint(one) == fingerprint(_permuted(one, draw))
    assert fingerprint(one) != fingerprint(one, "POST /v1/jobs/b")
    same = msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
    assert (fingerprint(one) == fingerprint(other)) is same


# -- what is forgotten or lost --------------------------------------------------------------------------------


async def test_a_job_that_redis_has_forgotten_is_expired_and_still_the_same_job(app, client, redis, partition):
    job_id = (await post(client)).json()["id"]
    await work_off(app)
    redis.delete(partition.keys.job(job_id))
    again = await post(client)
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (202, job_id, "expired")
    assert again.headers["idempotent-replayed"] == "true"
    assert redis.keys("*:job:*") == []


async def test_a_job_that_redis_has_forgotten_is_told_from_the_ledger(url, namespace, sqlite_url, partition):
    app = Fencepost(url, namespace=namespace, ledger=sqlite_url)

    @app.job()
    async def invoice(order: int, note: str = "") -> None: ...

    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        job_id = (await post(client)).json()["id"]
        await work_off(app, books=False)
        assert app.ledger is not None
        Archiver(app.ledger, partition.store, partition.driver).copy_all()
        partition.redis.delete(partition.keys.job(job_id))
        again = await post(client)
        assert (again.json()["id"], again.json()["state"], again.json()["replayed"]) == (job_id, "done", True)
    await app.close()


async def test_a_lost_answer_of_redis_makes_no_second_job(server, namespace, redis):
    """The client cannot tell a lost request from a lost answer; with the key it need not."""
    with FaultProxy(str(server.socket)) as proxy:
        app = Fencepost(proxy.url, namespace=namespace, give_up=0.2)

        @app.job()
        async def invoice(order: int, note: str = "") -> None: ...

        async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
            proxy.plan.extend([DROP_REPLY] * 40)
            answer = await post(client)
            told = problem(answer, 503, "redis-unavailable")
            assert (told["changed"], answer.headers["retry-after"]) == ("unknown", "1")
            proxy.plan.clear()
            again = await post(client)
            assert again.status_code == 202
            assert len(redis.keys("*:job:*")) == 1
        await app.close()


async def test_the_key_is_remembered_for_as_long_as_the_settings_say(app, redis, partition):
    async with in_process(asgi(app, ApiSettings(auth="off", idempotency_ttl_s=3 * 86_400))) as client:
        await post(client)
    [key] = redis.keys("*:idem:*")
    assert 3 * 86_400_000 - 60_000 < redis.pttl(key) <= 3 * 86_400_000
