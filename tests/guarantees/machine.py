"""One call on both sides: the real partition and the model, then everything is compared."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import redis

from fencepost.driver import Connections, SyncDriver
from fencepost.job import JobSpec
from fencepost.keys import Keys
from fencepost.store import Outcome, Request, RunKey, Store
from tests.guarantees import snapshot
from tests.guarantees.model import FRESH, Job
from tests.guarantees.model_verbs import Ask, End, Model
from tests.guarantees.snapshot import Snapshot
from tests.support import StoppedClock

NAMESPACE = "model"


class Both:
    """A partition on a server whose clock stands still, and its model. Every difference is an AssertionError."""

    def __init__(self, client: redis.Redis, url: str, clock: StoppedClock, seen: Counter[str]) -> None:
        client.flushall()
        self.client, self.clock, self.seen = client, clock, seen
        self.store, self.driver = Store(Keys(NAMESPACE)), SyncDriver(Connections(url), give_up_s=0.0)
        self.model = Model(clock.now_ms())
        self.newest_token = 0
        self.read_to = "0-0"
        self.last: tuple[str, tuple[Any, ...]] | None = None
        self.moved = False

    def close(self) -> None:
        self.driver.close()

    def do(self, verb: str, *args: Any) -> Any:
        """Make the call on both sides and compare the replies and the whole state. Returns the real reply."""
        self.last, self.moved = (verb, args), False
        self.seen["calls"] += 1
        if verb == "cancel" and args[0] in self.model.jobs:
            self.seen[f"cancel of {self.model.jobs[args[0]].state}"] += 1
        self.model.told = []
        expected = getattr(self.model, verb)(*args)
        reply = getattr(self, f"_{verb}")(*args)
        assert _same(reply, expected), f"{verb}{args}\n  answered {reply}\n  expected {expected}"
        self.seen.update(_words(verb, args, reply))
        self._compare(snapshot.take(self.client, NAMESPACE))
        return reply

    def again(self) -> None:
        """Send the last call once more. If no time went by, nothing may change."""
        assert self.last is not None
        verb, args = self.last
        before, moved = copy.deepcopy(self.model), self.moved
        self.do(verb, *args)
        if not moved:
            for name in ("jobs", "alone", "leases", "lines", "dedup", "idem", "records", "paused"):
                was, now = getattr(before, name), getattr(self.model, name)
                assert was == now, f"{verb}{args} sent again changed {name}:\n  {was}\n  {now}"

    def advance(self, ms: int) -> None:
        self.moved = True
        self.model.clock = self.clock.advance_ms(ms)
        for (
            key
        ) in self.model.expire():  # looked at, so that it is gone for good and not back when the clock is set back
            assert not self.client.exists(self.store.keys.prefix + key), f"{key} should have expired"

    def apart(self) -> None:
        """Let the next call come in a ms of its own: of what comes back to a queue in it, only the ms is known.

        Not in the ms of the partition's clock either: there nobody can tell which of the two clocks is ahead.
        """
        self.advance(1)
        if self.model.clock == self.model.last:
            self.advance(1)

    # -- the real side ------------------------------------------------------------------------------------

    def _enqueue(self, specs: list[JobSpec], limit: int) -> Any:
        return self.driver.run(self.store.enqueue(specs, limit))

    def _claim(self, ask: Ask) -> Any:
        return _served(self.driver.run(self.store.claim(_request(ask))))

    def _finish(self, ends: list[End], ask: Ask) -> Any:
        return _served(self.driver.run(self.store.finish(map(_outcome, ends), _request(ask))), replies=True)

    def _renew(self, lease_ms: int, runs: list[tuple[str, str, str]]) -> Any:
        return self.driver.run(self.store.renew(lease_ms, "w1", [RunKey(*run) for run in runs]))

    def _checkpoint(self, job_id: str, token: str, nonce: str, field: str, value: str, event: str) -> Any:
        run = RunKey(job_id, token, nonce)
        call = self.store.checkpoint(run, "w1", field, value.encode(), event, f"{field} {value}")
        return self.driver.run(call)

    def _bump(self, member: str, token: str, nonce: str, floor: int, where: str) -> Any:
        answer = self.driver.run(self.store.bump(RunKey(member, token, nonce), "w1", floor, where))
        assert answer.word != "OK" or int(answer.detail) > floor
        return answer

    def _conclude(self, ended: list[tuple[str, int, str, str, str]]) -> Any:
        return self.driver.run(self.store.conclude([(*one[:4], one[4].encode()) for one in ended]))

    def _cancel(self, job_id: str, hard: bool, reason: str, request: str, token: str = "") -> Any:
        return self.driver.run(self.store.cancel(job_id, request, hard=hard, reason=reason, token=token))

    def _pause(self, op: str, queue: str) -> Any:
        return self.driver.run(self.store.pause(op, queue, "model"))

    def _revoke(self, holder: str, token: str, request: str) -> Any:
        return self.driver.run(self.store.revoke(holder, token, request, "model"))

    def _requeue(self, job_ids: list[str], request: str, least: int = 0) -> Any:
        return self.driver.run(self.store.requeue(job_ids, request, least))

    def _purge(self, job_ids: list[str]) -> Any:
        return self.driver.run(self.store.purge(job_ids, "model"))

    def _heal(self, job_ids: list[str]) -> Any:
        return self.driver.run(self.store.heal(job_ids))

    def _acquire(self, resource: str, nonce: str, owner: str, ttl: int, limit: int, wait: int) -> Any:
        reply = self.driver.run(self.store.acquire(resource, nonce, owner, ttl, limit, wait))
        return ("WAIT", "*", "") if reply[0] == "WAIT" else reply

    def _release(self, nonce: str, token: str) -> Any:
        return self.driver.run(self.store.release(nonce, token, "w1"))

    # -- the comparison -----------------------------------------------------------------------------------

    def _compare(self, shot: Snapshot) -> None:
        broken = snapshot.problems(shot)
        assert not broken, "I13:\n  " + "\n  ".join(broken)
        self._learn(shot)
        model = self.model
        assert shot.job.keys() == model.jobs.keys()
        for job in model.jobs.values():
            found = _fields(shot.job[job.id])
            assert found == _expected(job), f"{job.id} is {found},\nexpected {_expected(job)}"
        lease = {nonce: (one["state"], one["resource"], one.get("token")) for nonce, one in shot.lease.items()}
        assert lease == {one.nonce: (one.state, one.resource, one.token) for one in model.alone.values()}
        told = self._told()
        assert told == model.told, f"told {told}, expected {model.told}"
        assert shot.leases == model.leases
        assert shot.slots == _filled(model.slots)
        assert shot.line == _filled(model.lines)
        assert shot.dedup == model.dedup
        assert set(shot.meta.get("paused", "").split()) == model.paused.keys()
        assert shot.idem == {key: f"{job_id} {print_}" for key, (job_id, print_, _) in model.idem.items()}
        assert shot.stats == model.stats, f"counters differ: {shot.stats - model.stats}, {model.stats - shot.stats}"
        assert int(shot.meta.get("last_us", 0)) // 1000 == model.last
        assert int(shot.meta.get("grace_until", 0)) == model.grace_until

    def _told(self) -> list[tuple[str, str]]:
        """What the last call told of effects, steps and bumps, in order."""
        entries: Any = self.client.xrange(self.store.keys.events, f"({self.read_to}")
        lines = [line for _, fields in entries for line in fields[b"e"].decode().split("\n")]
        if entries:
            self.read_to = entries[-1][0].decode()
        opened = [(line.split("\t") + [""] * 7)[:7] for line in lines]
        return [(one[0], one[6]) for one in opened if one[0] in _TOLD]

    def _learn(self, shot: Snapshot) -> None:
        """Take over what only the server knows, the µs of scores and the new tokens, and judge it."""
        model = self.model
        model.last_us = int(shot.meta.get("last_us", 0))
        minted = []
        for job in model.jobs.values():
            if job.score_ms is not None and job.id in shot.job:
                score = int(shot.job[job.id]["score"])
                late_us = score + job.priority * 60_000_000 - job.score_ms * 1000
                assert 0 <= late_us < 2_000, f"{job.id}: the score {score} is {late_us} µs after its arrival"
                job.score, job.score_ms = score, None
                if job.state == "waiting" and job.resource is not None:  # came back and was parked in one call
                    model.lines[job.resource][job.id] = score
            if job.token is FRESH and job.id in shot.job:
                job.token = shot.job[job.id]["token"]
                minted.append(int(job.token))
        for nonce, lease in model.alone.items():
            if lease.token is FRESH and nonce in shot.lease:
                lease.token = shot.lease[nonce]["token"]
                minted.append(int(lease.token))
        for resource, line in model.lines.items():
            for member in [one for one, score in line.items() if score < 0]:
                line[member] = shot.line.get(resource, {}).get(member, -1)
        assert all(token > self.newest_token for token in minted), f"{minted} after {self.newest_token}"
        assert len(set(minted)) == len(minted)
        newest = int(shot.meta.get("token", 0))
        assert newest >= max([self.newest_token, *minted])
        self.newest_token = newest


_TOLD = ("effect", "effect_found", "late_effect", "step", "intent", "outcome", "bumped")
_FIELDS = (
    *("state", "attempts", "crashes", "releases", "generation", "token", "nonce", "checkpoint", "result", "reason"),
    *("cancel", "cancel_request", "cancelled_from", "requeue_request", "revoke_request"),
)


def _fields(job: dict[str, str]) -> dict[str, str]:
    found = {name: job[name] for name in _FIELDS if job.get(name, "") != ""}
    found["score"] = job["score"]
    if job["state"] == "scheduled":
        found["due"] = job["due_at"]
    if "settled" in job:
        found["settled"] = job["settled"]
    return found | {name: value for name, value in job.items() if name.startswith(("step:", "outside:"))}


def _expected(job: Job) -> dict[str, str]:
    found = {name: str(getattr(job, name)) for name in _FIELDS if getattr(job, name) not in (None, "")}
    found["score"] = f"{job.score:.0f}"
    if job.state == "scheduled":
        found["due"] = str(job.due)
    if job.settled is not None:
        found["settled"] = " ".join(job.settled)
    return found | job.kept


def _filled(of: dict[str, Any]) -> dict[str, Any]:
    return {name: members for name, members in of.items() if members}


def _request(ask: Ask) -> Request:
    upkeep = "{}" if ask.upkeep else ""
    return Request(ask.worker, ask.lane, ask.nonce, ask.wanted, ask.lease_ms, upkeep, ask.queues)


def _outcome(end: End) -> Outcome:
    values: tuple[Any, ...] = (end.value,)
    if end.word == "RETRY":
        values = (end.delay_ms, "Trouble", end.value)
    elif end.word == "BURY":
        values = (end.value, "Trouble", "text")
    elif end.word == "RELEASE":
        values = (end.delay_ms, end.value)
    elif end.word == "NOTE":
        values = ("effect", end.value)
    return Outcome(end.job_id, end.token, end.nonce, end.word, values, end.notes)


def _served(served: Any, replies: bool = False) -> dict[str, Any]:
    due = None if served.due_in_s is None else round(served.due_in_s * 1000)
    jobs = [
        (j.job_id, j.kind, j.queue, j.token, j.nonce, j.attempt, j.resource, j.crashes, j.again) for j in served.jobs
    ]
    return {"now": served.server_ms, "due": due, "jobs": jobs} | ({"replies": served.replies} if replies else {})


def _words(verb: str, args: tuple[Any, ...], reply: Any) -> Iterator[str]:
    """What was reached, to be able to tell a run that proves something from one that does not."""
    if verb in ("claim", "finish"):
        yield from (f"{verb} run" for _ in reply["jobs"])
        for end, (word, _) in zip(args[0] if verb == "finish" else (), reply.get("replies", ()), strict=True):
            yield f"{end.word} {word}"
    else:
        yield from (f"{verb} {one[0]}" for one in (reply if isinstance(reply, list) else [reply]))


def _same(reply: Any, expected: Any) -> bool:
    """Equal, with the model's fresh tokens on the right."""
    if isinstance(expected, dict):
        asked = {name: value for name, value in expected.items() if name != "replayed"}
        return reply.keys() == asked.keys() and all(_same(reply[name], value) for name, value in asked.items())
    if isinstance(expected, list | tuple):
        return len(reply) == len(expected) and all(map(_same, reply, expected))
    return bool(expected == reply)
