"""One partition on the test server, driven by the real store and driver, under a user who may touch no other key."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, TypeVar

import redis as redis_py

from fencepost.driver import Call, Connections, SyncDriver
from fencepost.job import JobSpec
from fencepost.keys import Keys
from fencepost.store import Answer, Claimed, Kept, Outcome, Request, RunKey, Served, Store
from tests.support.state import Stored, dump

T = TypeVar("T")
VALUES: dict[str, tuple[Any, ...]] = {
    "DONE": (b'"fine"',),
    "RETRY": (0, "Oops", "it broke"),
    "BURY": ("permanent", "Oops", "it broke"),
    "RELEASE": (0, "shutdown"),
    "CANCEL": ("cancelled",),
    "NOTE": ("effect", "mail:sent"),
}
STATES = ("scheduled", "queued", "waiting", "processing", "done", "failed", "cancelled")
BOOKS = ("stats", "events", "meta")
"""What a refusal may change: counters, events, and the partition's own record."""


class Told(NamedTuple):
    """One event, opened."""

    name: str
    job_id: str
    kind: str = ""
    token: str = ""
    nonce: str = ""
    attempt: str = ""
    reason: str = ""
    resource: str = ""


class Partition:
    """A namespace for one test. Each verb sends the real call and returns the parsed answer."""

    def __init__(self, redis: redis_py.Redis, url: str, namespace: str) -> None:
        self.redis: Any = redis
        self.url, self.namespace = url, namespace
        self.keys = Keys(namespace)
        self.store = Store(self.keys)
        self.user = f"only-{namespace}"
        self.redis.execute_command(
            "ACL", "SETUSER", self.user, "reset", "on", "nopass", f"~{self.keys.prefix}*", "+@all", "-@admin",
            "-@dangerous",
        )  # fmt: skip
        self.driver = SyncDriver(self.connections())
        self._numbers = itertools.count(1)

    def connections(self, url: str | None = None, timeout_s: float = 5.0) -> Connections:
        """Connections of the restricted user, to the server or to what stands in front of it."""
        client = redis_py.Redis.from_url(url or self.url, username=self.user, password="any")
        return Connections(client, timeout_s)

    def close(self) -> None:
        self.driver.close()
        self.redis.execute_command("ACL", "DELUSER", self.user)

    def run(self, call: Call[T]) -> T:
        return self.driver.run(call)

    def name(self, prefix: str) -> str:
        """A name that was not used before in this partition."""
        return f"{prefix}{next(self._numbers)}"

    # -- the verbs ----------------------------------------------------------------------------------------

    def enqueue(self, *specs: JobSpec, queue_limit: int = 0) -> list[tuple[str, str, str]]:
        return self.run(self.store.enqueue(specs, queue_limit))

    def job(self, **options: Any) -> str:
        """Enqueue one job and return its id."""
        spec = JobSpec(**{"id": self.name("job-"), "kind": "mail", "payload": b'{"to":"a"}', **options})
        [(word, job_id, _)] = self.enqueue(spec)
        assert word in ("QUEUED", "SCHEDULED"), word
        return job_id

    def request(
        self,
        wanted: int = 0,
        *,
        worker: str = "w1",
        lane: str = "0",
        nonce: str = "",
        lease_ms: int = 30_000,
        upkeep: str = "",
        queues: tuple[str, ...] = ("default",),
        most: int = 1000,
    ) -> Request:
        pairs = tuple((queue, most) for queue in queues)
        return Request(worker, lane, nonce or self.name("n"), wanted, lease_ms, upkeep, pairs)

    def serve(self, wanted: int = 0, **options: Any) -> Served:
        return self.run(self.store.claim(self.request(wanted, **options)))

    def claim(self, wanted: int = 1, **options: Any) -> list[Claimed]:
        return self.serve(wanted, **options).jobs

    def sweep(self) -> None:
        self.serve(0)

    def outcome(self, run: RunKey, word: str, *values: Any, notes: tuple[tuple[str, str], ...] = ()) -> Outcome:
        return Outcome(*run, word, values or VALUES[word], notes)

    def finishing(
        self, run: RunKey, word: str, *values: Any, notes: tuple[tuple[str, str], ...] = (), **options: Any
    ) -> Call[Served]:
        """The call that writes one outcome and claims `wanted` jobs, 0 if not said."""
        return self.store.finish([self.outcome(run, word, *values, notes=notes)], self.request(**options))

    def finish(self, run: RunKey, word: str, *values: Any) -> Answer:
        [(reply, newest)] = self.run(self.finishing(run, word, *values)).replies
        return Answer(reply, newest)

    def renew(self, *runs: RunKey, lease_ms: int = 30_000, worker: str = "w1") -> list[Answer]:
        return self.run(self.store.renew(lease_ms, worker, runs))

    def checkpoint(
        self, run: RunKey, value: bytes = b"{}", field: str = "checkpoint", event: str = "", reason: str = ""
    ) -> Answer:
        return self.run(self.store.checkpoint(run, "w1", field, value, event, reason))

    def bump(self, run: RunKey, floor: int, where: str = "install") -> Answer:
        return self.run(self.store.bump(run, "w1", floor, where))

    def archived(self, seq: int, lost: int = 0, event_cap: int = 1_000_000) -> Answer:
        return self.run(self.store.archived(seq, lost, event_cap))

    def conclude(
        self, job_id: str, state: str = "done", *, generation: int = 1, reason: str = "", result: bytes = b""
    ) -> Answer:
        return self.run(self.store.conclude([(job_id, generation, state, reason, result)]))[0]

    def cancel(self, job_id: str, *, hard: bool = False, request: str = "", reason: str = "cancelled") -> Answer:
        return self.run(self.store.cancel(job_id, request or self.name("ask"), hard=hard, reason=reason))

    def pause(self, queue: str, reason: str = "tests", actor: str = "me") -> Answer:
        return self.run(self.store.pause("pause", queue, reason, actor))

    def resume(self, queue: str, reason: str = "tests", actor: str = "me") -> Answer:
        return self.run(self.store.pause("resume", queue, reason, actor))

    def revoke(self, holder: str, token: str, *, request: str = "", reason: str = "tests", actor: str = "me") -> Answer:
        return self.run(self.store.revoke(holder, token, request or self.name("ask"), reason, actor))

    def credential(self, op: str, credential_id: str, record: str = "{}", reason: str = "tests") -> Answer:
        return self.run(self.store.credential(op, credential_id, record, reason, "me"))

    def begin_answer(self, key: str, fingerprint: str = "f") -> Kept:
        return self.run(self.store.begin_answer(key, fingerprint, 60_000))

    def keeping(self, key: str, nonce: str, token: str, fingerprint: str = "f", body: bytes = b"1") -> Call[Kept]:
        """The call that keeps an answer under a lease."""
        lease, answer = RunKey(f"@{nonce}", token, nonce), (200, b"{}", body)
        return self.store.store_answer(key, fingerprint, 60_000, lease, "somebody", answer)

    def requeue(self, *job_ids: str, request: str = "") -> list[Answer]:
        return self.run(self.store.requeue(job_ids, request or self.name("ask")))

    def purge(self, *job_ids: str) -> list[Answer]:
        return self.run(self.store.purge(job_ids, "test"))

    def heal(self, *job_ids: str, dry_run: bool = False) -> list[Answer]:
        return self.run(self.store.heal(job_ids, dry_run=dry_run))

    def acquire(self, resource: str, nonce: str, *, ttl_ms: int = 30_000, limit: int = 1, wait_ms: int = 0) -> Any:
        return self.run(self.store.acquire(resource, nonce, "somebody", ttl_ms, limit, wait_ms))

    def release(self, nonce: str, token: str) -> Answer:
        return self.run(self.store.release(nonce, token, "somebody"))

    # -- a job in each state ------------------------------------------------------------------------------

    def put(self, state: str, **options: Any) -> RunKey:
        """Bring a new job into a state, after one run at least, and return the key of its last run.

        scheduled, queued: that run was retried. processing: it goes on. done, failed, cancelled: it ended so.
        waiting: it was retried, and then somebody else held the resource.
        """
        queue = self.name("q")
        if state == "waiting":
            options = {"resource": self.name("thing-"), **options}
        self.job(queue=queue, **options)
        [claimed] = self.claim(queues=(queue,))
        run = claimed.key
        if state == "scheduled":
            self._settle(run, "RETRY", 60_000, "Oops", "it broke")
        elif state in ("queued", "waiting"):
            self._settle(run, "RETRY")
        elif state != "processing":
            self._settle(run, {"done": "DONE", "failed": "BURY", "cancelled": "CANCEL"}[state])
        if state == "waiting":
            assert self.acquire(options["resource"], self.name("holder-"))[0] == "HELD"
            assert self.claim(queues=(queue,)) == []
        assert self.state(run.job_id) == state
        return run

    def _settle(self, run: RunKey, word: str, *values: Any) -> None:
        assert self.finish(run, word, *values).word == "OK"

    def lapse(self, run: RunKey) -> None:
        """Let the lease of a run lie in the past, as if its holder had been silent; nobody has swept yet."""
        seconds, us = self.redis.time()
        past = seconds * 1000 + us // 1000 - 1
        self.redis.zadd(self.keys.leases, {run.job_id: past}, xx=True)
        resource = self.record(run.job_id).resource
        if resource:
            self.redis.zadd(self.keys.slots(resource), {run.nonce: past}, xx=True)

    def take_back(self, run: RunKey) -> None:
        """Lapse and sweep: the run is lost, its job is back in its queue under a bumped token."""
        self.lapse(run)
        self.sweep()

    # -- what there is ------------------------------------------------------------------------------------

    def record(self, job_id: str) -> Any:
        """The job as JobRecord; None where there is none."""
        return self.run(self.store.job(job_id))

    def state(self, job_id: str) -> str | None:
        raw = self.redis.hget(self.keys.job(job_id), "state")
        return None if raw is None else raw.decode()

    def dump(self) -> dict[str, Stored]:
        return dump(self.redis, self.namespace)

    def matter(self) -> dict[str, Stored]:
        """Everything but the books and the one field that only says when a job was last touched."""
        return without_clock({key: one for key, one in self.dump().items() if key not in BOOKS})

    def stats(self) -> dict[str, int]:
        return {name.decode(): int(value) for name, value in self.redis.hgetall(self.keys.stats).items()}

    def told(self, after: int = 0) -> list[Told]:
        """All events but the first `after`, in order."""
        entries = self.redis.xrange(self.keys.events)
        lines = [line for _, fields in entries for line in fields.get(b"e", b"").decode().split("\n")]
        return [Told(*line.split("\t")) for line in lines][after:]


def without_clock(state: dict[str, Stored]) -> dict[str, Stored]:
    """A state without the fields that tell when something was last done: they move with each repetition."""

    def still(key: str, one: Stored) -> Stored:
        names = {"meta": ("last_us",)}.get(key, ("updated_at", "seen_at"))
        if one.type != "hash":
            return one
        return one._replace(value={name: value for name, value in one.value.items() if name not in names})

    return {key: still(key, one) for key, one in state.items()}
