"""`locks`, `workers`, `stats`."""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec

from fencepost.cli import output
from fencepost.cli.jobs import paged
from fencepost.cli.session import Session, connected
from fencepost.operate import Holder, Lock, Paused

__all__ = ["locks", "stats", "workers"]


@click.command
@click.argument("resource", required=False)
@paged
@connected
def locks(session: Session, resource: str | None, limit: int, cursor: str | None) -> int:
    """Show the resources that are held, by whom, for how long yet, and who waits in which order."""
    page = session.run(session.operator.locks(resource, limit=limit, cursor=cursor))
    if session.as_json:
        output.show_json({"items": msgspec.to_builtins(page.items), "cursor": page.cursor})
        return 0
    rows = [row for lock in page.items for row in _rows(lock)]
    output.table(("resource", "held", "by", "ends in", "token", "waiting"), rows, "nothing is held")
    if page.cursor:
        output.say(f"more: --cursor {page.cursor}")
    return 0


def _rows(lock: Lock) -> Iterator[tuple[str, str, str, str, str, str]]:
    """A line for each holder; the waiters stand in the first."""
    first = ", ".join(one.job_id for one in lock.waiters[:3])
    waiting = f"{lock.waiting}: {first}{', …' if lock.waiting > 3 else ''}" if lock.waiting else ""
    held = f"{len(lock.holders)}/{lock.limit}"
    if not lock.holders:
        yield lock.resource, held, "nobody", "", "", waiting
    for at, holder in enumerate(lock.holders):
        ends = output.length(holder.ttl_left_ms)
        yield lock.resource, held, _holder(holder), ends, holder.token, "" if at else waiting


def _holder(holder: Holder) -> str:
    who = f"{holder.kind} {holder.job_id}".strip() or holder.member
    return f"{who} ({holder.role}{f' on {holder.owner}' if holder.owner else ''})"


@click.command
@connected
def workers(session: Session) -> int:
    """List the workers of the last hour."""
    found = session.run(session.operator.workers())
    if session.as_json:
        output.show_json({"items": msgspec.to_builtins(found), "cursor": None})
        return 0
    rows = [
        (one.id, "alive" if one.alive else "silent", output.length(one.seen_ms_ago), one.running, ",".join(one.queues))
        for one in found
    ]
    output.table(("worker", "state", "seen ago", "running", "queues"), rows, "no worker was seen in the last hour")
    return 0


def _paused(paused: Paused | None, now_ms: int) -> str:
    if paused is None:
        return ""
    return f"{output.distance(paused.paused_at - now_ms)} by {paused.by or 'somebody'}: {paused.reason}"


@click.command
@connected
def stats(session: Session) -> int:
    """Show queues, sizes and counters."""
    seen = session.run(session.operator.overview())
    if session.as_json:
        output.show_json(msgspec.to_builtins(seen))
        return 0
    rows = [
        (one.name, one.ready, output.length(one.head_waits_ms), one.workers, _paused(one.paused, seen.now_ms))
        for one in seen.queues
    ]
    output.table(("queue", "ready", "head waits", "workers", "paused"), rows, "no queues")
    if not seen.whole:
        output.say("there may be more queues: the scan ended early")
    output.say("")
    grace = output.length(seen.grace_left_ms) if seen.grace_left_ms else ""
    pairs = [("scheduled", seen.scheduled), ("in hand", seen.in_hand), ("dead letters", seen.failed)]
    output.fields([*pairs, ("ended lately", seen.ended), ("events kept", seen.events), ("grace left", grace)])
    output.say("")
    counted = [(name, kind, n) for name, kinds in seen.counters.items() for kind, n in kinds.items()]
    output.table(("event", "kind", "count"), counted, "nothing was counted yet")
    return 0
