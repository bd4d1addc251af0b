"""The whole state of a namespace, to be compared before and after; and the check for keys left behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import redis

from fencepost.keys import Keys
from fencepost.states import LIVE


class Stored(NamedTuple):
    """One key: its type, its value in a form that compares and prints well, and whether it has a TTL."""

    type: str
    value: Any
    has_ttl: bool


def _text(raw: Any) -> Any:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _reading(kind: str) -> tuple[Any, ...]:
    """The command that reads a whole key of this type, without the key."""
    return {
        "string": ("GET",),
        "hash": ("HGETALL",),
        "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
        "list": ("LRANGE", 0, -1),
        "set": ("SMEMBERS",),
        "stream": ("XRANGE", "-", "+"),
    }.get(kind, ("TYPE",))


def _value(raw: Any, kind: str) -> Any:
    match kind:
        case "string":
            return None if raw is None else _text(raw)
        case "hash":
            return {_text(name): _text(value) for name, value in sorted(raw.items())}
        case "zset":
            return [(_text(member), float(score)) for member, score in raw]
        case "list":
            return [_text(item) for item in raw]
        case "set":
            return sorted(map(_text, raw), key=repr)
        case "stream":
            return [(_text(entry), {_text(k): _text(v) for k, v in fields.items()}) for entry, fields in raw]
    return f"(a {kind})"


def keys_of(client: redis.Redis, namespace: str) -> list[bytes]:
    """Return every key of the namespace's partitions, sorted."""
    return sorted(client.scan_iter(match=f"{{{namespace}:*", count=1000))


def dump(client: redis.Redis, namespace: str) -> dict[str, Stored]:
    """Return the whole state of a namespace, by key without its `{namespace:0}:` (other partitions keep theirs).

    TTLs enter as present or absent, so a state can be compared across a moved clock.
    """
    prefix = f"{{{namespace}:0}}:"
    names = keys_of(client, namespace)
    kinds, left, _ = _about(client, names)
    with client.pipeline(transaction=False) as pipe:
        for key, kind in zip(names, kinds, strict=True):
            command, *arguments = _reading(kind)
            pipe.execute_command(command, key, *arguments, **({"withscores": True} if kind == "zset" else {}))
        values = pipe.execute()
    return {
        key.decode(errors="backslashreplace").removeprefix(prefix): Stored(kind, _value(value, kind), ttl >= 0)
        for key, kind, ttl, value in zip(names, kinds, left, values, strict=True)
        if kind != "none"
    }


def digest(client: redis.Redis, keys: Iterable[str | bytes]) -> dict[str, str]:
    """Return the server's own digest of each key's value, by key: "0" * 40 for one that does not exist."""
    names = sorted({key.encode() if isinstance(key, str) else key for key in keys})
    if not names:
        return {}
    found: Any = client.execute_command("DEBUG", "DIGEST-VALUE", *names)
    return {
        name.decode(errors="backslashreplace"): one.decode() if isinstance(one, bytes) else str(one)
        for name, one in zip(names, found, strict=True)
    }


def leaks(client: redis.Redis, namespace: str) -> list[str]:
    """Return what is wrong with the keys a test left, one sentence a key.

    Every key must be in the namespace, be listed in `fencepost.keys.ALL` with its type, and have a TTL where the
    list says so: always, or once its job is in a final state.
    """
    problems = []
    names = sorted(client.scan_iter(count=1000))
    for raw, kind, left, state in zip(names, *_about(client, names), strict=True):
        key = raw.decode(errors="backslashreplace")
        if not raw.startswith(b"{%b" % namespace.encode()):
            problems.append(f"{key}: outside the test's namespace {namespace}")
            continue
        tag = key[1:].split("}")[0].rpartition(":")
        spec = Keys(tag[0], int(tag[2])).which(key) if tag[2].isdigit() else None
        if spec is None:
            problems.append(f"{key}: not listed in fencepost.keys")
        elif kind not in (spec.type, "none"):
            problems.append(f"{key}: a {kind}, listed as {spec.type}")
        elif left == -1 and (spec.ttl == "always" or (spec.ttl == "final" and state not in LIVE)):
            problems.append(f"{key}: has no TTL, listed with TTL {spec.ttl!r}")
    return problems


def _about(client: redis.Redis, names: list[bytes]) -> tuple[list[str], list[int], list[str]]:
    """Of each key its type, its TTL in ms, and of a hash the field `state`, else ""."""
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.type(name)
        kinds = [_text(kind) for kind in pipe.execute()]
        for name in names:
            pipe.pttl(name)
        left = pipe.execute()
        for name, kind in zip(names, kinds, strict=True):
            pipe.execute_command(*(("HGET", name, "state") if kind == "hash" else ("ECHO", "")))
        states = [_text(state or b"") for state in pipe.execute()]
    return kinds, left, states
