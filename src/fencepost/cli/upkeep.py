"""`doctor`, `heal`."""

from __future__ import annotations

import click
import msgspec

from fencepost.cli import output
from fencepost.cli.session import Session, connected
from fencepost.doctor import books, examination

__all__ = ["doctor", "heal"]


@click.command
@click.option("--verbose", "-v", is_flag=True, help="Show what is well, too.")
@connected
def doctor(session: Session, verbose: bool) -> int:
    """Check the server and, with --app, the settings of its kinds. Exit code 1 if a worker would refuse to start."""
    found = session.run(examination(session.app, thorough=True)) + books(session.app)
    errors = sum(one.level == "error" for one in found)
    warnings = sum(one.level == "warning" for one in found)
    if session.as_json:
        where = session.app.link.connections.where
        items = msgspec.to_builtins(found)
        output.show_json({"ok": not errors, "where": where, "errors": errors, "warnings": warnings, "findings": items})
        return 1 if errors else 0
    for one in sorted(found, key=lambda one: ("error", "warning", "ok").index(one.level)):
        if one.level != "ok" or verbose:
            output.say(f"{one.level}: {one.check}: {one.text}.")
            if one.hint:
                output.say(f"    {one.hint}.")
    checked = len({one.check for one in found})
    output.say(f"{session.app.link.connections.where}: {errors} errors, {warnings} warnings, {checked} checks")
    return 1 if errors else 0


@click.command
@click.option("--apply", "mend", is_flag=True, help="Mend what is found; without it nothing is changed.")
@click.option("--steps", type=click.IntRange(1, 100_000), default=200, show_default=True, help="1,000 keys each.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the last walk ended.")
@connected
def heal(session: Session, mend: bool, steps: int, cursor: str | None) -> int:
    """Find live jobs that stand in no list, and entries without a job: traces of a partial restore or of a hand."""
    report = session.run(session.operator.heal(dry_run=not mend, steps=steps, cursor=cursor))
    if session.as_json:
        output.show_json(msgspec.to_builtins(report))
        return 0
    for what, entries in (
        ("healed" if mend else "to heal", report.stranded),
        ("left to the next sweep", report.orphans),
        ("torn; to be deleted by hand", report.broken),
    ):
        for one in entries:
            output.say(f"{what}: {one.id}: {one.what}")
    output.say(f"{report.scanned} job records looked at, {len(report.stranded)} {'healed' if mend else 'to heal'}")
    if report.stranded and not mend:
        output.say("nothing was changed; `fencepost heal --apply` mends them")
    if report.cursor:
        output.say(f"more: --cursor {report.cursor}")
    return 0
