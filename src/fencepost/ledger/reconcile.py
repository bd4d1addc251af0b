"""Compares the ledger with Redis after a loss, and puts right what differs.

A durable job that is open in SQL and gone from Redis is pushed again, under its own id. A job that SQL knows as ended
and that lives in Redis, as an older copy of it brings it back, is ended there. What has ended in SQL is never revived.

The order is what makes it safe: read SQL, then Redis, then copy every event there is, then read SQL again. A job that
was absent from Redis and is still open after that has left no end behind: it was lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import and_, func, inspect, select, tuple_, update

from fencepost.clock import boottime_s, uuid7
from fencepost.codec import RESULT_LIMIT, after_waiting
from fencepost.driver import Call
from fencepost.job import JobSpec
from fencepost.ledger.archiver import Archiver, Copied, Runs
from fencepost.ledger.book import ACCEPTED, Ledger, LedgerJob, as_job
from fencepost.log import emit
from fencepost.scripts import load
from fencepost.sql.engines import now_ms
from fencepost.sql.tables import effects, jobs, marks
from fencepost.states import LIVE, State
from fencepost.store import Answer, Store

__all__ = ["Divergence", "Reconciled", "Reconciler"]

T = TypeVar("T")
_log = logging.getLogger("fencepost.ledger")
_PAGE: Final = 500
_KEPT: Final = 1_000
_BUSY_S: Final = 5.0
_FRESH_S: Final = 2.0
_OPEN: Final = tuple(sorted({*LIVE, ACCEPTED}))
_FIELDS: Final = ("state", "generation", "created_at", "finished_at", "reason")


class Divergence(msgspec.Struct, frozen=True):
    """One job about which the two differ. sql, redis: its state there, "" where it is absent.

    what: "lost" (open in SQL, gone from Redis: pushed again) | "duplicate" (lost, and another job has its key by now:
    ended as cancelled) | "undone" (ended in SQL, ended as it was before a requeue in Redis: requeued) | "untold" (ended
    in Redis, whose event was lost: ended in SQL) | "revived" (ended in SQL, live in Redis: ended there) | "differs"
    (ended in both, otherwise: left alone).
    """

    job_id: str
    what: str
    sql: str
    redis: str


class Reconciled(msgspec.Struct):
    """What was compared and done. looked: durable jobs that were open in SQL; scanned: jobs in Redis that were looked
    up in SQL. counts: divergences by what they are; divergences: the first 1,000 of them. busy: another archiver would
    not let the ledger catch up, so nothing was judged."""

    dry_run: bool = False
    looked: int = 0
    scanned: int = 0
    counts: dict[str, int] = {}
    divergences: list[Divergence] = []
    busy: bool = False

    def note(self, job_id: str, what: str, sql: str, redis: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        if len(self.divergences) < _KEPT:
            self.divergences.append(Divergence(job_id, what, sql, redis))


class _Seen(msgspec.Struct, frozen=True):
    """What Redis has of a job."""

    state: str = ""
    generation: int = 1
    created_at_ms: int = 0
    finished_at_ms: int = 0
    reason: str = ""


class Reconciler:
    """Compares one partition with its ledger. driver: a SyncDriver. quiet_s: jobs that moved less than so long ago are
    left alone, for they may be on their way. Two at once do no harm: a job is known by its id."""

    def __init__(
        self, ledger: Ledger, store: Store, driver: Runs, archiver: Archiver | None = None, *, quiet_s: float = 5.0
    ) -> None:
        self._ledger, self._store, self._driver, self._quiet_s = ledger, store, driver, quiet_s
        self._archiver = archiver or Archiver(ledger, store, driver)

    def run(self, *, everything: bool = False, dry_run: bool = False, untold: bool = False) -> Reconciled:
        """Compare once. Raises RedisUnavailable, LedgerUnavailable; what was done by then is right and stays.

        everything: after a rewind of Redis: no quiet period, and every live job in Redis is looked up in SQL too. A
        rewind that shows only now makes it so for the latter.
        untold: cheap, for every few seconds: look only at jobs of which Redis has told nothing since they were accepted
        or put back. No rewind shows where what was lost had never been copied.
        dry_run: only list the divergences. The ledger copies what it has not copied yet in any case.
        """
        report = Reconciled(dry_run)
        suspects = self._suspects(report, 0.0 if everything else self._quiet_s, (ACCEPTED,) if untold else _OPEN)
        if suspects or everything:
            copied = self._catch_up()
            if copied.busy:
                report.busy = True
                return report
            everything = everything or copied.rewound
        ids = list(suspects)
        for at in range(0, len(ids), _PAGE):
            self._judge(report, {job_id: suspects[job_id] for job_id in ids[at : at + _PAGE]})
        if everything:
            for part in self._live_in_redis(report):
                self._conclude(report, part)
        if report.counts and not dry_run:
            emit(_log, logging.WARNING, "reconciled", namespace=self._ledger.namespace, **report.counts)
        return report

    def rewound_at_ms(self) -> int:
        """When the ledger last saw that Redis was rewound, by the clock of the host that saw it; 0 for never."""
        mine = and_(marks.c.namespace == self._ledger.namespace, marks.c.part == self._ledger.part)
        with self._ledger.reading("read marks") as connection:
            query = select(func.max(marks.c.at_ms)).where(mine, marks.c.why == "rewind")
            return int(connection.execute(query).scalar() or 0)

    # -- looking ------------------------------------------------------------------------------------------

    def _suspects(self, report: Reconciled, quiet_s: float, states: Sequence[str]) -> dict[str, _Seen]:
        """Durable jobs that are open in SQL, and absent from Redis or ended there."""
        out: dict[str, _Seen] = {}
        moment, place = now_ms() - round(quiet_s * 1000), (0, "")
        while True:
            mine = and_(jobs.c.namespace == self._ledger.namespace, jobs.c.durable.is_(True), jobs.c.state.in_(states))
            query = (
                select(jobs.c.created_at_ms, jobs.c.job_id)
                .where(mine, jobs.c.updated_at_ms <= moment, tuple_(jobs.c.created_at_ms, jobs.c.job_id) > place)
                .order_by(jobs.c.created_at_ms, jobs.c.job_id)
                .limit(_PAGE)
            )
            with self._ledger.reading("read the open jobs") as connection:
                rows = [(int(created), str(job_id)) for created, job_id in connection.execute(query)]
            if not rows:
                return out
            place = rows[-1]
            report.looked += len(rows)
            seen = self._look([job_id for _, job_id in rows])
            out |= {job_id: one for job_id, one in seen.items() if one.state not in LIVE}

    def _look(self, job_ids: Sequence[str]) -> dict[str, _Seen]:
        """One consistent view of up to 500 jobs in Redis."""
        keys, args = self._store.keys, []
        for job_id in job_ids:
            args += [2 + len(_FIELDS), "HMGET", keys.job(job_id), *_FIELDS]
        base = (keys.meta, keys.events, keys.stats, keys.leases, keys.later, keys.dead, keys.recent)
        replies: list[Any] = self._driver.run(Call("look", load("look"), base, args, lambda reply: reply[1:]))
        return {job_id: _seen(reply) for job_id, reply in zip(job_ids, replies, strict=True)}

    def _catch_up(self) -> Copied:
        """Copy all that Redis has told by now. busy: another archiver holds on to the ledger."""
        began, rewound = time.monotonic(), False
        while True:
            copied = self._archiver.copy_all()
            rewound = rewound or copied.rewound
            if not copied.busy or time.monotonic() - began > _BUSY_S:
                return copied._replace(rewound=rewound)
            time.sleep(0.02)

    def _rows(self, job_ids: Iterable[str]) -> dict[str, LedgerJob]:
        mine = and_(jobs.c.namespace == self._ledger.namespace, jobs.c.job_id.in_(list(job_ids)))
        with self._ledger.reading("read jobs") as connection:
            return {row.job_id: as_job(row) for row in connection.execute(select(jobs).where(mine))}

    # -- open in SQL --------------------------------------------------------------------------------------

    def _judge(self, report: Reconciled, suspects: dict[str, _Seen]) -> None:
        """Act on jobs that are still open in SQL, now that every event is copied."""
        read_at_s = boottime_s()
        lost: list[LedgerJob] = []
        undone: list[LedgerJob] = []
        for job_id, row in self._rows(suspects).items():
            seen = suspects[job_id]
            if row.ended or row.spec is None:
                continue
            if not seen.state:
                lost.append(row)
            elif seen.generation < row.generation and seen.state != State.DONE:
                report.note(job_id, "undone", row.state, seen.state)
                undone.append(row)
            else:
                report.note(job_id, "untold", row.state, seen.state)
                if not report.dry_run:
                    self._end(row, seen.state, seen.reason, seen.finished_at_ms)
        if report.dry_run:
            for row in lost:
                report.note(row.job_id, "lost", row.state, "")
            return
        if boottime_s() - read_at_s > _FRESH_S:
            return  # this process stood still: what it read is old; the next round reads again
        if undone:
            self._driver.run(self._store.requeue([row.job_id for row in undone], uuid7()))
        if lost:
            self._untold(lost)  # before the push: should Redis lose it once more, before it has told, that is seen
            self._push(report, {row.job_id: row for row in lost})

    def _push(self, report: Reconciled, lost: dict[str, LedgerJob]) -> None:
        specs = [spec_of(row) for row in lost.values()]
        again: list[JobSpec] = []
        for spec, (word, owner, state) in self._enqueued(specs):
            if word in ("REPLAYED", "CONFLICT") and (owner == spec.id or word == "CONFLICT"):
                again.append(spec)  # its request was accepted first, whoever has the key now
            else:
                self._pushed(report, lost[spec.id], word, owner, state)
        for spec in again:
            spec.idem = spec.fingerprint = None
        for spec, (word, owner, state) in self._enqueued(again):
            self._pushed(report, lost[spec.id], word, owner, state)

    def _enqueued(self, specs: list[JobSpec]) -> Iterator[tuple[JobSpec, tuple[str, str, str]]]:
        if specs:
            answers: list[tuple[str, str, str]] = self._driver.run(self._store.enqueue(specs))
            yield from zip(specs, answers, strict=True)

    def _pushed(self, report: Reconciled, row: LedgerJob, word: str, owner: str, state: str) -> None:
        if owner == row.job_id:
            report.note(row.job_id, "lost", row.state, "")
            emit(_log, logging.WARNING, "restored", job_id=row.job_id, kind=row.kind, state=state)
            return
        report.note(row.job_id, "duplicate", row.state, "")
        emit(_log, logging.WARNING, "not_restored", job_id=row.job_id, kind=row.kind, answer=word, other=owner)
        self._end(msgspec.structs.replace(row, state=ACCEPTED), State.CANCELLED, "duplicate", now_ms())

    def _untold(self, lost: Sequence[LedgerJob]) -> None:
        """Rows that have not moved since they were read wait again for Redis to tell of them."""
        moved_at_ms = now_ms()
        with self._ledger.begin("note jobs to put back") as connection:
            for row in lost:
                values = {"state": ACCEPTED, "updated_at_ms": moved_at_ms}
                connection.execute(update(jobs).where(self._unmoved(row)).values(values))

    def _unmoved(self, row: LedgerJob) -> Any:
        return and_(
            jobs.c.namespace == self._ledger.namespace, jobs.c.job_id == row.job_id, jobs.c.state == row.state,
            jobs.c.generation == row.generation, jobs.c.epoch == row.epoch, jobs.c.seq == row.seq,
        )  # fmt: skip

    def _end(self, row: LedgerJob, state: str, reason: str, at_ms: int) -> None:
        """End a row that has not moved since it was read."""
        values = {"state": state, "reason": reason, "finished_at_ms": at_ms, "updated_at_ms": at_ms}
        with self._ledger.begin("end a job") as connection:
            connection.execute(update(jobs).where(self._unmoved(row)).values(values))

    # -- ended in SQL -------------------------------------------------------------------------------------

    def _live_in_redis(self, report: Reconciled) -> Iterator[dict[str, _Seen]]:
        """All jobs of the partition that have a state, in parts. None is missed that is there from start to end."""
        prefix = self._store.keys.job("")
        cursor = "0"
        while True:
            reply = self._driver.run(
                self._store.read(["SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", 1_000, "TYPE", "hash"], list)
            )
            ids = list({key.decode("utf-8", "replace").removeprefix(prefix) for key in reply[1]})
            for at in range(0, len(ids), _PAGE):
                report.scanned += len(ids[at : at + _PAGE])
                yield {job_id: seen for job_id, seen in self._look(ids[at : at + _PAGE]).items() if seen.state}
            cursor = reply[0].decode()
            if cursor == "0":
                return

    def _conclude(self, report: Reconciled, part: dict[str, _Seen]) -> None:
        """End those of the jobs in Redis that SQL knows as ended."""
        ended = []
        for job_id, row in self._rows(part).items():
            seen = part[job_id]
            # Created after that end, it is another job under an id that was forgotten.
            if not row.ended or seen.generation > row.generation or seen.created_at_ms > (row.finished_at_ms or 0):
                continue
            if seen.state in LIVE:
                ended.append(row)
            elif seen.state != row.state:
                report.note(job_id, "differs", row.state, seen.state)
        if not ended:
            return
        if report.dry_run:
            for row in ended:
                report.note(row.job_id, "revived", row.state, part[row.job_id].state)
            return
        results = self._results([row.job_id for row in ended if row.state == State.DONE])
        told = [
            (row.job_id, row.generation, row.state, row.reason or "ledger", results.get(row.job_id, b""))
            for row in ended
        ]
        answers: list[Answer] = self._driver.run(self._store.conclude(told))
        for row, answer in zip(ended, answers, strict=True):
            if answer.word == "CONCLUDED":
                report.note(row.job_id, "revived", row.state, answer.detail)
                emit(_log, logging.WARNING, "concluded", job_id=row.job_id, kind=row.kind, state=row.state)

    def _results(self, job_ids: list[str]) -> dict[str, bytes]:
        """What the guarded effect of each job stored, where it had exactly one and the guard's tables are here."""
        if not job_ids:
            return {}
        with self._ledger.reading("read effects") as connection:
            if not inspect(connection).has_table(effects.name):
                return {}
            query = (
                select(effects.c.job_id, func.max(effects.c.result))
                .where(effects.c.namespace == self._ledger.namespace, effects.c.job_id.in_(job_ids))
                .group_by(effects.c.job_id)
                .having(func.count() == 1)
            )
            found = {job_id: (result or "").encode() for job_id, result in connection.execute(query)}
        return {job_id: result for job_id, result in found.items() if 0 < len(result) <= RESULT_LIMIT}


def spec_of(row: LedgerJob) -> JobSpec:
    """What is to be sent to Redis for a job that it lost: the same id and generation; of a delay, what is left."""
    assert row.spec is not None
    spec = after_waiting(row.spec, now_ms() - row.created_at_ms)
    spec.generation, spec.durable = row.generation, True
    if row.generation > 1:  # somebody asked for it to run again, at once
        spec.delay_ms, spec.run_at_ms = 0, None
    return spec


def _seen(reply: Any) -> _Seen:
    state, generation, created_at, finished_at, reason = ("" if one is None else one.decode() for one in reply)
    return _Seen(state, int(generation or 1), int(created_at or 0), int(finished_at or 0), reason)
