"""The outbox: a job that is enqueued in the user's own SQL transaction, and becomes one in Redis after its commit.

* `write`: the row, on whatever connection the user holds. * `table`: the rows seen from outside. * `publish`: from
there to Redis. * `prompt`: at once, after the commit. What is left is for the relay (`fencepost.relay`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencepost.driver import SyncDriver
from fencepost.errors import ConfigurationError
from fencepost.job import JobRecord, JobSpec
from fencepost.link import Link
from fencepost.outbox.write import write, write_sync

if TYPE_CHECKING:
    from fencepost.ledger import Ledger
    from fencepost.outbox.prompt import Prompt
    from fencepost.outbox.publish import Publisher
    from fencepost.outbox.table import OutboxTable

__all__ = ["Outbox"]

_PUSH_S = 2.0


class Outbox:
    """The outbox of one application. url: of the database in which its transactions are. Opened at its first use.

    Every method may raise ConfigurationError where the extra `sql`, the driver or the table is missing.
    """

    def __init__(self, url: str, link: Link, ledger: Callable[[], Ledger | None]) -> None:
        self.url, self._link, self._ledger = url, link, ledger
        self._lock = threading.Lock()
        self._table: OutboxTable | None = None
        self._prompt: Prompt | None = None

    @property
    def namespace(self) -> str:
        return self._link.store.keys.namespace

    def write_sync(self, connection: Any, spec: JobSpec) -> None:
        """Write a job into the user's transaction; see write.write_sync. It is published when that has committed."""
        prompt = self.prompt
        write_sync(connection, self.namespace, spec, prompt.tell)

    async def write(self, connection: Any, spec: JobSpec) -> None:
        """As write_sync, on an asynchronous connection or session."""
        prompt = self.prompt
        await write(connection, self.namespace, spec, prompt.tell)

    @property
    def table(self) -> OutboxTable:
        with self._lock:
            if self._table is None:
                self._table = _open(self.url, self.namespace)
            return self._table

    @property
    def prompt(self) -> Prompt:
        """The thread that publishes right after a commit."""
        table = self.table
        with self._lock:
            if self._prompt is None:
                from fencepost.outbox.prompt import Prompt

                self._prompt = Prompt(self.publisher(table))
            return self._prompt

    def publisher(self, table: OutboxTable | None = None) -> Publisher:
        """Return a publisher with connections of its own."""
        from fencepost.outbox.publish import Publisher

        driver = SyncDriver(self._link.connections, give_up_s=_PUSH_S)
        return Publisher(table or self.table, self._link.store, driver, self._ledger)

    def recall(self, job_id: str) -> JobRecord | None:
        """What the outbox knows of a job that Redis has not. other["owner"]: another job has its work, by its dedup or
        idempotency key. Raises LedgerUnavailable."""
        from fencepost.codec import spec_from_text

        row = self.table.find(job_id)
        if row is None:
            return None
        word, _, owner = row.answer.partition(" ")
        if row.published_at_ms is not None and not owner:
            return None  # it was a job of its own, and its retention is over
        spec = spec_from_text(row.spec)
        other = {"source": "outbox", **({"owner": owner, "answer": word} if owner else {})}
        return JobRecord(
            id=job_id, state="outbox", kind=spec.kind, queue=spec.queue, payload=spec.payload,
            created_at=row.created_at_ms, idem=spec.idem, other=other,
        )  # fmt: skip

    def close(self) -> None:
        """Publish what is known to be committed, within two seconds, and close the connections."""
        with self._lock:
            prompt, table, self._prompt, self._table = self._prompt, self._table, None, None
        if prompt is not None:
            prompt.close()
        if table is not None:
            table.engine.dispose()


def _open(url: str, namespace: str) -> OutboxTable:
    try:
        from fencepost.outbox.table import OutboxTable
        from fencepost.sql.engines import open_engine, synchronous_url
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sqlalchemy":
            raise
        raise ConfigurationError("outbox", "SQLAlchemy is not installed", "pip install 'fencepost[sql]'.") from error
    parsed = synchronous_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "outbox", "a database in memory is seen by one connection only", "Give a file: sqlite:///shop.sqlite."
        )
    patient = parsed.drivername == "postgresql+psycopg" and "connect_timeout" not in parsed.query
    return OutboxTable(open_engine(parsed, connect_args={"connect_timeout": 5} if patient else {}), namespace)
