"""The scenarios of the scripts that operators and stand-alone leases call; see scenarios.py."""

from __future__ import annotations

from typing import Any

from fencepost.driver import Call
from tests.scripts.scenarios_of_answers import SCENARIOS, scenario
from tests.support.partition import Partition

__all__ = ["SCENARIOS"]


def cancelling(state: str) -> None:
    @scenario("cancel", "CANCELLED", state)
    def _(p: Partition) -> Call[Any]:
        run = p.put(state, resource="thing", dedup="a", priority=2)
        return p.store.cancel(run.job_id, "ask", reason="no need")


for waiting in ("queued", "scheduled", "waiting"):
    cancelling(waiting)


@scenario("cancel", "CANCELLED", "hard, of a run that others wait behind")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing", dedup="a")
    p.job(resource="thing")
    p.claim()
    return p.store.cancel(run.job_id, "ask", hard=True)


@scenario("cancel", "ASKED")
def _(p: Partition) -> Call[Any]:
    return p.store.cancel(p.put("processing", resource="thing").job_id, "ask")


@scenario("cancel", "ILLEGAL")
def _(p: Partition) -> Call[Any]:
    return p.store.cancel(p.put("done").job_id, "ask")


@scenario("cancel", "GONE")
def _(p: Partition) -> Call[Any]:
    return p.store.cancel("nobody", "ask")


@scenario("cancel", "CANCELLED", "hard, of the run that the caller saw")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing")
    return p.store.cancel(run.job_id, "ask", hard=True, actor="bot", token=run.token)


@scenario("cancel", "STALE")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing")
    return p.store.cancel(run.job_id, "ask", hard=True, token=str(int(run.token) - 1))


@scenario("requeue", "REQUEUED")
def _(p: Partition) -> Call[Any]:
    failed, cancelled = p.put("failed", dedup="a"), p.put("cancelled", resource="thing")
    return p.store.requeue([failed.job_id, cancelled.job_id, failed.job_id], "ask")


@scenario("requeue", "ILLEGAL")
def _(p: Partition) -> Call[Any]:
    return p.store.requeue([p.put("processing").job_id], "ask")


@scenario("requeue", "DUPLICATE")
def _(p: Partition) -> Call[Any]:
    failed = p.put("failed", dedup="a")
    p.job(dedup="a")
    return p.store.requeue([failed.job_id], "ask")


@scenario("requeue", "GONE", "an id whose record is over stands in the list of the dead")
def _(p: Partition) -> Call[Any]:
    p.redis.zadd(p.keys.dead, {"over": 5})
    return p.store.requeue(["over"], "ask")


@scenario("purge", "PURGED", again="GONE")
def _(p: Partition) -> Call[Any]:
    return p.store.purge([p.put("failed", dedup="a").job_id], "tidy")


@scenario("purge", "ILLEGAL")
def _(p: Partition) -> Call[Any]:
    return p.store.purge([p.put("queued").job_id], "tidy")


@scenario("purge", "GONE")
def _(p: Partition) -> Call[Any]:
    return p.store.purge(["nobody"], "tidy")


def healing(state: str, index: str, key: str) -> None:
    @scenario("heal", "HEALED", f"{state}, but not in {index}", again="SOUND")
    def _(p: Partition) -> Call[Any]:
        run = p.put(state, resource="thing")
        p.redis.zrem(p.keys.prefix + key.format(queue=p.record(run.job_id).queue), run.job_id)
        return p.store.heal([run.job_id])


for row in (
    ("processing", "leases", "leases"), ("queued", "its queue", "ready:{queue}"), ("scheduled", "later", "later"),
    ("waiting", "its line", "line:thing"),
):  # fmt: skip
    healing(*row)


@scenario("heal", "HEALED", "waiting for what nobody holds", again="SOUND")
def _(p: Partition) -> Call[Any]:
    run = p.put("waiting", resource="thing")
    p.redis.delete(p.keys.slots("thing"))
    return p.store.heal([run.job_id])


@scenario("heal", "SOUND")
def _(p: Partition) -> Call[Any]:
    return p.store.heal([p.put(state).job_id for state in ("queued", "scheduled", "waiting", "processing", "done")])


@scenario("heal", "BROKEN")
def _(p: Partition) -> Call[Any]:
    p.redis.hset(p.keys.job("torn"), "state", "waiting")
    return p.store.heal(["torn"])


@scenario("heal", "GONE")
def _(p: Partition) -> Call[Any]:
    return p.store.heal(["nobody"])


# -- pause and revoke ---------------------------------------------------------------------------------------


@scenario("pause", "PAUSED")
def _(p: Partition) -> Call[Any]:
    p.pause("other")
    return p.store.pause("pause", "default", "the provider is down", "bot")


@scenario("pause", "RESUMED", again="RUNNING")
def _(p: Partition) -> Call[Any]:
    p.job()
    p.pause("default")
    p.pause("other")
    return p.store.pause("resume", "default", "it is back", "bot")


@scenario("pause", "RUNNING")
def _(p: Partition) -> Call[Any]:
    p.pause("other")
    return p.store.pause("resume", "default", "it is back", "bot")


@scenario("pause", "FULL")
def _(p: Partition) -> Call[Any]:
    for number in range(200):
        p.pause(f"q{number}")
    return p.store.pause("pause", "default", "one too many", "bot")


@scenario("revoke", "REVOKED", "of a run that others wait behind")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing", dedup="a")
    p.job(resource="thing")
    p.claim()
    return p.store.revoke(run.job_id, run.token, "ask", "it hangs", "bot")


@scenario("revoke", "REVOKED", "of a run that was asked to stop")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing", dedup="a")
    p.job(resource="thing")
    p.claim()
    p.cancel(run.job_id)
    return p.store.revoke(run.job_id, run.token, "ask", "it hangs", "bot")


@scenario("revoke", "REVOKED", "of a stand-alone lease, to the first in line")
def _(p: Partition) -> Call[Any]:
    _, token, _ = p.acquire("thing", "me")
    p.acquire("thing", "next", wait_ms=60_000)
    return p.store.revoke("@me", token, "ask", "it hangs", "bot")


@scenario("revoke", "STALE")
def _(p: Partition) -> Call[Any]:
    run = p.put("processing", resource="thing")
    return p.store.revoke(run.job_id, str(int(run.token) - 1), "ask", "it hangs", "bot")


@scenario("revoke", "STALE", "of a stand-alone lease")
def _(p: Partition) -> Call[Any]:
    _, token, _ = p.acquire("thing", "me")
    return p.store.revoke("@me", str(int(token) - 1), "ask", "it hangs", "bot")


@scenario("revoke", "ILLEGAL")
def _(p: Partition) -> Call[Any]:
    run = p.put("queued", resource="thing")
    return p.store.revoke(run.job_id, run.token, "ask", "it hangs", "bot")


@scenario("revoke", "ILLEGAL", "of a waiter")
def _(p: Partition) -> Call[Any]:
    p.acquire("thing", "holder")
    p.acquire("thing", "me", wait_ms=60_000)
    return p.store.revoke("@me", "5", "ask", "it hangs", "bot")


@scenario("revoke", "GONE")
def _(p: Partition) -> Call[Any]:
    return p.store.revoke("nobody", "5", "ask", "it hangs", "bot")


@scenario("revoke", "GONE", "of a lease that was given back")
def _(p: Partition) -> Call[Any]:
    return p.store.revoke("@nobody", "5", "ask", "it hangs", "bot")


# -- credentials of the HTTP service ------------------------------------------------------------------------


@scenario("credential", "MADE")
def _(p: Partition) -> Call[Any]:
    return p.store.credential("make", "abc", '{"name":"ann"}', "ann: read", "bot")


@scenario("credential", "TAKEN")
def _(p: Partition) -> Call[Any]:
    p.credential("make", "abc")
    return p.store.credential("make", "abc", '{"name":"another"}', "ann: read", "bot")


@scenario("credential", "FULL")
def _(p: Partition) -> Call[Any]:
    p.redis.hset(p.keys.credentials, mapping={f"c{number}": "{}" for number in range(1_000)})
    return p.store.credential("make", "abc", "{}", "one too many", "bot")


@scenario("credential", "REVOKED", again="GONE")
def _(p: Partition) -> Call[Any]:
    p.credential("make", "abc")
    p.credential("make", "other")
    return p.store.credential("revoke", "abc", "", "she left", "bot")


@scenario("credential", "GONE")
def _(p: Partition) -> Call[Any]:
    p.credential("make", "other")
    return p.store.credential("revoke", "abc", "", "she left", "bot")


# -- stand-alone leases -----------------------------------------------------------------------------------


@scenario("acquire", "HELD")
def _(p: Partition) -> Call[Any]:
    return p.store.acquire("thing", "me", "somebody", 30_000)


@scenario("acquire", "WAIT")
def _(p: Partition) -> Call[Any]:
    p.acquire("thing", "holder")
    return p.store.acquire("thing", "me", "somebody", 30_000, 1, 60_000)


@scenario("acquire", "BUSY")
def _(p: Partition) -> Call[Any]:
    p.put("processing", resource="thing")
    return p.store.acquire("thing", "me", "somebody", 30_000)


@scenario("acquire", "LEFT")
def _(p: Partition) -> Call[Any]:
    p.acquire("thing", "holder")
    p.acquire("thing", "me", wait_ms=60_000)
    return p.store.acquire("thing", "me", "somebody", 30_000, 1, -1)


@scenario("release", "OK", again="GONE")
def _(p: Partition) -> Call[Any]:
    _, token, _ = p.acquire("thing", "me")
    p.acquire("thing", "next", wait_ms=60_000)
    return p.store.release("me", token, "somebody")


@scenario("release", "OK", "to a job that waits", again="GONE")
def _(p: Partition) -> Call[Any]:
    _, token, _ = p.acquire("thing", "me")
    p.job(resource="thing")
    p.claim()
    return p.store.release("me", token, "somebody")


@scenario("release", "GONE")
def _(p: Partition) -> Call[Any]:
    return p.store.release("nobody", "5", "somebody")


@scenario("release", "STALE", recounted=True)
def _(p: Partition) -> Call[Any]:
    p.acquire("thing", "me")
    return p.store.release("me", "5", "somebody")
