"""The page on a secured Redis: its ACL line names what the code sends and no more, and all of it works under that."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fencepost.api import ApiSettings, asgi
from fencepost.cli.session import load_app
from fencepost.embedded import EmbeddedServer
from tests.support.servers import raw_client

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/fencepost"
PAGE = ROOT / "docs/howto/secure-redis.md"
# They start servers of their own, or talk to the one that they started.
_OWN_SERVERS = ("demo", "bench", "embedded")
# Asked for and done without where it is forbidden: it would show passwords too.
_REFUSED = {"CONFIG"}
# Of the client library, at each new connection; what it answers does not matter.
_GREETINGS = {"client|setinfo", "CLIENT"}
PASSWORD = "correct-horse"

CODE = """
import asyncio
from fencepost import Fencepost, Permanent, RetryPolicy, Run, Snooze

app = Fencepost.from_environment(namespace="shop", lease="2s")

@app.job(resource="order:{order_id}", dedup=True, durability="ledger")
async def invoice(run: Run, order_id: int) -> int:
    await run.checkpoint({"at": order_id})
    await run.progress(0.5)
    await run.step("pdf", lambda: 1)
    return order_id

@app.job(retry=RetryPolicy(attempts=2, base=0.01, cap=0.02))
async def fails(run: Run) -> None:
    if run.attempt == 1:
        raise ValueError("once")
    raise Permanent("for good")

@app.job()
async def naps(run: Run) -> object:
    return None if run.claimed.checkpoint else (await run.checkpoint(1), Snooze(0.01))[1]
"""


def line() -> list[str]:
    """The words of the ACL line, with the namespace and the password of the test."""
    found: str
    [found] = re.findall(r"^ACL SETUSER (?:.*\\\n)*.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return found.replace("\\\n", " ").replace("CHANGE-ME", PASSWORD).split()


@pytest.fixture
def secured(new_server: Callable[[], EmbeddedServer]) -> EmbeddedServer:
    """A server on which only the user of the page may do anything, apart from the supervisor's own connection."""
    return new_server()


@pytest.fixture
def admin(secured: EmbeddedServer) -> Iterator[Any]:
    client = raw_client(secured.url)
    client.execute_command(*line())
    yield client
    client.close()


@pytest.fixture
def target(cli, secured, admin, tmp_path, monkeypatch, namespace) -> Iterator[str]:
    """The application above as that user, and `cli` for it."""
    monkeypatch.setenv("FENCEPOST_REDIS_URL", secured.url.replace("unix://", f"unix://fencepost:{PASSWORD}@"))
    monkeypatch.delenv("FENCEPOST_NAMESPACE")
    monkeypatch.setenv("FENCEPOST_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    name = f"secured_{namespace}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.setenv("FENCEPOST_APP", f"{name}:app")
    monkeypatch.syspath_prepend(str(tmp_path))
    cli("sql", "upgrade", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield f"{name}:app"
    sys.modules.pop(name, None)


def refusals(admin: Any) -> set[str]:
    """What the server refused to that user: the commands, keys and channels."""
    entries = admin.execute_command("ACL", "LOG")
    told = [one if isinstance(one, dict) else dict(zip(one[::2], one[1::2], strict=True)) for one in entries]
    found = {str(one.get("object") or one[b"object"].decode()) for one in told}
    return {one for one in found if one.upper().partition("|")[0] not in _REFUSED and one not in _GREETINGS}


def commands_of_the_code(known: set[str]) -> set[str]:
    """Every command of Redis that a script or a module of the library sends."""
    found = set()
    for path in SOURCE.glob("scripts/*.lua"):
        found |= set(re.findall(r"call\(\s*'([A-Z]+)'", path.read_text(encoding="utf-8")))
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in _OWN_SERVERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            words = node.elts if isinstance(node, ast.Tuple | ast.List) else getattr(node, "args", ())
            if words and isinstance(words, list) and isinstance(words[0], ast.Constant):
                found.add(str(words[0].value))
    return {one for one in found if one.isupper()} & known


@pytest.mark.slow
def test_the_line_allows_what_the_code_sends_and_nothing_else(admin):
    known = {name.decode().upper() for name in admin.eval("return redis.call('COMMAND', 'LIST')", 0)}
    allowed = {word[1:].upper() for word in line() if word.startswith("+")}
    assert allowed == commands_of_the_code(known) - _REFUSED
    rules = [word for word in line()[3:] if not word.startswith("+")]
    assert rules == ["reset", "on", f">{PASSWORD}", "~{shop:0}:*", "-@all"]


def test_that_user_can_touch_no_other_key_and_do_nothing_dangerous(admin, secured):
    url = secured.url.replace("unix://", f"unix://fencepost:{PASSWORD}@")
    client = raw_client(url)
    for words in (
        "SET other 1", "GET {shop:1}:meta", "FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG GET *", "ACL LIST", "SHUTDOWN",
        "DEBUG SLEEP 0", "MONITOR", "CLIENT LIST", "SCRIPT FLUSH", "PUBLISH c m", "DEL other", "SELECT 1", "WAIT 0 0",
    ):  # fmt: skip
        with pytest.raises(Exception, match=r"(?i)no permissions|noperm|can't access|not allowed"):
            client.execute_command(*words.split())
    with pytest.raises(Exception, match=r"(?i)no permissions|acl failure|access at least one of the keys"):
        client.eval("return redis.call('SET', 'other', 1)", 0)
    client.close()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_worker_an_enqueue_the_operator_and_the_ledger_work_under_it(cli, target, admin):
    assert "0 errors, " in cli("doctor")
    first = cli.json("enqueue", "invoice", "order_id=7", "--idempotency-key", "k1")["id"]
    second = cli.json("enqueue", "invoice", "order_id=8", "--delay", "50ms")["id"]
    failed = cli.json("enqueue", "fails")["id"]
    napped = cli.json("enqueue", "naps")["id"]
    held = cli.json("enqueue", "naps", "--queue", "other")["id"]
    cli("worker", "--burst", "--loop", "asyncio")
    for job_id, state in ((first, "done"), (second, "done"), (failed, "failed"), (napped, "done"), (held, "queued")):
        assert cli.json("job", job_id, "--history")["state"] == state
    for state in ("scheduled", "queued", "waiting", "processing", "done", "failed", "cancelled"):
        cli("jobs", "--state", state)
    cli("dead", "list")
    cli("dead", "requeue", failed, "--because", "again")
    cli("cancel", failed, held)
    cli("pause", "other", "--reason", "moving")
    cli("resume", "other", "--reason", "moved")
    for command in (("stats",), ("workers",), ("locks",), ("heal",), ("heal", "--apply"), ("token", "list")):
        cli(*command)
    made = cli.json("token", "make", "shop", "--scope", "read")
    cli("token", "revoke", made["id"], "--reason", "over")
    for command in (("run", "--once"), ("status",), ("verify",), ("reconcile",)):
        cli("ledger", *command)
    assert refusals(admin) == set()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_waiting_leases_and_the_http_service_work_under_it(target, admin):
    app = load_app(target)

    async def ask() -> None:
        async with app.lease("stock:1", 2.0) as one:
            waiting = asyncio.create_task(app.lease("stock:1", 2.0, wait=5).__aenter__())
            await asyncio.sleep(0.2)
            one.check()
        await (await waiting).__aexit__(None, None, None)
        transport = httpx2.ASGITransport(app=asgi(app, ApiSettings(auth="off")))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for path in (
                "/readyz",
                "/v1/queues",
                "/v1/resources",
                "/v1/dead",
                "/v1/jobs?state=done",
                "/v1/scaling?queue=a",
            ):
                answer = await client.get(path)
                assert answer.status_code == 200, f"{path}: {answer.text}"
            accepted = await client.post("/v1/jobs/naps", json={})
            here = accepted.headers["Location"]
            follower = asyncio.create_task(client.get(f"{here}/events"))
            wanted = {"worker": "w", "queues": ["default"], "wanted": 1, "wait_s": 2}
            [job] = (await client.post("/v1/claims", json=wanted)).json()["jobs"]
            run = {name: job[name] for name in ("job_id", "token", "nonce")} | {"worker": "w"}
            assert (await client.post("/v1/finish", json=run | {"result": 1})).status_code == 200
            assert "event: end" in (await asyncio.wait_for(follower, 10)).text
            nothing = await client.post("/v1/claims", json=wanted | {"wait_s": 1})
            assert nothing.json()["jobs"] == []
            assert (await client.get(here, params={"wait": "1"})).json()["state"] == "done"
        await app.close()

    asyncio.run(ask())
    assert refusals(admin) == set()
