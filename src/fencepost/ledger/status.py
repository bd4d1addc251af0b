"""How far the ledger is, in numbers."""

from __future__ import annotations

import msgspec
from sqlalchemy import and_, func, select

from fencepost.driver import Call
from fencepost.ledger.book import Ledger
from fencepost.ledger.stream import View, view
from fencepost.sql.tables import cursors, jobs
from fencepost.store import Store

__all__ = ["Status", "place", "status", "tip"]


class Status(msgspec.Struct, frozen=True):
    """copied, pruned, lost: events since the start. seq: the last one that was copied, in this epoch. jobs: rows by
    state; open_durable: those of them that are durable and have not ended. behind: events of Redis that are not copied
    yet, None where Redis was not asked. updated_at_ms: by the clock of the archiver's host; None before its first step.
    """

    where: str
    namespace: str
    epoch: int = 1
    seq: int = 0
    copied: int = 0
    pruned: int = 0
    lost: int = 0
    rewinds: int = 0
    updated_at_ms: int | None = None
    jobs: dict[str, int] = {}
    open_durable: int = 0
    behind: int | None = None


def status(ledger: Ledger, tip_seq: int | None = None) -> Status:
    """Read the numbers. tip_seq: the highest number Redis has given out, see tip()."""
    mine = jobs.c.namespace == ledger.namespace
    with ledger.reading("status") as connection:
        where = and_(cursors.c.namespace == ledger.namespace, cursors.c.part == ledger.part)
        row = connection.execute(select(cursors).where(where)).first()
        states = connection.execute(select(jobs.c.state, func.count()).where(mine).group_by(jobs.c.state))
        by_state: dict[str, int] = {str(state): int(number) for state, number in sorted(states)}
        is_open = and_(mine, jobs.c.durable.is_(True), jobs.c.finished_at_ms.is_(None))
        durable = connection.execute(select(func.count()).select_from(jobs).where(is_open)).scalar() or 0
    found = {} if row is None else {name: getattr(row, name) for name in _FROM_CURSOR}
    behind = None if tip_seq is None else max(0, tip_seq - found.get("seq", 0))
    return Status(
        ledger.where, ledger.namespace, jobs=by_state, open_durable=durable, behind=behind, **found
    )  # fmt: skip


def place(ledger: Ledger) -> tuple[int, int, int | None]:
    """Only epoch, seq and updated_at_ms of the status: one row, whatever the size of the ledger."""
    with ledger.reading("status") as connection:
        where = and_(cursors.c.namespace == ledger.namespace, cursors.c.part == ledger.part)
        row = connection.execute(select(cursors).where(where)).first()
    return (1, 0, None) if row is None else (row.epoch, row.seq, row.updated_at_ms)


_FROM_CURSOR = ("epoch", "seq", "copied", "pruned", "lost", "rewinds", "updated_at_ms")


def tip(store: Store) -> Call[int]:
    """The highest number the partition has given out."""
    call: Call[View] = view(store.keys, 0, 1)
    return Call(call.verb, call.script, call.keys, call.args, lambda reply: call.parse(reply).tip)
