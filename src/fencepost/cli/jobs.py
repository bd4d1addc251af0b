"""`job`, `jobs`, `cancel`."""

from __future__ import annotations

import importlib.util
from typing import Any

import click
import msgspec

from fencepost.cli import output
from fencepost.cli.session import Session, connected
from fencepost.clock import wall_ms
from fencepost.errors import FencepostError, JobNotFound
from fencepost.operate import JobView, Page, summary
from fencepost.operate.jobs import Event
from fencepost.states import State

__all__ = ["cancel", "job", "jobs", "paged", "show_job", "show_page"]


def paged(function: Any) -> Any:
    """The options of every list."""
    function = click.option("--cursor", metavar="CURSOR", help="Go on where the last page ended.")(function)
    return click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)(function)


@click.command
@click.argument("job_id", metavar="ID")
@click.option("--history", is_flag=True, help="Show its events too.")
@connected
def job(session: Session, job_id: str, history: bool) -> int:
    """Show a job: state, arguments, counters, lease, result or error."""
    try:
        view = session.run(session.operator.job(job_id, history=history))
    except JobNotFound:
        view = _recalled(session, job_id)
    show_job(session, _remembered(session, view) if history else view)
    return 0


def _recalled(session: Session, job_id: str) -> JobView:
    """What the ledger or the outbox knows of a job that Redis has not. Raises JobNotFound."""
    app = session.app
    said = app.ledger_url, app.outbox_url
    app.ledger_url, app.outbox_url = (url if url and _there(url) else None for url in said)
    try:
        return JobView(app.get(job_id).status_sync(), wall_ms())
    finally:
        app.ledger_url, app.outbox_url = said


def _there(url: str) -> bool:
    """Whether a ledger or an outbox can be read there: reading would make a file that is missing."""
    if importlib.util.find_spec("sqlalchemy") is None:
        return False
    from fencepost.sql.engines import absent_file

    return absent_file(url) is None


def _remembered(session: Session, view: JobView) -> JobView:
    """The view with the events that only the ledger still has, where the application has one."""
    app, job_id = session.app, view.record.id
    if view.whole or not app.ledger_url or not _there(app.ledger_url):
        return view
    assert app.ledger is not None
    try:
        told = app.ledger.history(job_id)
    except FencepostError as error:
        click.echo(f"fencepost: the ledger was not read for older events: {error}", err=True)
        return view
    older = [
        Event(
            one.seq, one.at_ms, one.name, job_id, one.kind, one.worker, _shown(one.token), one.nonce,
            _shown(one.attempt), one.reason, one.resource,
        )
        for one in told
    ]  # fmt: skip
    known = {(one.seq, one.at) for one in older}
    events = older + [one for one in view.history if (one.seq, one.at) not in known]
    whole = bool(events) and events[0].name == "enqueued"
    return msgspec.structs.replace(view, history=events, whole=whole)


def _shown(number: int | None) -> str:
    return "" if number is None else str(number)


def show_job(session: Session, view: JobView) -> None:
    if session.as_json:
        output.show_json(view.to_json(session.hidden))
        return
    data = view.to_json(session.hidden)
    history = data.pop("history", [])
    times = ("created_at", "updated_at", "claimed_at", "due_at", "finished_at")
    pairs = [("id", data.pop("id"))]
    if view.record.nonce == "":
        data.pop("nonce", None)
    for name, value in data.items():
        if name in ("now", "history_whole", "score"):
            continue
        if name in times:
            value = f"{output.clock(value)} ({output.distance(value - view.now_ms)})"
        elif name.endswith("_ms"):
            name, value = name[:-3], output.length(value)
        pairs.append((name.replace("_", " "), value))
    output.fields(pairs)
    if history:
        output.say("")
        shown = ("name", "attempt", "token", "by", "reason", "resource")
        rows = [(output.clock(one["at"]), *(one.get(name) for name in shown)) for one in history]
        output.table(("at", "event", "attempt", "token", "by", "reason", "resource"), rows)
        if not view.whole:
            output.say("older events are not in the stream any more, or too far back")


@click.command
@click.option("--state", type=click.Choice([str(one) for one in State]), required=True)
@click.option("--queue", metavar="NAME", help="Only of this queue.")
@click.option("--kind", metavar="KIND", help="Only of this kind.")
@click.option("--resource", metavar="NAME", help="Only those that need this resource.")
@paged
@connected
def jobs(
    session: Session,
    state: str,
    queue: str | None,
    kind: str | None,
    resource: str | None,
    limit: int,
    cursor: str | None,
) -> int:
    """List the jobs in a state: in the order of service, ended ones newest first."""
    plan = session.operator.jobs(state, queue=queue, kind=kind, resource=resource, limit=limit, cursor=cursor)
    show_page(session, session.run(plan))
    return 0


def show_page(session: Session, page: Page[Any], empty: str = "no such jobs") -> None:
    if session.as_json:
        items = [summary(record) for record in page.items]
        output.show_json({"items": items, "cursor": page.cursor, "missing": page.missing})
        return
    rows = [
        (
            one.id, one.kind, one.queue, one.attempts or "", one.crashes or "", output.clock(one.created_at)[:19],
            one.reason or one.error_class or one.worker or one.resource,
        )
        for one in page.items
    ]  # fmt: skip
    output.table(("id", "kind", "queue", "attempts", "crashes", "created", "about"), rows, empty)
    if page.missing:
        output.say(f"without a record: {', '.join(page.missing[:5])}{', …' if len(page.missing) > 5 else ''}")
    if page.cursor:
        output.say(f"more: --cursor {page.cursor}")


@click.command
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--hard", is_flag=True, help="Take a running job from its worker at once; its later writes are refused.")
@click.option("--reason", default="cancelled", show_default=True, help="Kept with the job.")
@click.option("--token", default="", metavar="TOKEN", help="Of one job: only if this is still its newest token.")
@connected
def cancel(session: Session, job_ids: tuple[str, ...], hard: bool, reason: str, token: str) -> int:
    """Cancel jobs. A running one is asked to stop, which it learns with its next heartbeat."""
    plan = session.operator.cancel(job_ids, hard=hard, reason=reason, token=token)
    return output.bulk(session.run(plan), session.as_json)
