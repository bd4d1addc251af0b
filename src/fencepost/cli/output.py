"""Answers for people and for programs."""

from __future__ import annotations

import datetime
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from fencepost.operate import BulkReport

__all__ = ["bulk", "clock", "distance", "fields", "length", "say", "show_json", "table"]


def show_json(value: Any) -> None:
    """One JSON value on one line. Escaped where the terminal could not show it."""
    plain = (sys.stdout.encoding or "").lower().replace("-", "") not in ("utf8", "utf8sig")
    say(json.dumps(value, ensure_ascii=plain, default=str))


def say(text: str) -> None:
    click.echo(text)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str = "none") -> None:
    """A table: framed on a terminal that is wide enough, plain columns otherwise."""
    lines = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not lines:
        say(empty)
        return
    widths = [max(len(line[at]) for line in (columns, *lines)) for at in range(len(columns))]
    if sys.stdout.isatty() and sum(widths) + 3 * len(widths) <= shutil.get_terminal_size().columns:
        _framed(columns, lines)
    else:
        for line in (columns, *lines):
            say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _framed(columns: Sequence[str], lines: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE, pad_edge=False)
    for at, name in enumerate(columns):
        shown.add_column(name, overflow="fold", no_wrap=at == 0)  # an id that is cut is of no use
    for line in lines:
        shown.add_row(*(Text(cell) for cell in line))
    Console().print(shown)


def fields(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one a line; what is not set is left out."""
    known = [(name, value) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        lines = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)).splitlines()
        say(f"{name.ljust(width)}  {lines[0]}")
        for line in lines[1:]:
            say(f"{' ' * width}  {line}")


def clock(ms: int | None) -> str:
    """Server milliseconds as UTC."""
    if ms is None:
        return ""
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}Z"


def length(ms: int | None) -> str:
    """A length of time in its largest sensible unit."""
    if ms is None:
        return ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if abs(ms) >= 2 * size:
            return f"{ms / size:.0f}{unit}"
    return f"{ms / 1000:.1f}s"


def distance(ms: int) -> str:
    """How far off a moment is, from now: `in 2h`, `3.0s ago`."""
    return f"in {length(ms)}" if ms > 0 else f"{length(-ms)} ago"


def bulk(report: BulkReport, as_json: bool) -> int:
    """Show what a bulk operation did; the exit code tells whether all of it was done."""
    from fencepost.operate.dead import to_json

    if as_json:
        show_json(to_json(report))
    else:
        verb = f"{report.verb} (dry run)" if report.dry_run else report.verb
        done, missing, refused = report.done, len(report.missing), report.refused_count
        say(f"{verb}: {report.matched} meant, {done} done, {missing} missing, {refused} refused")
        for one in report.outcomes or report.refused:
            say(f"  {one.id}  {one.word}{f' ({one.detail})' if one.detail else ''}")
        if report.missing and not report.outcomes:
            shown = ", ".join(report.missing[:5])
            dropped = "they would be dropped from the index" if report.dry_run else "they were dropped from the index"
            say(f"  without a record, {dropped}: {shown}{', …' if len(report.missing) > 5 else ''}")
    if report.dry_run:
        return 0
    return {"ok": 0, "partial": 5, "missing": 3, "refused": 1}[report.verdict]
