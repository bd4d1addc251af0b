"""The stage of the chaos tests: real worker processes, the faults they suffer, and the truth about what they did."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from fencepost import Job
from tests.chaos import guard
from tests.chaos.truth import Ran, Truth, now_s
from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[2]
LEASE_S = 1.5
Process = subprocess.Popen[bytes]
SWEEP_S = 1.0  # how often an idle worker looks
STARTS_S = 15.0  # a process may take that long to come up on a busy machine


class Stage:
    """One test's workers on one server. Everything random comes from its seed."""

    def __init__(
        self,
        url: str,
        namespace: str,
        folder: Path,
        seed: int,
        handlers: str = "handlers",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.folder, self.seed, self.draw = folder, seed, random.Random(seed)
        self.environment = {
            **os.environ, "CHAOS_URL": url, "CHAOS_NAMESPACE": namespace, "CHAOS_FOLDER": str(folder),
            "CHAOS_HANDLERS": handlers, **(environment or {}),
        }  # fmt: skip
        self.truth, self.shop = Truth(folder / "truth"), folder / "shop.db"
        self.workers: list[Process] = []
        self.dead: dict[int, float] = {}
        guard.prepare(self.shop)
        self.kinds = self._load(handlers)

    def _load(self, name: str) -> ModuleType:
        """The handlers' module of this stage, to enqueue by; the workers load their own."""
        spec = importlib.util.spec_from_file_location(
            f"chaos_{name}_{id(self)}", Path(__file__).with_name(f"{name}.py")
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with patch.dict(os.environ, self.environment):
            spec.loader.exec_module(module)
        return module

    # -- processes ----------------------------------------------------------------------------------------

    def start(self, count: int = 1, *, env: dict[str, str] | None = None, **settings: Any) -> list[Process]:
        """Start worker processes and wait until they are up. settings: of Worker. env: added to their environment."""
        settings = {"lease_s": LEASE_S, "concurrency": 2, "grace_s": 5.0, "poll_s": SWEEP_S} | settings
        started = [self.run("tests.chaos.process", json.dumps(settings), env=env or {}) for _ in range(count)]
        self.workers += started
        pids = {process.pid for process in started}
        wait_until(lambda: pids <= {line["pid"] for line in self.truth.of("up")}, STARTS_S)
        return started

    def run(self, module: str, *arguments: str, env: dict[str, str] | None = None, **pipes: Any) -> Process:
        """Start a module as a process that ends with the test."""
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env=self.environment | (env or {}),
                stdin=subprocess.PIPE,
                stderr=log,
                **pipes,
            )

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.workers:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        self.kinds.app.close_sync()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace") if (self.folder / "log").exists() else ""

    # -- faults -------------------------------------------------------------------------------------------

    def holder(self, key: str = "") -> Process:
        """Wait until a live worker is inside a run of this key (of any, without one), and return it."""

        def inside() -> list[Ran]:
            return [run for run in self.truth.inside() if run.pid not in self.dead and key in ("", run.key)]

        run = self.draw.choice(wait_until(inside, STARTS_S))
        return next(process for process in self.workers if process.pid == run.pid)

    def kill(self, process: Process) -> list[Ran]:
        """SIGKILL a worker. Returns the runs it was inside of: without any the fault missed, and the test is void."""
        os.kill(process.pid, signal.SIGSTOP)  # so that what is read is what is killed
        self.settled(process)
        victims = self.truth.inside(process.pid)
        assert victims, "void: the killed worker held nothing"
        self.dead[process.pid] = now_s()
        process.kill()
        process.wait()
        return victims

    def freeze(self, process: Process, *, may_miss: bool = False) -> list[Ran]:
        """SIGSTOP a worker. Returns the runs it is inside of; without any the test is void, unless it may miss."""
        os.kill(process.pid, signal.SIGSTOP)
        self.settled(process)
        frozen = self.truth.inside(process.pid)
        assert frozen or may_miss, "void: the frozen worker held nothing"
        return frozen

    def settled(self, process: Process) -> None:
        """Wait until the kernel has stopped the process."""
        status = Path(f"/proc/{process.pid}/stat")
        if status.exists():
            wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")

    def wake(self, process: Process) -> None:
        os.kill(process.pid, signal.SIGCONT)

    def open(self, gate: str) -> None:
        """Let the handlers that wait at this gate go on."""
        (self.folder / gate).touch()

    # -- what to expect -----------------------------------------------------------------------------------

    def done(self, jobs: list[Job[Any]], timeout: float = 20.0) -> None:
        """Wait until every job is done."""
        states: dict[str, str] = {}

        def all_done() -> bool:
            for job in jobs:
                if states.get(job.id) != "done":
                    states[job.id] = job.status_sync().state
            return set(states.values()) == {"done"}

        try:
            wait_until(all_done, timeout)
        except AssertionError as error:
            raise AssertionError(f"{states}\nseed {self.seed}\n{self.log()[-6000:]}") from error

    def alive(self) -> bool:
        """Whether no worker ended by itself."""
        return all(process.poll() is None for process in self.workers if process.pid not in self.dead)
