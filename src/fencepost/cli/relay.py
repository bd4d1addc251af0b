"""`relay`: publishes what the outbox in a user's own database holds."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from typing import Any

import click

from fencepost.cli import logs, output
from fencepost.cli.session import Session, connected
from fencepost.errors import ConfigurationError
from fencepost.outbox import Outbox
from fencepost.outbox.table import HELD
from fencepost.relay import Relay
from fencepost.sql.engines import existing

__all__ = ["relay"]


@click.command
@click.argument("outbox_url", metavar="[SQL_URL]", required=False, envvar="FENCEPOST_OUTBOX_URL")
@click.option("--once", is_flag=True, help="End when all that is there has been published.")
@click.option("--status", is_flag=True, help="Only show what is left.")
@click.option("--held", is_flag=True, help="Only list the jobs that wait for a person, and why.")
@click.option("--publish", "let_go", metavar="ID", multiple=True, help="Publish such a job all the same; repeatable.")
@click.option("--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True, help="Of logs.")
@connected
def relay(
    session: Session, outbox_url: str | None, once: bool, status: bool, held: bool, let_go: tuple[str, ...], **said: Any
) -> int:
    """Publish the jobs that were enqueued inside SQL transactions, until a signal comes. A worker does the same.

    SQL_URL: the database of the outbox, by default FENCEPOST_OUTBOX_URL or the application's.
    """
    if named := outbox_url or session.app.outbox_url:
        existing(named)
    box = Outbox(outbox_url, session.app.link, lambda: session.app.ledger) if outbox_url else session.app.outbox
    if box is None:
        raise ConfigurationError("outbox", "nobody says where it is", "Give SQL_URL, or an --app that has an outbox.")
    try:
        work = Relay(box)
        if status:
            return _show_status(session, work)
        if held:
            return _show_held(session, work)
        if let_go:
            return _publish(session, work, list(let_go))
        return _run(session, work, box, once, said["log_format"])
    finally:
        box.close()


def _run(session: Session, work: Relay, box: Outbox, once: bool, log_format: str) -> int:
    over = threading.Event()
    if once:
        logging.getLogger("fencepost").addHandler(logging.NullHandler())  # what is logged is told below
    else:
        logs.set_up(log_format, "info")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: over.set())
        work.waiting()  # refuses a database that has no outbox, before it says that it runs
        output.say(f"publishing from {box.table.where}")
        sys.stdout.flush()
    done = work.run(over, once=once)
    if session.as_json:
        output.show_json(done._asdict())
    else:
        output.say(f"{done.sent} published, {done.known} were there already, {done.held} held, {done.failed} failed")
        if done.away:
            output.say(f"away: {done.away}")
    return 4 if once and done.away else 5 if once and (done.held or done.failed) else 0


def _show_status(session: Session, work: Relay) -> int:
    left = work.waiting()
    if session.as_json:
        output.show_json(left._asdict())
    else:
        output.say(f"{left.rows} to publish, the oldest {output.length(left.oldest_ms)} old, {left.held} held")
    return 0


def _show_held(session: Session, work: Relay) -> int:
    rows = work.held()
    if session.as_json:
        output.show_json([row._asdict() for row in rows])
    else:
        shown = [(row.job_id, output.clock(row.created_at_ms), row.problem.removeprefix(HELD)) for row in rows]
        output.table(("job", "written", "why"), shown)
    return 0


def _publish(session: Session, work: Relay, job_ids: list[str]) -> int:
    found = work.let_go(job_ids)
    done = work.run(threading.Event(), once=True)
    if session.as_json:
        output.show_json({"found": found, **done._asdict()})
    else:
        output.say(f"{found} of {len(job_ids)} were held; {done.sent} published")
    return 0 if found == len(job_ids) and not done.away else 5
