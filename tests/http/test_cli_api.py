"""`fencepost api` as a process: what it says, where it listens, whom it serves, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.edges.processes import WorkerProcess, after
from tests.http.conftest import bearer
from tests.support import raw_client, wait_until

MODULE = """
import os
from fencepost import Fencepost
app = Fencepost(os.environ["SHOP_URL"], namespace=os.environ["SHOP_NAMESPACE"], give_up="3s")

@app.job(queue="sums")
async def add(a: int, b: int = 1) -> int:
    return a + b
"""


class Services:
    """Processes of `fencepost api` in an empty folder. What still runs is killed at the end."""

    def __init__(self, folder: Path, url: str, namespace: str) -> None:
        self.folder, self.url, self.namespace = folder, url, namespace
        (folder / "shop.py").write_text(MODULE)
        self.started: list[WorkerProcess] = []

    def start(self, *options: str, target: str = "shop:app", url: str = "", json_log: bool = True) -> WorkerProcess:
        env = {**os.environ, "SHOP_URL": url or self.url, "SHOP_NAMESPACE": self.namespace, "PYTHONUNBUFFERED": "1"}
        for name in ("FENCEPOST_REDIS_URL", "FENCEPOST_NAMESPACE", "FENCEPOST_APP"):
            env.pop(name, None)
        command = [sys.executable, "-m", "fencepost", "api", *([target] if target else []), *options]
        log = self.folder / f"log{len(self.started)}"
        with open(log, "w") as file:
            process = subprocess.Popen(
                [*command, "--json"] if json_log else command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self.started.append(WorkerProcess(process, log))
        return self.started[-1]

    def listening(self, *options: str, **more: Any) -> tuple[WorkerProcess, str]:
        """Start one on a free port and wait until it listens; returns it and its address."""
        one = self.start("--port", "0", *options, **more)
        return one, str(one.until("listening")["where"])


@pytest.fixture
def services(tmp_path: Path, url: str, namespace: str) -> Iterator[Services]:
    one = Services(tmp_path, url, namespace)
    yield one
    for process in one.started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill_group()


@pytest.mark.slow
def test_it_says_where_it_listens_serves_and_ends_with_code_0(services, new_token, namespace):
    one, where = services.listening()
    said = one.until("listening")
    assert said["docs"] == f"{where}/openapi.json"
    assert (said["namespace"], said["kinds"]) == (namespace, "add")
    token = new_token("read")
    with httpx2.Client(base_url=where) as client:
        assert client.get("/livez").json() == {"live": True}
        assert client.get("/readyz").json()["ready"] is True
        assert client.get("/openapi.json").json()["paths"]
        assert client.get("/v1/scaling").status_code == 401
        answer = client.get("/v1/scaling", headers=bearer(token))
        assert answer.json()["queues"] == ["sums"]
        assert "server" not in answer.headers
    one.send()
    assert one.code() == 0
    assert one.events("stopped") == [{**one.events("stopped")[0], "cut_off": 0, "level": "info"}]


@pytest.mark.slow
def test_a_call_is_one_line_of_the_log_without_what_is_secret(services, new_token):
    one, where = services.listening()
    token = new_token("read")
    with httpx2.Client(base_url=where) as client:
        client.get("/v1/scaling?queue=sums&password=hunter2", headers=bearer(token))
        client.post("/v1/scaling", json={"password": "hunter3"}, headers=bearer(token))
        client.get("/v1/scaling", headers={"Authorization": "Bearer hunter4"})
        client.get("/livez")
        client.get("/a%0ab%20status=200")
    one.send()
    assert one.code() == 0
    lines = one.events("request")
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("GET", "/v1/scaling", 200), ("POST", "/v1/scaling", 405), ("GET", "/v1/scaling", 401),
        ("GET", "/a\nb status=200", 404),
    ]  # fmt: skip
    assert lines[0]["caller"] == token.split("_")[1]
    assert lines[0]["client"] == "127.0.0.1"
    assert 0 < lines[0]["ms"] < 5_000
    assert "hunter" not in one.text()
    assert token.split("_", 2)[2] not in one.text()


@pytest.mark.slow
def test_lines_for_people_are_one_line_each(services, namespace):
    one = services.start("--port", "0", json_log=False)
    wait_until(lambda: " listening " in one.text(), 15)
    where = one.text().split(" listening where=")[1].split()[0]
    with httpx2.Client(base_url=where) as client:
        client.get("/a%0a2026-01-01 forged line")
    one.send()
    assert one.code() == 0
    [line] = [line for line in one.text().splitlines() if "forged" in line]
    assert "request method=GET" in line


@pytest.mark.slow
def test_without_an_application_all_but_the_kinds_is_there(services, namespace, new_token):
    one, where = services.listening("--url", services.url, "--namespace", namespace, target="")
    assert one.until("listening")["kinds"] == ""
    with httpx2.Client(base_url=where, headers=bearer(new_token("read"))) as client:
        assert client.get("/v1/scaling").json()["queues"] == ["default"]
    one.send()
    assert one.code() == 0


@pytest.mark.slow
def test_on_an_embedded_server_it_works_too(services):
    (services.folder / "small.py").write_text("from fencepost import Fencepost\napp = Fencepost.embedded('data')\n")
    one, where = services.listening("--no-auth", target="small:app")
    with httpx2.Client(base_url=where) as client:
        assert client.get("/readyz").json()["ready"] is True
        assert client.get("/v1/scaling").status_code == 200
    one.send()
    assert one.code() == 0


# -- how it ends ----------------------------------------------------------------------------------------------


@pytest.fixture
def own(new_server: Callable[..., Any]) -> Any:
    """A server that a test may freeze."""
    server = new_server()
    yield server
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid_of(server), signal.SIGCONT)


def pid_of(server: Any) -> int:
    return int(raw_client(server.url).info("server")["process_id"])


class Frozen:
    """A call that is in flight because Redis stands still, once the constructor has returned."""

    def __init__(self, server: Any, where: str) -> None:
        self._pid = pid_of(server)
        os.kill(self._pid, signal.SIGSTOP)
        host, _, port = where.removeprefix("http://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 15)
        self._socket.sendall(b"GET /v1/scaling HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        wait_until(lambda: taken_up(int(port), self._socket.getsockname()[1]))

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def __enter__(self) -> Frozen:
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        self._socket.close()

    def answer(self) -> bytes:
        """All that came; nothing where the connection was cut."""
        found = b""
        with self._socket, contextlib.suppress(ConnectionResetError):
            while part := self._socket.recv(65_536):
                found += part
        return found


def taken_up(port: int, peer: int) -> bool:
    """Whether a process has accepted the connection and read all that was sent, by the kernel's own table."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, queues, _, _, _, _, inode, *_ = line.split()
        if (local[-4:], remote[-4:], state) == (f"{port:04X}", f"{peer:04X}", "01"):
            return inode != "0" and queues.endswith(":00000000")
    return False


def refuses(where: str) -> bool:
    host, _, port = where.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.slow
def test_a_call_in_flight_ends_and_nobody_else_is_let_in(services, own):
    """Also where a terminal and a wrapper both pass the signal on: two at once mean one."""
    one, where = services.listening("--no-auth", url=own.url)
    with Frozen(own, where) as call:
        one.send(signal.SIGINT)
        after(one.send(signal.SIGINT), 0.3)
        wait_until(lambda: refuses(where))
        assert one.process.poll() is None
        call.thaw()
        assert one.code() == 0
        assert call.answer().startswith(b"HTTP/1.1 200 ")
    assert one.until("stopping")["calls"] == 1


@pytest.mark.slow
def test_beyond_the_grace_a_call_is_cut_off_and_the_exit_code_says_so(services, own):
    one, where = services.listening("--no-auth", "--grace", "1s", url=own.url)
    with Frozen(own, where) as call:
        moment = one.send()
        assert one.code() == 1
        assert 1.0 <= time.monotonic() - moment < 3.5
        assert call.answer() == b""
    assert one.events("stopped")[0]["cut_off"] == 1


@pytest.mark.slow
def test_a_second_signal_cuts_off_at_once(services, own):
    one, where = services.listening("--no-auth", "--grace", "60s", url=own.url)
    with Frozen(own, where) as call:
        after(one.send(), 1.2)
        one.send()
        assert one.code(3) == 1
        assert call.answer() == b""
    assert one.events("stopping")[1]["now"] is True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_its_first_moments_ends_it_quietly(services, number):
    one = services.start("--port", "0")
    wait_until(lambda: Path(f"/proc/{one.pid}/maps").read_text().count("python") > 0)
    after(one.send(signal.SIGCONT), 0.15)
    one.send(number)
    assert one.code() in (0, -number)  # before Python runs our code the signal is the system's


# -- where it listens -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_on_a_unix_socket_without_tokens_only_its_user_may_call(services):
    path = services.folder / "api.sock"
    one = services.start("--uds", str(path), "--no-auth")
    assert one.until("listening")["where"] == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), base_url="http://any") as client:
        assert client.get("/v1/scaling").status_code == 200
    [warning] = one.events("no_authentication")
    assert warning["level"] == "warning"
    one.send()
    assert one.code() == 0
    assert not path.exists()


@pytest.mark.slow
def test_what_a_killed_process_left_makes_way_and_a_living_one_does_not(services):
    path = services.folder / "api.sock"
    first = services.start("--uds", str(path))
    first.until("listening")
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    second = services.start("--uds", str(path))
    assert second.code() == 2
    assert "another process listens on" in second.text()
    first.process.kill()
    first.process.wait(5)
    assert path.exists()
    third = services.start("--uds", str(path))
    third.until("listening")
    third.send()
    assert third.code() == 0


@pytest.fixture
def call(tmp_path: Path, url: str, namespace: str) -> Callable[..., tuple[int, str]]:
    """The command without an application, for what is refused before it serves: `call(*options) -> (code, stderr)`."""
    env = {**os.environ, "FENCEPOST_REDIS_URL": url, "FENCEPOST_NAMESPACE": namespace}
    env.pop("FENCEPOST_APP", None)

    def run(*options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "fencepost", "api", *options]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=12)
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_tokens_it_does_not_listen_where_others_could_call(call, host):
    code, told = call("--no-auth", "--host", host, "--port", "0")
    assert code == 2
    assert "could do anything here. Nothing was changed. Listen on 127.0.0.1" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "no.such.host.invalid"), "is no address of this machine"), (("--max-body", "5"), "max_body: 5"),
        (("--grace", "soon"), "is not a length of time"), (("--uds", "."), "is there and no socket"),
        (("--uds", "no/such/folder"), "cannot listen on"), (("--host", "192.0.2.1"), "cannot listen on"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_starts(call, options, words):
    code, told = call(*options)
    assert code == 2
    assert words in told


def test_an_address_that_is_taken_is_named(call):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, told = call("--port", str(port))
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in told


def test_it_does_not_serve_on_a_redis_that_cannot_keep_the_promises(call, new_server):
    server = new_server(config={"maxmemory-policy": "allkeys-lru"})
    code, told = call("--url", server.url, "--port", "0")
    assert code == 1
    assert "maxmemory-policy is allkeys-lru" in told
    assert "listening" not in told


def test_it_does_not_serve_where_redis_is_away(call):
    code, _ = call("--url", "redis://127.0.0.1:1/0", "--port", "0")
    assert code == 4


def test_the_limit_of_calls_is_that_of_the_option(services, new_token):
    one, where = services.listening("--rate", "1")
    with httpx2.Client(base_url=where, headers=bearer(new_token("read"))) as client:
        found = [client.get("/v1/scaling").status_code for _ in range(4)]
    assert found == [200, 200, 429, 429]
    one.send()
    assert one.code() == 0


def test_the_log_of_a_service_is_json_that_can_be_read(services):
    one, _ = services.listening()
    one.send()
    assert one.code() == 0
    lines = [json.loads(line) for line in one.text().splitlines()]
    assert {line["event"] for line in lines} >= {"listening", "stopping", "stopped"}
