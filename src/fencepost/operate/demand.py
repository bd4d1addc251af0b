"""How much work stands in some queues: what an autoscaler asks before it starts or stops workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from fencepost.errors import ConfigurationError
from fencepost.keys import Keys, check_queue
from fencepost.operate.plan import LOOKS, Plan, View, look, text

__all__ = ["Demand", "demand"]

_MOST_QUEUES: Final = 50
_SAMPLE: Final = 500
_MOST_JOBS_PER_WORKER: Final = 100_000


class Demand(msgspec.Struct, frozen=True):
    """Work in `queues` now. ready: jobs that could start. due: delayed ones whose time has come; the next claim of any
    worker makes them ready. running: also those of a worker that died, until another one takes them back.
    oldest_wait_s: how long the next to be served has waited, of all these queues the longest. paused: those of the
    queues that hand out nothing; only what runs in them is counted. desired_workers: for all this, at jobs_per_worker
    each; 0 where there is nothing to do. due and running are taken from the first 500 jobs of all queues, and where
    there are more of those they are an estimate."""

    queues: list[str]
    ready: int
    due: int
    running: int
    oldest_wait_s: float
    paused: list[str]
    jobs_per_worker: int
    desired_workers: int
    now: int


def demand(keys: Keys, queues: Sequence[str], jobs_per_worker: int) -> Plan[Demand]:
    """Count the work in queues. Raises ConfigurationError: no queue name, more than 50, jobs_per_worker below 1."""
    names = list(dict.fromkeys(check_queue(queue) for queue in queues))
    if not 0 < len(names) <= _MOST_QUEUES:
        raise ConfigurationError("queue", f"{len(names)} queues are not 1 to {_MOST_QUEUES}", "Ask for fewer at once.")
    if not 1 <= jobs_per_worker <= _MOST_JOBS_PER_WORKER:
        problem = f"{jobs_per_worker} is not 1 to {_MOST_JOBS_PER_WORKER}"
        raise ConfigurationError("jobs_per_worker", problem, "Write the slots of one worker (its -c).")
    ready_keys = [keys.ready(name) for name in names]
    view: View = yield look(
        keys,
        [
            ("HGET", keys.meta, "paused"), ("ZRANGE", keys.later, 0, _SAMPLE - 1, "WITHSCORES"),
            ("ZRANGE", keys.leases, 0, _SAMPLE - 1), ("ZCARD", keys.leases),
            *(("ZCARD", key) for key in ready_keys), *(("ZRANGE", key, 0, 0) for key in ready_keys),
        ],
    )  # fmt: skip
    now, (raw_paused, later, leases, all_leases), of_queues = view.now_ms, view.replies[:4], view.replies[4:]
    paused = set(text(raw_paused or b"").split())
    sizes = dict(zip(names, of_queues[: len(names)], strict=True))
    open_names = [name for name in names if name not in paused]
    due = [(text(later[at]), float(later[at + 1])) for at in range(0, len(later), 2) if float(later[at + 1]) <= now]
    runs = [text(member) for member in leases if member[:1] not in (b"@", b"=")]
    where = yield from _queues_of(keys, [*(job_id for job_id, _ in due), *runs])
    due_here = [at_ms for job_id, at_ms in due if where[job_id] in open_names]
    running = Counter(where[job_id] for job_id in runs)
    in_hand = math.ceil(sum(running[name] for name in names) * max(1.0, all_leases / _SAMPLE))
    heads = [
        text(head[0]) for name, head in zip(names, of_queues[len(names) :], strict=True) if head and name in open_names
    ]
    since = yield from _since(keys, heads)
    ready = sum(sizes[name] for name in open_names)
    wanted = math.ceil((ready + len(due_here) + in_hand) / jobs_per_worker)
    oldest_ms = max((now - moment for moment in (*since, *due_here)), default=0.0)
    return Demand(
        names, ready, len(due_here), in_hand, round(max(0.0, oldest_ms) / 1000, 3), sorted(paused & set(names)),
        jobs_per_worker, wanted, now,
    )  # fmt: skip


def _queues_of(keys: Keys, job_ids: list[str]) -> Plan[dict[str, str]]:
    """The queue of each job, "" of one whose record is gone."""
    out: dict[str, str] = {}
    for at in range(0, len(job_ids), LOOKS):
        part = job_ids[at : at + LOOKS]
        view: View = yield look(keys, [("HGET", keys.job(job_id), "queue") for job_id in part])
        out.update((job_id, text(raw or b"")) for job_id, raw in zip(part, view.replies, strict=True))
    return out


def _since(keys: Keys, job_ids: list[str]) -> Plan[list[float]]:
    """Since when jobs stand in their queues, in ms."""
    view: View = yield look(keys, [("HMGET", keys.job(job_id), "updated_at", "created_at") for job_id in job_ids])
    found = [updated or created for updated, created in view.replies]
    return [float(moment) for moment in found if moment is not None]
