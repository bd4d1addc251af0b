"""Is this a server that can keep what is promised? Eviction, version, role, disk, memory, clock, scripts."""

from __future__ import annotations

import re
from typing import Any, Final

from redis.exceptions import ResponseError

from fencepost.clock import wall_ms
from fencepost.doctor.finding import Finding, bad, doubtful, fine
from fencepost.errors import ScriptError
from fencepost.keys import Keys
from fencepost.operate.heal import heal
from fencepost.operate.plan import Plan, View, look, text
from fencepost.store import Store

__all__ = ["PARTITIONS", "clock", "halves", "partitions", "scripts", "server"]

PARTITIONS: Final = 1
_OLDEST: Final = (7, 0)
_SKEW_WARNING_MS: Final = 2_000
_SKEW_ERROR_MS: Final = 86_400_000
_FULL: Final = 0.9
_SCAN_STEPS: Final = 20


def server(store: Store) -> Plan[list[Finding]]:
    """What INFO tells; CONFIG, which is often forbidden, only where INFO is silent."""
    info: dict[str, str]
    try:
        info = yield store.read(["INFO"], _opened)
    except ResponseError as error:
        info = {}
        unread = doubtful(
            "info",
            f"the server does not let this user read INFO ({error}), so version, role and disk were not looked at",
            "allow INFO to this user (+info), or be sure of them yourself",
        )
    config = yield from _config(store)
    found = [] if info else [unread]
    found += [*_eviction(info, config), *_version(info), *_role(info), *_disk(info, config), *_memory(info)]
    return found


def _opened(reply: Any) -> dict[str, str]:
    lines = (line.partition(":") for line in text(reply).splitlines() if ":" in line and line[0] != "#")
    return {name: value for name, _, value in lines}


def _config(store: Store) -> Plan[dict[str, str]]:
    out: dict[str, str] = {}
    for name in ("maxmemory-policy", "save", "appendfsync"):
        try:
            reply = yield store.read(["CONFIG", "GET", name], lambda reply: [text(one) for one in reply])
        except ResponseError:
            break  # forbidden, or the command was taken away: INFO has to do
        out.update(zip(reply[::2], reply[1::2], strict=True))
    return out


def _eviction(info: dict[str, str], config: dict[str, str]) -> list[Finding]:
    policy = info.get("maxmemory_policy") or config.get("maxmemory-policy")
    if policy == "noeviction":
        return [fine("eviction", "maxmemory-policy is noeviction: no key is dropped behind our back")]
    if policy is None:
        return [
            doubtful(
                "eviction",
                "the server does not tell its maxmemory-policy; any other than noeviction drops jobs silently",
                "allow INFO or CONFIG GET to this user, or be sure that it is noeviction",
            )
        ]
    return [
        bad(
            "eviction",
            f"maxmemory-policy is {policy}: when memory is full, the server would silently drop jobs, leases and "
            "dedup keys, and no promise would hold",
            "set maxmemory-policy noeviction in its configuration (a managed server has a parameter for it), or use a "
            "server of its own for Fencepost",
        )
    ]


def _version(info: dict[str, str]) -> list[Finding]:
    if not info:
        return []
    if info.get("server_name") == "valkey" or "valkey_version" in info:
        return [fine("version", f"Valkey {info.get('valkey_version', '?')}")]
    version = info.get("redis_version", "")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers >= _OLDEST:
        return [fine("version", f"Redis {version}")]
    return [
        bad(
            "version",
            f"this is Redis {version or 'of an unknown version'}; the scripts need 7.0 or newer",
            "use Redis 7.0 or newer, or Valkey",
        )
    ]


def _role(info: dict[str, str]) -> list[Finding]:
    found = []
    if info.get("role", "master") != "master":
        found.append(
            bad(
                "role",
                f"this server is a replica (of {info.get('master_host', '?')}:{info.get('master_port', '?')}): it "
                "refuses writes, and what it shows is late",
                "give the address of the primary",
            )
        )
    if info.get("cluster_enabled") == "1":
        found.append(
            bad(
                "cluster",
                "this server runs in cluster mode; this release drives a single server only and would not follow "
                "slots that move",
                "use a single Redis or Valkey (with replicas as you like), not a cluster",
            )
        )
    return found or ([fine("role", "a primary that stands alone")] if info else [])


def _disk(info: dict[str, str], config: dict[str, str]) -> list[Finding]:
    if not info:
        return []
    found = []
    if info.get("rdb_last_bgsave_status", "ok") != "ok" or info.get("aof_last_write_status", "ok") != "ok":
        found.append(
            bad("disk", "the server failed to write to its disk and may refuse all writes", "free or mend its disk")
        )
    if info.get("aof_enabled") == "1":
        if config.get("appendfsync") == "no":
            found.append(
                doubtful(
                    "persistence",
                    "appendfsync is no: a power cut may lose half a minute of accepted jobs",
                    "set appendfsync everysec, or always",
                )
            )
        return found or [fine("persistence", "the append-only file is on: a crash loses a second at most")]
    saves = config.get("save")
    what = {
        None: "the append-only file is off: a crash loses all jobs accepted since the last snapshot, if any is taken",
        "": "nothing is written to disk: a restart of the server loses every job",
    }.get(saves, f"only snapshots are taken ({saves}): a crash loses all jobs accepted since the last one")
    return [*found, doubtful("persistence", what, "set appendonly yes and appendfsync everysec")]


def _memory(info: dict[str, str]) -> list[Finding]:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most or used < most * _FULL:
        return []
    return [
        doubtful(
            "memory",
            f"{used / most:.0%} of the server's memory is in use; when it is full new jobs are refused, and only what "
            "drains the queues goes on",
            "raise maxmemory, shorten retention, or purge dead letters",
        )
    ]


def standstill(store: Store) -> Plan[list[Finding]]:
    """Whether the partition's time stands still: the server's clock went back, and it waits for the clock."""
    view: View = yield look(store.keys, [("HGET", store.keys.meta, "last_us")])
    ahead_ms = int(view.replies[0] or 0) // 1000 - view.now_ms
    if ahead_ms <= _SKEW_WARNING_MS:
        return [fine("standstill", "the partition's time moves with the server's clock")]
    text = (
        f"the server's clock went back, or this is another server: the partition's time stands still for "
        f"{ahead_ms / 1000:.0f} s more; until then nothing delayed becomes due and no lease runs out"
    )
    return [doubtful("standstill", text, "set the server's clock right by NTP, or wait")]


def clock(keys: Keys) -> Plan[list[Finding]]:
    """The server's clock against this host's. All times of jobs are the server's."""
    before = wall_ms()
    view: View = yield look(keys, [])
    after = wall_ms()
    ahead = view.now_ms - (before + after) // 2
    skew = max(0, abs(ahead) - (after - before))
    if skew <= _SKEW_WARNING_MS:
        return [fine("clock", "the server's clock agrees with this host's")]
    told = f"the server's clock is {abs(ahead) / 1000:.1f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    hint = "set both by NTP"
    if skew > _SKEW_ERROR_MS:
        return [
            bad("clock", f"{told}: delays, retention and tokens would be off by as much when it is set right", hint)
        ]
    return [doubtful("clock", f"{told}; a job's run_at is judged by the server's", hint)]


def scripts(store: Store) -> Plan[list[Finding]]:
    """A ping proves nothing about scripts: run two that change nothing."""
    try:
        yield store.heal([], dry_run=True)
    except ScriptError as error:
        what, hint = f"the scripts do not run here: {error.problem}", "allow EVAL and EVALSHA on this namespace's keys"
        if "WRONGTYPE" in error.problem:
            hint = "a key of this namespace was written by something else; use another namespace"
        return [bad("scripts", what, hint)]
    return [fine("scripts", "the scripts run")]


def partitions(store: Store) -> Plan[list[Finding]]:
    """The number of partitions this namespace was set up with."""
    try:
        noted = yield store.read(["HGET", store.keys.meta, "partitions"], lambda reply: reply and text(reply))
    except ResponseError:
        return []  # the key has a wrong type; scripts() has said so
    if noted in (None, str(PARTITIONS)):
        return [fine("partitions", "one partition")]
    return [
        bad(
            "partitions",
            f"namespace {store.keys.namespace!r} was set up with {noted} partitions, this process would use "
            f"{PARTITIONS}: jobs of the others would never run",
            "use the release and the setting it was set up with, or another namespace",
        )
    ]


def halves(store: Store) -> Plan[list[Finding]]:
    """Live jobs that stand in no list, and entries without a job."""
    report = yield from heal(store, True, _SCAN_STEPS, 0)
    found = []
    for what, entries, hint in (
        (
            "live jobs stand in no list and will never run by themselves",
            report.stranded,
            "run `fencepost heal --apply`",
        ),
        ("entries of an index have no job", report.orphans, "the next sweep drops them; `fencepost heal` names them"),
        ("job records are torn", report.broken, "look at them with redis-cli and delete them by hand"),
    ):
        if entries:
            first = ", ".join(f"{one.id} ({one.what})" for one in entries[:3])
            found.append(doubtful("half-states", f"{len(entries)} {what}: {first}", hint))
    return found or [fine("half-states", f"none among the {report.scanned} job records looked at")]
