"""Compares the ledger with Redis after a loss, and puts right what differs.

A durable job that is open in SQL and gone from Redis is pushed again, under its own id. A job that SQL knows as ended
and that lives in Redis, as an older copy of it brings it back, is ended there. What has ended in SQL is never revived.

The order is what makes it safe: read SQL, then Redis, then copy every event there is, then read SQL again. A job that
was absent from Redis and is still open after that has left no end behind: it was lost. After a rewind, what has ended
is ended in Redis first: a job that an older copy brought back must not keep its keys from one that is pushed again.
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
_PUSHES: Final = 3
_OPEN: Final = tuple(sorted({*LIVE, ACCEPTED}))
_FIELDS: Final = ("state", "generation", "created_at", "finished_at", "reason")
_SHORT: Final = tuple(
    jobs.c[name] for name in ("job_id", "kind", "state", "reason", "generation", "created_at_ms", "finished_at_ms")
)


class Divergence(msgspec.Struct, frozen=True):
    """One job about which the two differ. sql, redis: its state there, "" where it is absent.

    what: "lost" (open in SQL, gone from Redis: pushed again) | "duplicate" (lost, and another job has its key by now:
    ended as cancelled) | "undone" (ended in SQL, ended as it was before a requeue in Redis: requeued) | "untold" (ended
    in Redis, whose event was lost: ended in SQL) | "revived" (ended in SQL, live in Redis: ended there) | "differs"
    (ended in both, otherwise, or not to be requeued: left alone).
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

        everything: after a rewind of Redis: no quiet period, and every live job in Redis is looked up in SQL too,
        before anything is pushed. A rewind that shows only now makes it so for the latter. Only such a round cancels a
        lost job for the sake of another one that SQL does not know to live. Raises ConfigurationError where another
        Redis feeds the ledger under the same namespace, before anything is changed.
        untold: cheap, for every few seconds: look only at jobs of which Redis has told nothing since they were accepted
        or put back. No rewind shows where what was lost had never been copied.
        dry_run: only list the divergences. The ledger copies what it has not copied yet in any case.
        """
        report = Reconciled(dry_run)
        quiet_s, states = (0.0 if everything else self._quiet_s), ((ACCEPTED,) if untold else _OPEN)
        while True:
            if everything:
                report.busy = self._catch_up().busy
                for part in () if report.busy else self._live_in_redis(report):
                    self._conclude(report, part)
            report.looked = 0
            suspects = {} if report.busy else self._suspects(report, quiet_s, states)
            if not suspects:
                break
            report.busy, rewound = (copied := self._catch_up()).busy, copied.rewound
            if report.busy or everything or not rewound:
                break
            everything = True  # what lives in Redis is ended first, and Redis asked again
        ids = list(suspects)
        for at in range(0, 0 if report.busy else len(ids), _PAGE):
            self._judge(report, {job_id: suspects[job_id] for job_id in ids[at : at + _PAGE]}, everything)
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
        """Durable jobs that are open in SQL, and absent from Redis or ended there. quiet_s: 0 for those of any age, as
        the clocks of producers differ."""
        out: dict[str, _Seen] = {}
        moment, place = now_ms() - round(quiet_s * 1000), (0, "")
        while True:
            mine = and_(jobs.c.namespace == self._ledger.namespace, jobs.c.durable.is_(True), jobs.c.state.in_(states))
            if quiet_s:
                mine = and_(mine, jobs.c.updated_at_ms <= moment)
            query = (
                select(jobs.c.created_at_ms, jobs.c.job_id)
                .where(mine, tuple_(jobs.c.created_at_ms, jobs.c.job_id) > place)
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

    def _briefly(self, job_ids: Iterable[str]) -> dict[str, LedgerJob]:
        """As _rows, without what enqueue sends."""
        query = select(*_SHORT).where(jobs.c.namespace == self._ledger.namespace, jobs.c.job_id.in_(list(job_ids)))
        with self._ledger.reading("read jobs") as connection:
            return {row.job_id: LedgerJob(**row._mapping) for row in connection.execute(query)}

    # -- open in SQL --------------------------------------------------------------------------------------

    def _judge(self, report: Reconciled, suspects: dict[str, _Seen], full: bool) -> None:
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
                undone.append(row)
            else:
                report.note(job_id, "untold", row.state, seen.state)
                if not report.dry_run:
                    self._end(row, seen.state, seen.reason, seen.finished_at_ms)
        if report.dry_run:
            for what, rows in (("lost", lost), ("undone", undone)):
                for row in rows:
                    report.note(row.job_id, what, row.state, suspects[row.job_id].state)
            return
        if boottime_s() - read_at_s > _FRESH_S:
            return  # this process stood still: what it read is old; the next round reads again
        if undone:
            self._requeue(report, undone, suspects)
        if lost:
            self._untold(lost)  # before the push: should Redis lose it once more, before it has told, that is seen
            self._push(report, {row.job_id: row for row in lost}, full)

    def _requeue(self, report: Reconciled, undone: list[LedgerJob], suspects: dict[str, _Seen]) -> None:
        """Start jobs again in the generation that SQL knows. One whose dedup key another live job has by now ends."""
        for generation in sorted({row.generation for row in undone}):
            rows = [row for row in undone if row.generation == generation]
            ids = [row.job_id for row in rows]
            answers: list[Answer] = self._driver.run(self._store.requeue(ids, uuid7(), generation))
            for row, answer in zip(rows, answers, strict=True):
                if answer.word == "REQUEUED":
                    report.note(row.job_id, "undone", row.state, suspects[row.job_id].state)
                    continue
                other = self._briefly([answer.detail] if answer.word == "DUPLICATE" else []).get(answer.detail)
                if other is not None and not other.ended:
                    self._cancel(report, row, (answer.word, answer.detail), row.state)
                else:  # it lives by now, or is gone: the next round sees; or its key is with one to be ended first
                    report.note(
                        row.job_id, "differs", row.state, answer.detail if answer.word == "ILLEGAL" else answer.word
                    )

    def _push(self, report: Reconciled, lost: dict[str, LedgerJob], full: bool) -> None:
        specs, began_s = [spec_of(row) for row in lost.values()], boottime_s()
        for left in reversed(range(_PUSHES)):
            if not specs or boottime_s() - began_s > _FRESH_S:
                return  # what was not pushed is open and untold; the next round reads it again
            answers: list[tuple[str, str, str]] = self._driver.run(self._store.enqueue(specs))
            told = list(zip(specs, answers, strict=True))
            owners = self._briefly({owner for spec, (_, owner, _) in told if owner and owner != spec.id})
            ended = [job_id for job_id, row in owners.items() if row.ended]
            freed = self._conclude(report, self._look(ended)) if ended else set()
            specs = []
            for spec, (word, owner, state) in told:
                row = lost[spec.id]
                if left and _not_its_key(row, spec, (word, owner), owners):
                    spec.idem = spec.fingerprint = None
                    specs.append(spec)
                elif left and word == "DUPLICATE" and owner in freed:
                    specs.append(spec)
                else:
                    self._pushed(report, row, (word, owner, state), owners.get(owner), full)

    def _pushed(
        self, report: Reconciled, row: LedgerJob, told: tuple[str, str, str], other: LedgerJob | None, full: bool
    ) -> None:
        word, owner, state = told
        if owner == row.job_id:
            report.note(row.job_id, "lost", row.state, "")
            emit(_log, logging.WARNING, "restored", job_id=row.job_id, kind=row.kind, state=state)
        elif full or (other is not None and (word == "REPLAYED" or not other.ended)):
            self._cancel(report, row, (word, owner), ACCEPTED)

    def _cancel(self, report: Reconciled, row: LedgerJob, told: tuple[str, str], stands: str) -> None:
        """End a row that is in the state `stands` as the duplicate of another job."""
        report.note(row.job_id, "duplicate", row.state, "")
        emit(_log, logging.WARNING, "not_restored", job_id=row.job_id, kind=row.kind, answer=told[0], other=told[1])
        self._end(msgspec.structs.replace(row, state=stands), State.CANCELLED, "duplicate", now_ms())

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

    def _conclude(self, report: Reconciled, part: dict[str, _Seen]) -> set[str]:
        """End those of the jobs in Redis that SQL knows as ended; return which were.

        One that is done gets the result of its guarded effect, where it had exactly one that stored any. What the job
        itself returned is in no ledger; handlers mostly return just that. The reason `ledger` tells it apart.
        """
        ended = []
        for job_id, row in self._briefly(part).items():
            seen = part[job_id]
            # Created after that end, it is another job under an id that was forgotten.
            if not row.ended or seen.generation > row.generation or seen.created_at_ms > (row.finished_at_ms or 0):
                continue
            if seen.state in LIVE:
                ended.append(row)
            elif seen.state and seen.state != row.state:
                report.note(job_id, "differs", row.state, seen.state)
        if report.dry_run:
            for row in ended:
                report.note(row.job_id, "revived", row.state, part[row.job_id].state)
        if report.dry_run or not ended:
            return set()
        results = self._results([row.job_id for row in ended if row.state == State.DONE])
        told = []
        for row in ended:
            reason = row.reason if row.reason and row.state != State.DONE else "ledger"
            told.append((row.job_id, row.generation, row.state, reason, results.get(row.job_id, b"")))
        answers: list[Answer] = self._driver.run(self._store.conclude(told))
        out = set()
        for row, answer in zip(ended, answers, strict=True):
            if answer.word == "CONCLUDED":
                out.add(row.job_id)
                report.note(row.job_id, "revived", row.state, answer.detail)
                emit(_log, logging.WARNING, "concluded", job_id=row.job_id, kind=row.kind, state=row.state)
        return out

    def _results(self, job_ids: list[str]) -> dict[str, bytes]:
        """What the guarded effect of each job stored: where it had exactly one, which stored a result, and the guard's
        tables are here. It is the effect's result, not surely the job's."""
        with self._ledger.reading("read effects") as connection:
            if not job_ids or not inspect(connection).has_table(effects.name):
                return {}
            c = effects.c
            query = (
                select(c.job_id, func.max(c.result))
                .where(c.namespace == self._ledger.namespace, c.job_id.in_(job_ids))
                .group_by(c.job_id)
                .having(and_(func.count() == 1, func.count(c.result) == 1))
            )
            found = {str(job_id): str(result).encode() for job_id, result in connection.execute(query)}
        return {job_id: result for job_id, result in found.items() if 0 < len(result) <= RESULT_LIMIT}


def _not_its_key(row: LedgerJob, spec: JobSpec, told: tuple[str, str], owners: dict[str, LedgerJob]) -> bool:
    """Whether the idempotency key that stood in the way of a lost job is no reason against it: another request has it,
    it points at the job itself, or its owner is older and the job was accepted all the same, as the key had run out."""
    word, owner = told
    if word == "CONFLICT" or (word == "REPLAYED" and owner == row.job_id):
        return True  # its request was accepted first, whoever has the key now
    if word != "REPLAYED" or owner not in owners:
        return False
    older_ms = row.created_at_ms - owners[owner].created_at_ms
    return older_ms >= spec.idem_ttl_ms or (row.seq > 0 and older_ms > 0)


def spec_of(row: LedgerJob) -> JobSpec:
    """What is to be sent to Redis for a job that it lost: the same id and generation; of a delay, what is left."""
    assert row.spec is not None
    spec = after_waiting(row.spec, now_ms() - row.created_at_ms)
    spec.generation, spec.durable, spec.restored = row.generation, True, row.token > 0
    if row.generation > 1:  # somebody asked for it to run again, at once
        spec.delay_ms, spec.run_at_ms = 0, None
    return spec


def _seen(reply: Any) -> _Seen:
    state, generation, created_at, finished_at, reason = ("" if one is None else one.decode() for one in reply)
    return _Seen(state, int(generation or 1), int(created_at or 0), int(finished_at or 0), reason)
