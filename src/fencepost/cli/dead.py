"""`dead list | show | requeue | purge`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from fencepost.cli import output
from fencepost.cli.jobs import paged, show_job, show_page
from fencepost.cli.session import Session, connected
from fencepost.clock import parse_duration_s
from fencepost.errors import IllegalTransition
from fencepost.operate import DeadFilter
from fencepost.states import State

__all__ = ["dead"]


@click.group
def dead() -> None:
    """Dead letters: jobs that failed for good. They are kept until they are requeued, purged, or out of retention."""


def _filtered(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--older-than", metavar="TIME", help="Only what failed longer ago, such as 90s, 2h, 7d."),
        click.option("--error", metavar="CLASS", help="Only of this error class."),
        click.option("--reason", metavar="REASON", help="Only of this reason: exhausted, permanent, poison, …"),
        click.option("--kind", metavar="KIND", help="Only of this kind."),
    ):
        function = option(function)
    return function


def _filter(kind: str | None, reason: str | None, error: str | None, older_than: str | None) -> DeadFilter:
    older_s = parse_duration_s(older_than, "older_than") if older_than else 0.0
    return DeadFilter(kind=kind or "", reason=reason or "", error_class=error or "", older_than_s=older_s)


@dead.command("list")
@_filtered
@paged
@connected
def list_(session: Session, limit: int, cursor: str | None, **chosen: str | None) -> int:
    """List dead letters, newest first."""
    page = session.run(session.operator.dead(_filter(**chosen), limit=limit, cursor=cursor))
    show_page(session, page, "no dead letters")
    return 0


@dead.command
@click.argument("job_id", metavar="ID")
@connected
def show(session: Session, job_id: str) -> int:
    """Show a dead letter with its error and its history."""
    view = session.run(session.operator.job(job_id, history=True))
    if view.record.state != State.FAILED:
        raise IllegalTransition(job_id, view.record.state, "dead show")
    show_job(session, view)
    return 0


def _which(function: Callable[..., Any]) -> Callable[..., Any]:
    """The jobs by id, or by filter."""
    for option in (
        click.option("--because", metavar="TEXT", default="", help="Why; kept with the event."),
        click.option("--dry-run", is_flag=True, help="Only count them."),
        click.option("--all", "everything", is_flag=True, help="All dead letters (that agree with the filter)."),
    ):
        function = option(function)
    return click.argument("job_ids", metavar="[ID]...", nargs=-1)(_filtered(function))


def _check(job_ids: tuple[str, ...], everything: bool, dry_run: bool, chosen: DeadFilter) -> None:
    filtered = everything or chosen != DeadFilter()
    if bool(job_ids) == filtered:
        raise click.UsageError(
            "Name jobs by id, or say which with a filter or --all; one of the two. Nothing was done."
        )
    if job_ids and dry_run:
        raise click.UsageError("--dry-run goes with a filter or --all. Nothing was done.")


@dead.command
@_which
@connected
def requeue(
    session: Session, job_ids: tuple[str, ...], everything: bool, dry_run: bool, because: str, **chosen: str | None
) -> int:
    """Start dead letters again, with fresh counters; those that fail again meanwhile are left alone."""
    which = _filter(**chosen)
    _check(job_ids, everything, dry_run, which)
    operator = session.operator
    if job_ids:
        return output.bulk(session.run(operator.requeue(job_ids, reason=because)), session.as_json)
    plan = operator.requeue_all(which, dry_run=dry_run, reason=because)
    return output.bulk(session.run(plan), session.as_json)


@dead.command
@_which
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def purge(
    session: Session,
    job_ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    because: str,
    **chosen: str | None,
) -> int:
    """Forget dead letters for good. With a filter it asks first; where nobody can answer, --yes is needed."""
    which = _filter(**chosen)
    _check(job_ids, everything, dry_run, which)
    operator, why = session.operator, because or "operator"
    if job_ids:
        return output.bulk(session.run(operator.purge(job_ids, reason=why)), session.as_json)
    if not dry_run and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("Purging by filter forgets jobs for good: say --yes, or look with --dry-run first.")
        matched = session.run(operator.purge_all(which, dry_run=True)).matched
        click.confirm(f"Forget {matched} dead letters for good?", abort=True, err=True)
    return output.bulk(session.run(operator.purge_all(which, dry_run=dry_run, reason=why)), session.as_json)
