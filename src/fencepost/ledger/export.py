"""The events of a ledger as JSON lines or CSV, for auditors and for other programs. Streams, however many there are.

What the events hold is all there is: names, ids, instants, tokens and reasons. Arguments and results of jobs are not,
and what a reason quotes of a secret is hidden.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Final

import msgspec
from sqlalchemy import select

from fencepost.errors import ConfigurationError
from fencepost.ledger.book import Ledger
from fencepost.redact import redact_text
from fencepost.sql.tables import events

__all__ = ["FIELDS", "FORMATS", "export"]

FORMATS: Final = ("jsonl", "csv")
FIELDS: Final = (
    "namespace", "part", "epoch", "seq", "at_ms", "name", "job_id", "kind", "resource", "worker", "attempt", "token",
    "nonce", "reason",
)  # fmt: skip
_ROWS: Final = 2_000


def export(
    ledger: Ledger,
    form: str = "jsonl",
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    kind: str | None = None,
    job_id: str | None = None,
) -> Iterator[str]:
    """Yield the lines, without their ends, in the order of partition, epoch and number: one consistent view.

    since_ms, until_ms: ms since 1970 by the clock of Redis; since is included, until is not. Tokens are numbers in
    both formats. Raises ConfigurationError for a format that is not known, LedgerUnavailable.
    """
    if form not in FORMATS:
        raise ConfigurationError("format", f"{form!r} is not known", f"Known are {' and '.join(FORMATS)}.")
    c = events.c
    wanted = [c.namespace == ledger.namespace]
    if since_ms is not None:
        wanted.append(c.at_ms >= since_ms)
    if until_ms is not None:
        wanted.append(c.at_ms < until_ms)
    if kind is not None:
        wanted.append(c.kind == kind)
    if job_id is not None:
        wanted.append(c.job_id == job_id)
    statement = select(*(c[name] for name in FIELDS)).where(*wanted).order_by(c.part, c.epoch, c.seq)
    with ledger.reading("export") as connection:
        rows = connection.execution_options(yield_per=_ROWS).execute(statement)
        if form == "csv":
            yield _csv_line(FIELDS)
        for row in rows:
            told = dict(row._mapping)
            if told["reason"]:
                told["reason"] = redact_text(told["reason"])
            yield _csv_line(told.values()) if form == "csv" else msgspec.json.encode(told).decode()


def _csv_line(values: object) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(values)  # type: ignore[arg-type]
    return out.getvalue()
