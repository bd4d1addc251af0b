"""Who holds what: resources with their holders and waiters, and how much each worker has in hand.

Found by way of the leases, whose number is bounded by what all workers together can run; never by a walk over all keys.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fencepost.job import JobRecord
from fencepost.keys import Keys
from fencepost.operate.jobs import Page, check_limit, records
from fencepost.operate.plan import LOOKS, Place, Plan, View, after, cursor_of, look, place_of, text

__all__ = ["Holder", "Lock", "Waiter", "locks", "resources", "running"]

_MOST_LEASES: Final = 20_000
_WAITERS: Final = 10
_FIELDS: Final = ("state", "kind", "nonce", "token", "worker", "opts")


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who has a place. role: "run" | "reserved" (the job is queued and comes first) | "lease" (stand-alone) |
    "unknown" (its record is gone; the place ends with its deadline). ttl_left_ms: negative once it has run out."""

    role: str
    member: str
    ttl_left_ms: int
    job_id: str = ""
    kind: str = ""
    token: str = ""
    owner: str = ""


class Waiter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who stands in line. job_id: or "@nonce" of a stand-alone lease."""

    job_id: str
    kind: str = ""
    owner: str = ""


class Lock(msgspec.Struct, frozen=True):
    """A resource that is held. limit: places, as far as a holder tells. waiting: how many stand in line; waiters: the
    first of them, in the order in which they are served."""

    resource: str
    limit: int
    holders: list[Holder]
    waiting: int
    waiters: list[Waiter]


class _Held(msgspec.Struct):
    """What the leases say. places: resource -> slot member -> holder, with the deadline still to come."""

    places: dict[str, dict[str, Holder]]
    limits: dict[str, int]
    running: dict[str, int]
    whole: bool = True


def running(keys: Keys) -> Plan[dict[str, int]]:
    """How many runs each worker has in hand, by worker id."""
    return (yield from _held(keys)).running


def resources(keys: Keys) -> Plan[list[str]]:
    """The resources that somebody holds or has reserved, sorted."""
    return sorted((yield from _held(keys)).places)


def _held(keys: Keys) -> Plan[_Held]:
    held = _Held({}, {}, {})
    place: Place | None = None
    seen = 0
    more = True
    while more:
        found, more = yield from after(keys, keys.leases, place, LOOKS)
        if not found:
            break
        place, seen = found[-1], seen + len(found)
        ids = [one.member.removeprefix("=") for one in found if one.member[0] != "@"]
        read = yield from records(keys, ids, _FIELDS)
        for one in found:
            if one.member[0] != "@":
                _note_job(held, one.member, read.get(one.member.removeprefix("=")))
        yield from _note_leases(keys, held, [one.member for one in found if one.member[0] == "@"])
        if seen >= _MOST_LEASES:
            held.whole = False
            break
    return held


def _note_job(held: _Held, member: str, record: JobRecord | None) -> None:
    if record is None:
        return
    reserved = member[0] == "="
    if record.state == "processing" and not reserved:
        worker = record.worker or ""
        held.running[worker] = held.running.get(worker, 0) + 1
    if not record.resource:
        return
    slot = member if reserved else record.nonce or ""
    role, token = ("reserved", "") if reserved else ("run", str(record.token))
    owner = "" if reserved else record.worker or ""
    holder = Holder(role, slot, 0, record.id, record.kind, token, owner)
    held.places.setdefault(record.resource, {})[slot] = holder
    held.limits[record.resource] = max(record.limit, held.limits.get(record.resource, 1))


def _note_leases(keys: Keys, held: _Held, members: list[str]) -> Plan[None]:
    if not members:
        return
    names = ("resource", "token", "owner")
    view: View = yield look(keys, [("HMGET", keys.lease(member[1:]), *names) for member in members])
    for member, (resource, token, owner) in zip(members, view.replies, strict=True):
        if resource is not None:
            holder = Holder("lease", member, 0, "", "", text(token or b""), text(owner or b""))
            held.places.setdefault(text(resource), {})[member] = holder


def locks(keys: Keys, resource: str | None, limit: int, cursor: str | None) -> Plan[Page[Lock]]:
    """Read a page of the held resources, by name; or the one resource that is named, held or not."""
    check_limit(limit)
    held = yield from _held(keys)
    opened = place_of(cursor, (str,))
    names = [resource] if resource else sorted(name for name in held.places if not opened or name > opened[0])
    items = []
    for at in range(0, min(limit, len(names)), LOOKS // 4):
        items += yield from _described(keys, held, names[at : min(limit, at + LOOKS // 4)])
    if resource and not (items[0].holders or items[0].waiting):
        items = []
    return Page(items, cursor_of(names[limit - 1]) if len(names) > limit else None)


def _described(keys: Keys, held: _Held, names: list[str]) -> Plan[list[Lock]]:
    commands: list[tuple[Any, ...]] = []
    for name in names:
        slots, line = keys.slots(name), keys.line(name)
        commands += [("ZRANGE", slots, 0, 99, "WITHSCORES"), ("ZCARD", line), ("ZRANGE", line, 0, _WAITERS - 1)]
    view: View = yield look(keys, commands)
    found: list[Lock] = []
    for at, name in enumerate(names):
        flat, waiting, waiters = view.replies[3 * at : 3 * at + 3]
        known = held.places.get(name, {})
        holders = []
        for i in range(0, len(flat), 2):
            member, left = text(flat[i]), round(float(flat[i + 1])) - view.now_ms
            role = {"=": "reserved", "@": "lease"}.get(member[0], "unknown")
            holder = known.get(member, Holder(role, member, 0, member[1:] if role == "reserved" else ""))
            holders.append(msgspec.structs.replace(holder, ttl_left_ms=left))
        lines = yield from _waiters(keys, [text(raw) for raw in waiters])
        found.append(Lock(name, held.limits.get(name, 1), holders, waiting, lines))
    return found


def _waiters(keys: Keys, members: list[str]) -> Plan[list[Waiter]]:
    if not members:
        return []
    commands = [
        ("HGET", keys.lease(one[1:]), "owner") if one[0] == "@" else ("HGET", keys.job(one), "kind") for one in members
    ]
    view: View = yield look(keys, commands)
    return [
        Waiter(one, owner=text(reply or b"")) if one[0] == "@" else Waiter(one, kind=text(reply or b""))
        for one, reply in zip(members, view.replies, strict=True)
    ]
