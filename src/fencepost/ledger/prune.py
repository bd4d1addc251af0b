"""Deleting what is old. A job goes with all its events or stays with all of them, so that what is left can be verified.

Nothing goes that is open, or younger than jobs can be read in Redis: the reconciler needs to know that they ended.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import and_, delete, exists, func, or_, select, update

from fencepost.job import JobSpec
from fencepost.ledger.book import Ledger
from fencepost.ledger.writing import insert_ignoring
from fencepost.sql.engines import now_ms
from fencepost.sql.prune import RETENTION_MS, Kept, check_age
from fencepost.sql.tables import cursors, events, jobs, marks
from fencepost.states import TERMINAL, State

__all__ = ["RETENTION_MS", "Pruned", "prune"]

_JOBS: Final = 500


class Pruned(NamedTuple):
    """What went. until_ms: everything that ended before this instant."""

    jobs: int
    events: int
    until_ms: int


def prune(
    ledger: Ledger, older_than_ms: int, *, retention_ms: int = RETENTION_MS, kept: Kept = lambda _: set()
) -> Pruned:
    """Delete jobs that ended longer ago than older_than_ms, with their events, and old events of no job.

    kept: asks Redis, before anything goes; a job it still has stays. retention_ms: the longest that any kind keeps its
    jobs in Redis, at least RETENTION_MS counts; nothing younger may go. A transaction for every 500 jobs: a prune that
    is interrupted has done a part, and goes on when it is called again. Raises ConfigurationError where older_than_ms
    is less than the retention, LedgerUnavailable, RedisUnavailable.
    """
    harm = "The reconciler needs to know that such jobs have ended."
    check_age(older_than_ms, retention_ms, "jobs can be read in Redis", harm)
    kept(())
    until = now_ms() - older_than_ms
    gone_jobs = gone_events = 0
    place: str | None = ""
    while place is not None:
        place, some_jobs, some_events = _some_jobs(ledger, until, place, kept)
        gone_jobs, gone_events = gone_jobs + some_jobs, gone_events + some_events
    return Pruned(gone_jobs, gone_events + _of_no_job(ledger, until), until)


def _some_jobs(ledger: Ledger, until: int, place: str, kept: Kept) -> tuple[str | None, int, int]:
    """Delete some jobs with an id behind place; returns where to go on (None: through), jobs and events deleted."""
    c, e = jobs.c, events.c
    old = and_(c.namespace == ledger.namespace, c.state.in_(TERMINAL), c.finished_at_ms < until)
    recent = exists().where(e.namespace == c.namespace, e.job_id == c.job_id, e.at_ms >= until)
    columns = (c.job_id, c.state, c.finished_at_ms, c.spec)
    page = select(*columns).where(old, ~recent, c.job_id > place).order_by(c.job_id).limit(_JOBS)
    with ledger.reading("prune") as connection:
        rows = connection.execute(page).all()
    ids = [row.job_id for row in rows if not _still_kept(row)]
    in_redis = kept(ids) if ids else set()
    ids = [job_id for job_id in ids if job_id not in in_redis]
    with ledger.begin("prune") as connection:  # what has begun anew meanwhile stays
        ids = list(connection.scalars(select(c.job_id).where(old, ~recent, c.job_id.in_(ids)).with_for_update()))
        gone = _delete(connection, ledger.namespace, e.job_id.in_(ids), until) if ids else 0
        connection.execute(delete(jobs).where(c.namespace == ledger.namespace, c.job_id.in_(ids)))
        return (rows[-1].job_id if len(rows) == _JOBS else None), len(ids), gone


def _still_kept(row: Any) -> bool:
    """Whether Redis may still have the job, because it was enqueued with a longer retention of its own."""
    if row.spec is None:
        return False
    spec = msgspec.json.decode(row.spec, type=JobSpec)
    kept = spec.failed_retention_ms if row.state == State.FAILED else spec.retention_ms
    return bool(row.finished_at_ms + kept > now_ms())


def _of_no_job(ledger: Ledger, until: int) -> int:
    """Events of stand-alone leases, and of jobs without a row."""
    e = events.c
    has_row = exists().where(jobs.c.namespace == e.namespace, jobs.c.job_id == e.job_id)
    with ledger.begin("prune") as connection:
        return _delete(connection, ledger.namespace, or_(e.job_id.startswith("@"), ~has_row), until)


def _delete(connection: Any, namespace: str, which: Any, until: int) -> int:
    """Delete events, count them with their cursor, and mark that numbers up to the last of them may be missing."""
    e = events.c
    old = and_(e.namespace == namespace, e.at_ms < until, which)
    ends = select(e.part, e.epoch, func.count(), func.max(e.seq)).where(old).group_by(e.part, e.epoch)
    total = 0
    for part, epoch, number, last in connection.execute(ends).all():
        mine = and_(cursors.c.namespace == namespace, cursors.c.part == part)
        connection.execute(update(cursors).where(mine).values(pruned=cursors.c.pruned + number))
        row = {"namespace": namespace, "part": part, "epoch": epoch, "why": "pruned", "first_seq": 0}
        connection.execute(insert_ignoring(connection, marks), [row | {"last_seq": last, "at_ms": now_ms()}])
        m = marks.c
        which_mark = and_(m.namespace == namespace, m.part == part, m.epoch == epoch, m.why == "pruned")
        connection.execute(update(marks).where(which_mark, m.last_seq < last).values(last_seq=last))
        total += number
    if total:
        connection.execute(delete(events).where(old))
    return total
