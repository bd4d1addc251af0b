"""Where the stories are played: one partition, a moved clock, workers that act one after another in a stated order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import redis as redis_py

from fencepost.driver import Call, Connections, SyncDriver
from fencepost.store import Claimed, Outcome, RunKey, Served
from tests.guarantees import snapshot
from tests.guarantees.snapshot import Snapshot
from tests.support import MovedClock, StoppedClock
from tests.support.partition import VALUES, Partition
from tests.support.state import Stored

T = TypeVar("T")
LEASE_S = 2.0
_STEP_S = 2.0  # less than the silence after which a partition is in grace


class LossyDriver(SyncDriver):
    """A driver to whose next messages something happens, in the order of `programme`, "" for nothing.

    "reply": the server does what it was asked, the answer is lost. "request": it never hears of it. Any other word: it
    answers with that error and does nothing.
    """

    def __init__(self, connections: Connections, *programme: str, give_up_s: float = 5.0) -> None:
        super().__init__(connections, give_up_s=give_up_s)
        self.programme, self.sent = list(programme), 0

    def _send(self, command: tuple[Any, ...]) -> Any:
        fault = self.programme.pop(0) if self.programme else ""
        self.sent += 1
        if fault == "request":
            raise redis_py.exceptions.ConnectionError("the request was lost")
        if fault not in ("", "reply"):
            raise redis_py.exceptions.ResponseError(f"{fault} not now")
        try:
            reply = super()._send(command)
        except (
            redis_py.exceptions.ResponseError
        ):  # nothing was done yet (the script was not known): the fault is to come
            self.programme[:0] = [fault] if fault else []
            raise
        if fault == "reply":
            raise redis_py.exceptions.TimeoutError("the reply was lost")
        return reply


class Stage(Partition):
    """A partition with actors on it. All leases are of 2 s unless a worker says otherwise."""

    def __init__(self, redis: redis_py.Redis, url: str, namespace: str, clock: MovedClock | StoppedClock) -> None:
        super().__init__(redis, url, namespace)
        self.clock = clock
        self.janitor = self.worker("janitor")

    def run(self, call: Call[T]) -> T:
        """Every call has a millisecond to itself, so arrivals are in order."""
        if isinstance(self.clock, StoppedClock):
            self.clock.advance_ms(1)
        return self.driver.run(call)

    def worker(self, name: str, *queues: str, lease_s: float = LEASE_S) -> Actor:
        """A worker on the given queues, `default` if none are named."""
        return Actor(self, name, queues or ("default",), round(lease_s * 1000))

    def pass_time(self, seconds: float) -> None:
        """Let time go by while somebody goes on sweeping, so that what lapses is taken back."""
        while seconds > 0:
            self.clock.advance(min(seconds, _STEP_S))
            seconds -= _STEP_S
            self.janitor.sweep()

    def jump(self, seconds: float) -> None:
        """Let time go by unseen: an outage, or a step of the server's clock."""
        self.clock.advance(seconds)

    def outlive_lease(self) -> None:
        """Let every lease that is not renewed run out, and be taken back."""
        self.pass_time(LEASE_S + 0.1)

    @contextmanager
    def faults(self, *programme: str, give_up_s: float = 5.0) -> Iterator[LossyDriver]:
        """What happens to the next messages; see LossyDriver. All of it must happen."""
        whole, self.driver = self.driver, LossyDriver(self.connections(), *programme, give_up_s=give_up_s)
        try:
            with mock.patch("fencepost.driver._FIRST_WAIT_S", 0.0005):
                yield self.driver
            assert not self.driver.programme, f"the story ended before {self.driver.programme}"
        finally:
            self.driver.close()
            self.driver = whole

    def matter(self) -> dict[str, Stored]:
        """As in Partition, and without the workers' own records: what concerns jobs."""
        return {key: one for key, one in super().matter().items() if not key.startswith("worker")}

    def look(self) -> Snapshot:
        return snapshot.take(self.redis, self.namespace)

    def holders(self, resource: str) -> list[str]:
        return list(self.look().slots.get(resource, {}))

    def line(self, resource: str) -> list[str]:
        return list(self.look().line.get(resource, {}))

    def refused(self) -> int:
        return sum(n for name, n in self.stats().items() if name.startswith("refused:"))

    def events(self, name: str, job_id: str | None = None) -> int:
        return sum(1 for told in self.told() if told.name == name and job_id in (None, told.job_id))


class Actor:
    """One worker. Every call of it carries its name; a claim it makes again carries the same nonce."""

    def __init__(self, stage: Stage, name: str, queues: tuple[str, ...], lease_ms: int) -> None:
        self.stage, self.name, self.queues, self.lease_ms = stage, name, queues, lease_ms

    def serve(self, wanted: int, outcomes: tuple[Outcome, ...] = (), nonce: str = "") -> Served:
        request = self.stage.request(
            wanted, worker=self.name, nonce=nonce, lease_ms=self.lease_ms, upkeep="{}", queues=self.queues
        )
        store = self.stage.store
        return self.stage.run(store.finish(outcomes, request) if outcomes else store.claim(request))

    def claim(self, wanted: int = 1, nonce: str = "") -> list[Claimed]:
        return self.serve(wanted, nonce=nonce).jobs

    def take(self) -> Claimed:
        """Claim the one job that there must be."""
        [run] = self.claim()
        return run

    def sweep(self) -> None:
        self.serve(0)

    def end(self, run: Claimed | RunKey, word: str, *values: Any) -> str:
        """Write an outcome and return the answer: OK, REPLAY, STALE, EXPIRED or GONE."""
        key = run.key if isinstance(run, Claimed) else run
        [(answer, _)] = self.serve(0, (Outcome(*key, word, values or VALUES[word]),)).replies
        return answer

    def done(self, run: Claimed, result: bytes = b'"fine"') -> str:
        return self.end(run, "DONE", result)

    def retry(self, run: Claimed, delay_s: float = 0) -> str:
        return self.end(run, "RETRY", round(delay_s * 1000), "Oops", "it broke")

    def release(self, run: Claimed, delay_s: float = 0) -> str:
        return self.end(run, "RELEASE", round(delay_s * 1000), "shutdown")

    def bury(self, run: Claimed, reason: str = "permanent") -> str:
        return self.end(run, "BURY", reason, "Oops", "it broke")

    def renew(self, run: Claimed) -> str:
        return self.stage.renew(run.key, lease_ms=self.lease_ms, worker=self.name)[0].word

    def checkpoint(self, run: Claimed, value: bytes = b"{}", field: str = "checkpoint") -> str:
        return self.stage.run(self.stage.store.checkpoint(run.key, self.name, field, value)).word
