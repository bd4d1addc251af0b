"""The scenarios of the script behind idempotent endpoints; see scenarios.py."""

from __future__ import annotations

from typing import Any

from fencepost.driver import Call
from fencepost.store import RunKey
from tests.scripts.scenarios_of_effects import SCENARIOS, scenario
from tests.support.partition import Partition

__all__ = ["SCENARIOS", "asked", "scenario"]


def asked(p: Partition, nonce: str = "me", key: str = "c:1") -> str:
    """A request whose key is bound and whose lease is held; returns the token of the lease."""
    p.begin_answer(key)
    word, token, _ = p.acquire(f"answer:{key}", nonce)
    assert word == "HELD"
    return str(token)


@scenario("answer", "NEW", again="SAME")
def _(p: Partition) -> Call[Any]:
    return p.store.begin_answer("c:1", "f", 60_000)


@scenario("answer", "SAME", "while it runs")
def _(p: Partition) -> Call[Any]:
    asked(p)
    return p.store.begin_answer("c:1", "f", 60_000)


@scenario("answer", "CONFLICT", "while the first one runs")
def _(p: Partition) -> Call[Any]:
    asked(p)
    return p.store.begin_answer("c:1", "another", 60_000)


@scenario("answer", "CONFLICT", "with the answer of a key that another request has by now")
def _(p: Partition) -> Call[Any]:
    token = asked(p)
    p.redis.delete(p.keys.answer("c:1"))
    p.begin_answer("c:1", "another")
    return p.keeping("c:1", "me", token)


@scenario("answer", "DONE")
def _(p: Partition) -> Call[Any]:
    token = asked(p)
    p.run(p.keeping("c:1", "me", token))
    return p.store.begin_answer("c:1", "f", 60_000)


@scenario("answer", "STORED")
def _(p: Partition) -> Call[Any]:
    return p.keeping("c:1", "me", asked(p))


@scenario("answer", "STORED", "of a key that was forgotten meanwhile")
def _(p: Partition) -> Call[Any]:
    token = asked(p)
    p.redis.delete(p.keys.answer("c:1"))
    return p.keeping("c:1", "me", token)


@scenario("answer", "STORED", "once more, when the lease is over")
def _(p: Partition) -> Call[Any]:
    token = asked(p)
    p.run(p.keeping("c:1", "me", token))
    p.release("me", token)
    return p.keeping("c:1", "me", token)


@scenario("answer", "STORED", "with the token from before a bump")
def _(p: Partition) -> Call[Any]:
    token = asked(p)
    p.bump(RunKey("@me", token, "me"), int(token) + 1_000_000_000)
    return p.keeping("c:1", "me", token)


@scenario("answer", "STALE", "of another token", recounted=True)
def _(p: Partition) -> Call[Any]:
    return p.keeping("c:1", "me", str(int(asked(p)) - 1))


@scenario("answer", "STALE", "of a lease that was revoked", recounted=True)
def _(p: Partition) -> Call[Any]:
    token = asked(p)
    p.revoke("@me", token)
    return p.keeping("c:1", "me", token)


@scenario("answer", "STALE", "where there is an answer", recounted=True)
def _(p: Partition) -> Call[Any]:
    p.run(p.keeping("c:1", "first", asked(p, "first")))
    p.release("first", p.redis.hget(p.keys.answer("c:1"), "token").decode())
    return p.keeping("c:1", "me", asked(p))


@scenario("answer", "EXPIRED", recounted=True)
def _(p: Partition) -> Call[Any]:
    token = asked(p)
    for key in (p.keys.leases, p.keys.slots("answer:c:1")):
        p.redis.zadd(key, {"@me": 1}, xx=True)
    return p.keeping("c:1", "me", token)


@scenario("answer", "GONE", recounted=True)
def _(p: Partition) -> Call[Any]:
    token = asked(p)
    p.release("me", token)
    return p.keeping("c:1", "me", token)
