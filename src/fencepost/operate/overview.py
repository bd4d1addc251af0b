"""The whole at a glance: workers, queues, counters, and what the partition says of itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from fencepost.keys import Keys
from fencepost.operate.acts import Paused, pauses
from fencepost.operate.held import running
from fencepost.operate.plan import Plan, View, look, text

__all__ = ["Overview", "QueueView", "WorkerView", "counters", "now_ms", "overview", "queue_names", "scan", "workers"]

SILENT_MS: Final = 10_000
"""A worker that was not seen for as long is taken for gone; it shows itself once a second."""
_MOST_WORKERS: Final = 1_000
_SCAN: Final = 1_000


class WorkerView(msgspec.Struct, frozen=True):
    """One worker. seen_ms_ago: since it last showed itself. running: runs under its name."""

    id: str
    alive: bool
    seen_ms_ago: int
    running: int
    host: str = ""
    pid: int = 0
    queues: list[str] = []


class QueueView(msgspec.Struct, frozen=True):
    """One queue. ready: jobs that could start now. head_waits_ms: how long the next to be served has been there.
    paused: why it hands out nothing, and since when; None while it does."""

    name: str
    ready: int
    head_waits_ms: int | None = None
    workers: int = 0
    paused: Paused | None = None


class Overview(msgspec.Struct, frozen=True):
    """The partition now. in_hand: leases: runs, reserved places and stand-alone leases. whole: whether all queues were
    looked for; else only those that a worker serves or a short scan found. grace_left_ms: nothing is reclaimed yet."""

    now_ms: int
    queues: list[QueueView]
    whole: bool
    scheduled: int
    in_hand: int
    failed: int
    ended: int
    events: int
    grace_left_ms: int
    counters: dict[str, dict[str, int]]
    meta: dict[str, str]


def scan(keys: Keys, pattern: str, kind: str, cursor: int = 0, count: int = _SCAN) -> Plan[tuple[int, list[str]]]:
    """One bounded step of a walk over all keys: the next cursor (0 at the end) and what is behind the pattern's fixed
    part. pattern: such as "ready:*". kind: the type of the keys."""
    match = keys.prefix + pattern
    view: View = yield look(keys, [("SCAN", cursor, "MATCH", match, "COUNT", count, "TYPE", kind)])
    following, found = view.replies[0]
    fixed = len(match.rstrip("*").encode())
    return int(following), [text(key[fixed:]) for key in found]


def queue_names(keys: Keys, served: Iterable[str], steps: int) -> Plan[tuple[list[str], bool]]:
    """The queues there are: those named, those that a worker serves, those a scan of `steps` steps finds."""
    names, cursor = set(served), 0
    for one in (yield from _seen(keys)):
        names.update(one.queues)
    for _ in range(steps):
        cursor, found = yield from scan(keys, "ready:*", "zset", cursor)
        names.update(found)
        if cursor == 0:
            return sorted(names), True
    return sorted(names), False


def _seen(keys: Keys) -> Plan[list[WorkerView]]:
    view: View = yield look(keys, [("ZREVRANGE", keys.workers, 0, _MOST_WORKERS - 1, "WITHSCORES")])
    flat, now_ms = view.replies[0], view.now_ms
    seen = [(text(flat[i]), int(float(flat[i + 1]))) for i in range(0, len(flat), 2)]
    out: list[WorkerView] = []
    for at in range(0, len(seen), 500):
        part = seen[at : at + 500]
        view = yield look(keys, [("HGET", keys.worker(worker), "about") for worker, _ in part])
        for (worker, last_ms), about in zip(part, view.replies, strict=True):
            said = _about(about)
            ago = max(0, now_ms - last_ms)
            out.append(
                WorkerView(worker, ago < SILENT_MS, ago, 0, said["host"], said["pid"], said["queues"])
            )  # fmt: skip
    return out


def _about(raw: Any) -> dict[str, Any]:
    said = {"host": "", "pid": 0, "queues": []}
    try:
        found = msgspec.json.decode(raw or b"{}")
    except msgspec.DecodeError:
        return said
    if isinstance(found, dict):
        said.update({name: found[name] for name, plain in said.items() if isinstance(found.get(name), type(plain))})
    return said


def now_ms(keys: Keys) -> Plan[int]:
    """The server's time."""
    view: View = yield look(keys, [])
    return view.now_ms


def workers(keys: Keys) -> Plan[list[WorkerView]]:
    """The workers of the last hour, the one seen last first."""
    seen = yield from _seen(keys)
    if not seen:
        return seen
    runs = yield from running(keys)
    return [msgspec.structs.replace(one, running=runs.get(one.id, 0)) for one in seen]


def counters(flat: list[Any]) -> dict[str, dict[str, int]]:
    """Open the counters: name -> kind (or verb) -> number, sorted."""
    out: dict[str, dict[str, int]] = {}
    for i in range(0, len(flat), 2):
        name, _, kind = text(flat[i]).partition(":")
        out.setdefault(name, {})[kind] = int(flat[i + 1])
    return {name: dict(sorted(out[name].items())) for name in sorted(out)}


def overview(keys: Keys, served: Iterable[str], steps: int) -> Plan[Overview]:
    """Read sizes, counters and the partition's own record. served, steps: see queue_names."""
    names, whole = yield from queue_names(keys, served, steps)
    k = keys
    view: View = yield look(
        keys,
        [
            ("ZCARD", k.later), ("ZCARD", k.leases), ("ZCARD", k.dead), ("LLEN", k.recent), ("XLEN", k.events),
            ("HGETALL", k.stats), ("HGETALL", k.meta),
        ],
    )  # fmt: skip
    scheduled, in_hand, failed, ended, events, stats, flat = view.replies
    meta = {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}
    serving: dict[str, int] = {}
    for one in (yield from _seen(keys)):
        for queue in one.queues if one.alive else ():
            serving[queue] = serving.get(queue, 0) + 1
    paused = pauses(meta.pop("pauses", ""))
    queues = yield from _queues(keys, sorted({*names, *paused}), serving, paused)
    grace = max(0, int(float(meta.get("grace_until", 0))) - view.now_ms)
    return Overview(
        view.now_ms, queues, whole, scheduled, in_hand, failed, ended, events, grace, counters(stats), meta
    )  # fmt: skip


def _queues(keys: Keys, names: list[str], serving: dict[str, int], paused: dict[str, Paused]) -> Plan[list[QueueView]]:
    out: list[QueueView] = []
    for at in range(0, len(names), 200):
        part = names[at : at + 200]
        ready = [keys.ready(name) for name in part]
        view: View = yield look(keys, [("ZCARD", key) for key in ready] + [("ZRANGE", key, "0", "0") for key in ready])
        now, sizes = view.now_ms, view.replies[: len(part)]
        heads = [text(head[0]) if head else "" for head in view.replies[len(part) :]]
        view = yield look(keys, [("HMGET", keys.job(head), "created_at", "updated_at") for head in heads])
        for name, size, since in zip(part, sizes, view.replies, strict=True):
            moment = since[1] or since[0]
            waits = None if moment is None else max(0, now - int(float(moment)))
            out.append(QueueView(name, size, waits, serving.get(name, 0), paused.get(name)))
    return out
