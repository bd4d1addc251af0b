"""What is seen at the end: a table, a verdict, and what to read next."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fencepost.demo.measure import Measured

__all__ = ["report"]


def report(console: Console, m: Measured) -> None:
    """Print the outcome."""
    table = Table(
        title="Without lease, fence and guard" if m.mode == "naive" else "With Fencepost", title_justify="left"
    )
    table.add_column("counted")
    table.add_column("", justify="right")
    table.add_column("must be")
    for name, value, wanted in _rows(m):
        wrong = wanted != "" and str(value) != wanted
        table.add_row(name, Text(str(value), style="bold red" if wrong else ""), wanted)
    console.print()
    console.print(table)
    if m.refused:
        console.print("Refused: " + ", ".join(f"{verb} {n}" for verb, n in m.refused.items()), markup=False)
    if any(m.overlaps_by_family.values()):
        told = ", ".join(f"{family} {n}" for family, n in m.overlaps_by_family.items())
        console.print(f"Overlaps by resource: {told}", markup=False)
    for line in _verdict(m):
        console.print(line, markup=False)


def _rows(m: Measured) -> list[tuple[str, int | str, str]]:
    return [
        ("jobs accepted", m.jobs, ""),
        ("jobs done", m.done, str(m.jobs)),
        ("jobs lost", m.lost, "0"),
        ("runs (a job whose worker died runs again)", m.runs, ""),
        ("duplicate enqueues refused", m.duplicate_enqueues, ""),
        (f"overlaps on {m.resources} resources", m.overlaps, "0"),
        ("stale writes refused (Redis and SQL)", m.stale_refused, ""),
        ("late runs stopped before they changed anything", m.late_runs_stopped, ""),
        ("invoices per order", m.invoices_per_order, "1"),
        ("e-mails delivered per customer, template and order", m.mails_per_key, "1"),
        ("e-mails that arrived at the mail server", m.mails_arrived, ""),
        ("… of these dropped there, their key was known", m.mails_arrived - m.mails_delivered, ""),
        ("effects doubled (invoices, bookings, e-mails)", m.doubled_effects, "0"),
        ("effects missing", m.missing_effects, "0"),
        ("stock overwritten with what had been read too early", m.stale_overwrites, "0"),
        ("stock bookings out of order", m.out_of_order, "0"),
        ("jobs that the queue shows otherwise", m.queue_is_wrong, "0"),
        *_rows_of_the_ledger(m),
        ("workers killed in the middle of their work", m.killed, "1"),
        ("workers frozen past their lease and woken", m.frozen, "1"),
    ]


def _rows_of_the_ledger(m: Measured) -> list[tuple[str, int | str, str]]:
    says = m.ledger
    if says is None:
        return []
    return [
        ("ledger: events copied into SQL", says.events, ""),
        ("ledger: events that are missing", says.lost, "0"),
        ("ledger: durable jobs (invoices), there before Redis was asked", says.durable, str(m.orders)),
        ("ledger: completions", says.completions, str(m.jobs)),
        ("ledger: invoices and bookings, by their effect key", says.effects, str(m.sql_effects)),
        ("ledger: … of these found made by a run that died", says.found, ""),
        ("ledger: stale writes refused", says.refusals, ""),
        ("ledger: illegal paths, doubled completions or effects", len(says.findings), "0"),
    ]


def _verdict(m: Measured) -> list[str]:
    lines = [f"Took {m.seconds:.1f} s."]
    lines += [f"A fault did not hit, so this run proves nothing: {why}." for why in m.missed]
    here = Path(__file__).parent
    if m.mode == "naive":
        lines.append(f"{m.harm} pieces of damage." if m.harm else "No damage this time; run it again.")
        lines.append("Read next: `fencepost demo` for the same orders with Fencepost, and how this was done without:")
        return [*lines, f"  {here / 'naive.py'}"]
    if m.ledger is not None:
        lines.append(f"The verdict of `fencepost ledger verify`: {'ok' if m.ledger.ok else 'NOT ok'}.")
        lines += [f"  {one}" for one in m.ledger.findings[:10]]
    if m.as_it_must_be:
        lines.append("Nothing lost, nothing doubled, nothing overwritten, while workers died and woke up late.")
    if m.mails_arrived > m.mails_delivered:
        lines.append(
            "An e-mail cannot be fenced: the second one was sent. It carried the same key, so the provider dropped it."
        )
    lines.append(
        "Read next: `fencepost demo --naive` shows the same without; then the jobs, and what was done to them:"
    )
    return [*lines, f"  {here / 'handlers.py'}", f"  {here / 'faults.py'}"]
