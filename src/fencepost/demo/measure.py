"""How the outcome is counted: from the handlers' records, the shop's database and the mail server.

The queue is asked last, for the writes it refused, and whether it shows the jobs as the handlers do. The ledger says
what it knows of all that (books.py), and the two have to agree.

What is an overlap? Two runs that hold the same resource at the same time. A run holds its resource from its first line
to its last, or to the death of its process. One whose job another run has begun since is not the owner any more,
whatever it believes. It may still be there, frozen or about to stop, and hold nothing; but if it *changes* anything
after the other began, its hold lasted until then, and it is an overlap. If it changed nothing more it is counted as a
late run that was stopped.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from fencepost.demo.books import LedgerSays
from fencepost.demo.faults import Faults
from fencepost.demo.mail import Arrival
from fencepost.demo.orders import Order
from fencepost.demo.records import Records, RunSeen
from fencepost.demo.shop import expected_bookings
from fencepost.demo.stage import Stage

__all__ = ["Measured", "QueueSays", "measure", "overlaps"]


class QueueSays(NamedTuple):
    """The queue's own word. stats: its counters. wrong: jobs not done, or with a result that a late run sent. ledger:
    what it wrote into the ledger; None for the naive one."""

    stats: dict[str, int]
    wrong: int
    ledger: LedgerSays | None = None


@dataclass(slots=True, kw_only=True)
class Measured:
    """The figures of one performance.

    jobs, done, lost: accepted, ended well by a run's own word, and neither. runs: handlers entered.
    duplicate_enqueues: enqueues answered with a job that was there. overlaps: pairs of runs, by resource family in
    overlaps_by_family. late_runs_stopped: runs that had lost their job and changed nothing since. stale_refused:
    writes refused by Redis and by the guard, by verb in refused. doubled_effects: invoices, bookings and delivered
    mails beyond the first. missing_effects: those that are not there at all. stale_overwrites: bookings made on a
    stock that another had changed since it was read. out_of_order: bookings made after a later one of their SKU.
    queue_is_wrong: jobs that the queue shows as not done, or with the result of a late run. killed, frozen: faults
    that hit. seconds: from the first enqueue to the last outcome. sql_effects: invoices and bookings that are wanted.
    """

    mode: str
    orders: int
    jobs: int
    done: int
    lost: int
    runs: int
    duplicate_enqueues: int
    overlaps: int
    stale_refused: int
    doubled_effects: int
    killed: int
    frozen: int
    seconds: float
    late_runs_stopped: int
    missing_effects: int
    stale_overwrites: int
    out_of_order: int
    queue_is_wrong: int
    invoices_per_order: str
    mails_per_key: str
    mails_arrived: int
    mails_delivered: int
    frozen_s: float
    overlaps_by_family: dict[str, int] = field(default_factory=dict)
    resources: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    sql_effects: int = 0
    ledger: LedgerSays | None = None

    @property
    def harm(self) -> int:
        """What must be zero."""
        return (self.lost + self.overlaps + self.doubled_effects + self.missing_effects + self.stale_overwrites) + (
            self.out_of_order + self.queue_is_wrong
        )

    @property
    def as_it_must_be(self) -> bool:
        """No harm, the books agree, and both faults hit: without them the zeros would say nothing."""
        hit = not self.missed and self.killed == self.frozen == 1 and self.stale_refused > 0
        return self.harm == 0 and hit and self.books_agree

    @property
    def books_agree(self) -> bool:
        """The ledger is sound by itself, and says the same as the handlers and the shop."""
        says = self.ledger
        if says is None or not says.ok:
            return False
        told = (says.lost, says.durable, says.completions, says.effects)
        return told == (0, self.orders, self.jobs, self.sql_effects)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.as_it_must_be}


@dataclass(slots=True)
class _Shop:
    """What the shop's database and the mail server know."""

    invoices: Counter[int]
    bookings: Counter[tuple[str, int]]
    mails: Counter[str]
    stale_overwrites: int
    out_of_order: int
    changed: dict[str, float]


def measure(
    stage: Stage,
    orders: Sequence[Order],
    records: Records,
    arrivals: Sequence[Arrival],
    faults: Faults,
    queue: QueueSays,
    seconds: float,
) -> Measured:
    """Count everything."""
    found = _read_shop(stage, arrivals)
    runs = list(records.runs.values())
    clashes = overlaps(records, found.changed, faults.killed, faults.killed_at)
    wanted_bookings = [(one.sku, one.seq) for each in expected_bookings(orders).values() for one in each]
    per_order = [found.invoices[order.order_id] for order in orders]
    refused = {name.partition(":")[2]: n for name, n in sorted(queue.stats.items()) if name.startswith("refused:")}
    for what in ("install", "verify"):  # of each such write SQL refused, Redis was asked who is right: one refusal
        refused.pop(what, None)
    for what, n in Counter(what for run in runs for what in run.refused if what in ("install", "write")).items():
        refused[f"sql {what}"] = n
    return Measured(
        mode="naive" if stage.naive else "fencepost",
        orders=len(orders),
        jobs=len(records.accepted),
        done=len(records.accepted.keys() & records.done.keys()),
        lost=len(records.accepted.keys() - records.done.keys()),
        runs=len(runs),
        duplicate_enqueues=records.duplicates,
        overlaps=sum(clashes.values()),
        overlaps_by_family=dict(clashes),
        resources=len({run.resource for run in runs if run.resource}),
        late_runs_stopped=_late_runs_stopped(records, found.changed),
        stale_refused=sum(refused.values()),
        refused=refused,
        doubled_effects=sum(_beyond_first(each) for each in (found.invoices, found.bookings, found.mails)),
        missing_effects=per_order.count(0)
        + sum(found.bookings[one] == 0 for one in wanted_bookings)
        + max(0, len(orders) - len(found.mails)),
        stale_overwrites=found.stale_overwrites,
        out_of_order=found.out_of_order,
        queue_is_wrong=queue.wrong,
        invoices_per_order=_span(per_order),
        mails_per_key=_span([*found.mails.values(), *[0] * (len(orders) - len(found.mails))]),
        mails_arrived=len(arrivals),
        mails_delivered=sum(one.delivered for one in arrivals),
        killed=int(bool(faults.killed_runs)),
        frozen=int(bool(faults.frozen_runs) and faults.frozen_s > stage.lease_s),
        frozen_s=round(faults.frozen_s, 2),
        missed=faults.missed,
        sql_effects=len(orders) + len(wanted_bookings),
        ledger=queue.ledger,
        seconds=round(seconds, 2),
    )


def overlaps(records: Records, changed: dict[str, float], dead: str, dead_at: float) -> Counter[str]:
    """Pairs of runs that held a resource together, by the family of the resource ("invoice", "stock-sync", "email").

    changed: run -> when it changed something last. dead, dead_at: the worker that was killed, and when.
    """
    found: Counter[str] = Counter()
    by_resource: dict[str, list[tuple[float, float]]] = {}
    for run in records.runs.values():
        if run.resource:
            by_resource.setdefault(run.resource, []).append(_hold(records, run, changed, dead, dead_at))
    for resource, holds in by_resource.items():
        holds.sort()
        for at, (_, end) in enumerate(holds):
            for begin, _ in holds[at + 1 :]:
                if begin >= end:
                    break
                found[resource.partition(":")[0]] += 1
    return found


def _hold(records: Records, run: RunSeen, changed: dict[str, float], dead: str, dead_at: float) -> tuple[float, float]:
    """From when to when a run held its resource; see the top of this module."""
    end = run.end if run.end is not None else dead_at if run.worker == dead else inf
    after = records.successor(run)
    if after is not None:
        end = max(min(end, after.begin), changed.get(run.run, 0.0))
    return run.begin, end


def _late_runs_stopped(records: Records, changed: dict[str, float]) -> int:
    count = 0
    for run in records.runs.values():
        after = records.successor(run)
        if after is not None and run.end is not None and run.end > after.begin:
            count += changed.get(run.run, 0.0) < after.begin
    return count


def _read_shop(stage: Stage, arrivals: Sequence[Arrival]) -> _Shop:
    db = sqlite3.connect(stage.database, timeout=20.0, isolation_level=None)
    try:
        invoices = db.execute("SELECT order_id, run, at_s FROM invoices ORDER BY number").fetchall()
        bookings = db.execute("SELECT sku, seq, before, after, run, at_s FROM bookings ORDER BY sku, id").fetchall()
    finally:
        db.close()
    changed: dict[str, float] = {}
    delivered = [one for one in arrivals if one.delivered]
    for run, at_s in _moments(invoices, bookings, delivered):
        changed[run] = max(at_s, changed.get(run, 0.0))
    stale = disordered = 0
    for earlier, later in pairwise(bookings):
        if earlier[0] == later[0]:
            stale += earlier[3] != later[2]
            disordered += earlier[1] > later[1]
    return _Shop(
        invoices=Counter(row[0] for row in invoices),
        bookings=Counter((row[0], row[1]) for row in bookings),
        mails=Counter(one.what for one in delivered),
        stale_overwrites=stale,
        out_of_order=disordered,
        changed=changed,
    )


def _moments(invoices: list[Any], bookings: list[Any], delivered: list[Arrival]) -> Iterable[tuple[str, float]]:
    yield from ((row[1], row[2]) for row in invoices)
    yield from ((row[4], row[5]) for row in bookings)
    yield from ((one.run, one.at_s) for one in delivered)


def _beyond_first(counts: Counter[Any]) -> int:
    return sum(n - 1 for n in counts.values())


def _span(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
