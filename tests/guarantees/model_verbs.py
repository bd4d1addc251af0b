"""The model's verbs: each takes what the call takes, changes the world as the header says, and returns the reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fencepost.job import JobSpec
from tests.guarantees.model import ENDS, FRESH, RESERVED_MS, Alone, Job
from tests.guarantees.model_operated import Operated, Pair


@dataclass(frozen=True)
class Ask:
    """The claiming half of a claim or finish; as store.Request."""

    worker: str
    nonce: str
    wanted: int
    lease_ms: int
    upkeep: bool
    queues: tuple[tuple[str, int], ...]
    lane: str = "lane0"


@dataclass(frozen=True)
class End:
    """An outcome; as store.Outcome. delay_ms: of RETRY and RELEASE. value: the result, the reason, an effect's key."""

    job_id: str
    token: str
    nonce: str
    word: str
    value: str = ""
    delay_ms: int = 0
    notes: tuple[tuple[str, str], ...] = ()


class Model(Operated):
    """The world and everything that can be asked of it."""

    # -- enqueue ------------------------------------------------------------------------------------------

    def enqueue(self, specs: list[JobSpec], limit: int) -> list[tuple[str, str, str]]:
        self.begin()
        depth: dict[str, int] = {}
        return [self._admit(spec, limit, depth) for spec in specs]

    def _admit(self, spec: JobSpec, limit: int, depth: dict[str, int]) -> tuple[str, str, str]:
        known = self.jobs.get(spec.id)
        if known is not None:
            return ("SCHEDULED" if known.state == "scheduled" else "QUEUED"), spec.id, known.state
        if spec.idem in self.idem:
            job_id, print_, _ = self.idem[spec.idem]
            if print_ != spec.fingerprint:
                return "CONFLICT", job_id, ""
            return "REPLAYED", job_id, self.jobs[job_id].state if job_id in self.jobs else ""
        owner = self.jobs.get(self.dedup.get(spec.dedup or "", ""))
        if owner is None:
            if limit and self._due(spec) <= self.now:
                depth[spec.queue] = depth.get(spec.queue, len(self.ready(spec.queue))) + 1
                if depth[spec.queue] > limit:
                    return "FULL", spec.id, ""
            self._store(spec)
        else:
            self.stats[f"duplicate:{spec.kind}"] += 1
        stands = owner or self.jobs[spec.id]
        if spec.idem:
            self.idem[spec.idem] = (stands.id, spec.fingerprint or "", self.clock + spec.idem_ttl_ms)
        if owner is not None:
            return "DUPLICATE", owner.id, owner.state
        return ("SCHEDULED" if stands.state == "scheduled" else "QUEUED"), spec.id, stands.state

    def _due(self, spec: JobSpec) -> int:
        return max(spec.run_at_ms or 0, self.now + spec.delay_ms)

    def _store(self, spec: JobSpec) -> None:
        taken = ("queue", "kind", "priority", "resource", "limit", "on_busy", "ordered", "dedup", "max_crashes")
        job = Job(spec.id, **{name: getattr(spec, name) for name in taken})
        job.retention_ms, job.failed_retention_ms = spec.retention_ms, spec.failed_retention_ms
        job.generation = spec.generation if spec.generation > 1 else None
        due = self._due(spec)
        if due > self.now:
            job.state, job.due, job.score = "scheduled", due, due * 1000 - spec.priority * 60_000_000
        else:
            job.score_ms = self.now
        self.jobs[spec.id] = job
        if spec.dedup:
            self.dedup[spec.dedup] = spec.id
        self.stats[f"enqueued:{spec.kind}"] += 1

    # -- claim, finish ------------------------------------------------------------------------------------

    def claim(self, ask: Ask) -> dict[str, Any]:
        self.begin()
        return self._serve(ask)

    def finish(self, ends: list[End], ask: Ask) -> dict[str, Any]:
        self.begin()
        replies: list[Pair] = []
        settled: dict[str, str] = {}
        told: list[tuple[str, str]] = []
        late: list[str] = []
        for end in ends:
            job = self.jobs.get(end.job_id)
            word, newest = self.check(job, end.token, end.nonce)
            notes = [*end.notes, ("effect", end.value)] if end.word == "NOTE" else end.notes
            for name, key in notes:
                if word == "OK":
                    told.append((name, key))
                elif not (job and self._has_settled(job, end.nonce)):
                    told.append(("late_effect", key))
                    late.append(job.kind if job else "?")
            if end.word == "NOTE":
                word, newest = ("REPLAY" if word != "OK" and job and self._has_settled(job, end.nonce) else "OK"), ""
            elif word == "OK" and end.job_id in settled:  # an earlier item of this call settles the run
                word, newest = ("REPLAY", "") if settled[end.job_id] == end.word else ("STALE", end.token)
            elif word == "OK":
                settled[end.job_id] = end.word
            elif word != "GONE" and self._was_settled_by(end):
                word, newest = "REPLAY", ""
            replies.append((word, newest))
        refused = [
            end.word.lower() for end, (word, _) in zip(ends, replies, strict=True) if word not in ("OK", "REPLAY")
        ]
        done = [end for end, (word, _) in zip(ends, replies, strict=True) if word == "OK" and end.word != "NOTE"]
        for end in done:
            self._settle(self.jobs[end.job_id], end)
        for end in done:
            del self.leases[end.job_id]
        served = self._serve(ask)
        if not served.pop("replayed", False):  # a call sent again tells its refusals again, but counts them once
            self.stats.update(f"refused:{word}" for word in refused)
            self.stats.update(f"late_effect:{kind}" for kind in late)
            self.told = told
        elif done:
            self.told = told
        return served | {"replies": replies}

    def _has_settled(self, job: Job, run: str) -> bool:
        return (job.nonce == run and not job.live) or (job.settled is not None and job.settled[0] == run)

    def _was_settled_by(self, end: End) -> bool:
        job = self.jobs[end.job_id]
        if job.settled == (end.nonce, end.word):
            return True
        ours = end.token == job.token or end.token in job.had
        return ours and job.nonce == end.nonce and job.state == ENDS.get(end.word)

    def _settle(self, job: Job, end: End) -> None:
        word, value = end.word, end.value
        if job.cancel is not None and word in ("RETRY", "RELEASE"):
            word, value, job.settled = "CANCEL", job.cancel, (end.nonce, end.word)
        if word in ENDS:
            if word == "DONE":
                job.result = value or job.result
            self.end(job, ENDS[word], "" if word == "DONE" else value, end.nonce)
        else:
            self._come_back(job, end)

    def _come_back(self, job: Job, end: End) -> None:
        kept = job.resource is not None and job.ordered
        if not kept and not (end.word == "RELEASE" and end.delay_ms == 0):
            behind = self.clock < self.last and not end.delay_ms
            score = self.last_us if behind else (self.now + end.delay_ms) * 1000
            job.score = score - job.priority * 60_000_000
            job.score_ms = None if end.delay_ms else self.now  # at once: its µs are the server's
        job.settled, job.nonce = (end.nonce, end.word), ""
        job.state, job.due = ("scheduled", self.now + end.delay_ms) if end.delay_ms else ("queued", None)
        if end.word == "RELEASE":
            job.releases, job.attempts = (job.releases or 0) + 1, (job.attempts or 1) - 1
        if kept:
            self.reserve(job, end.nonce, self.now + end.delay_ms + RESERVED_MS)
        elif job.resource:
            self.free(job.resource, end.nonce)
        self.stats[f"{'retried' if end.word == 'RETRY' else 'released'}:{job.kind}"] += 1

    def _serve(self, ask: Ask) -> dict[str, Any]:
        record = self.records.get((ask.worker, ask.lane))
        if ask.wanted and record is not None and record[0] == ask.nonce:
            runs = [(self.jobs.get(job_id), f"{ask.nonce}.{i}") for i, job_id in enumerate(record[1], 1)]
            ours = [_run(job, True) for job, run in runs if job and job.state == "processing" and job.nonce == run]
            return {"now": self.now, "due": None, "jobs": ours, "replayed": True}
        self.sweep(100 if ask.wanted else 200)
        claimed = self._hand_out(ask) if ask.wanted else []
        if claimed:
            if record is None:
                self.workers[ask.worker] = self.clock + ask.lease_ms * 10 + 60_000
            self.records[ask.worker, ask.lane] = ask.nonce, [job.id for job in claimed]
        if ask.upkeep:
            self.lease_seen = ask.lease_ms
            self.workers[ask.worker] = self.clock + ask.lease_ms * 10 + 60_000
        self.swept()
        due = self.due_in() if len(claimed) < ask.wanted else None
        return {"now": self.now, "due": due, "jobs": [_run(job) for job in claimed]}

    def _hand_out(self, ask: Ask) -> list[Job]:
        claimed: list[Job] = []
        for queue, most in ask.queues:
            got = 0
            for job in self.ready(queue) if queue not in self.paused else ():
                if got == most or len(claimed) == ask.wanted:
                    break
                if job.resource and not self._may_enter(job):
                    self._busy(job)
                    continue
                suspect = 0 < (job.crashes or 0) >= min(2, job.max_crashes)
                if suspect and self.has_suspect(ask.worker):
                    self.put_off(job, 1_000)
                    continue
                got += 1
                claimed.append(job)
                run = f"{ask.nonce}.{len(claimed)}"
                job.state, job.token, job.nonce = "processing", FRESH, run
                job.again, job.had = job.attempts is not None, []
                job.attempts = (job.attempts or 0) + 1
                if suspect:
                    self.suspects[ask.worker] = job.id, run
                    self.workers.setdefault(ask.worker, self.clock + ask.lease_ms * 10 + 60_000)
                self.leases[job.id] = self.now + ask.lease_ms
                if job.resource:
                    self.leases.pop(f"={job.id}", None)
                    self.slots.get(job.resource, {}).pop(f"={job.id}", None)
                    self.hold(job.resource, run, self.now + ask.lease_ms, job.id)
        return claimed

    def _may_enter(self, job: Job) -> bool:
        held = self.slots.get(job.resource or "", {})
        return len(held) < job.limit or f"={job.id}" in held

    def _busy(self, job: Job) -> None:
        assert job.resource is not None
        if job.on_busy == "wait":
            job.state = "waiting"
            self.lines.setdefault(job.resource, {})[job.id] = job.score
            self.stats[f"parked:{job.kind}"] += 1
        elif job.on_busy in ("skip", "fail"):
            self.end(job, "cancelled" if job.on_busy == "skip" else "failed", "busy", "")
        else:
            self.put_off(job, int(job.on_busy.removeprefix("later:")))

    # -- a run's other writes -----------------------------------------------------------------------------

    def renew(self, lease_ms: int, runs: list[tuple[str, str, str]]) -> list[Pair]:
        self.begin()
        checked = [self._check_renewal(*run) for run in runs]
        for (member, _, nonce), (word, _) in zip(runs, checked, strict=True):
            if word not in ("OK", "CANCEL"):
                self.stats["refused:renew"] += 1
                continue
            alone = self.alone[member[1:]] if member[0] == "@" else None
            until = max(self.leases[member], self.now + (alone.ttl_ms if alone else lease_ms))
            self.leases[member] = until
            resource = alone.resource if alone else self.jobs[member].resource
            if resource:
                self.slots[resource][member if alone else nonce] = until
        return checked

    def _check_renewal(self, member: str, token: str, nonce: str) -> Pair:
        if member[0] != "@":
            job = self.jobs.get(member)
            word, more = self.check(job, token, nonce)
            return ("CANCEL", job.cancel) if word == "OK" and job and job.cancel is not None else (word, more)
        lease = self.alone.get(member[1:])
        if lease is None:
            return "GONE", ""
        if lease.state != "held" or token not in (lease.token, *lease.had) or lease.nonce != nonce:
            return "STALE", lease.token or "0"
        return ("OK" if self.in_grace or self.leases[member] > self.now else "EXPIRED"), ""

    def checkpoint(self, job_id: str, token: str, nonce: str, field: str, value: str, event: str) -> Pair:
        self.begin()
        job = self.jobs.get(job_id)
        word, more = self.check(job, token, nonce)
        if word == "OK" and job is not None:
            if event and job.kept.get(field) != value:
                self.told = [(event, f"{field} {value}")]
            if field == "checkpoint":
                job.checkpoint = value
            else:
                job.kept[field] = value
        else:
            self.stats["refused:checkpoint"] += 1
        return word, more

    def bump(self, member: str, token: str, nonce: str, floor: int, where: str) -> Pair:
        self.begin()
        word, more = self._check_renewal(member, token, nonce)
        if word not in ("OK", "CANCEL"):
            self.stats[f"refused:{where}"] += 1
            return word, more
        owner: Job | Alone = self.alone[member[1:]] if member[0] == "@" else self.jobs[member]
        if int(owner.token) <= floor:
            owner.had.append(owner.token)
            owner.token = FRESH
            self.stats[f"bumped:{where}"] += 1
            self.told = [("bumped", f"{where} from {owner.had[-1]}")]
        return "OK", owner.token


def _run(job: Job, replayed: bool = False) -> tuple[Any, ...]:
    # A claim that is handed out once more says rather too often than never that there was a run before.
    left = job.again or (replayed and bool(job.checkpoint or job.releases or job.generation))
    who = job.id, job.kind, job.queue, job.token, job.nonce
    return *who, job.attempts, job.resource or "", job.crashes or 0, left
