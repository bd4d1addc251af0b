"""`pause`, `resume`, `revoke`."""

from __future__ import annotations

import click
import msgspec

from fencepost.cli import output
from fencepost.cli.session import Session, connected
from fencepost.operate import QueueChange

__all__ = ["pause", "resume", "revoke"]

_because = click.option("--reason", required=True, metavar="TEXT", help="Why; kept with the event and in the ledger.")


@click.command
@click.argument("queue")
@_because
@connected
def pause(session: Session, queue: str, reason: str) -> int:
    """Hand out nothing more from a queue. What runs goes on; what is enqueued is kept."""
    return _show(session, session.run(session.operator.pause(queue, reason=reason)))


@click.command
@click.argument("queue")
@_because
@connected
def resume(session: Session, queue: str, reason: str) -> int:
    """Let a paused queue go on."""
    return _show(session, session.run(session.operator.resume(queue, reason=reason)))


def _show(session: Session, change: QueueChange) -> int:
    if session.as_json:
        output.show_json(msgspec.to_builtins(change))
        return 0
    since = f" since {output.clock(change.paused_at)}" if change.word == "paused" else ""
    was = " (it was not paused)" if change.word == "running" else ""
    output.say(f"{change.queue} {change.word}{since}{was}")
    return 0


@click.command
@click.argument("holder", metavar="ID|@NONCE")
@click.option(
    "--token", required=True, metavar="TOKEN", help="As `job` or `locks` shows it; only that holder is meant."
)
@_because
@connected
def revoke(session: Session, holder: str, token: str, reason: str) -> int:
    """Take a run (by its job's id) or a stand-alone lease (@ and its nonce) from its holder at once.

    What the holder still writes is refused. The job comes back to its queue with no attempt charged; the place of a
    lease goes to the next in line.
    """
    what = session.run(session.operator.revoke(holder, token, reason=reason))
    if session.as_json:
        output.show_json({"id": holder, "token": token, "word": "revoked", "detail": what})
    else:
        output.say(f"{holder} revoked ({what})")
    return 0
