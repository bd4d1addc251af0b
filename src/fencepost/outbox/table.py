"""The outbox table seen from outside the user's transactions: which jobs are to be published, and what became of them.

A row is open until it is marked as published. Rows that must not be published blindly (see Publisher) have a problem
that begins with HELD; only a person decides about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy import Connection, Engine, and_, delete, func, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from fencepost.errors import ConfigurationError, LedgerUnavailable
from fencepost.sql.engines import now_ms
from fencepost.sql.faults import CHECK_SQL, fault_of, short_cause
from fencepost.sql.tables import outbox

__all__ = ["HELD", "OutboxTable", "Row", "Waiting"]

HELD: Final = "held: "
_LONGEST_SLEEP_S: Final = 10
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Row(NamedTuple):
    """One job in the outbox. spec: JSON text. created_at_ms, published_at_ms: by the clock of the host that wrote them.
    tries: begun attempts to publish it. answer: what enqueue said, and of which job where it is another one."""

    job_id: str
    spec: str
    created_at_ms: int
    published_at_ms: int | None
    tries: int
    answer: str
    problem: str


class Waiting(NamedTuple):
    """What is left to publish. oldest_ms: age of the oldest open row. held: rows that wait for a person."""

    rows: int
    oldest_ms: int
    held: int


class Mark(Protocol):
    """What marks rows; see OutboxTable.mark."""

    def __call__(
        self, published: Mapping[str, str], failed: Mapping[str, str], unsent: Mapping[str, str] = _NONE
    ) -> None: ...


class OutboxTable:
    """The rows of one namespace. Each method is one short transaction. Raises LedgerUnavailable where the database is
    away, ConfigurationError where it has no outbox table."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self.engine, self.namespace = engine, namespace
        self.locks = engine.dialect.name != "sqlite"

    @property
    def where(self) -> str:
        """The URL without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    def begin(self, limit: int, ids: Sequence[str] | None = None) -> list[Row]:
        """Take up to `limit` open rows, the oldest first, and count a try for each before anything is sent.

        ids: only these. On a server, rows that another relay has locked are passed over. The answer has the tries that
        were begun before.
        """
        chosen = [outbox.c.namespace == self.namespace, outbox.c.published_at_ms.is_(None)]
        if ids is not None:
            chosen.append(outbox.c.job_id.in_(ids))
        index = "fencepost_outbox_open" if ids is None else "PRIMARY"
        query = self._by(select(outbox).where(*chosen), index).order_by(outbox.c.created_at_ms, outbox.c.job_id)
        fresh = query.where(outbox.c.problem.is_(None))  # what failed before does not hold up the others
        again = query.where(outbox.c.problem.not_like(HELD + "%"))
        if not self.locks:  # SQLite: the only lock for writing is not taken for nothing
            with self._transaction("read", reads=True) as connection:
                if all(connection.execute(one.limit(1)).first() is None for one in (fresh, again)):
                    return []
        with self._transaction("publish") as connection:
            rows = [_row(one) for one in connection.execute(self._locked(fresh.limit(limit)))]
            if len(rows) < limit:
                rows += [_row(one) for one in connection.execute(self._locked(again.limit(limit - len(rows))))]
            if rows:
                mine = outbox.c.job_id.in_([row.job_id for row in rows])
                connection.execute(update(outbox).where(mine).values(tries=outbox.c.tries + 1))
        return rows

    @contextmanager
    def held(self, rows: Sequence[Row]) -> Iterator[tuple[list[Row], Mark]]:
        """Those of the rows that are still open, locked while they are sent, and what marks them in the end.

        SQLite has one lock for all writers: there nothing is locked, and two relays may send the same job; that is
        one job all the same, by its id.
        """
        if not self.locks:
            yield list(rows), self.mark
            return
        ids = [row.job_id for row in rows]
        query = select(outbox.c.job_id).where(outbox.c.job_id.in_(ids), outbox.c.published_at_ms.is_(None))
        query = self._by(query, "PRIMARY")
        with self._transaction("publish") as connection:
            if self.engine.dialect.name == "postgresql":  # a relay that freezes here must not keep its rows for ever
                connection.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{_LONGEST_SLEEP_S}s'"))
            open_ids = set(connection.execute(self._locked(query)).scalars())

            def mark(
                published: Mapping[str, str], failed: Mapping[str, str], unsent: Mapping[str, str] = _NONE
            ) -> None:
                _mark(connection, published, failed, unsent)

            yield [row for row in rows if row.job_id in open_ids], mark

    def mark(self, published: Mapping[str, str], failed: Mapping[str, str], unsent: Mapping[str, str] = _NONE) -> None:
        """Write what became of rows. published: id -> answer; failed: id -> problem. unsent: as failed, where it is
        certain that the try did not reach Redis: then it was none."""
        with self._transaction("mark") as connection:
            _mark(connection, published, failed, unsent)

    def find(self, job_id: str) -> Row | None:
        """Read one row, published or not."""
        with self._transaction("read", reads=True) as connection:
            query = select(outbox).where(outbox.c.job_id == job_id, outbox.c.namespace == self.namespace)
            found = connection.execute(query).first()
        return None if found is None else _row(found)

    def missing(self, job_ids: Sequence[str]) -> list[str]:
        """Those of the ids that have no row here."""
        with self._transaction("read", reads=True) as connection:
            found = set(connection.execute(select(outbox.c.job_id).where(outbox.c.job_id.in_(job_ids))).scalars())
        return [job_id for job_id in job_ids if job_id not in found]

    def held_rows(self, limit: int = 100) -> list[Row]:
        """The rows that wait for a person, the oldest first."""
        query = select(outbox).where(
            outbox.c.namespace == self.namespace,
            outbox.c.published_at_ms.is_(None),
            outbox.c.problem.like(HELD + "%"),
        )
        with self._transaction("read", reads=True) as connection:
            return [_row(one) for one in connection.execute(query.order_by(outbox.c.created_at_ms).limit(limit))]

    def let_go(self, job_ids: Sequence[str]) -> int:
        """Let held rows be published as if they were new. Returns how many there were."""
        chosen = and_(
            outbox.c.namespace == self.namespace,
            outbox.c.job_id.in_(job_ids),
            outbox.c.published_at_ms.is_(None),
            outbox.c.problem.like(HELD + "%"),
        )
        with self._transaction("let go") as connection:
            ids = list(connection.execute(select(outbox.c.job_id).where(chosen)).scalars())
            connection.execute(update(outbox).where(chosen).values(tries=0, problem=None))
        return len(ids)

    def waiting(self) -> Waiting:
        """How much is left to publish."""
        mine = and_(outbox.c.namespace == self.namespace, outbox.c.published_at_ms.is_(None))
        with self._transaction("read", reads=True) as connection:
            rows, oldest = connection.execute(select(func.count(), func.min(outbox.c.created_at_ms)).where(mine)).one()
            held = connection.execute(select(func.count()).where(mine, outbox.c.problem.like(HELD + "%"))).scalar_one()
        return Waiting(rows, 0 if oldest is None else max(0, now_ms() - oldest), held)

    def clear(self, older_than_ms: int, limit: int = 1_000) -> int:
        """Delete up to `limit` rows that were published longer ago than that. Returns how many were found."""
        query = select(outbox.c.job_id).where(
            outbox.c.namespace == self.namespace, outbox.c.published_at_ms < now_ms() - older_than_ms
        )
        with self._transaction("clear") as connection:
            ids = list(connection.execute(query.limit(limit)).scalars())
            if ids:
                connection.execute(delete(outbox).where(outbox.c.job_id.in_(ids)))
        return len(ids)

    def _locked(self, query: Any) -> Any:
        return query.with_for_update(skip_locked=True) if self.locks else query

    def _by(self, query: Any, index: str) -> Any:
        """MariaDB locks each row that it reads, also those it sorts away: it has to read in the order of an index."""
        for dialect in ("mariadb", "mysql"):
            query = query.with_hint(outbox, f"FORCE INDEX ({index})", dialect)
        return query

    @contextmanager
    def _transaction(self, what: str, *, reads: bool = False) -> Iterator[Connection]:
        with _errors(f"outbox: {what}"), self.engine.connect() as plain:
            connection = plain.execution_options(fencepost_reading=reads)
            if self.engine.dialect.name in ("mysql", "mariadb"):  # an UPDATE does not wait for rows it does not want
                connection = connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                yield connection


def _mark(
    connection: Connection, published: Mapping[str, str], failed: Mapping[str, str], unsent: Mapping[str, str]
) -> None:
    for answer, ids in _by_text(published, 255):
        values = {"published_at_ms": now_ms(), "answer": answer, "problem": None}
        connection.execute(update(outbox).where(outbox.c.job_id.in_(ids)).values(values))
    for problems, change in ((failed, {}), (unsent, {"tries": outbox.c.tries - 1})):
        for problem, ids in _by_text(problems, 1_000):
            still_open = and_(outbox.c.job_id.in_(ids), outbox.c.published_at_ms.is_(None))
            connection.execute(update(outbox).where(still_open).values({"problem": problem, **change}))


def _by_text(texts: Mapping[str, str], most: int) -> Iterator[tuple[str, list[str]]]:
    """The ids of each text, so that one statement serves many rows."""
    ids: dict[str, list[str]] = {}
    for job_id, text_ in texts.items():
        ids.setdefault(text_[:most], []).append(job_id)
    yield from ids.items()


def _row(found: Any) -> Row:
    return Row(
        found.job_id, found.spec, int(found.created_at_ms), found.published_at_ms, int(found.tries),
        found.answer or "", found.problem or "",
    )  # fmt: skip


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Turn errors of the database into ours: LedgerUnavailable, or ConfigurationError where the table is missing."""
    try:
        yield
    except SQLAlchemyError as error:
        if fault_of(error) == "missing":
            raise ConfigurationError(
                "outbox", "the database has no table fencepost_outbox", "Run `fencepost sql upgrade URL` once."
            ) from error
        executed = None if fault_of(error) == "away" and not what.endswith("read") else False
        raise LedgerUnavailable(what, short_cause(error), executed, CHECK_SQL) from error
