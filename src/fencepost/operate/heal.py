"""Half states that no script makes, but a partial restore or a hand can: found by bounded scans, mended by `heal`.

Two kinds: a live job that stands in no list (nothing would ever start or end it), and an entry of an index without a
job. The first is mended here, the second goes by itself with the next sweep after its time, or is dropped here where
no sweep looks.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from fencepost.keys import Keys
from fencepost.log import emit
from fencepost.operate.overview import scan
from fencepost.operate.plan import LOOKS, Place, Plan, View, after, look
from fencepost.store import Answer, Store

__all__ = ["HalfState", "HealReport", "heal", "heal_some"]

_log = logging.getLogger("fencepost.operate")
_COUNT: Final = 1_000
_MOST_ENTRIES: Final = 20_000


class HalfState(msgspec.Struct, frozen=True):
    """One finding. what: such as "run without a lease" or "lease without a job"."""

    id: str
    what: str


class HealReport(msgspec.Struct):
    """What was found and (unless dry_run) mended. scanned: job records looked at. stranded: live jobs in no list.
    orphans: entries without a job; the sweep of any worker drops them. broken: records that lack what a live job
    needs; only deleting them by hand helps. cursor: where to go on, None at the end."""

    dry_run: bool
    scanned: int = 0
    stranded: list[HalfState] = []
    orphans: list[HalfState] = []
    broken: list[HalfState] = []
    cursor: str | None = None


def heal(store: Store, dry_run: bool, steps: int, cursor: int) -> Plan[HealReport]:
    """Look at the jobs of `steps` steps of a scan, from cursor on; at the entries of the indexes with the first."""
    report = HealReport(dry_run)
    if cursor == 0:
        yield from _orphans(store, report)
    for _ in range(steps):
        cursor = yield from _step(store, report, cursor, _COUNT)
        if cursor == 0:
            return report
    report.cursor = str(cursor)
    return report


def heal_some(store: Store, cursor: int) -> Plan[int]:
    """One small step of a walk that mends as it goes. Returns the cursor for the next, 0 when it is through."""
    report = HealReport(dry_run=False)
    following = yield from _step(store, report, cursor, 200)
    for one in report.stranded:
        emit(_log, logging.WARNING, "healed", job_id=one.id, what=one.what)
    return following


def _step(store: Store, report: HealReport, cursor: int, count: int) -> Plan[int]:
    following, ids = yield from scan(store.keys, "job:*", "hash", cursor, count)
    for at in range(0, len(ids), LOOKS):
        part = ids[at : at + LOOKS]
        answers: list[Answer] = yield store.heal(part, dry_run=report.dry_run)
        report.scanned += len(part)
        for job_id, answer in zip(part, answers, strict=True):
            if answer.word == "HEALED":
                report.stranded.append(HalfState(job_id, answer.detail))
            elif answer.word == "BROKEN":
                report.broken.append(HalfState(job_id, f"{answer.detail}, but its record is torn"))
    return following


def _orphans(store: Store, report: HealReport) -> Plan[None]:
    keys = store.keys
    for key, what in ((keys.leases, "lease without a job"), (keys.later, "due time without a job")):
        yield from _without_job(keys, report, key, what)
    before = len(report.orphans)
    yield from _without_job(keys, report, keys.dead, "dead letter without a job")
    gone = [one.id for one in report.orphans[before:]]
    for at in range(0, len(gone) if not report.dry_run else 0, LOOKS):
        yield store.purge(gone[at : at + LOOKS], "heal")


def _without_job(keys: Keys, report: HealReport, key: str, what: str) -> Plan[None]:
    place: Place | None = None
    more, seen = True, 0
    while more and seen < _MOST_ENTRIES:
        found, more = yield from after(keys, key, place, LOOKS)
        if not found:
            return
        place, seen = found[-1], seen + len(found)
        members = [one.member for one in found]
        view: View = yield look(keys, [("EXISTS", _record_key(keys, member)) for member in members])
        report.orphans += [
            HalfState(member, what) for member, there in zip(members, view.replies, strict=True) if not there
        ]


def _record_key(keys: Keys, member: str) -> str:
    if member[0] == "@":
        return keys.lease(member[1:])
    return keys.job(member.removeprefix("="))
