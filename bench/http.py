"""What an enqueue over HTTP costs: Fencepost's service beside FastAPI with arq and FastAPI with Celery, on one Redis.

python bench/http.py [--seconds 2] [--rounds 8] [--connections 32] [--only NAME] [--json FILE]

Each server is one uvicorn process (uvloop, httptools, no access log) on a socket; the requests come from one process
that keeps every connection busy. The rivals get environments of their own under --cache, made at the first run. Rounds
alternate between the servers, and the fastest of each counts: other work on the machine only ever makes one slower. The
JSON file has all rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost import Fencepost, credentials
from fencepost.bench.server import Meter
from fencepost.embedded import EmbeddedServer
from fencepost.operate.plan import run_sync

HERE = Path(__file__).parent
DEFAULT_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fencepost-bench"
SAME = ("fastapi==0.165.0", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0")
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Subject:
    """A server to measure. packages: of its own environment, none for ours. idempotent: each call has a new key."""

    name: str
    module: str
    path: str
    body: bytes
    packages: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    idempotent: bool = False


_PLAIN, _OURS = b'{"order_id": 4711, "copies": 2}', b'{"args": {"order_id": 4711, "copies": 2}}'
_BEARER = {"BENCH_AUTH": "bearer"}
SUBJECTS = (
    Subject("FastAPI, no queue", "plain_app", "/jobs/invoice", _PLAIN),
    Subject("Fencepost", "fencepost_app", "/v1/jobs/invoice", _OURS),
    Subject("Fencepost, token", "fencepost_app", "/v1/jobs/invoice", _OURS, env=_BEARER),
    Subject("Fencepost, token and key", "fencepost_app", "/v1/jobs/invoice", _OURS, env=_BEARER, idempotent=True),
    Subject("FastAPI + arq", "arq_app", "/jobs/invoice", _PLAIN, ("arq==0.28.0", "hiredis")),
    Subject("FastAPI + Celery", "celery_app", "/jobs/invoice", _PLAIN, ("celery[redis]==5.6.2", "hiredis")),
)


def interpreter(subject: Subject, cache: Path) -> str:
    """The Python of a subject; makes its environment where it is not there yet."""
    if not subject.packages:
        return sys.executable
    folder = cache / f"{subject.module}-{sys.version_info.major}.{sys.version_info.minor}"
    python, wanted = folder / "bin/python", "\n".join((*SAME, *subject.packages))
    ready = folder / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"making {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *SAME, *subject.packages],
            check=True,
        )
        ready.write_text(wanted)
    return str(python)


@contextlib.contextmanager
def serving(subject: Subject, python: str, redis_socket: str, folder: Path) -> Iterator[tuple[int, str]]:
    """Serve a subject: its process id and its socket."""
    socket = str(folder / "http.sock")
    command = [
        python, "-m", "uvicorn", f"{subject.module}:app", "--app-dir", str(HERE / "rivals"), "--uds", socket,
        "--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning", "--backlog", "512",
    ]  # fmt: skip
    env = {**os.environ, "BENCH_SOCKET": redis_socket, **subject.env}
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 30
        while not os.path.exists(socket):
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"{subject.name} did not start")
            time.sleep(0.05)
        yield process.pid, socket
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        Path(socket).unlink(missing_ok=True)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def load(subject: Subject, socket: str, token: str, connections: int, seconds: float) -> dict[str, Any]:
    """Send requests from a process of its own; what it counted."""
    asked = {
        "socket": socket, "path": subject.path, "body": subject.body.decode(), "connections": connections,
        "seconds": seconds, "token": token if subject.env else "", "idempotent": subject.idempotent,
    }  # fmt: skip
    command = [sys.executable, str(HERE / "http_load.py"), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def measured(subject: Subject, python: str, meter: Meter, where: tuple[str, Path], options: Any) -> dict[str, float]:
    """One round of one subject, on an empty database."""
    redis_socket, folder = where
    meter.forget()
    token = _token(redis_socket) if subject.env else ""
    with serving(subject, python, redis_socket, folder) as (pid, socket):
        load(subject, socket, token, options.connections, 0.7)
        meter.lap()
        before = cpu_s(pid)
        told = load(subject, socket, token, options.connections, options.seconds)
        used, spent = meter.lap(), cpu_s(pid) - before
    if told["refused"] or not told["accepted"]:
        raise SystemExit(f"{subject.name}: {told}")
    count = told["accepted"]
    return {
        "per_s": count / told["seconds"],
        "p50_ms": told["p50_ms"],
        "p99_ms": told["p99_ms"],
        "server_cpu_us": spent / count * 1e6,
        "redis_cpu_us": used.cpu_s / count * 1e6,
        "redis_commands": used.executed / count,
    }


def _token(redis_socket: str) -> str:
    app = Fencepost(f"unix://{redis_socket}")
    plan = credentials.make(app.link.store, "bench", ["enqueue:*"], actor="bench", expires_s=None)
    token = run_sync(app.link.synchronous, plan).token
    app.close_sync()
    return token


def main() -> int:
    """Measure all, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--only", default="", help="only the servers with this in their names")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    subjects = [one for one in SUBJECTS if options.only.lower() in one.name.lower()]
    pythons = {one.name: interpreter(one, options.cache) for one in subjects}
    rounds: dict[str, list[dict[str, float]]] = {one.name: [] for one in subjects}
    with EmbeddedServer.start(ephemeral=True) as server, tempfile.TemporaryDirectory() as folder:
        meter, where = Meter(server.url), (server.url.removeprefix("unix://").partition("?")[0], Path(folder))
        for _ in range(options.rounds):
            for one in subjects:
                rounds[one.name].append(measured(one, pythons[one.name], meter, where, options))
    figures = {name: max(told, key=lambda one: one["per_s"]) for name, told in rounds.items()}
    print(f"{'':26}{'requests/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'server µs':>11}{'Redis µs':>10}{'commands':>10}")
    for name, told in figures.items():
        print(
            f"{name:26}{told['per_s']:11,.0f}{told['p50_ms']:9.1f}{told['p99_ms']:9.1f}"
            f"{told['server_cpu_us']:11.0f}{told['redis_cpu_us']:10.0f}{told['redis_commands']:10.1f}"
        )
    if options.json:
        options.json.write_text(json.dumps({"fastest": figures, "rounds": rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
