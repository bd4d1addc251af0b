"""`ledger run | status | verify | export | prune | reconcile`: the memory in SQL that outlives Redis."""

from __future__ import annotations

import datetime
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, TextIO

import click
import msgspec

from fencepost.app import Fencepost
from fencepost.cli import logs, output
from fencepost.cli.session import GIVE_UP_S, Session, connected
from fencepost.clock import epoch_ms, parse_duration_s
from fencepost.driver import SyncDriver
from fencepost.errors import ConfigurationError, JobNotFound
from fencepost.ledger import Archiver, Ledger
from fencepost.ledger.export import FORMATS
from fencepost.ledger.export import export as exported
from fencepost.ledger.prune import prune as prune_ledger
from fencepost.ledger.reconcile import Reconciler
from fencepost.ledger.status import status as status_of
from fencepost.ledger.status import tip
from fencepost.ledger.verify import Finding
from fencepost.ledger.verify import verify as verified
from fencepost.sql.engines import existing, now_ms
from fencepost.worker.books import Books

__all__ = ["ledger"]

DONE_ABOUT: Final = {
    "lost": "put back",
    "duplicate": "cancelled",
    "undone": "requeued",
    "untold": "ended in the ledger",
    "revived": "ended in Redis",
    "differs": "left alone",
}
"""What was done about each divergence."""


@click.group
def ledger() -> None:
    """The ledger: every event and every job in SQL. It is the application's own, or the one of --ledger."""


class Opened:
    """The ledger a command means. alone: by its URL only, so that Redis is not asked. makes: also a new file."""

    def __init__(self, session: Session, url: str | None, makes: bool) -> None:
        self.session, self._url, self._makes = session, url, makes
        self.alone = bool(url) and not session.url and not session.target
        self.ledger = self._opened()

    @property
    def app(self) -> Fencepost:
        if self._url:
            self.session.app.ledger_url = self._url
        return self.session.app

    @functools.cached_property
    def driver(self) -> SyncDriver:
        return SyncDriver(self.app.link.connections, give_up_s=GIVE_UP_S)

    def close(self) -> None:
        """Close the connections to the database, and to Redis if any were opened."""
        self.ledger.close()
        if "driver" in self.__dict__:
            self.driver.close()

    def _opened(self) -> Ledger:
        where = self._url or self.app.ledger_url
        if where and not self._makes:
            existing(where)
        if self.alone:
            assert self._url is not None
            return Ledger(self._url, self.session.namespace or "fencepost")
        found = self.app.ledger
        if found is None:
            raise ConfigurationError(
                "ledger", "nobody says where it is", "Give --ledger URL, or an --app that has a ledger."
            )
        return found

    def unknown(self) -> bool:
        """Whether the namespace has nothing here, neither event nor job; then it says what there is instead."""
        there = self.ledger.namespaces()
        if self.ledger.namespace in there:
            return False
        has = f"it has: {', '.join(there)}" if there else "it has none of any namespace"
        click.echo(
            f"fencepost: no events of namespace {self.ledger.namespace!r} in {self.ledger.where}; {has}", err=True
        )
        return True


def _opening(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --ledger and the common options; it gets the ledger as its first argument, closed at its end."""
    makes = function.__name__ == "run"

    @click.option("--ledger", "ledger_url", envvar="FENCEPOST_LEDGER_URL", metavar="URL", help="[FENCEPOST_LEDGER_URL]")
    @connected
    @functools.wraps(function)
    def wrapped(session: Session, /, ledger_url: str | None, **rest: Any) -> Any:
        opened = Opened(session, ledger_url, makes)
        try:
            return function(opened, **rest)
        finally:
            opened.close()

    return wrapped


@ledger.command
@click.option("--once", is_flag=True, help="End when all that is there has been copied.")
@click.option("--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True, help="Of logs.")
@_opening
def run(opened: Opened, once: bool, log_format: str) -> int:
    """Copy events into the ledger and put back what Redis lost, until a signal comes. A worker does the same."""
    if once:
        done = Archiver(opened.ledger, opened.app.link.store, opened.driver).copy_all()
        if opened.session.as_json:
            output.show_json(done._asdict())
        else:
            rewound = ", Redis was rewound" if done.rewound else ""
            busy = "; another archiver is at work" if done.busy else ""
            output.say(f"{done.events} events copied, {done.lost} lost{rewound}{busy}")
        return 0
    logs.set_up(log_format, "info")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    opened.ledger.prepare()
    books = Books(opened.app)
    books.start()
    output.say(f"keeping the ledger {opened.ledger.where}")
    sys.stdout.flush()
    over.wait()
    books.stop()
    return 0


@ledger.command
@_opening
def status(opened: Opened) -> int:
    """Show how far the ledger is, what it lost, and its jobs by state."""
    reached = None if opened.alone else opened.driver.run(tip(opened.app.link.store))
    found = status_of(opened.ledger, reached)
    if not found.behind and opened.unknown():
        return 1
    if opened.session.as_json:
        output.show_json(msgspec.to_builtins(found))
        return 0
    pairs = [(name.replace("_", " "), getattr(found, name)) for name in found.__struct_fields__]
    shown = {"updated at ms": ("updated at", output.clock(found.updated_at_ms))}
    output.fields([shown.get(name, (name, value)) for name, value in pairs if name != "jobs"])
    output.say("")
    output.table(("state", "jobs"), found.jobs.items(), "no jobs")
    return 0


@ledger.command
@click.option("--strict", is_flag=True, help="Gaps and notes count too.")
@_opening
def verify(opened: Opened, strict: bool) -> int:
    """Prove from the ledger alone that the promises were kept. Exit code 1 if something was found."""
    if opened.unknown():
        return 1
    found = verified(opened.ledger)
    good = found.ok and not (strict and (found.gaps or found.notes))
    if opened.session.as_json:
        output.show_json({**msgspec.to_builtins(found), "ok": good})
        return 0 if good else 1
    for title, some in (("broken", found.findings), ("noted", found.notes)):
        for one in some:
            output.say(f"{title}: {_shown(one)}")
    for gap in found.gaps:
        why = "were gone before they were copied" if gap.why == "lost" else "are older than the ledger"
        output.say(f"gap: the events {gap.first_seq} to {gap.last_seq} of epoch {gap.epoch} {why}")
    counted = found.counts
    output.say(
        f"{counted['events']} events of {counted['jobs']} jobs in {counted['epochs']} epochs, "
        f"{counted['resources']} resources, {counted['effects']} effects"
    )
    output.say("in order" if good else f"NOT in order: {counted['findings']} findings, {len(found.gaps)} gaps")
    return 0 if good else 1


def _shown(one: Finding) -> str:
    return f"{one.what}: {f'{one.job_id}: ' if one.job_id else ''}{one.text}"


@ledger.command
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="Of the lines.")
@click.option("--since", metavar="MOMENT", help="Not older than this: 2030-01-01T09:00:00+01:00, or a TIME ago.")
@click.option("--until", metavar="MOMENT", help="Older than this.")
@click.option("--kind", metavar="KIND", help="Only of this kind.")
@click.option("--job", "job_id", metavar="ID", help="Only of this job.")
@click.option("--output", "path", type=click.Path(dir_okay=False, writable=True), help="Into this file. [stdout]")
@_opening
def export(
    opened: Opened,
    form: str,
    since: str | None,
    until: str | None,
    kind: str | None,
    job_id: str | None,
    path: str | None,
) -> int:
    """Write the events as JSON lines or CSV, in order."""
    since_ms, until_ms = (_instant(text, name) for text, name in ((since, "since"), (until, "until")))
    if opened.unknown():
        return 3 if job_id else 1
    if job_id and opened.ledger.job(job_id) is None and not opened.ledger.history(job_id):
        raise JobNotFound(job_id)
    lines = exported(opened.ledger, form, since_ms=since_ms, until_ms=until_ms, kind=kind, job_id=job_id)
    if path is None:
        return _written(lines, sys.stdout)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # who did what when: not for everybody
    with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
        return _written(lines, file)


def _written(lines: Any, file: TextIO) -> int:
    for line in lines:
        file.write(f"{line}\n")
    return 0


def _instant(text: str | None, name: str) -> int | None:
    """A moment with a zone, or a length of time before now, in ms since 1970."""
    if text is None:
        return None
    try:
        return now_ms() - round(parse_duration_s(text, name) * 1000)
    except ConfigurationError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        problem = f"{text[:60]!r} {'is no moment' if moment is None else 'has no time zone'}"
        raise ConfigurationError(name, problem, "Write 2030-01-01T09:00:00+01:00, or how long ago, such as 36h.")
    return epoch_ms(moment, name)


@ledger.command
@click.option("--older-than", metavar="TIME", required=True, help="What ended longer ago, such as 90d.")
@click.option("--retention", metavar="TIME", help="The longest of any kind's jobs, if more than 7d or --app says.")
@_opening
def prune(opened: Opened, older_than: str, retention: str | None) -> int:
    """Delete jobs that ended long ago, with their events. What Redis still has stays; while it is away nothing goes."""
    older_ms = round(parse_duration_s(older_than, "older_than") * 1000)
    session = opened.session
    kept_s = max(parse_duration_s(retention, "retention") if retention else 0.0, session.longest_retention_s)
    gone = prune_ledger(opened.ledger, older_ms, retention_ms=round(kept_s * 1000), kept=session.present)
    if opened.session.as_json:
        output.show_json(gone._asdict())
    else:
        output.say(f"{gone.jobs} jobs and {gone.events} events deleted that ended before {output.clock(gone.until_ms)}")
    return 0


@ledger.command
@click.option("--dry-run", is_flag=True, help="Only list what differs.")
@_opening
def reconcile(opened: Opened, dry_run: bool) -> int:
    """Compare the ledger with Redis and put right what differs: what Redis lost comes back, what has ended ends.

    With --dry-run exit code 1 if anything differs.
    """
    logging.getLogger("fencepost").addHandler(logging.NullHandler())  # what is logged is told below
    if opened.alone:
        opened.alone = False  # both sides are needed: the private server, where nobody says another one
    store = opened.app.link.store
    archiver = Archiver(opened.ledger, store, opened.driver)
    report = Reconciler(opened.ledger, store, opened.driver, archiver).run(everything=True, dry_run=dry_run)
    code = 1 if report.busy or (dry_run and report.counts) else 0
    if opened.session.as_json:
        output.show_json(msgspec.to_builtins(report))
        return code
    output.table(
        ("job", "what", "in SQL", "in Redis"),
        [(one.job_id, one.what, one.sql or "absent", one.redis or "absent") for one in report.divergences],
        "nothing differs",
    )
    counted = "; ".join(
        f"{n} {what}" if dry_run else f"{n} {what}, {DONE_ABOUT[what]}" for what, n in sorted(report.counts.items())
    )
    compared = f"{report.looked} open durable jobs and {report.scanned} jobs in Redis compared"
    output.say(f"{compared}{f': {counted}' if counted else ''}")
    if report.busy:
        output.say("another archiver held on to the ledger: nothing was judged; try again")
    elif report.counts and dry_run:
        output.say("no job was changed; the ledger copied what it had not copied yet")
    return code
