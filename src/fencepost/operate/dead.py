"""Dead letters in bulk: requeue and purge, each job with an outcome of its own, nothing aborts the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from fencepost.clock import uuid7
from fencepost.driver import Call
from fencepost.job import JobRecord
from fencepost.operate.jobs import records
from fencepost.operate.overview import now_ms
from fencepost.operate.plan import Place, Plan, after
from fencepost.store import Answer, Store

__all__ = ["BulkReport", "DeadFilter", "ItemOutcome", "Verb", "by_filter", "by_ids", "each", "purging", "requeueing"]

_BATCH: Final = 200
_FIELDS: Final = ("state", "kind", "reason", "error_class")
_DONE: Final = frozenset({"REQUEUED", "PURGED", "CANCELLED", "ASKED"})
_MOST_REFUSED: Final = 1_000

Verb = Callable[[Sequence[str]], Call[list[Answer]]]


class DeadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters are meant: all that agree with each part that is set. older_than_s: since they failed."""

    kind: str = ""
    reason: str = ""
    error_class: str = ""
    older_than_s: float = 0.0

    def accepts(self, record: JobRecord) -> bool:
        """Whether kind, reason and error class agree; the age is judged by the index."""
        return (
            self.kind in ("", record.kind)
            and self.reason in ("", record.reason)
            and self.error_class in ("", record.error_class)
        )


class ItemOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one job. word: the script's, in small letters. detail: generation, state or owner."""

    id: str
    word: str
    detail: str = ""


class BulkReport(msgspec.Struct):
    """What a bulk operation did, or (dry_run) would do.

    matched: jobs that were meant. done: those it was done to. missing: the index named them, their records are gone;
    they were dropped from it. refused: the rest, with the reason (the first 1,000). outcomes: one for each id, in
    order, where ids were given.
    """

    verb: str
    dry_run: bool = False
    matched: int = 0
    done: int = 0
    missing: list[str] = []
    refused: list[ItemOutcome] = []
    refused_count: int = 0
    outcomes: list[ItemOutcome] = []

    @property
    def verdict(self) -> str:
        """ "ok" | "partial" (some were not done) | "missing" (none was there) | "refused" (none was done)."""
        if not self.missing and not self.refused_count:
            return "ok"
        if self.done:
            return "partial"
        return "refused" if self.refused_count else "missing"

    def note(self, job_id: str, answer: Answer) -> ItemOutcome:
        outcome = ItemOutcome(job_id, answer.word.lower(), answer.detail)
        if answer.word in _DONE:
            self.done += 1
        elif answer.word == "GONE":
            self.missing.append(job_id)
        else:
            self.refused_count += 1
            if len(self.refused) < _MOST_REFUSED:
                self.refused.append(outcome)
        return outcome


def requeueing(store: Store, reason: str, actor: str, request_id: str = "") -> Verb:
    """Requeue, each batch under a request of its own, or under the one given: sent twice it starts nothing twice."""
    return lambda ids: store.requeue(ids, request_id or uuid7(), reason=reason, actor=actor)


def purging(store: Store, reason: str, actor: str) -> Verb:
    return lambda ids: store.purge(ids, reason, actor)


def by_ids(verb: str, send: Verb, job_ids: Sequence[str]) -> Plan[BulkReport]:
    """Do it to these jobs."""
    ids = list(dict.fromkeys(job_ids))
    report = BulkReport(verb, matched=len(ids))
    for at in range(0, len(ids), _BATCH):
        part = ids[at : at + _BATCH]
        answers: list[Answer] = yield send(part)
        report.outcomes += [report.note(*pair) for pair in zip(part, answers, strict=True)]
    return report


def each(verb: str, send: Callable[[str], Call[Answer]], job_ids: Sequence[str]) -> Plan[BulkReport]:
    """As by_ids, for a script that takes one job a call."""
    ids = list(dict.fromkeys(job_ids))
    report = BulkReport(verb, matched=len(ids))
    for job_id in ids:
        answer: Answer = yield send(job_id)
        report.outcomes.append(report.note(job_id, answer))
    return report


def by_filter(store: Store, verb: str, send: Verb, chosen: DeadFilter, dry_run: bool) -> Plan[BulkReport]:
    """Do it to all dead letters that agree with the filter and failed before this call; a job that fails again
    meanwhile is left alone. Entries of the index whose record is gone are dropped on the way."""
    keys, report = store.keys, BulkReport(verb, dry_run)
    stop = str((yield from now_ms(keys)) - round(chosen.older_than_s * 1000))
    place: Place | None = None
    more = True
    while more:
        found, more = yield from after(keys, keys.dead, place, _BATCH, stop=stop)
        if not found:
            break
        place = found[-1]
        read = yield from records(keys, [one.member for one in found], _FIELDS)
        gone = [job_id for job_id, record in read.items() if record is None]
        meant = [job_id for job_id, record in read.items() if record is not None and chosen.accepts(record)]
        report.matched += len(meant)
        if dry_run:
            report.missing += gone
        elif meant or gone:
            answers: list[Answer] = yield send(meant + gone)
            for pair in zip(meant + gone, answers, strict=True):
                report.note(*pair)
    return report


def to_json(report: BulkReport) -> dict[str, Any]:
    """Return the report as JSON data, with its verdict."""
    return {**msgspec.to_builtins(report), "verdict": report.verdict}
