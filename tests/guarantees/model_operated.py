"""The model's verbs for operators, the ledger and stand-alone leases; see model_verbs.py for those of jobs and runs."""

from __future__ import annotations

from tests.guarantees.model import FRESH, RESERVED_MS, Alone, Job, World

Pair = tuple[str, str]


class Operated(World):
    """The world and what is asked of it without being a worker."""

    # -- operators ----------------------------------------------------------------------------------------

    def cancel(self, job_id: str, hard: bool, reason: str, request: str, token: str = "") -> Pair:
        self.begin()
        job = self.jobs.get(job_id)
        if job is None:
            return "GONE", ""
        if job.state == "cancelled" and job.cancel_request == request:
            return "CANCELLED", job.cancelled_from or ""
        if not job.live:
            return "ILLEGAL", job.state
        if token and token != job.token:
            return "STALE", job.token or "0"
        if job.state == "processing" and not hard:
            if job.cancel_request != request:
                job.cancel, job.cancel_request = reason, request
            return "ASKED", "processing"
        was, run = job.state, job.nonce or ""
        job.cancel_request, job.cancelled_from = request, was
        if was == "processing":
            job.token, job.nonce = FRESH, ""
            del self.leases[job.id]
        elif was == "waiting":
            del self.lines[job.resource or ""][job.id]
        self.end(job, "cancelled", reason, run)
        return "CANCELLED", was

    def pause(self, op: str, queue: str) -> Pair:
        self.begin()
        if op == "pause":
            return "PAUSED", str(self.paused.setdefault(queue, self.now))
        since = self.paused.pop(queue, None)
        return ("RUNNING", "") if since is None else ("RESUMED", str(since))

    def revoke(self, holder: str, token: str, request: str) -> Pair:
        self.begin()
        if holder[0] == "@":
            return self._revoke_lease(holder, token, request)
        job = self.jobs.get(holder)
        if job is None:
            return "GONE", ""
        what, _, asked = (job.revoke_request or "").partition(" ")
        if what and asked == request:
            return "REVOKED", what
        if job.state != "processing":
            return "ILLEGAL", job.state
        if job.token != token:
            return "STALE", job.token
        what = "queued" if job.cancel is None else "cancelled"
        run, job.nonce, job.token, job.revoke_request = job.nonce or "", "", FRESH, f"{what} {request}"
        job.attempts, job.releases = (job.attempts or 1) - 1, (job.releases or 0) + 1
        del self.leases[job.id]
        self.stats[f"revoked:{job.kind}"] += 1
        if job.cancel is not None:
            self.end(job, "cancelled", job.cancel, run)
        else:
            job.state = "queued"
            if job.resource:
                self.reserve(job, run, self.now + RESERVED_MS)
        return "REVOKED", what

    def _revoke_lease(self, holder: str, token: str, request: str) -> Pair:
        lease = self.alone.get(holder[1:])
        if lease is not None and lease.state == "revoked" and lease.revoke_request == request:
            return "REVOKED", "ended"
        if lease is None or lease.state == "revoked":
            return "GONE", ""
        if lease.state != "held":
            return "ILLEGAL", lease.state
        if lease.token != token:
            return "STALE", lease.token
        lease.state, lease.token, lease.had, lease.revoke_request = "revoked", FRESH, [], request
        lease.expires = self.clock + 60_000
        del self.leases[holder]
        self.stats["revoked:@lease"] += 1
        self.free(lease.resource, holder)
        return "REVOKED", "ended"

    def requeue(self, job_ids: list[str], request: str, least: int = 0) -> list[Pair]:
        self.begin()
        out: list[Pair] = []
        seen: dict[str, str] = {}
        for job_id in job_ids:
            job = self.jobs.get(job_id)
            if job is None:
                out.append(("GONE", ""))
            elif job.requeue_request == request:
                out.append(("REQUEUED", str(job.generation)))
            elif job.state not in ("failed", "cancelled"):
                out.append(("ILLEGAL", job.state))
            elif job.dedup in self.dedup:
                out.append(("DUPLICATE", self.dedup[job.dedup]))
            else:
                self._start_again(job, request, least)
                seen[job_id] = str(job.generation)
                out.append(("REQUEUED", seen[job_id]))
        return out

    def _start_again(self, job: Job, request: str, least: int) -> None:
        blank = Job(job.id, job.queue, job.kind)
        job.attempts = 0  # not absent: an earlier generation may have left steps behind
        for name in (
            "crashes",
            "releases",
            "reason",
            "result",
            "cancel",
            "cancel_request",
            "cancelled_from",
            "checkpoint",
        ):
            setattr(job, name, getattr(blank, name))
        job.generation = max((job.generation or 1) + 1, least)
        job.state, job.requeue_request = "queued", request
        job.nonce, job.expires, job.due = "", None, None
        job.score_ms = self.now
        if job.dedup:
            self.dedup[job.dedup] = job.id
        self.stats[f"requeued:{job.kind}"] += 1

    def purge(self, job_ids: list[str]) -> list[Pair]:
        self.begin()
        return [self._forget(job_id) for job_id in job_ids]

    def _forget(self, job_id: str) -> Pair:
        job = self.jobs.get(job_id)
        if job is None:
            return "GONE", ""
        if job.live:
            return "ILLEGAL", job.state
        del self.jobs[job_id]
        self.stats[f"purged:{job.kind}"] += 1
        return "PURGED", job.state

    def conclude(self, ended: list[tuple[str, int, str, str, str]]) -> list[Pair]:
        self.begin()
        was = {one[0]: self.jobs[one[0]].state for one in ended if one[0] in self.jobs}
        return [self._conclude(was.get(one[0], ""), *one) for one in ended]

    def _conclude(self, was: str, job_id: str, generation: int, state: str, reason: str, result: str) -> Pair:
        job = self.jobs.get(job_id)
        if job is None:
            return "GONE", ""
        if not job.live:
            return "ILLEGAL", job.state
        if (job.generation or 1) > generation:
            return "NEWER", str(job.generation)
        run = job.nonce or ""
        if job.state == "processing":
            job.token, job.nonce = FRESH, ""
            del self.leases[job.id]
        elif job.state == "waiting":
            del self.lines[job.resource or ""][job.id]
        job.result = result or job.result
        self.end(job, state, reason, run, "concluded")
        return "CONCLUDED", was

    def heal(self, job_ids: list[str]) -> list[Pair]:
        self.begin()
        return [("SOUND", self.jobs[one].state) if one in self.jobs else ("GONE", "") for one in job_ids]

    # -- stand-alone leases -------------------------------------------------------------------------------

    def acquire(self, resource: str, nonce: str, owner: str, ttl: int, limit: int, wait: int) -> tuple[str, str, str]:
        self.begin()
        me, line = f"@{nonce}", self.lines.setdefault(resource, {})
        mine = self._held(resource, nonce)
        if mine:
            return mine
        if wait < 0:
            line.pop(me, None)
            self.alone.pop(nonce, None)
            return "LEFT", "", ""
        self.sweep(20)
        if len(self.slots.setdefault(resource, {})) < limit and line:
            self.hand_over(resource)
        mine = self._held(resource, nonce)
        if not mine and me not in line and len(self.slots[resource]) < limit and not line:
            self.alone[nonce] = Alone(nonce, resource, owner, ttl, "held", FRESH)
            self.hold(resource, me, self.now + ttl)
            self.stats["leased:@lease"] += 1
            mine = self._held(resource, nonce)
        self.swept()
        if mine:
            return mine
        if wait == 0:
            head = min(((until, member) for member, until in self.slots[resource].items()), default=("", ""))
            return "BUSY", head[1], str(head[0])
        if me not in line:
            line[me] = -1  # learned from the server
            self.stats["parked:@lease"] += 1
        self.alone[nonce] = Alone(nonce, resource, owner, ttl, "waiting", expires=self.clock + 5_000)
        return "WAIT", "*", ""  # the place in line depends on the µs

    def _held(self, resource: str, nonce: str) -> tuple[str, str, str] | None:
        lease = self.alone.get(nonce)
        until = self.slots.get(resource, {}).get(f"@{nonce}")
        if lease is None or lease.state != "held" or until is None:
            return None
        return "HELD", lease.token, str(until)

    def release(self, nonce: str, token: str) -> Pair:
        self.begin()
        lease = self.alone.get(nonce)
        if lease is None:
            return "GONE", ""
        if lease.state != "held" or token not in (lease.token, *lease.had):
            self.stats["refused:release"] += 1
            return "STALE", lease.token or "0"
        del self.alone[nonce], self.leases[f"@{nonce}"]
        self.free(lease.resource, f"@{nonce}")
        return "OK", ""
