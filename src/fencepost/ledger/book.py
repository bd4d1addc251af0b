"""The ledger of one namespace: jobs that are accepted before Redis is asked, and what is known of each job.

Synchronous, with an engine of its own and safe from any thread; code on an event loop calls it by `asyncio.to_thread`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, Row, and_, delete, select, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from fencepost.errors import LedgerUnavailable
from fencepost.job import JobSpec
from fencepost.keys import check_namespace
from fencepost.ledger.writing import insert_ignoring
from fencepost.sql.engines import now_ms, open_engine, synchronous_url
from fencepost.sql.faults import CHECK_SQL, short_cause
from fencepost.sql.tables import cursors, events, jobs
from fencepost.sql.upgrade import HEAD, require, revision, upgrade
from fencepost.sql.urls import LEDGERS, check_sql_url
from fencepost.states import TERMINAL

__all__ = ["ACCEPTED", "Ledger", "LedgerEvent", "LedgerJob"]

ACCEPTED: Final = "accepted"
"""The state of a durable job that Redis has not told of yet."""
_IDS: Final = 500
_OF_A_SENDER: Final = ("accept", "withdraw")


class LedgerJob(msgspec.Struct, kw_only=True, frozen=True):
    """What the ledger knows of a job. state: as in Redis, or "accepted" until Redis told of it; a delay does not show.
    Instants: ms since 1970. epoch, seq: of the event that moved it last. spec: of durable jobs, what enqueue sends."""

    job_id: str
    state: str
    kind: str = ""
    queue: str = ""
    resource: str = ""
    reason: str = ""
    generation: int = 1
    attempts: int = 0
    token: int = 0
    nonce: str = ""
    worker: str = ""
    durable: bool = False
    spec: JobSpec | None = None
    epoch: int = 0
    seq: int = 0
    created_at_ms: int = 0
    updated_at_ms: int = 0
    finished_at_ms: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL


class LedgerEvent(msgspec.Struct, kw_only=True, frozen=True):
    """One event, as the archiver copied it."""

    epoch: int
    seq: int
    at_ms: int
    name: str
    job_id: str
    kind: str = ""
    resource: str = ""
    worker: str = ""
    attempt: int | None = None
    token: int | None = None
    nonce: str = ""
    reason: str = ""


class Ledger:
    """Reads and writes of one namespace. url: of SQLite or PostgreSQL; an asynchronous driver's is understood too.

    A SQLite ledger makes its tables by itself; on a server `fencepost sql upgrade URL` does. Nothing is connected
    before the first use. Every method may raise LedgerUnavailable, and ConfigurationError where tables are missing.
    """

    def __init__(self, url: str | URL, namespace: str, *, part: int = 0) -> None:
        shown = url if isinstance(url, str) else url.render_as_string(hide_password=False)
        check_sql_url(shown, "ledger", LEDGERS)
        parsed = synchronous_url(url)
        self.namespace, self.part = check_namespace(namespace), part
        patient = parsed.drivername == "postgresql+psycopg" and "connect_timeout" not in parsed.query
        self.engine: Engine = open_engine(parsed, connect_args={"connect_timeout": 5} if patient else {})
        self._lock, self._prepared = threading.Lock(), False

    @property
    def where(self) -> str:
        """The URL without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self.engine.dispose()

    def prepare(self, what: str = "open") -> None:
        """See that the tables are there: SQLite gets them, a server must have them. Cheap after the first time."""
        if self._prepared:
            return
        with self._lock:
            try:
                with self.engine.connect() as connection:
                    current = self.engine.dialect.name == "sqlite" and revision(connection) == HEAD
                    if self.engine.dialect.name != "sqlite":
                        require(connection, "ledger")
            except DBAPIError as error:
                raise unavailable(what, error) from error
            if self.engine.dialect.name == "sqlite" and not current:
                upgrade(self.engine)
            self._prepared = True

    @contextmanager
    def begin(self, what: str) -> Iterator[Connection]:
        """One transaction, committed at the end of the block. SQLite: it holds the only write lock from its start."""
        self.prepare(what)
        committing = False
        try:
            with self.engine.connect() as connection:
                try:
                    with connection.begin() as transaction:
                        yield connection
                        committing = True
                        transaction.commit()
                except BaseException:
                    connection.invalidate()  # a COMMIT that failed may have left the transaction, and its locks, open
                    raise
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise unavailable(what, error, None if committing else False) from error

    @contextmanager
    def reading(self, what: str) -> Iterator[Connection]:
        """One consistent view of all tables, which holds up no writer."""
        self.prepare(what)
        postgresql = self.engine.dialect.name == "postgresql"
        options: dict[str, Any] = {"isolation_level": "REPEATABLE READ"} if postgresql else {"fencepost_reading": True}
        try:
            with self.engine.connect().execution_options(**options) as connection, connection.begin():
                yield connection
        except DBAPIError as error:
            raise unavailable(what, error) from error

    # -- durable jobs -------------------------------------------------------------------------------------

    def accept(self, specs: Sequence[JobSpec]) -> frozenset[str]:
        """Write durable jobs down before Redis is asked: one transaction, all or nothing.

        Returns the ids that are new here; the others were accepted before, by the same call sent twice. An id whose
        job ended longer ago than its retention is new again.
        """
        moment = now_ms()
        rows = [_row(self.namespace, self.part, spec, moment) for spec in specs]
        with self.begin("accept") as connection:
            fresh: set[str] = set()
            for at in range(0, len(rows), _IDS):
                part = rows[at : at + _IDS]
                taken = set(connection.scalars(insert_ignoring(connection, jobs).returning(jobs.c.job_id), part))
                fresh |= taken
                fresh |= self._renewed(connection, [one for one in part if one["job_id"] not in taken], moment)
        return frozenset(fresh)

    def _renewed(self, connection: Connection, rows: list[dict[str, Any]], moment: int) -> set[str]:
        """Start over the rows of jobs that Redis has forgotten since they ended."""
        out: set[str] = set()
        for row in rows:
            spec = msgspec.json.decode(row["spec"], type=JobSpec)
            oldest = moment - max(spec.retention_ms, spec.failed_retention_ms)
            changed = connection.scalars(
                update(jobs)
                .where(self._mine(row["job_id"]), jobs.c.state.in_(TERMINAL), jobs.c.finished_at_ms < oldest)
                .values({name: row[name] for name in row if name not in ("namespace", "job_id")})
                .values(generation=1, attempts=0, finished_at_ms=None)
                .returning(jobs.c.job_id)
            )
            out |= set(changed)
        return out

    def withdraw(self, job_ids: Iterable[str]) -> int:
        """Take back what accept wrote, where Redis refused the job or had it already. Returns how many rows went.

        A row that has moved on since, because Redis has told of the job, stays.
        """
        ids, gone = list(job_ids), 0
        with self.begin("withdraw") as connection:
            for at in range(0, len(ids), _IDS):
                which = and_(
                    jobs.c.namespace == self.namespace,
                    jobs.c.job_id.in_(ids[at : at + _IDS]),
                    jobs.c.state == ACCEPTED,
                    jobs.c.seq == 0,
                )
                gone += len(connection.execute(delete(jobs).where(which).returning(jobs.c.job_id)).all())
        return gone

    # -- reading ------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> LedgerJob | None:
        """What is known of a job; None where the ledger never heard of it."""
        with self.reading("job") as connection:
            row = connection.execute(select(jobs).where(self._mine(job_id))).first()
        return None if row is None else as_job(row)

    def history(self, job_id: str) -> list[LedgerEvent]:
        """The events of a job in the order in which they happened; those of a rewound Redis first."""
        which = and_(events.c.namespace == self.namespace, events.c.job_id == job_id)
        with self.reading("history") as connection:
            rows = connection.execute(select(events).where(which).order_by(events.c.epoch, events.c.seq)).all()
        return [as_event(row) for row in rows]

    def namespaces(self) -> list[str]:
        """The namespaces that have a job or an event here, by name."""
        copied = select(cursors.c.namespace).where(cursors.c.copied > 0)
        with self.reading("read the namespaces") as connection:
            return sorted(connection.scalars(copied.union(select(jobs.c.namespace))))

    def _mine(self, job_id: str) -> Any:
        return and_(jobs.c.namespace == self.namespace, jobs.c.job_id == job_id)


def as_job(row: Row[Any]) -> LedgerJob:
    """A row of the table of jobs."""
    fields = {name: value for name, value in row._mapping.items() if name not in ("namespace", "part", "spec")}
    spec = None if row.spec is None else msgspec.json.decode(row.spec, type=JobSpec)
    return LedgerJob(spec=spec, **fields)


def as_event(row: Row[Any]) -> LedgerEvent:
    """A row of the table of events."""
    return LedgerEvent(**{name: getattr(row, name) for name in LedgerEvent.__struct_fields__})


def unavailable(what: str, error: SQLAlchemyError, executed: bool | None = False) -> LedgerUnavailable:
    """The error that callers see, in the words of the driver."""
    return LedgerUnavailable(what, short_cause(error), executed, "" if what in _OF_A_SENDER else CHECK_SQL)


def _row(namespace: str, part: int, spec: JobSpec, moment: int) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "job_id": spec.id,
        "part": part,
        "kind": spec.kind,
        "queue": spec.queue,
        "resource": spec.resource or "",
        "state": ACCEPTED,
        "reason": "",
        "durable": True,
        "spec": msgspec.json.encode(spec).decode(),
        "created_at_ms": moment,
        "updated_at_ms": moment,
    }
