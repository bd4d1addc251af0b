"""The books: at the end, what the ledger in SQL says of all that happened, and whether that can be.

The workers copied the events of the queue into it as they happened, whoever of them was alive. What the last of them
left is copied here. Then all of it is checked, as by `fencepost ledger verify`, which asks nobody else.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy import func, select

from fencepost.demo.stage import NAMESPACE, Stage
from fencepost.driver import Connections
from fencepost.errors import ConfigurationError
from fencepost.keys import Keys
from fencepost.ledger import Archiver, Ledger
from fencepost.ledger.verify import verify
from fencepost.link import Link
from fencepost.sql.tables import events, jobs
from fencepost.store import Store

__all__ = ["LedgerSays", "balance", "open_books", "writable"]

_WRITER_WITHIN_S: Final = 0.5
_COPIED_WITHIN_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class LedgerSays:
    """The ledger's own word, from its tables alone.

    ok: the verdict of verify. findings: what it found wrong, a sentence each. events: copied. lost: numbers that are
    missing. durable: jobs that were in SQL before Redis was asked. completions: jobs done, each time counted. effects:
    keys of SQL effects that runs told of. found: how often a run found its effect made by one before it. refusals:
    stale writes refused.
    """

    ok: bool
    events: int
    lost: int
    durable: int
    completions: int
    effects: int
    found: int
    refusals: int
    findings: list[str] = field(default_factory=list)


def open_books(stage: Stage) -> None:
    """Make the tables of the ledger, before everybody wants to be the first."""
    ledger = Ledger(stage.ledger, NAMESPACE)
    ledger.prepare()
    ledger.close()


def balance(stage: Stage) -> LedgerSays:
    """Copy what is still in the stream, and check the ledger. Raises ConfigurationError if it cannot be copied."""
    ledger = Ledger(stage.ledger, NAMESPACE)
    link = Link(Connections(stage.redis_url), Store(Keys(NAMESPACE)), _COPIED_WITHIN_S)
    try:
        archiver, end = Archiver(ledger, link.store, link.synchronous), time.monotonic() + _COPIED_WITHIN_S
        while archiver.copy_all().busy:
            if time.monotonic() > end:
                raise ConfigurationError("demo", "another process holds the ledger for 20 s")
            time.sleep(0.05)
        verdict = verify(ledger)
        with ledger.reading("count the events") as connection:
            by_name = select(events.c.name, func.count()).group_by(events.c.name)
            counts = {str(name): int(number) for name, number in connection.execute(by_name)}
            told = events.c.name.in_(("effect", "effect_found"))
            durable = connection.execute(select(func.count()).where(jobs.c.durable)).scalar_one()
            effects = connection.execute(select(func.count(events.c.reason.distinct())).where(told)).scalar_one()
        return LedgerSays(
            ok=verdict.ok,
            events=verdict.counts["events"],
            lost=sum(gap.last_seq - gap.first_seq + 1 for gap in verdict.gaps),
            durable=durable,
            completions=counts.get("done", 0),
            effects=effects,
            found=counts.get("effect_found", 0),
            refusals=counts.get("refused_stale", 0),
            findings=[f"{one.what}, job {one.job_id or '-'}: {one.text}" for one in verdict.findings],
        )
    finally:
        link.synchronous.close()
        ledger.close()


def writable(stage: Stage) -> bool:
    """Whether one can write to the shop and to the ledger: nobody stands still inside a transaction of theirs."""
    return all(_free(Path(stage.folder, name)) for name in ("shop.sqlite", "ledger.sqlite"))


def _free(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database, timeout=_WRITER_WITHIN_S, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        db.execute("ROLLBACK")
    return True
