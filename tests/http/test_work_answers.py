"""What workers of other languages are answered, call by call: a table of states and words, and the rules of a claim."""

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
from fencepost.handle import Job
from fencepost.operate import Operator
from fencepost.retry import RetryPolicy
from tests.http.conftest import Live, bearer, in_process
from tests.support.clock import MovedClock
from tests.support.partition import Partition
from tests.support.waiting import eventually

MORE: dict[str, dict[str, Any]] = {
    "finish": {"result": 3},
    "retry": {"error": {"class": "Oops", "message": "it broke"}},
    "checkpoint": {"value": {"page": 3}},
    "release": {"reason": "going home"},
}


class NoBridge(Exception):
    """For good."""


class Flood(NoBridge):
    """It passes."""


@pytest.fixture
def app(app: Fencepost) -> Fencepost:
    @app.job(queue="far", remote=True, retry=RetryPolicy(attempts=2, base=8.0, jitter="none", permanent=(NoBridge,)))
    def ferry(goods: str = "", password: str = "") -> None:
        """Carry goods across."""

    @app.job(queue="far", remote=True, retry=RetryPolicy(base=0.0, permanent=(NoBridge, Exception), transient=(Flood,)))
    def swim() -> None:
        """Without goods."""

    @app.job(queue="far", remote=True, resource="boat:{name}")
    def row(name: str) -> None:
        """One boat is rowed by one."""

    return app


async def post(client: httpx2.AsyncClient, verb: str, body: dict[str, Any], **options: Any) -> httpx2.Response:
    return await client.post(f"/v1/{verb}", json=body, **options)


async def claim(client: httpx2.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    answer = await post(client, "claims", {"worker": "w", "queues": ["far"], **body})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def key(run: dict[str, Any]) -> dict[str, str]:
    return {name: run[name] for name in ("job_id", "token", "nonce")}


async def enqueue(app: Fencepost, kind: str = "ferry", **args: Any) -> Job[Any]:
    return await app.handler(kind).enqueue(**args)


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


# -- claims ---------------------------------------------------------------------------------------------------


async def test_a_claim_tells_all_that_a_worker_needs(app: Fencepost, client: httpx2.AsyncClient):
    job = await enqueue(app, "row", name="ann")
    answer = (await post(client, "claims", {"worker": "w", "queues": ["far"], "lease_s": 60})).json()
    [run] = answer["jobs"]
    record = await job.status()
    assert run == {
        "job_id": job.id, "kind": "row", "queue": "far", "args": {"name": "ann"}, "token": str(record.token),
        "nonce": f"{answer['claim_id']}.1", "attempt": 1, "crashes": 0, "version": 1, "resource": "boat:ann",
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
