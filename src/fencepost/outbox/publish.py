"""From the outbox to Redis: each committed row becomes one job, its id fixed in the row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.clock import boottime_s
from fencepost.codec import after_waiting, spec_from_text
from fencepost.driver import SyncDriver
from fencepost.errors import FencepostError, LedgerUnavailable, RedisUnavailable
from fencepost.job import JobSpec
from fencepost.ledger.book import ACCEPTED
from fencepost.log import emit
from fencepost.outbox.table import HELD, OutboxTable, Row
from fencepost.sql.engines import now_ms
from fencepost.store import Store

if TYPE_CHECKING:
    from fencepost.ledger import Ledger

__all__ = ["BATCH", "ELSEWHERE", "KNOWN", "Published", "Publisher"]

_log = logging.getLogger("fencepost.relay")
BATCH: Final = 500
"""The most rows of one round."""
KNOWN: Final = "KNOWN"
"""The answer of a row whose job Redis, or the ledger, had already."""
ELSEWHERE: Final = frozenset({"DUPLICATE", "REPLAYED", "CONFLICT"})
"""Answers that name another job."""
_FRESH_S: Final = 2.0


class Published(NamedTuple):
    """What one round did. seen: rows that were looked at; sent: jobs that Redis has now; known: rows that it, or the
    ledger, had already; failed: rows that stay for a later round; held: rows that wait for a person from now on.
    away: why Redis, or the ledger, could not be asked; "" where they could."""

    seen: int = 0
    sent: int = 0
    known: int = 0
    failed: int = 0
    held: int = 0
    away: str = ""


class Publisher:
    """Publishes rows of one outbox. Several may work on it at once, in any number of processes: each job comes once.

    A try is counted in the row before anything is sent, and the row is marked after. Killed in between, the next
    publisher finds a row that was tried: sending it again is harmless as long as Redis, or the ledger, still knows the
    job. A row for which neither does, and which is older than the retention of its job, is held and reported.
    ledger: gets durable jobs before Redis does.
    """

    def __init__(
        self, table: OutboxTable, store: Store, driver: SyncDriver, ledger: Callable[[], Ledger | None]
    ) -> None:
        self.table, self._store, self._driver, self._ledger = table, store, driver, ledger

    def publish_some(self, limit: int = BATCH, ids: Sequence[str] | None = None) -> Published:
        """Publish up to `limit` rows, the oldest first, or those with one of the ids.

        Raises LedgerUnavailable where the outbox cannot be read or marked. While Redis is away all rows stay.
        """
        try:
            self._driver.run(self._store.read(["PING"], bytes))  # while it is away, no try is begun
        except RedisUnavailable as error:
            return Published(away=error.cause)
        rows = self.table.begin(min(limit, BATCH), ids)
        if not rows:
            return Published()
        read_at_s = boottime_s()
        specs, held = _opened(rows)
        known: dict[str, str] = {}
        try:
            for row in rows:
                if row.tries and row.job_id in specs:
                    self._look_back(row, specs[row.job_id], known, held)
        except (RedisUnavailable, LedgerUnavailable) as error:
            self.table.mark(known, held)
            self.table.mark({}, {}, {row.job_id: error.cause for row in rows if row.job_id not in {*known, *held}})
            return Published(len(rows), 0, len(known), len(rows) - len(known) - len(held), len(held), error.cause)
        if known or held:
            self.table.mark(known, held)
        for job_id, problem in held.items():
            emit(_log, logging.ERROR, "outbox_held", job_id=job_id, problem=problem.removeprefix(HELD))
        round_ = _Round(self._store, self._driver, self._ledger())
        with self.table.held([row for row in rows if row.job_id not in {*known, *held}]) as (mine, mark):
            if mine and boottime_s() - read_at_s <= _FRESH_S:  # else this process stood still: what it read is old
                now = now_ms()
                round_.send([after_waiting(specs[row.job_id], now - row.created_at_ms) for row in mine])
                mark(round_.published, round_.failed, round_.unsent)
        sent, failed = len(round_.published), len(round_.failed) + len(round_.unsent)
        return Published(len(rows), sent, len(known), failed, len(held), round_.away)

    def _look_back(self, row: Row, spec: JobSpec, known: dict[str, str], held: dict[str, str]) -> None:
        """A try was begun before: did Redis get the job then? Where nobody can tell any more, the row is held."""
        if self._driver.run(self._store.read(["EXISTS", self._store.keys.job(row.job_id)], int)):
            known[row.job_id] = KNOWN
            return
        ledger = self._ledger()
        job = ledger.job(row.job_id) if ledger is not None else None
        if (
            job is not None and job.state != ACCEPTED
        ):  # it came as far as Redis; what Redis lost, the reconciler restores
            known[row.job_id] = KNOWN
        elif job is None and now_ms() - row.created_at_ms >= min(spec.retention_ms, spec.failed_retention_ms):
            held[row.job_id] = (
                f"{HELD}an earlier try may have reached Redis, and the retention of the job is over: it may have run"
            )


class _Round:
    """One batch on its way. published: id -> answer; failed: id -> problem; unsent: as failed, certainly not sent."""

    def __init__(self, store: Store, driver: SyncDriver, ledger: Ledger | None) -> None:
        self._store, self._driver, self._ledger = store, driver, ledger
        self.published: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.unsent: dict[str, str] = {}
        self.away = ""

    def send(self, specs: list[JobSpec]) -> None:
        """To the ledger what is durable, then all to Redis."""
        specs = self._accepted(specs)
        if not specs:
            return
        try:
            self._push(specs)
        except RedisUnavailable as error:
            which = self.unsent if error.executed is False else self.failed
            which |= {spec.id: error.cause for spec in specs}
            self.away = error.cause
            return
        except FencepostError:  # one of them is to blame; the others must not wait for it
            for spec in specs:
                try:
                    self._push([spec])
                except FencepostError as error:
                    self.failed[spec.id] = str(error)
        self._withdraw([spec for spec in specs if spec.durable])

    def _push(self, specs: list[JobSpec]) -> None:
        # No limit of the queue: these jobs were accepted when their transaction was committed.
        answers: list[tuple[str, str, str]] = self._driver.run(self._store.enqueue(specs))
        for spec, (word, job_id, _) in zip(specs, answers, strict=True):
            self.published[spec.id] = word if job_id == spec.id else f"{word} {job_id}"
            if word in ELSEWHERE:
                emit(_log, logging.INFO, "outbox_duplicate", job_id=spec.id, answer=word, other=job_id)

    def _accepted(self, specs: list[JobSpec]) -> list[JobSpec]:
        """Write durable jobs into the ledger; returns what is to be sent to Redis."""
        durable = [spec for spec in specs if spec.durable]
        if not durable:
            return specs
        rest = [spec for spec in specs if not spec.durable]
        try:
            if self._ledger is None:
                raise LedgerUnavailable("accept", "this publisher has no ledger, and the job is durable")
            fresh = self._ledger.accept(durable)
            for spec in durable:
                job = None if spec.id in fresh else self._ledger.job(spec.id)
                if job is not None and job.ended:
                    self.published[spec.id] = KNOWN
                else:
                    rest.append(spec)
        except LedgerUnavailable as error:
            self.unsent |= {spec.id: error.cause for spec in durable}
            self.away = error.cause
            return [spec for spec in specs if not spec.durable]
        return rest

    def _withdraw(self, durable: list[JobSpec]) -> None:
        """What became another job, or none, is not the ledger's any more."""
        ids = [spec.id for spec in durable if self.published.get(spec.id, "").partition(" ")[0] in ELSEWHERE]
        if not ids or self._ledger is None:
            return
        try:
            self._ledger.withdraw(ids)
        except LedgerUnavailable as error:  # the next round asks Redis again, which answers the same
            for job_id in ids:
                del self.published[job_id]
                self.failed[job_id] = error.cause
            self.away = error.cause


def _opened(rows: Sequence[Row]) -> tuple[dict[str, JobSpec], dict[str, str]]:
    """The specs by id, and what is wrong with the rows that have none."""
    specs: dict[str, JobSpec] = {}
    broken: dict[str, str] = {}
    for row in rows:
        try:
            spec = spec_from_text(row.spec)
            spec.check()
            specs[row.job_id] = spec
        except ValueError as error:
            broken[row.job_id] = f"{HELD}its spec cannot be read: {str(error)[:200]}"
    return specs, broken
