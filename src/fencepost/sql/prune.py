"""Deleting old rows of the guard. What a run could still ask for is never deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import Engine, and_, delete, func, inspect, select, tuple_
from sqlalchemy.exc import DBAPIError

from fencepost.errors import ConfigurationError, LedgerUnavailable
from fencepost.sql.engines import absent_file, existing, now_ms, open_engine
from fencepost.sql.faults import CHECK_SQL, short_cause
from fencepost.sql.tables import effects, fences, jobs, outbox
from fencepost.sql.upgrade import require
from fencepost.states import TERMINAL

__all__ = ["RETENTION_MS", "GuardPruned", "Kept", "check_age", "prune"]

RETENTION_MS: Final = 7 * 86_400_000
"""How long Redis keeps a failed job where its kind says nothing else."""
_PAGE: Final = 500

Kept: TypeAlias = Callable[[Sequence[str]], set[str]]
"""Those of up to 500 job ids that Redis still has, in whatever state. Raises RedisUnavailable."""


class GuardPruned(NamedTuple):
    """How many rows went. kept: old effects of jobs that may run again, which stay."""

    effects: int
    fences: int
    kept: int


def prune(
    url: str,
    older_than_ms: int,
    *,
    namespace: str,
    kept: Kept,
    retention_ms: int = RETENTION_MS,
    others: Sequence[str] = (),
) -> GuardPruned:
    """Delete old effects of jobs that are gone everywhere, and what stand-alone leases and fences left that is as old.

    An effect stays while its job may run again: while `kept` names it, while it is open in a ledger, or unpublished in
    an outbox; both are looked for in this database and in `others` (URLs). Redis is asked before anything is deleted.
    retention_ms: the longest that any kind keeps its jobs, at least RETENTION_MS counts. A transaction for every 500
    effects; none is open while Redis is asked. Raises ConfigurationError where older_than_ms is less than that, the
    file or its tables are missing; RedisUnavailable and LedgerUnavailable: what was deleted before that was right.
    """
    check_age(older_than_ms, retention_ms, "a job may come again", "Without its effect row it would do its work twice.")
    kept(())  # Redis away: nothing goes, not even what it is not asked about
    until, mine = now_ms() - older_than_ms, effects.c.namespace == namespace
    with _reached(url) as target, _elsewhere(target, url, others) as books:
        with target.connect() as connection:
            require(connection, "guard")
        gone, stay = _of_jobs(target, and_(mine, effects.c.created_at_ms < until), books, namespace, kept)
        with target.begin() as connection:
            counts = []
            for table, old in (
                (effects, and_(mine, effects.c.job_id == "", effects.c.created_at_ms < until)),
                (fences, and_(fences.c.namespace == namespace, fences.c.updated_at_ms < until)),
            ):
                counts.append(connection.execute(select(func.count()).select_from(table).where(old)).scalar() or 0)
                connection.execute(delete(table).where(old))
    return GuardPruned(gone + counts[0], counts[1], stay)


def check_age(older_than_ms: int, retention_ms: int, why: str, harm: str) -> None:
    """Raise ConfigurationError for an age below the retention, or below RETENTION_MS. why: what it is for."""
    least = max(retention_ms, RETENTION_MS)
    if older_than_ms < least:
        raise ConfigurationError(
            "older_than",
            f"{_span(older_than_ms)} are less than the {_span(least)} for which {why}",
            f"{harm} Prune what is older.",
        )


def _span(ms: int) -> str:
    for unit, size in ((" days", 86_400_000), (" h", 3_600_000), (" min", 60_000)):
        if ms >= size:
            return f"{ms / size:.4g}{unit}"
    return f"{ms / 1000:g} s"


def _of_jobs(target: Engine, old: Any, books: list[Engine], namespace: str, kept: Kept) -> tuple[int, int]:
    """Delete those of the old effects whose job is gone; returns how many went and how many stay."""
    gone = stay = 0
    place: tuple[int, str] = (-1, "")
    e = effects.c
    while True:
        page = select(e.created_at_ms, e.effect_key, e.job_id).where(old, e.job_id != "")
        page = page.where(tuple_(e.created_at_ms, e.effect_key) > place).order_by(e.created_at_ms, e.effect_key)
        with target.connect().execution_options(fencepost_reading=True) as connection:
            rows = connection.execute(page.limit(_PAGE)).all()
        if not rows:
            return gone, stay
        place = (int(rows[-1].created_at_ms), str(rows[-1].effect_key))
        ids = sorted({str(row.job_id) for row in rows})
        needed: set[str] = set()
        for book in books:  # before Redis: what an outbox or a ledger sends there meanwhile is seen on one side
            needed |= _open_in(book, namespace, ids)
        needed |= kept(ids)
        free = [row.effect_key for row in rows if row.job_id not in needed]
        with target.begin() as connection:
            connection.execute(delete(effects).where(old, e.effect_key.in_(free)))
        gone, stay = gone + len(free), stay + len(rows) - len(free)


def _open_in(book: Engine, namespace: str, ids: list[str]) -> set[str]:
    """Which of the jobs a ledger or an outbox may yet bring into Redis."""
    found: set[str] = set()
    with book.connect().execution_options(fencepost_reading=True) as connection:
        there = set(inspect(connection).get_table_names())
        for table, is_open in (
            (outbox, outbox.c.published_at_ms.is_(None)),
            (jobs, jobs.c.state.not_in(TERMINAL)),
        ):
            if table.name in there:
                which = and_(table.c.namespace == namespace, table.c.job_id.in_(ids), is_open)
                found |= set(connection.scalars(select(table.c.job_id).where(which)))
    return found


@contextmanager
def _elsewhere(target: Engine, url: str, others: Sequence[str]) -> Iterator[list[Engine]]:
    """The databases in which a job may be open: the guard's own, and others that are there."""
    more = [open_engine(one) for one in dict.fromkeys(others) if one != url and absent_file(one) is None]
    try:
        yield [target, *more]
    finally:
        for engine in more:
            engine.dispose()


@contextmanager
def _reached(url: str) -> Iterator[Engine]:
    engine = open_engine(existing(url))
    try:
        yield engine
    except DBAPIError as error:
        raise LedgerUnavailable("sql prune", short_cause(error), None, CHECK_SQL) from error
    finally:
        engine.dispose()
