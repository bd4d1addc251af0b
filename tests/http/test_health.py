"""Liveness, readiness, how many workers are needed, and the pages of problems."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost.api
from fencepost import Fencepost
from fencepost.api import ApiSettings, asgi
from fencepost.api.problems import _KNOWN, PAGES
from fencepost.sql.upgrade import upgrade
from tests.http.conftest import bearer, in_process
from tests.support import eventually, raw_client

FOLDER = Path(fencepost.api.__file__).parent


async def test_a_process_that_answers_lives_whatever_becomes_of_redis(client):
    answer = await client.get("/livez")
    assert (answer.status_code, answer.json()) == (200, {"live": True})


async def test_it_is_ready_once_redis_runs_the_scripts(client, app):
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"ready": True, "namespace": app.namespace, "redis": {"ok": True, "events": 0}}


async def test_however_often_it_is_asked_redis_is_asked_once_a_second(client, app):
    await client.get("/readyz")
    asked = app.link.asynchronous.round_trips
    for _ in range(100):
        await client.get("/readyz")
    assert app.link.asynchronous.round_trips - asked <= 10


async def test_probes_need_no_token(app):
    async with in_process(asgi(app)) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/v1/problems/internal")).status_code == 200
        assert (await client.get("/v1/scaling")).status_code == 401


@pytest.mark.slow
async def test_it_is_not_ready_while_redis_is_away_and_ready_again_when_it_is_back(new_server: Callable[..., Any]):
    server = new_server()
    app = Fencepost(server.url, namespace="away")
    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        assert (await client.get("/readyz")).status_code == 200
        server.stop()

        async def status() -> int:
            return (await client.get("/readyz")).status_code

        async def is_away() -> bool:
            return await status() == 503

        await eventually(is_away, 8)
        found = (await client.get("/readyz")).json()
        assert found["redis"] == {"ok": False, "problem": "RedisUnavailable"}, "not where it is: anybody may ask"
        assert (await client.get("/livez")).status_code == 200
        server.ensure()

        async def is_back() -> bool:
            return await status() == 200

        await eventually(is_back, 8)
    await app.close()


async def test_a_server_that_would_drop_jobs_is_not_ready(new_server: Callable[..., Any]):
    server = new_server(config={"maxmemory-policy": "noeviction"})
    raw_client(server.url).config_set("maxmemory-policy", "allkeys-lru")
    app = Fencepost(server.url)
    async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
        answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["redis"]["checks"] == ["eviction"]
    await app.close()


async def test_it_is_not_ready_any_more_once_it_stops(client, service):
    assert (await client.get("/readyz")).status_code == 200
    service.stopping.set()
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["stopping"] is True


async def test_the_state_of_the_ledger_is_told_and_not_required(url, namespace, sqlite_url, tmp_path):
    for ledger, ok in ((sqlite_url, True), (f"sqlite:///{tmp_path}/none/there.sqlite", False)):
        if ok:
            upgrade(ledger)
        app = Fencepost(url, namespace=namespace, ledger=ledger)
        async with in_process(asgi(app, ApiSettings(auth="off"))) as client:
            answer = await client.get("/readyz")
        await app.close()
        assert answer.status_code == 200
        assert answer.json()["ledger"]["ok"] is ok
        assert str(tmp_path) not in answer.text


# -- scaling --------------------------------------------------------------------------------------------------


async def scaling(client: Any, **query: Any) -> Any:
    answer = await client.get("/v1/scaling", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_work_of_every_kind_is_counted_by_queue(client, partition, clock):
    for _ in range(5):
        partition.job(queue="a")
    partition.job(queue="b")
    due, later = partition.job(queue="a", delay_ms=1_000), partition.job(queue="a", delay_ms=3_600_000)
    partition.put("processing")
    [claimed] = partition.claim(queues=("b",))
    clock.advance(90)
    found = await scaling(client, queue="a", jobs_per_worker=2)
    assert found == {
        "queues": ["a"], "ready": 5, "due": 1, "running": 0, "oldest_wait_s": pytest.approx(90, abs=2), "paused": [],
        "jobs_per_worker": 2, "desired_workers": 3, "now": found["now"],
    }, (due, later)  # fmt: skip
    found = await scaling(client, queue="b")
    assert (found["ready"], found["running"], found["desired_workers"]) == (0, 1, 1), claimed
    found = await scaling(client, queue=["a", "b"], jobs_per_worker=1)
    assert (found["ready"], found["due"], found["running"], found["desired_workers"]) == (5, 1, 1, 7)


async def test_where_there_is_nothing_to_do_no_worker_is_wanted(client):
    found = await scaling(client)
    assert found["queues"] == ["default", "sums"], "those of all kinds"
    assert (found["ready"], found["oldest_wait_s"], found["desired_workers"]) == (0, 0.0, 0)


async def test_a_delayed_job_wants_a_worker_once_it_is_due_and_not_before(client, partition, clock):
    """Only a claim makes it ready: with no worker there is nobody to do it."""
    partition.job(queue="a", delay_ms=60_000)
    assert (await scaling(client, queue="a"))["desired_workers"] == 0
    clock.advance(61)
    assert (await scaling(client, queue="a"))["desired_workers"] == 1


async def test_a_run_whose_worker_died_wants_one_that_takes_it_back(client, partition, clock):
    partition.job(queue="a")
    partition.claim(queues=("a",))
    clock.advance(600)
    assert (await scaling(client, queue="a"))["desired_workers"] == 1


async def test_nobody_is_wanted_for_what_a_paused_queue_holds(client, partition):
    for _ in range(3):
        partition.job(queue="a")
    partition.claim(1, queues=("a",))
    partition.pause("a")
    found = await scaling(client, queue=["a", "b"], jobs_per_worker=1)
    assert (found["ready"], found["running"], found["desired_workers"], found["paused"]) == (0, 1, 1, ["a"])


async def test_beyond_the_sample_the_number_of_runs_is_an_estimate(client, partition):
    """1,200 runs, of which the look sees 500."""
    for number in range(1_200):
        partition.job(queue="a" if number % 2 else "b")
    for queue in ("a", "b"):
        assert len(partition.claim(600, queues=(queue,))) == 600
    found = await scaling(client, queue=["a", "b"])
    assert found["running"] == 1_200
    partition.redis.flushall()


@pytest.mark.parametrize(
    "query",
    [{"queue": "a b"}, {"queue": ""}, {"jobs_per_worker": "0"}, {"jobs_per_worker": "x"}, {"jobs_per_worker": "²"},
     {"jobs_per_worker": "-1"}, {"jobs_per_worker": "9" * 30}, {"queue": [f"q{n}" for n in range(51)]}],
)  # fmt: skip
async def test_a_question_that_makes_no_sense_is_refused(client, query):
    answer = await client.get("/v1/scaling", params=query)
    assert answer.status_code == 422
    assert answer.json()["type"] == "/v1/problems/value-refused"


async def test_an_autoscaler_needs_the_scope_read(app, new_token):
    async with in_process(asgi(app)) as client:
        answer = await client.get("/v1/scaling", headers=bearer(new_token("enqueue:*")))
        assert (answer.status_code, answer.json()["scope"]) == (403, "read")
        assert (await client.get("/v1/scaling", headers=bearer(new_token("read")))).status_code == 200


# -- problems -------------------------------------------------------------------------------------------------


def slugs() -> Iterator[tuple[str, str]]:
    """Yield each slug that is written out in the service, with where."""
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem" and len(node.args) > 1:
                slug = node.args[1]
                if isinstance(slug, ast.Constant):
                    yield str(slug.value), f"{path.name}:{node.lineno}"
    for _, _, slug_known, _ in _KNOWN:
        yield slug_known, "problems.py"


@pytest.mark.parametrize("slug", sorted({slug for slug, _ in slugs()}))
async def test_each_problem_has_a_page_that_says_what_to_do(client, slug):
    answer = await client.get(f"/v1/problems/{slug}")
    assert answer.status_code == 200, [where for name, where in slugs() if name == slug]
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith(f"{slug}\n\n")
    assert "\nWhat to do: " in answer.text


def test_no_page_is_about_a_problem_that_does_not_occur():
    source = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    assert [slug for slug in PAGES if source.count(f'"{slug}"') < 2] == []


async def test_a_problem_that_nobody_has_is_a_problem_itself(client):
    answer = await client.get("/v1/problems/none")
    assert (answer.status_code, answer.json()["type"]) == (404, "/v1/problems/no-such-problem")


async def test_the_document_lists_the_routes_and_what_they_take(client):
    document = (await client.get("/openapi.json")).json()
    names = {one["name"] for one in document["paths"]["/v1/scaling"]["get"]["parameters"]}
    assert names == {"queue", "jobs_per_worker"}
    assert document["paths"]["/readyz"]["get"]["security"] == []


async def test_the_application_gives_its_service(app):
    async with in_process(app.asgi(ApiSettings(auth="off"))) as client:
        answers = await asyncio.gather(*(client.get("/livez") for _ in range(3)))
    assert [one.status_code for one in answers] == [200] * 3


WITHOUT = """
import sys
sys.modules["fastapi"] = None
from fencepost import Fencepost
from fencepost.errors import ConfigurationError
try:
    Fencepost().asgi()
except ConfigurationError as error:
    print(error)
"""


def test_without_the_extra_the_application_says_which_one_is_needed():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=15, check=True)
    assert done.stdout == ("server: fastapi is not installed. Nothing was changed. pip install 'fencepost[server]'.\n")
