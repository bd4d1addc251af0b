"""The example workers in JavaScript and in shell, as real processes, against a real server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fencepost import Fencepost, RetryPolicy
from fencepost.operate import Operator
from tests.support import wait_until
from tests.support.partition import Partition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
LATER = RetryPolicy(base=60.0, jitter="none")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "workers"


@pytest.fixture
def app(app: Fencepost) -> Fencepost:
    @app.job(queue="node", remote=True)
    def thumbnail(url: str, width: int = 100) -> dict[str, Any]:
        """Make a small picture."""
        raise AssertionError("no worker of this library runs it")

    @app.job(queue="node", remote=True)
    def dawdle(seconds: float) -> str:
        """Take a while."""
        raise AssertionError

    @app.job(queue="node", remote=True)
    def deaf(seconds: float) -> str:
        """Take a while, and do not hear that the lease is lost."""
        raise AssertionError

    @app.job(queue="node", remote=True, retry=LATER)
    def fail(message: str, permanent: bool = False) -> None:
        """Go wrong."""

    @app.job(queue="shell", remote=True)
    def word_count(text: str) -> int:
        """Count words."""
        raise AssertionError

    @app.job(queue="shell", remote=True, retry=LATER)
    def nap(seconds: float) -> str:
        """Sleep."""
        raise AssertionError

    return app


class Worker:
    """One example worker. events: what it has logged so far."""

    def __init__(self, command: list[str], folder: Path, name: str, url: str, **env: str) -> None:
        self._log = folder / f"{name}.log"
        settings = {"FENCEPOST_API": url, "FENCEPOST_WORKER": name, "FENCEPOST_LEASE_S": "1", **env}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **settings}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.until("serving")

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    def until(self, event: str, timeout: float = 15) -> dict[str, Any]:
        """Wait for an event; returns its line."""

        def found() -> dict[str, Any] | None:
            return next(iter(self.of(event)), None)

        try:
            got = wait_until(found, timeout)
        except AssertionError:
            raise AssertionError(f"no {event} in:\n{self._log.read_text()}") from None
        assert got is not None
        return got

    def send(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.send(signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def start(live: Any, tmp_path: Path) -> Any:
    started: list[Worker] = []

    def one(language: str, name: str, **env: str) -> Worker:
        if language == "shell":
            env = {"FENCEPOST_LEASE_S": "3", **env}  # each renewal starts half a dozen programs
        command = {
            "node": ["node", str(EXAMPLES / "node" / "worker.mjs")],
            "shell": ["bash", str(EXAMPLES / "shell" / "worker.sh")],
        }
        for program in {"node": ["node"], "shell": ["bash", "curl", "jq"]}[language]:
            if shutil.which(program) is None:
                pytest.skip(f"there is no {program} on PATH")
        worker = Worker(command[language], tmp_path, name, live.url, **env)
        started.append(worker)
        return worker

    yield one
    for worker in started:
        worker.end()


async def state(app: Fencepost, job_id: str) -> str:
    return (await app.get(job_id).status()).state


async def test_a_worker_in_javascript_does_jobs_and_stops_when_told(app, start):
    worker = start("node", "js-1")
    job = await app.handler("thumbnail").enqueue(url="https://example.org/a.png")
    assert await job.result(10) == {"url": "https://example.org/a.png", "width": 100, "made_by": "js-1"}
    assert (await job.status()).worker == "http-local-js-1"
    worker.send(signal.SIGTERM)
    assert worker.process.wait(10) == 0


async def test_what_a_javascript_handler_throws_is_judged_by_the_policy_of_the_kind(app, start):
    worker = start("node", "js-1")
    once = await app.handler("fail").enqueue(message="try again")
    worker.until("ended")
    never = await app.handler("fail").enqueue(message="for good", permanent=True)
    wait_until(lambda: len(worker.of("ended")) >= 2, 10)
    first, second = await once.status(), await never.status()
    assert (first.state, first.error_class, first.attempts) == ("scheduled", "TypeError", 1)
    assert (second.state, second.reason, second.error) == ("failed", "permanent", "for good")


async def test_a_lease_is_kept_while_a_javascript_handler_works_for_longer(app, start):
    start("node", "js-1")
    job = await app.handler("dawdle").enqueue(seconds=2.5)
    assert await job.result(10) == "rested"
    assert (await job.status()).crashes == 0


async def test_a_javascript_worker_that_stops_hands_its_run_back_and_no_attempt_is_charged(app, start):
    worker = start("node", "js-1")
    job = await app.handler("dawdle").enqueue(seconds=30)
    worker.until("begin")
    worker.send(signal.SIGTERM)
    assert worker.process.wait(10) == 0
    record = await job.status()
    assert (record.state, record.attempts, record.crashes, record.releases) == ("queued", 0, 0, 1)


async def test_a_javascript_worker_frozen_past_its_lease_is_told_that_its_late_end_was_refused(
    app, start, partition: Partition
):
    """The story of the late worker: frozen, replaced, awake again, and what it says then changes nothing."""
    late = start("node", "js-late")
    job = await app.handler("deaf").enqueue(seconds=1.5)
    late.until("begin")
    late.send(signal.SIGSTOP)
    other = start("node", "js-other")
    assert other.until("ended", 20)["state"] == "done"
    done = await job.status()
    late.send(signal.SIGCONT)
    refused = late.until("refused")
    problem = refused["problem"]
    assert (problem["status"], problem["type"]) == (409, "/v1/problems/stale-token")
    assert problem["newest"] == str(done.token)
    assert "another worker owns this job now. Nothing was written." in problem["detail"]
    assert await job.status() == done
    assert partition.stats()["refused:done"] >= 1


async def revoke(app: Fencepost, job_id: str) -> None:
    record = await app.get(job_id).status()
    operator = Operator(app)
    await operator.run(operator.revoke(job_id, str(record.token), reason="for the test"))


async def test_a_javascript_run_whose_lease_was_taken_is_stopped_and_reports_nothing(app, start, partition: Partition):
    worker = start("node", "js-1")
    job = await app.handler("dawdle").enqueue(seconds=30)
    worker.until("begin")
    await revoke(app, job.id)
    assert worker.until("lost")["why"] in ("stale", "expired")
    assert [name for name in partition.stats() if name.startswith("refused:")] == ["refused:renew"]


async def test_a_shell_run_whose_lease_was_taken_ends_with_all_it_started(app, start):
    worker = start("shell", "sh-1")
    job = await app.handler("nap").enqueue(seconds=29.75)
    worker.until("begin")
    [first] = wait_until(lambda: napping(29.75))
    await revoke(app, job.id)
    assert worker.until("stop")["outcome"] in ("stale", "expired")
    wait_until(lambda: first not in napping(29.75))
    wait_until(lambda: len(worker.of("begin")) == 2, 15)  # it is free for the next run


async def test_the_run_of_a_shell_worker_that_was_killed_ends_with_it(app, start):
    """Else its lease would be kept, and nobody would report how it ended."""
    worker = start("shell", "sh-1")
    job = await app.handler("nap").enqueue(seconds=29.25)
    wait_until(lambda: napping(29.25), 15)
    worker.process.kill()
    worker.process.wait()
    wait_until(lambda: not napping(29.25), 10)
    other = start("shell", "sh-2")
    assert other.until("begin")["job_id"] == job.id
    assert (await job.status()).crashes == 1


def napping(seconds: float) -> list[str]:
    """The processes that sleep for so long."""
    found = []
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if one.name.isdecimal() and (one / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(one.name)
    return found


async def test_a_worker_in_shell_does_jobs_keeps_its_lease_and_stops_when_told(app, start):
    worker = start("shell", "sh-1")
    job = await app.handler("word_count").enqueue(text="one two  three")
    assert await job.result(15) == 3
    nap = await app.handler("nap").enqueue(seconds=4)
    assert await nap.result(15) == "rested"
    assert (await nap.status()).crashes == 0
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(15) == 0


async def test_what_goes_wrong_in_shell_is_told_with_its_exit_status(app, start):
    worker = start("shell", "sh-1")
    job = await app.handler("nap").enqueue(seconds=-1)
    worker.until("ended")
    record = await job.status()
    assert (record.state, record.error_class) == ("scheduled", "ExitStatus")
    assert "exit status 1" in (record.error or "")
