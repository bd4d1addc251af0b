"""Real `fencepost worker` processes for the tests, and the module of handlers that they run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support import wait_until

JOBS = '''
import asyncio, os, threading, time
from pathlib import Path
from fencepost import Fencepost, Run
from fencepost.errors import LeaseLost

HERE = Path(__file__).parent
URL = os.environ["JOBS_URL"]
NAMESPACE = os.environ["JOBS_NAMESPACE"]
settings = {"namespace": NAMESPACE, "give_up": os.environ.get("JOBS_GIVE_UP", "15s")}
app = Fencepost.embedded(HERE / "data", **settings) if URL == "embedded" else Fencepost(URL, **settings)


def note(*words):
    with open(HERE / "notes", "a") as notes:
        notes.write(" ".join(map(str, words)) + "\\n")


async def gate(name):
    while not (HERE / name).exists():
        await asyncio.sleep(0.01)


@app.job()
async def patient(name: str) -> str:
    """Waits for a file, as long as it is let."""
    note("begin", name, os.getpid())
    try:
        await gate(name)
    except Exception as error:
        note("swallowed", name)
    note("end", name)
    return "ended"


@app.job()
async def stubborn(name: str) -> None:
    """Takes no for an answer neither once nor twice."""
    note("begin", name, os.getpid())
    while True:
        try:
            await gate(name)
            break
        except asyncio.CancelledError:
            note("cancelled", name)


@app.job()
def threaded(name: str) -> None:
    """A thread that nothing can stop."""
    note("begin", name, os.getpid())
    threading.Event().wait()


@app.job()
async def handed_to_a_thread(name: str) -> None:
    note("begin", name, os.getpid())
    await asyncio.to_thread(threading.Event().wait)


@app.job()
def polite(run: Run, name: str) -> None:
    note("begin", name, os.getpid())
    try:
        while True:
            run.check()
            time.sleep(0.01)
    except LeaseLost as error:
        note("told", name, error.why)
        raise


@app.job()
async def die(name: str) -> None:
    """Takes its process with it, the first time."""
    note("begin", name, os.getpid())
    try:
        (HERE / name).touch(exist_ok=False)
    except FileExistsError:
        return
    os._exit(7)
'''


class Workers:
    """Worker processes on one folder. notes: the truth, written by the handlers themselves."""

    def __init__(self, folder: Path, url: str, namespace: str) -> None:
        self.folder = folder
        (folder / "jobs.py").write_text(JOBS)
        self.env = {**os.environ, "JOBS_URL": url, "JOBS_NAMESPACE": namespace, "PYTHONUNBUFFERED": "1"}
        for name in ("FENCEPOST_REDIS_URL", "FENCEPOST_NAMESPACE", "FENCEPOST_APP"):
            self.env.pop(name, None)
        self.started: list[WorkerProcess] = []

    def start(self, *options: str, target: str = "jobs:app", env: dict[str, str] | None = None) -> WorkerProcess:
        log = self.folder / f"log{len(self.started)}"
        with open(log, "w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "fencepost", "worker", target, "--json", "--log-level", "debug", *options],
                cwd=self.folder, env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        self.started.append(WorkerProcess(process, log))
        return self.started[-1]

    def serving(self, *options: str, **more: Any) -> WorkerProcess:
        """Start a worker and wait until it claims."""
        one = self.start(*options, **more)
        one.until("serving")
        return one

    def notes(self, *begin: str) -> list[str]:
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(" ".join(begin))]

    def open(self, gate: str) -> None:
        (self.folder / gate).touch()

    def end(self) -> None:
        for one in self.started:
            one.kill_group()


class WorkerProcess:
    """One process (with its children, in a group of its own) and what it logs."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log, self.pid = process, log, process.pid

    def events(self, name: str = "") -> list[dict[str, Any]]:
        found = []
        for line in self.text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                event = json.loads(line)
                if name in ("", event["event"]):
                    found.append(event)
        return found

    def text(self) -> str:
        return self.log.read_text()

    def until(self, name: str, count: int = 1, timeout: float = 15.0) -> dict[str, Any]:
        """Wait for an event in the log and return it."""

        def there() -> list[dict[str, Any]]:
            found = self.events(name)
            assert self.process.poll() is None or len(found) >= count, (
                f"ended with {self.process.poll()}: {self.text()}"
            )
            return found if len(found) >= count else []

        return wait_until(there, timeout)[-1]

    def send(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Send a signal to this process alone; returns the moment."""
        self.process.send_signal(number)
        return time.monotonic()

    def send_group(self, number: signal.Signals) -> None:
        os.killpg(self.pid, number)

    def code(self, timeout: float = 12.0, quiet: bool = True) -> int:
        """Wait for its end and return its exit code; whatever the code, there must be no traceback."""
        code = self.process.wait(timeout)
        assert not quiet or "Traceback" not in self.text(), self.text()
        return code

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(10)


def after(moment: float, seconds: float) -> None:
    """Return once `seconds` have gone since `moment`: a signal's meaning depends on real time."""
    wait_until(lambda: time.monotonic() >= moment + seconds, seconds + 5)
