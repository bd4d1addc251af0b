"""What can be asked of one partition: each method builds the call of the script of the same name.

Nothing here does I/O. A driver runs the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from fencepost.codec import harmless_text
from fencepost.driver import Call
from fencepost.job import JobRecord, JobSpec
from fencepost.keys import Keys
from fencepost.scripts import load

_DEFAULTS = JobSpec(id="", kind="")
_REASON_LIMIT = 1_000
_ACTOR_LIMIT = 200
_RING = "redis.call('LPUSH', KEYS[1], '1') return redis.call('PEXPIRE', KEYS[1], 60000)"


class RunKey(NamedTuple):
    """Who writes: a run is known by job, fencing token and nonce, all three. Sent with every write."""

    job_id: str
    token: str
    nonce: str


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A job as claim hands it out. token: decimal text. version: of the signature it was enqueued with."""

    job_id: str
    kind: str
    queue: str
    payload: bytes
    token: str
    nonce: str
    attempt: int = 1
    crashes: int = 0
    version: int = 1
    checkpoint: bytes = b""
    resource: str = ""
    again: bool = False
    """An earlier run may have left steps behind."""
    restored: bool = False
    """The ledger put the job back after it had run: what its runs had left in Redis is lost."""

    @property
    def key(self) -> RunKey:
        return RunKey(self.job_id, self.token, self.nonce)


class Served(msgspec.Struct, frozen=True, gc=False):
    """The answer of claim and finish. replies: one (word, newest token) for each outcome sent."""

    server_ms: int
    due_in_s: float | None
    jobs: list[Claimed]
    replies: list[tuple[str, str]]
    spent: bool = False
    """The claim was sent before, and none of its runs is the worker's any more."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a run ended. word and values: see the header of finish.lua. notes: (event, effect key) of what it committed
    in SQL, told in the same step."""

    job_id: str
    token: str
    nonce: str
    word: str
    values: tuple[Any, ...]
    notes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """The claiming half of claim and finish. nonce: new for each request, kept when it is sent again.

    wanted: jobs to hand out, 0 to 1000. lease_ms: at least 1000. upkeep: text about the worker, once a second.
    queues: (name, most jobs from it) in the order to serve.
    """

    worker: str
    lane: str
    nonce: str
    wanted: int
    lease_ms: int
    upkeep: str
    queues: tuple[tuple[str, int], ...]


class Answer(NamedTuple):
    """One word of a script's closed set of replies, with what belongs to it."""

    word: str
    detail: str


class Kept(NamedTuple):
    """What answer.lua says. status, about, body: of the answer, once there is one (word DONE). newest: see STALE."""

    word: str
    newest: str = ""
    status: int = 0
    about: bytes = b""
    body: bytes = b""


class Store:
    """The calls of one partition."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        k = keys
        self._base = (k.meta, k.events, k.stats, k.leases, k.later, k.dead, k.recent)

    # -- enqueue ------------------------------------------------------------------------------------------

    def enqueue(self, specs: Sequence[JobSpec], queue_limit: int = 0) -> Call[list[tuple[str, str, str]]]:
        """(word, job id, state) for each job, in order; see enqueue.lua. At most 500 jobs a call."""
        args: list[Any] = [queue_limit]
        queues: dict[str, None] = {}
        for spec in specs:
            queues[spec.queue] = None
            args += (spec.id, spec.queue, spec.kind, spec.payload, _options(spec))
        keys = (*self._base, *map(self.keys.ready, queues))
        return Call("enqueue", load("enqueue"), keys, args, _triples)

    # -- a worker's calls ---------------------------------------------------------------------------------

    def claim(self, request: Request) -> Call[Served]:
        return self._serving("claim", request, [])

    def finish(self, outcomes: Iterable[Outcome], request: Request) -> Call[Served]:
        """Write the outcomes and claim the next jobs in one step."""
        items: list[Any] = []
        wanted: list[int] = []
        number = 0
        for outcome in outcomes:
            who = (outcome.job_id, outcome.token, outcome.nonce)
            for note in outcome.notes:
                items += (*who, "NOTE", *note)
                number += 1
            items += (*who, outcome.word, *outcome.values)
            wanted.append(number)
            number += 1
        call = self._serving("finish", request, items)
        if number == len(wanted):
            return call

        def parse(reply: Any) -> Served:
            served = call.parse(reply)
            return msgspec.structs.replace(served, replies=[served.replies[index] for index in wanted])

        return Call("finish", call.script, call.keys, call.args, parse)

    def _serving(self, verb: str, request: Request, items: list[Any]) -> Call[Served]:
        r = request
        args: list[Any] = [r.worker, r.lane, r.nonce, r.wanted, r.lease_ms, r.upkeep, len(r.queues)]
        keys = [*self._base, self.keys.worker(r.worker), self.keys.workers]
        for queue, most in r.queues:
            args += (queue, most)
            keys.append(self.keys.ready(queue))
        nonce = r.nonce
        return Call(verb, load(verb), tuple(keys), args + items, lambda reply: _served(reply, nonce))

    def renew(self, lease_ms: int, worker: str, runs: Sequence[RunKey]) -> Call[list[Answer]]:
        """OK | CANCEL | STALE | EXPIRED | GONE for each run, in order."""
        args: list[Any] = [lease_ms, worker]
        for run in runs:
            args += run
        return Call("renew", load("renew"), self._base, args, lambda reply: _answers(reply[1:]))

    def checkpoint(
        self, run: RunKey, worker: str, field: str, value: bytes, event: str = "", reason: str = ""
    ) -> Call[Answer]:
        args = [*run, worker, field, value, event, harmless_text(reason, _REASON_LIMIT)]
        return Call("checkpoint", load("checkpoint"), self._base, args, _answer)

    def bump(self, run: RunKey, worker: str, floor: int, where: str) -> Call[Answer]:
        """OK with the new token, which is above floor; where: install | verify."""
        return Call("bump", load("bump"), self._base, [*run, worker, floor, where], _answer)

    def ring(self, bell: str) -> Call[int]:
        """Wake one idle worker that waits at this bell."""
        return self.read(["EVAL", _RING, 1, bell], int)

    def leave(self, worker: str) -> Call[int]:
        """Take a worker that ends off the list. Its replay record goes by its own TTL."""
        return self.read(["ZREM", self.keys.workers, worker], int)

    # -- operators' calls ---------------------------------------------------------------------------------

    def cancel(
        self,
        job_id: str,
        request_id: str,
        *,
        hard: bool = False,
        reason: str = "cancelled",
        actor: str = "",
        token: str = "",
    ) -> Call[Answer]:
        """CANCELLED | ASKED | ILLEGAL | STALE | GONE. token: only if it is still the job's newest."""
        why = harmless_text(reason, _REASON_LIMIT)
        args = [job_id, "1" if hard else "", why, request_id, harmless_text(actor, _ACTOR_LIMIT), token]
        return Call("cancel", load("cancel"), self._base, args, _answer)

    def requeue(
        self, job_ids: Sequence[str], request_id: str, least: int = 0, *, reason: str = "", actor: str = ""
    ) -> Call[list[Answer]]:
        """REQUEUED | ILLEGAL | DUPLICATE | GONE for each job, in order. least: no new generation is below it."""
        args = [request_id, least, harmless_text(reason, _REASON_LIMIT), harmless_text(actor, _ACTOR_LIMIT), *job_ids]
        return Call("requeue", load("requeue"), self._base, args, _answers)

    def purge(self, job_ids: Sequence[str], reason: str, actor: str = "") -> Call[list[Answer]]:
        args = [harmless_text(reason, _REASON_LIMIT), harmless_text(actor, _ACTOR_LIMIT), *job_ids]
        return Call("purge", load("purge"), self._base, args, _answers)

    def pause(self, op: str, queue: str, reason: str, actor: str = "") -> Call[Answer]:
        """PAUSED | RESUMED | RUNNING | FULL. op: pause | resume. Both texts are cut at 200 characters."""
        args = [op, queue, harmless_text(reason, _ACTOR_LIMIT), harmless_text(actor, _ACTOR_LIMIT)]
        return Call("pause", load("pause"), self._base, args, _answer)

    def revoke(self, holder: str, token: str, request_id: str, reason: str, actor: str = "") -> Call[Answer]:
        """REVOKED | STALE | ILLEGAL | GONE. holder: a job id, or "@nonce" of a stand-alone lease."""
        args = [holder, token, harmless_text(reason, _REASON_LIMIT), harmless_text(actor, _ACTOR_LIMIT), request_id]
        return Call("revoke", load("revoke"), self._base, args, _answer)

    def credential(self, op: str, credential_id: str, record: str, reason: str, actor: str) -> Call[Answer]:
        """MADE | TAKEN | FULL | REVOKED | GONE. op: make | revoke. record: JSON, of which the script reads nothing."""
        args = [op, credential_id, record, harmless_text(reason, _REASON_LIMIT), harmless_text(actor, _ACTOR_LIMIT)]
        return Call("credential", load("credential"), self._base, args, _answer)

    def heal(self, job_ids: Sequence[str], *, dry_run: bool = False) -> Call[list[Answer]]:
        return Call("heal", load("heal"), self._base, ["1" if dry_run else "", *job_ids], _answers)

    # -- the ledger's calls -------------------------------------------------------------------------------

    def archived(self, seq: int, lost: int, event_cap: int = 1_000_000) -> Call[Answer]:
        """OK | AHEAD, with the partition's sequence number. lost: events found missing since the last call."""
        return Call("archived", load("archived"), self._base, [seq, lost, event_cap], _answer)

    def conclude(self, ended: Sequence[tuple[str, int, str, str, bytes]]) -> Call[list[Answer]]:
        """CONCLUDED | ILLEGAL | NEWER | GONE for each (job id, generation, state, reason, result), in order."""
        args = [value for one in ended for value in one]
        return Call("conclude", load("conclude"), self._base, args, _answers)

    # -- stand-alone leases -------------------------------------------------------------------------------

    def acquire(
        self, resource: str, nonce: str, owner: str, ttl_ms: int, limit: int = 1, wait_ms: int = 0
    ) -> Call[tuple[str, str, str]]:
        """(HELD, token, until) | (WAIT, position, "") | (BUSY, holder, until) | (LEFT, "", "")."""
        args = [resource, nonce, owner, ttl_ms, limit, wait_ms]
        return Call("acquire", load("acquire"), self._base, args, _padded)

    def release(self, nonce: str, token: str, owner: str) -> Call[Answer]:
        return Call("release", load("release"), self._base, [nonce, token, owner], _answer)

    # -- idempotent endpoints -----------------------------------------------------------------------------

    def begin_answer(self, key: str, fingerprint: str, keep_ms: int) -> Call[Kept]:
        """NEW | SAME | CONFLICT | DONE with the answer. Binds a key that is not bound yet to the request."""
        return Call("answer", load("answer"), self._base, ["begin", key, fingerprint, keep_ms], _kept)

    def store_answer(
        self, key: str, fingerprint: str, keep_ms: int, lease: RunKey, owner: str, answer: tuple[int, bytes, bytes]
    ) -> Call[Kept]:
        """STORED | CONFLICT | STALE | EXPIRED | GONE. lease: the one on the resource answer:<key>. answer: its status,
        what there is to know about it, its body."""
        args = ["store", key, fingerprint, keep_ms, lease.nonce, lease.token, owner, *answer]
        return Call("answer", load("answer"), self._base, args, _kept)

    # -- reads: plain commands ----------------------------------------------------------------------------

    def job(self, job_id: str) -> Call[JobRecord | None]:
        return self.read(["HGETALL", self.keys.job(job_id)], lambda reply: _record(job_id, reply))

    def lease_deadline(self, member: str) -> Call[int | None]:
        """Server ms at which the lease of a job ends, None without one."""
        return self.read(
            ["ZSCORE", self.keys.leases, member], lambda reply: None if reply is None else int(float(reply))
        )

    def read(self, command: list[Any], parse: Any) -> Call[Any]:
        """A plain read command; it may be repeated at will."""
        return Call(str(command[0]).lower(), None, (), command, parse)


def _options(spec: JobSpec) -> str:
    """What differs from the defaults, as the "name=value" lines that enqueue.lua reads and the job keeps."""
    if spec == msgspec.structs.replace(_DEFAULTS, id=spec.id, kind=spec.kind, queue=spec.queue, payload=spec.payload):
        return ""
    names = _ALWAYS_APART if spec.resource is None else _WITH_RESOURCE
    lines = []
    for name in names:
        value = getattr(spec, name)
        if value != getattr(_DEFAULTS, name):
            lines.append(f"{name}={int(value) if value is True else value}")
    return "\n".join(lines)


_WITH_RESOURCE = tuple(name for name in JobSpec.__struct_fields__ if name not in ("id", "kind", "queue", "payload"))
_ALWAYS_APART = tuple(name for name in _WITH_RESOURCE if name not in ("limit", "on_busy", "ordered"))


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _answer(reply: Any) -> Answer:
    return Answer(_text(reply[0]), _text(reply[1]))


def _answers(reply: Any) -> list[Answer]:
    return [Answer(_text(reply[i]), _text(reply[i + 1])) for i in range(0, len(reply), 2)]


def _kept(reply: Any) -> Kept:
    word = _text(reply[0])
    if word == "DONE":
        return Kept(word, "", int(reply[1]), reply[2], reply[3])
    return Kept(word, _text(reply[1]))


def _padded(reply: Any) -> tuple[str, str, str]:
    first, second, third = ([_text(value) for value in reply] + ["", ""])[:3]
    return first, second, third


def _triples(reply: Any) -> list[tuple[str, str, str]]:
    texts = [value.decode() for value in reply]
    return list(zip(texts[::3], texts[1::3], texts[2::3], strict=True))


def _served(reply: Any, nonce: str) -> Served:
    """Read the answer of claim.lua and finish.lua. A blank id marks a run that was settled since: a replay skips it."""
    flat, counts, more = reply[3], reply[4], reply[5]
    queues = [queue for at in range(0, len(counts), 2) for queue in [counts[at].decode()] * counts[at + 1]]
    extras = {more[at]: more[at + 1 : at + 5] for at in range(0, len(more), 5)}
    jobs: list[Claimed] = []
    for index, at in enumerate(range(0, len(flat), 5), 1):
        job_id, kind, payload, token, attempt = flat[at : at + 5]
        if not job_id:
            continue
        run = f"{nonce}.{index}"
        if index in extras:
            resource, version, crashes, mark = extras[index]
            jobs.append(
                Claimed(
                    job_id.decode(), kind.decode(), queues[index - 1], payload, token.decode(), run, int(attempt),
                    int(crashes.rstrip(b"r") or 0), int(version or 1), mark, resource.decode(), crashes != b"",
                    crashes.endswith(b"r"),
                )
            )  # fmt: skip
        else:
            jobs.append(
                Claimed(job_id.decode(), kind.decode(), queues[index - 1], payload, token.decode(), run, attempt)
            )
    words = reply[6] if len(reply) > 6 else ()
    replies = [(words[i].decode(), words[i + 1].decode()) for i in range(0, len(words), 2)]
    due_in_s = int(reply[2]) / 1000 if reply[2] else None
    return Served(int(reply[1]), due_in_s, jobs, replies, bool(flat) and not jobs)


def _record(job_id: str, reply: Any) -> JobRecord | None:
    if not reply:
        return None
    return JobRecord.from_hash(job_id, dict(zip(reply[::2], reply[1::2], strict=True)))
