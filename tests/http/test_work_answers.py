"""What workers of other languages are answered about their runs, call by call: a table of states and words."""

from __future__ import annotations

from typing import Any

import httpx2
import jsonschema_rs
import pytest

from fencepost import Fencepost
from fencepost.api import ApiSettings, asgi
from tests.http.conftest import in_process
from tests.http.elsewhere import MORE, claim, declare, enqueue, key, post
from tests.support.clock import MovedClock
from tests.support.partition import Partition
from tests.support.waiting import eventually


@pytest.fixture
def app(app: Fencepost) -> Fencepost:
    return declare(app)


# -- the table ------------------------------------------------------------------------------------------------


async def held(app: Fencepost, client: httpx2.AsyncClient, clock: MovedClock, run: dict[str, Any]) -> None:
    """The run is its worker's."""


async def run_out(app: Fencepost, client: httpx2.AsyncClient, clock: MovedClock, run: dict[str, Any]) -> None:
    """Its lease ran out and nobody has noticed yet."""
    clock.advance(2.5)


async def taken_back(app: Fencepost, client: httpx2.AsyncClient, clock: MovedClock, run: dict[str, Any]) -> None:
    """Its lease ran out, and the call of another worker has noticed."""

    async def noticed() -> bool:
        clock.advance(1)
        await claim(client, worker="other", queues=["elsewhere"])
        return (await app.get(run["job_id"]).status()).state == "queued"

    await eventually(noticed)


async def replaced(app: Fencepost, client: httpx2.AsyncClient, clock: MovedClock, run: dict[str, Any]) -> None:
    """Another worker has the job."""
    await taken_back(app, client, clock, run)
    [other] = await claim(client, worker="other", lease_s=60)
    assert int(other["token"]) > int(run["token"])


async def gone(app: Fencepost, client: httpx2.AsyncClient, clock: MovedClock, run: dict[str, Any]) -> None:
    """The job is no more."""
    await client.post("/v1/finish", json=key(run))
    answer = await client.post(f"/v1/jobs/{run['job_id']}/purge", json={"reason": "for the test"})
    assert answer.status_code == 200


@pytest.mark.parametrize("verb", sorted(MORE))
@pytest.mark.parametrize(
    ("before", "status", "slug"),
    [
        (held, 200, ""),
        (run_out, 409, "lease-expired"),
        (taken_back, 409, "lease-expired"),
        (replaced, 409, "stale-token"),
        (gone, 404, "job-not-found"),
    ],
)
async def test_each_end_of_a_run_is_accepted_from_its_holder_only(
    verb: str, before: Any, status: int, slug: str, app: Fencepost, client: httpx2.AsyncClient, clock: MovedClock
):
    """A refusal is a problem document that says why, and nothing of the job is changed."""
    job = await enqueue(app, goods="salt")
    [run] = await claim(client)
    await before(app, client, clock, run)
    known = None if before in (gone, run_out) else await job.status()
    answer = await post(client, verb, {**key(run), "worker": "w", **MORE[verb]})
    assert answer.status_code == status, answer.text
    if status == 200:
        return
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["type"], problem["changed"]) == (f"/v1/problems/{slug}", "nothing")
    assert problem["job_id"] == run["job_id"]
    if before is not gone:
        assert problem["token"] == run["token"]
    if known is not None:
        assert await job.status() == known
    if before is run_out:  # the call itself may have noticed, and put the job back
        record = await job.status()
        assert (record.result, record.checkpoint, record.error, record.releases) == (None, None, None, 0)
    if before is replaced:
        assert known is not None
        assert problem["newest"] == str(known.token)


@pytest.mark.parametrize(
    ("before", "outcome"),
    [(held, "ok"), (run_out, "expired"), (taken_back, "expired"), (replaced, "stale"), (gone, "gone")],
)
async def test_a_renewal_answers_run_by_run(
    before: Any, outcome: str, app: Fencepost, client: httpx2.AsyncClient, clock: MovedClock
):
    await enqueue(app)
    [run] = await claim(client)
    await before(app, client, clock, run)
    other = {"job_id": "nobody", "token": "1", "nonce": "none.1"}
    answer = await post(client, "renew", {"worker": "w", "runs": [key(run), other], "lease_s": 60})
    first, second = answer.json()["runs"]
    assert (first["job_id"], first["outcome"]) == (run["job_id"], outcome)
    assert second == {"job_id": "nobody", "outcome": "gone"}
    if before is replaced:
        assert first["newest"] == str((await app.get(run["job_id"]).status()).token)


@pytest.mark.parametrize(("verb", "state"), [("finish", "done"), ("retry", "scheduled"), ("release", "queued")])
async def test_an_end_that_is_sent_twice_counts_once(
    verb: str, state: str, app: Fencepost, client: httpx2.AsyncClient, partition: Partition
):
    job = await enqueue(app)
    [run] = await claim(client)
    body = {**key(run), "worker": "w", **MORE[verb]}
    first, after = await post(client, verb, body), await job.status()
    again = await post(client, verb, body)
    assert (first.json()["state"], first.json()["replayed"]) == (state, False)
    assert (again.json()["state"], again.json()["replayed"]) == (state, True)
    assert await job.status() == after
    assert not [name for name in partition.stats() if name.startswith("refused:")]


async def test_a_second_result_for_the_same_run_is_not_taken(app: Fencepost, client: httpx2.AsyncClient):
    job = await enqueue(app)
    [run] = await claim(client)
    await post(client, "finish", {**key(run), "result": "first"})
    again = await post(client, "finish", {**key(run), "result": "second"})
    assert again.json() == {"state": "done", "replayed": True}
    assert await job.result(1) == "first"


async def test_a_run_that_ended_in_one_way_cannot_end_in_another(app: Fencepost, client: httpx2.AsyncClient):
    job = await enqueue(app)
    [run] = await claim(client)
    await post(client, "finish", key(run))
    late = await post(client, "retry", {**key(run), **MORE["retry"]})
    assert (late.status_code, late.json()["type"]) == (409, "/v1/problems/stale-token")
    assert (await job.status()).state == "done"


async def test_a_retry_whose_answer_was_lost_is_known_again_after_the_next_run_began(
    app: Fencepost, client: httpx2.AsyncClient, clock: MovedClock
):
    """By then the policy would judge otherwise, for the attempts were counted on."""
    job = await enqueue(app)
    [run] = await claim(client)
    await post(client, "retry", {**key(run), **MORE["retry"]})
    clock.advance(9)
    [second] = await claim(client, wait_s=5)
    assert second["attempt"] == 2
    again = await post(client, "retry", {**key(run), **MORE["retry"]})
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert (await job.status()).state == "processing"


# -- how a failed run is judged -------------------------------------------------------------------------------


async def test_the_policy_of_the_kind_decides_about_attempts_and_waits(
    app: Fencepost, client: httpx2.AsyncClient, clock: MovedClock
):
    job = await enqueue(app)
    [run] = await claim(client)
    first = (await post(client, "retry", {**key(run), **MORE["retry"]})).json()
    assert (first["state"], first["delay_s"]) == ("scheduled", 8.0)
    clock.advance(9)
    [run] = await claim(client, wait_s=5)
    last = (await post(client, "retry", {**key(run), **MORE["retry"]})).json()
    assert (last["state"], last["reason"], last["delay_s"]) == ("failed", "exhausted", None)
    record = await job.status()
    assert (record.error_class, record.error, record.attempts) == ("Oops", "it broke", 2)


@pytest.mark.parametrize(
    ("kind", "more", "state", "delay_s"),
    [
        ("ferry", {"permanent": True}, "failed", None),
        ("ferry", {"after_s": 90}, "scheduled", 90.0),
        ("ferry", {"after_s": 0}, "queued", 0.0),
        ("ferry", {"error": {"class": "NoBridge"}}, "failed", None),
        ("ferry", {"error": {"class": "travel.errors.NoBridge"}}, "failed", None),
        ("ferry", {"error": {"class": "Elsewhere"}}, "scheduled", 8.0),
        ("swim", {"error": {"class": "NoBridge"}}, "failed", None),
        ("swim", {"error": {"class": "Flood"}}, "queued", 0.0),
    ],
)
async def test_a_worker_may_say_what_the_policy_cannot_know(
    kind: str, more: dict[str, Any], state: str, delay_s: float | None, app: Fencepost, client: httpx2.AsyncClient
):
    await enqueue(app, kind)
    [run] = await claim(client)
    answer = (await post(client, "retry", {**key(run), **MORE["retry"], **more})).json()
    assert (answer["state"], answer["delay_s"]) == (state, delay_s)


@pytest.mark.parametrize("name", ["*errors.errorString", "My::Error", "std::io::Error", "Fehler größer", "exit 1"])
async def test_whatever_another_language_calls_its_errors_is_taken(
    name: str, app: Fencepost, client: httpx2.AsyncClient
):
    """A report that is refused for its wording would leave the job to its lease, and charge a crash."""
    job = await enqueue(app)
    [run] = await claim(client)
    answer = await post(client, "retry", {**key(run), "error": {"class": name, "message": ""}})
    assert answer.status_code == 200, answer.text
    assert (await job.status()).error_class == name


async def test_a_secret_of_the_arguments_is_hidden_in_an_error_text_before_it_is_stored(
    app: Fencepost, client: httpx2.AsyncClient, partition: Partition
):
    job = await enqueue(app, password="hunter2hunter2")
    [run] = await claim(client)
    assert run["args"] == {"password": "hunter2hunter2"}
    await post(client, "retry", {**key(run), "error": {"class": "Oops", "message": "login hunter2hunter2 refused"}})
    stored = partition.redis.hget(partition.keys.job(job.id), "error")
    assert b"hunter2" not in stored
    assert b"login" in stored


async def test_a_cancel_that_was_asked_for_is_told_at_the_renewal_and_obeyed_at_the_end(
    app: Fencepost, client: httpx2.AsyncClient
):
    job = await enqueue(app)
    [run] = await claim(client)
    await client.post(f"/v1/jobs/{job.id}/cancel", json={"reason": "not needed"})
    [told] = (await post(client, "renew", {"runs": [key(run)]})).json()["runs"]
    assert told["outcome"] == "cancel"
    assert "not needed" in told["reason"]
    ended = (await post(client, "retry", {**key(run), **MORE["retry"]})).json()
    assert (ended["state"], ended["delay_s"]) == ("cancelled", None)


# -- what does not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "body", "word"),
    [
        ("claims", {"worker": "a b", "queues": ["far"]}, "worker"),
        ("claims", {"worker": "w", "queues": []}, "queues"),
        ("claims", {"worker": "w", "queues": ["far"], "wanted": 0}, "wanted"),
        ("claims", {"worker": "w", "queues": ["far"], "wanted": 101}, "wanted"),
        ("claims", {"worker": "w", "queues": ["far"], "lease_s": 0.5}, "lease_s"),
        ("claims", {"worker": "w", "queues": ["far"], "claim_id": "short"}, "claim_id"),
        ("claims", {"worker": "w", "queues": ["far"], "lanes": 2}, "lanes"),
        ("renew", {"runs": [{"job_id": "x", "token": 5, "nonce": "n.1"}]}, "token"),
        ("finish", {"job_id": "x", "token": "5"}, "nonce"),
        ("retry", {"job_id": "x", "token": "5", "nonce": "n.1"}, "error"),
        ("checkpoint", {"job_id": "x", "token": "5", "nonce": "n.1"}, "value"),
        ("checkpoint", {"job_id": "x", "token": "5", "nonce": "n.1", "value": 1, "progress": 0.5}, "value"),
        ("checkpoint", {"job_id": "x", "token": "5", "nonce": "n.1", "progress": 1.5}, "progress"),
        ("checkpoint", {"job_id": "x", "token": "5", "nonce": "n.1", "value": "x" * 70_000}, "65536"),
        ("release", {"job_id": "x", "token": "5", "nonce": "n.1", "delay_s": -1}, "delay_s"),
    ],
)
async def test_what_does_not_fit_is_refused_and_named(
    verb: str, body: dict[str, Any], word: str, client: httpx2.AsyncClient
):
    answer = await post(client, verb, body)
    assert answer.status_code == 422, answer.text
    assert word in answer.json()["detail"]
    slug = answer.json()["type"].rpartition("/")[2]
    assert (await client.get(f"/v1/problems/{slug}")).status_code == 200


@pytest.mark.parametrize("result", ["x" * 70_000, {"deep": [2**80]}])
async def test_a_result_that_cannot_be_kept_is_refused_and_the_run_goes_on(
    result: Any, app: Fencepost, client: httpx2.AsyncClient
):
    job = await enqueue(app)
    [run] = await claim(client)
    answer = await post(client, "finish", {**key(run), "result": result})
    assert answer.status_code in (400, 422), answer.text
    assert (await job.status()).state == "processing"


async def test_a_checkpoint_comes_with_the_next_attempt_and_progress_is_seen(
    app: Fencepost, client: httpx2.AsyncClient
):
    job = await enqueue(app)
    [run] = await claim(client)
    await post(client, "checkpoint", {**key(run), "value": {"page": 3}})
    answer = await post(client, "checkpoint", {**key(run), "progress": 0.4, "text": "page 3"})
    assert answer.status_code == 200
    shown = (await client.get(f"/v1/jobs/{job.id}")).json()
    assert shown["progress"] == {"fraction": 0.4, "text": "page 3"}
    await post(client, "release", key(run))
    [again] = await claim(client)
    assert (again["checkpoint"], again["attempt"]) == ({"page": 3}, 1)


async def test_the_answers_are_as_the_document_describes_them(app: Fencepost, client: httpx2.AsyncClient):
    paths = (await client.get("/openapi.json")).json()["paths"]

    def fits(verb: str, answer: httpx2.Response) -> Any:
        shown = paths[f"/v1/{verb}"]["post"]["responses"][str(answer.status_code)]["content"]
        [(media_type, one)] = shown.items()
        assert answer.headers["content-type"] == media_type
        jsonschema_rs.validate(one["schema"], answer.json())
        assert set(answer.json()) <= set(one["schema"]["properties"]), verb
        return answer.json()

    for _ in MORE:
        await enqueue(app)
    claimed = fits("claims", await post(client, "claims", {"worker": "w", "queues": ["far"], "wanted": 4}))
    lost = {"job_id": "nobody", "token": "1", "nonce": "none.1"}
    fits("renew", await post(client, "renew", {"runs": [lost, *map(key, claimed["jobs"])]}))
    for (verb, more), run in zip(MORE.items(), claimed["jobs"], strict=True):
        fits(verb, await post(client, verb, {**key(run), **more}))


@pytest.mark.parametrize("verb", ["claims", "renew", *MORE])
async def test_without_redis_nothing_is_told_that_might_not_be_so(verb: str):
    away = Fencepost("redis://127.0.0.1:1/0", namespace="away", give_up=0.05)
    run = {"job_id": "x", "token": "5", "nonce": "n.1"}
    bodies: dict[str, dict[str, Any]] = {
        "claims": {"worker": "w", "queues": ["far"]},
        "renew": {"runs": [run]},
        **{name: {**run, **more} for name, more in MORE.items()},
    }
    async with in_process(asgi(away, ApiSettings(auth="off"))) as client:
        answer = await post(client, verb, bodies[verb])
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (answer.json()["type"], answer.json()["changed"]) == ("/v1/problems/redis-unavailable", "nothing")
    await away.close()
