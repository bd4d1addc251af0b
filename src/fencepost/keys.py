"""Every Redis key that Fencepost writes: one table, used by the code, the docs and the leak check.

All keys of one partition share the hash tag ``{namespace:partition}``: on a cluster they live in one slot, so
one script may touch any of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from fencepost.errors import ConfigurationError

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class KeySpec:
    """What one kind of key holds.

    ttl: "never" (its owner deletes it), "always" (a TTL from its first write) or "final" (a TTL once its job
    is in a final state).
    """

    name: str
    pattern: str
    type: str
    holds: str
    owner: str
    bound: str
    ttl: str


ALL: Final[tuple[KeySpec, ...]] = (
    KeySpec("job", "job:{id}", "hash", "one job: state, counters, token, nonce, payload, steps, result",
            "the terminal scripts set its TTL; purge deletes it", "one per job, result and error text cut", "final"),
    KeySpec("ready", "ready:{queue}", "zset", "job ids to run; score = arrival in µs, minus 60 s per priority step",
            "claim, cancel", "one member per queued job", "never"),
    KeySpec("bell", "bell:{queue}", "list", "wake-ups for idle workers", "workers pop it", "8 entries", "always"),
    KeySpec("later", "later", "zset", "job ids that are due in the future; score = due in ms", "claim, cancel",
            "one member per scheduled job", "never"),
    KeySpec("leases", "leases", "zset",
            "who holds what until when; score = deadline in ms; member = job id, =job id (a reserved place) or "
            "@nonce (a stand-alone lease)",
            "finish, release, cancel, the sweep in claim", "one member per run, reservation and lease", "never"),
    KeySpec("slots", "slots:{resource}", "zset", "holders of a resource: nonce, =job id or @nonce -> deadline in ms",
            "finish, release, cancel, the sweep in claim", "the limit of the resource", "never"),
    KeySpec("line", "line:{resource}", "zset", "who waits for a resource: job id or @nonce -> score",
            "the script that frees the resource; cancel", "one member per waiter", "never"),
    KeySpec("lease", "lease:{nonce}", "hash", "one stand-alone lease: resource, owner, token",
            "release, the sweep in claim; a waiter's has a TTL of 5 s, a revoked one's 60 s", "one per lease", "never"),
    KeySpec("grant", "grant:{nonce}", "list", "wake-up for the waiter of a stand-alone lease", "the waiter",
            "1 entry", "always"),
    KeySpec("dedup", "dedup:{key}", "string", "the id of the live job with this dedup key",
            "the script that ends the job", "one per live job with a key", "never"),
    KeySpec("idem", "idem:{key}", "string", "job id and fingerprint of the request with this idempotency key",
            "its TTL", "its TTL, 24 h by default", "always"),
    KeySpec("answer", "answer:{key}", "hash",
            "a request to an idempotent endpoint with this key: its fingerprint, and its answer once there is one",
            "its TTL", "its TTL, 24 h by default; an answer has at most 256 KiB", "always"),
    KeySpec("dead", "dead", "zset", "failed job ids; score = failed at, in ms", "requeue, purge, finish (by age)",
            "100,000 members and the retention of failed jobs", "never"),
    KeySpec("recent", "recent", "list", "ids of jobs that were done or cancelled, newest first",
            "each script that ends a job", "11,000 entries", "never"),
    KeySpec("events", "events", "stream", "what happened, in order; entry id = sequence number of its last event",
            "trimmed by each script that writes it",
            "about 100,000 events; 1,000,000 with those that a ledger has not copied", "never"),
    KeySpec("worker", "worker:{worker}", "hash", "one worker: host, pid, its last claims for replay", "its TTL",
            "its TTL, at least 60 s", "always"),
    KeySpec("workers", "workers", "zset", "worker ids; score = last seen in ms", "claim (by age)",
            "1,000 members", "never"),
    KeySpec("meta", "meta", "hash", "clock, last token, sequence number, grace period, incarnation, paused queues",
            "the partition itself", "a dozen fields", "never"),
    KeySpec("stats", "stats", "hash", "counters by event and kind or verb", "the partition itself",
            "kinds x event names", "never"),
    KeySpec("credentials", "credentials", "hash",
            "who may call the HTTP service: id -> JSON with name, hash of the secret, scopes, created_at, expires_at",
            "`fencepost token revoke`", "1,000 entries", "never"),
)  # fmt: skip

BY_NAME: Final[dict[str, KeySpec]] = {spec.name: spec for spec in ALL}


def check_namespace(namespace: str) -> str:
    """Return the namespace, or raise ConfigurationError where it could not stand inside a hash tag."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigurationError(
            "namespace",
            f"{namespace!r} is not a name",
            "Use 1 to 64 letters, digits, dots, dashes or underscores, for example 'shop'.",
        )
    return namespace


def check_queue(queue: str) -> str:
    """Return the queue name, or raise ConfigurationError where it could not be a part of a key."""
    if not _QUEUE.fullmatch(queue):
        raise ConfigurationError(
            "queue",
            f"{queue!r} is not a name",
            "Use 1 to 100 letters, digits, dots, dashes or underscores, for example 'billing'.",
        )
    return queue


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one partition."""

    namespace: str
    partition: int = 0
    prefix: str = field(init=False)
    meta: str = field(init=False)
    leases: str = field(init=False)
    later: str = field(init=False)
    events: str = field(init=False)
    stats: str = field(init=False)
    dead: str = field(init=False)
    recent: str = field(init=False)
    workers: str = field(init=False)
    credentials: str = field(init=False)

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        prefix = f"{{{self.namespace}:{self.partition}}}:"
        object.__setattr__(self, "prefix", prefix)
        for name in ("meta", "leases", "later", "events", "stats", "dead", "recent", "workers", "credentials"):
            object.__setattr__(self, name, prefix + name)

    def job(self, job_id: str) -> str:
        return f"{self.prefix}job:{job_id}"

    def ready(self, queue: str) -> str:
        return f"{self.prefix}ready:{queue}"

    def bell(self, queue: str) -> str:
        return f"{self.prefix}bell:{queue}"

    def slots(self, resource: str) -> str:
        return f"{self.prefix}slots:{resource}"

    def line(self, resource: str) -> str:
        return f"{self.prefix}line:{resource}"

    def lease(self, nonce: str) -> str:
        return f"{self.prefix}lease:{nonce}"

    def grant(self, nonce: str) -> str:
        return f"{self.prefix}grant:{nonce}"

    def dedup(self, key: str) -> str:
        return f"{self.prefix}dedup:{key}"

    def idem(self, key: str) -> str:
        return f"{self.prefix}idem:{key}"

    def answer(self, key: str) -> str:
        return f"{self.prefix}answer:{key}"

    def worker(self, worker_id: str) -> str:
        return f"{self.prefix}worker:{worker_id}"

    def which(self, key: str) -> KeySpec | None:
        """Return the spec a full key belongs to, or None where no spec allows it."""
        if not key.startswith(self.prefix):
            return None
        name, _, rest = key[len(self.prefix) :].partition(":")
        spec = BY_NAME.get(name)
        if spec is None or bool(rest) != (":" in spec.pattern):
            return None
        return spec
