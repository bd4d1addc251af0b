"""One look at a whole partition, in one round trip, and what must hold in it after every script (invariant I13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from fencepost.keys import Keys
from fencepost.states import TERMINAL

_READ = """
local out = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local kind, value = redis.call('TYPE', key).ok, ''
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'string' then value = redis.call('GET', key) end
  out[#out + 1] = {key, redis.call('PTTL', key), value}
end
return out
"""
Scores = dict[str, float]


@dataclass
class Snapshot:
    """A partition as it stands: the values of every key by kind, and the TTL in ms of each (-1: none)."""

    job: dict[str, dict[str, str]] = field(default_factory=dict)
    lease: dict[str, dict[str, str]] = field(default_factory=dict)
    ready: dict[str, Scores] = field(default_factory=dict)
    slots: dict[str, Scores] = field(default_factory=dict)
    line: dict[str, Scores] = field(default_factory=dict)
    leases: Scores = field(default_factory=dict)
    later: Scores = field(default_factory=dict)
    dead: Scores = field(default_factory=dict)
    dedup: dict[str, str] = field(default_factory=dict)
    idem: dict[str, str] = field(default_factory=dict)
    bell: dict[str, list[str]] = field(default_factory=dict)
    recent: list[str] = field(default_factory=list)
    stats: Counter[str] = field(default_factory=Counter)
    meta: dict[str, str] = field(default_factory=dict)
    ttl: dict[str, int] = field(default_factory=dict)

    def options(self, job_id: str) -> dict[str, str]:
        lines = self.job[job_id].get("opts", "").split("\n")
        return dict(line.split("=", 1) for line in lines if line)

    def with_resource(self, resource: str) -> list[str]:
        return [job_id for job_id in self.job if self.options(job_id).get("resource") == resource]


def take(client: redis.Redis, namespace: str) -> Snapshot:
    """Return the partition's state; the scripts stand still meanwhile."""
    keys = Keys(namespace)
    found: Any = client.eval(_READ, 0, keys.prefix)
    shot = Snapshot()
    for raw, ttl, value in found:
        name, _, rest = raw.decode().removeprefix(keys.prefix).partition(":")
        shot.ttl[f"{name}:{rest}" if rest else name] = ttl
        if name in ("job", "lease", "meta", "stats"):
            texts = [one.decode() for one in value]
            value = dict(zip(texts[::2], texts[1::2], strict=True))
        elif name in ("ready", "slots", "line", "leases", "later", "dead"):
            value = {value[i].decode(): float(value[i + 1]) for i in range(0, len(value), 2)}
        elif name in ("recent", "bell"):
            value = [one.decode() for one in value]
        elif name in ("dedup", "idem"):
            value = value.decode()
        else:  # events, grant, worker, workers: nothing is compared with them
            continue
        if rest:
            getattr(shot, name)[rest] = value
        elif name == "stats":
            shot.stats.update({counter: int(n) for counter, n in value.items()})
        else:
            setattr(shot, name, value)
    return shot


def problems(shot: Snapshot) -> list[str]:
    """Return a sentence for each thing in the partition that no sequence of scripts may leave behind."""
    return [*_jobs(shot), *_members(shot), *_places(shot), *_lines(shot), *_dedup(shot)]


def _where(shot: Snapshot, job_id: str) -> list[str]:
    """The lists of live jobs that a job stands in."""
    homes = [f"ready:{queue}" for queue, members in shot.ready.items() if job_id in members]
    homes += [f"line:{resource}" for resource, members in shot.line.items() if job_id in members]
    return homes + [name for name in ("leases", "later") if job_id in getattr(shot, name)]


def _scores(shot: Snapshot, home: str) -> Scores:
    name, _, rest = home.partition(":")
    found: Scores = getattr(shot, name)[rest] if rest else getattr(shot, name)
    return found


def _jobs(shot: Snapshot) -> Iterator[str]:
    for job_id, job in shot.job.items():
        state, homes = job["state"], _where(shot, job_id)
        home = {
            "queued": f"ready:{job['queue']}",
            "scheduled": "later",
            "waiting": f"line:{shot.options(job_id).get('resource')}",
            "processing": "leases",
        }.get(state)
        if homes != [home] * (home is not None):
            yield f"{job_id} is {state} and stands in {homes}, not in {home} alone"
        at = float(job["due_at"] if state == "scheduled" else job["score"])
        yield from (
            f"{job_id}: its score in {one} is not {at}"
            for one in homes
            if one != "leases" and _scores(shot, one)[job_id] != at
        )
        if (state == "failed") != (job_id in shot.dead):
            yield f"{job_id} is {state}, in the index of failed jobs: {job_id in shot.dead}"
        if state in ("done", "cancelled") and job_id not in shot.recent:
            yield f"{job_id} is {state} and not among the recent ones"
        if state == "processing" and not job.get("nonce"):
            yield f"{job_id} is processing without a nonce"
        if state not in TERMINAL and state != "processing" and job.get("nonce"):
            yield f"{job_id} is {state} with nonce {job['nonce']}"
        if (state in TERMINAL) != (shot.ttl[f"job:{job_id}"] >= 0):
            yield f"{job_id} is {state} and has a TTL of {shot.ttl[f'job:{job_id}']}"
        if (state == "scheduled") != ("due_at" in job) and state not in TERMINAL:
            yield f"{job_id} is {state} and due_at is {job.get('due_at')}"


def _members(shot: Snapshot) -> Iterator[str]:
    """Every entry of a list stands for something that is there."""
    for queue, members in shot.ready.items():
        yield from (f"ready:{queue} has {one}, which is gone" for one in members if one not in shot.job)
    yield from (f"later has {one}, which is gone" for one in shot.later if one not in shot.job)
    for member in shot.leases:
        if member[0] == "=":
            if shot.job.get(member[1:], {}).get("state") not in ("queued", "scheduled"):
                yield f"a place is reserved for {member[1:]}: {shot.job.get(member[1:])}"
        elif member[0] == "@":
            if shot.lease.get(member[1:], {}).get("state") != "held":
                yield f"leases has {member}, which nobody holds"
        elif shot.job.get(member, {}).get("state") != "processing":
            yield f"leases has {member}, which is {shot.job.get(member)}"
    for nonce, lease in shot.lease.items():
        if (lease["state"] == "held") != (f"@{nonce}" in shot.leases):
            yield f"stand-alone lease {nonce} is {lease['state']}, in leases: {f'@{nonce}' in shot.leases}"
        if (lease["state"] == "held") != (shot.ttl[f"lease:{nonce}"] == -1):
            yield f"stand-alone lease {nonce} is {lease['state']} with a TTL of {shot.ttl[f'lease:{nonce}']}"


def _places(shot: Snapshot) -> Iterator[str]:
    """The slots of a resource hold exactly its live holders, until the very instant their leases end."""
    wanted: dict[str, Scores] = {}
    for member, until in shot.leases.items():
        if member[0] == "@":
            resource, place = shot.lease.get(member[1:], {}).get("resource"), member
        else:
            job_id = member.lstrip("=")
            resource = shot.options(job_id).get("resource") if job_id in shot.job else None
            place = member if member[0] == "=" else shot.job.get(job_id, {}).get("nonce", "")
            if resource is None and member[0] == "=":
                yield f"{member} reserves a place of no resource"
        if resource is not None:
            wanted.setdefault(resource, {})[place] = until
    for resource in wanted.keys() | shot.slots.keys():
        if wanted.get(resource) != shot.slots.get(resource):
            yield f"slots:{resource} is {shot.slots.get(resource)}, the leases say {wanted.get(resource)}"


def _limit(shot: Snapshot, resource: str) -> int:
    return max((int(shot.options(one).get("limit", 1)) for one in shot.with_resource(resource)), default=1)


def _lines(shot: Snapshot) -> Iterator[str]:
    """Not more holders than the limit; nobody waits for a place that is free."""
    for resource, holders in shot.slots.items():
        if shot.with_resource(resource) and len(holders) > _limit(shot, resource):
            yield f"slots:{resource} has {len(holders)} holders, the limit is {_limit(shot, resource)}"
    for resource, waiters in shot.line.items():
        alive = [one for one in waiters if one in shot.job or shot.lease.get(one[1:])]
        gone = [one for one in waiters if one not in alive and one[0] != "@"]
        if gone:
            yield f"line:{resource} has {gone}, which are gone"
        limit = _limit(shot, resource) if shot.with_resource(resource) else 1
        if alive and len(shot.slots.get(resource, {})) < limit:
            yield f"{alive} wait for {resource}, held by {shot.slots.get(resource)} of {limit}: a lost wake-up"


def _dedup(shot: Snapshot) -> Iterator[str]:
    """A dedup key leads to a live job that carries it, and each live job owns its key."""
    for key, owner in shot.dedup.items():
        if owner not in shot.job or shot.job[owner]["state"] in TERMINAL or shot.options(owner).get("dedup") != key:
            yield f"dedup:{key} leads to {owner}: {shot.job.get(owner)}"
        if shot.ttl[f"dedup:{key}"] != -1:
            yield f"dedup:{key} has a TTL of {shot.ttl[f'dedup:{key}']}"
    for job_id, job in shot.job.items():
        wanted = shot.options(job_id).get("dedup")
        if wanted and job["state"] not in TERMINAL and shot.dedup.get(wanted) != job_id:
            yield f"{job_id} is {job['state']} and its dedup key {wanted} leads to {shot.dedup.get(wanted)}"
