"""Secrets in arguments: no command, log line, answer, error, event, export or stored text shows them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import pytest

from fencepost import Fencepost
from fencepost.api import ApiSettings, asgi
from fencepost.cli.session import load_app

pytestmark = [pytest.mark.timeout(60), pytest.mark.slow]

SECRETS = ("hunter-2", "k-98-a", "DE-4711-X", "4929-1111", "q'uo\"te")
ARGUMENTS = {
    "user": "ann", "login": {"password": "hunter-2", "more": [{"apiKey": "k-98-a"}, {"clientSecret": "q'uo\"te"}]},
    "tax_id": "DE-4711-X", "card": {"number": "4929-1111"},
}  # fmt: skip
CODE = """
import logging, os
from fencepost import Fencepost, RetryPolicy, Run
from pydantic import BaseModel, field_validator

app = Fencepost(
    os.environ["FENCEPOST_REDIS_URL"], namespace=os.environ["FENCEPOST_NAMESPACE"], redact=("tax_id",),
    ledger=os.environ["SECRETS_LEDGER"],
)

class Odd:
    def __init__(self, text): self.text = text
    def __repr__(self): return f"<Odd {self.text}>"

@app.job(retry=RetryPolicy(attempts=2, base=0.01, cap=0.02))
async def fails(run: Run, user: str, login: dict, tax_id: str, card: dict):
    await run.checkpoint({"token": "of checkpoint", "at": login["password"]})
    await run.progress(0.5, f"as {login['password']}")
    try:
        raise KeyError(repr(locals()))
    except KeyError as error:
        raise ValueError(f"{user}: {login} {tax_id} {card}; https://ann:{login['password']}@host") from error

@app.job()
async def works(run: Run, user: str, login: dict, tax_id: str, card: dict):
    await run.step("ask", lambda: {"session": login["password"], "said": f"{tax_id}!"})
    return {"user": user, "login": login, "echo": f"{card['number']} of {tax_id}"}

@app.job()
def odd(user: str, login: dict, tax_id: str, card: dict):
    return Odd(f"{login} {tax_id} {card}")

class Login(BaseModel):
    password: str
    @field_validator("password")
    @classmethod
    def good(cls, value):
        if value != "fine-one":
            raise ValueError(f"{value!r} is too weak")
        return value

@app.job()
async def strict(login: Login): ...
"""


@pytest.fixture
def target(cli, tmp_path, namespace, monkeypatch) -> Iterator[str]:
    """The application above, as --app names it. Its command line is `cli`."""
    name = f"secrets_{namespace}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.setenv("SECRETS_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    monkeypatch.setenv("FENCEPOST_REDACT", "tax_id")
    monkeypatch.syspath_prepend(str(tmp_path))
    cli("sql", "upgrade", os.environ["SECRETS_LEDGER"])
    yield f"{name}:app"
    sys.modules.pop(name, None)


@pytest.fixture
def app(target) -> Iterator[Fencepost]:
    one = load_app(target)
    yield one
    one.close_sync()


@pytest.fixture
def jobs(app: Fencepost, target: str, tmp_path) -> dict[str, str]:
    """A job of each kind, ended: its id by the kind. The worker's logs are in log (text) and log.json."""
    handlers = {kind: app.handler(kind) for kind in ("fails", "works", "odd")}
    found = {kind: one.enqueue_sync(**ARGUMENTS).id for kind, one in handlers.items()}
    work(target, tmp_path / "log")
    again = [app.handler("fails").enqueue_sync(**ARGUMENTS).id]
    again += [app.handler("strict").options(job_id="undecodable").enqueue_sync(login={"password": "fine-one"}).id]
    keys, other = app.link.store.keys, '{"login": {"password": "hunter-2"}}'
    app.link.synchronous.run(app.link.store.read(["HSET", keys.job("undecodable"), "payload", other], str))
    work(target, tmp_path / "log.json", "--log-format", "json")
    return found | {"again": again[0], "undecodable": "undecodable"}


def work(target: str, log, *options: str) -> None:
    command = [sys.executable, "-m", "fencepost", "worker", target, "--burst", "--log-level", "debug", *options]
    with open(log, "w") as file:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=40, check=True)


def shows_none(text: str, where: str) -> None:
    """No secret stands there, however it is written: as it is, as Python or as JSON has it."""
    assert text, where
    plain = text.replace("\\", "")
    assert not [one for one in SECRETS if one in text or one in plain], f"{where} shows a secret: {text}"


def test_no_command_shows_a_secret(cli, jobs, target):
    commands: list[tuple[str, ...]] = [
        ("jobs", "--state", "failed"), ("jobs", "--state", "done"), ("dead", "list"), ("stats",), ("workers",),
        ("locks",), ("ledger", "run", "--once"), ("ledger", "status"), ("ledger", "verify"),
    ]  # fmt: skip
    commands += [("job", one, "--history") for one in jobs.values()]
    commands += [("dead", "show", jobs["fails"])]
    for command in commands:
        for more in ((), ("--app", target)):
            if command[0] == "ledger" and not more:
                continue
            shows_none(cli(*command, *more), f"{command}")
            shows_none(cli(*command, *more, "--json") + cli.err, f"{command} --json")
    for form in ("jsonl", "csv"):
        shows_none(cli("ledger", "export", "--app", target, "--format", form), f"export as {form}")
    told = cli.json("job", jobs["works"])
    assert told["payload"]["user"] == "ann"
    assert told["payload"]["login"]["password"] == told["payload"]["card"] == "[redacted]"
    assert told["result"]["echo"] == "[redacted] of [redacted]"
    assert told["token"].isdecimal()
    assert told["nonce"]


def test_no_log_line_and_no_stored_error_shows_a_secret(jobs, redis, namespace, tmp_path):
    for name in ("log", "log.json"):
        text = (tmp_path / name).read_text()
        assert "failed" in text
        shows_none(text, name)
    for job_id, words in ((jobs["fails"], "ValueError: ann: "), (jobs["undecodable"], "is too weak")):
        error = redis.hget(next(redis.scan_iter(f"*{namespace}*job:{job_id}")), "error").decode()
        assert words in error
        shows_none(error, "the stored error")
    described = redis.hget(next(redis.scan_iter(f"*{namespace}*job:{jobs['odd']}")), "result").decode()
    assert "<Odd {'password': '[redacted]'" in described
    shows_none(described, "the result that could not be stored")
    events = list(redis.scan_iter(f"*{namespace}*events"))
    assert events
    for key in events:
        shows_none(str(redis.xrange(key)), "the event stream")


def test_no_sql_row_shows_a_secret_of_jobs_that_only_redis_keeps(cli, jobs, target, tmp_path):
    cli("ledger", "run", "--once", "--app", target)
    whole = "".join(path.read_bytes().decode("latin-1") for path in tmp_path.glob("ledger.sqlite*"))
    assert all(job_id in whole for job_id in jobs.values())
    shows_none(whole, "the files of the ledger")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_enqueue_does_not_echo_a_secret(cli, target, tmp_path, form):
    given = [
        "user=ann",
        'login={"password": "hunter-2", "more": []}',
        "tax_id=DE-4711-X",
        'card={"number": "4929-1111"}',
    ]
    log = (tmp_path / "log").open("w")
    worker = subprocess.Popen(
        [sys.executable, "-m", "fencepost", "worker", target], stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        shows_none(cli("enqueue", "works", *given, "--app", target, "--wait", "30s", *form), "the result")
        shows_none(
            cli("enqueue", "fails", *given, "--app", target, "--wait", "30s", *form, code=1) + cli.err, "the error"
        )
        assert "ValueError: ann: " in cli.err
        shows_none(cli("enqueue", "works", *given, "--raw", "--wait", "30s", *form), "the result of --raw")
    finally:
        worker.terminate()
        worker.wait(20)
        log.close()
    cli("enqueue", "strict", 'login={"password": "hunter-2"}', "--app", target, *form, code=1)
    assert "is too weak" in cli.err
    shows_none(cli.err, "the refusal")


def test_no_answer_of_the_http_service_shows_a_secret(jobs, app):
    async def ask() -> None:
        transport = httpx2.ASGITransport(app=asgi(app, ApiSettings(auth="off")))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for job_id in jobs.values():
                answer = await client.get(f"/v1/jobs/{job_id}", params={"history": "1"})
                assert answer.status_code == 200, answer.text
                shows_none(answer.text, f"the job {job_id}")
                shows_none((await client.get(f"/v1/jobs/{job_id}/events")).text, f"the events of {job_id}")
            for path in (
                "/v1/jobs?state=failed",
                "/v1/jobs?state=done&preview=1",
                "/v1/dead",
                "/v1/queues",
                "/v1/resources",
            ):
                shows_none((await client.get(path)).text, path)
            refused = await client.post("/v1/jobs/strict", json={"args": {"login": {"password": "hunter-2"}}})
            assert refused.status_code == 422
            assert "is too weak" in refused.text
            shows_none(refused.text, "the refusal")
            odd = await client.post("/v1/jobs/works", json={"args": ARGUMENTS | {"tax_id": ["DE-4711-X"]}})
            assert odd.status_code == 422
            shows_none(odd.text, "the refusal of a type")
        await app.link.asynchronous.close()

    asyncio.run(ask())


def test_the_error_text_of_a_worker_in_another_language_is_cleaned_before_it_is_stored(app, partition):
    async def work() -> None:
        transport = httpx2.ASGITransport(app=asgi(app, ApiSettings(auth="off")))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            told = {"worker": "w", "queues": ["default"], "wanted": 1}
            [job] = (await client.post("/v1/claims", json=told)).json()["jobs"]
            assert job["args"] == ARGUMENTS  # who does the work is told all
            run = {name: job[name] for name in ("job_id", "token", "nonce")} | {"worker": "w", "permanent": True}
            error = {"class": "Broken", "message": f"no login with {ARGUMENTS}"}
            answer = await client.post("/v1/retry", json=run | {"error": error})
            assert answer.status_code == 200, answer.text
        await app.link.asynchronous.close()

    job = app.handler("works").enqueue_sync(**ARGUMENTS)
    asyncio.run(work())
    stored = partition.record(job.id).error
    assert "no login with" in stored
    shows_none(stored, "the stored error")


def test_the_doctor_warns_of_secrets_in_names(cli, tmp_path, namespace, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"named_{namespace}.py").write_text(
        "from fencepost import Fencepost\n"
        'app = Fencepost.from_environment(redact=["tax_id"])\n'
        '@app.job(resource="login:{login.apiKey}", dedup="{tax_id}:{user}")\n'
        "async def named(login: dict, tax_id: str, user: str, token_count: int): ...\n"
    )
    told = cli("doctor", "--app", f"named_{namespace}:app")
    sys.modules.pop(f"named_{namespace}", None)
    assert "{login.apiKey} in 'login:{login.apiKey}' is a secret by its name" in told
    assert "{tax_id} in '{tax_id}:{user}' is a secret by its name" in told
    assert told.count("is a secret by its name") == 2
