"""The row that enqueue_in writes, in the user's own transaction, and who hears of its commit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.clock import wall_ms
from fencepost.codec import spec_to_text
from fencepost.job import JobSpec
from fencepost.sql.channel import Channel, Plan, Statement, channel_of, require_transaction

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, SessionTransaction

__all__ = ["Told", "write", "write_sync"]

Told = Callable[[list[str], bool], None]
"""Called with job ids, and whether it is certain that they were committed just now; else it may come at any time."""

_WHAT: Final = "enqueue_in"
_NOTES: Final = "fencepost_outbox"
_COMMITTED: Final = "fencepost_outbox_committed"
_INSERT: Final = (
    "INSERT INTO fencepost_outbox (job_id, namespace, spec, created_at_ms, tries) "
    "VALUES (:job_id, :namespace, :spec, :created_at_ms, 0) "
)
# The same job id once more is the same job: the first row stays.
_SAME: Final = {
    "postgresql": "ON CONFLICT (job_id) DO NOTHING",
    "sqlite": "ON CONFLICT (job_id) DO NOTHING",
    "mysql": "ON DUPLICATE KEY UPDATE job_id = job_id",
}


def write_sync(connection: Any, namespace: str, spec: JobSpec, told: Told) -> None:
    """Write one job into the transaction that is open on a synchronous connection or session, or that it begins by
    itself. Nothing else is written and nothing is committed.

    Raises ConfigurationError (autocommit, a missing table, an asynchronous connection), and what the driver raises.
    """
    channel = channel_of(connection)
    require_transaction(channel, _WHAT, "the job and your rows")
    channel.run(_insert(channel, namespace, spec))
    _listen(channel, spec.id, told)


async def write(connection: Any, namespace: str, spec: JobSpec, told: Told) -> None:
    """As write_sync, on an asynchronous connection or session."""
    channel = channel_of(connection)
    require_transaction(channel, _WHAT, "the job and your rows")
    await channel.arun(_insert(channel, namespace, spec))
    _listen(channel, spec.id, told)


def _insert(channel: Channel, namespace: str, spec: JobSpec) -> Plan[None]:
    row = {"job_id": spec.id, "namespace": namespace, "spec": spec_to_text(spec), "created_at_ms": wall_ms()}
    yield Statement(_INSERT + _SAME[channel.dialect], row)


# -- the commit -----------------------------------------------------------------------------------------------


class _Note(NamedTuple):
    """A job that waits for its transaction. savepoint: the innermost one it was written in, if any."""

    job_id: str
    told: Told
    savepoint: SessionTransaction | None


def _listen(channel: Channel, job_id: str, told: Told) -> None:
    """Have `told` called when the transaction has committed; where nobody can say it, call it now, as not certain.

    Nothing depends on it: the row is read again, from outside, before anything is published.
    """
    inner = getattr(channel, "inner", None)
    if inner is not None:
        from sqlalchemy.orm import Session

        _listen_to_session(inner, job_id, told) if isinstance(inner, Session) else _listen_to(inner, job_id, told)
    elif not ("django.db" in sys.modules and channel.after_commit(lambda: told([job_id], True))):
        told([job_id], False)


def _listen_to_session(session: Session, job_id: str, told: Told) -> None:
    from sqlalchemy import event

    if _NOTES not in session.info:
        session.info[_NOTES] = []
        event.listen(session, "after_commit", _session_committed)
        event.listen(session, "after_soft_rollback", _session_rolled_back)
        event.listen(session, "after_transaction_end", _session_ended)
    session.info[_NOTES].append(_Note(job_id, told, session.get_nested_transaction()))


def _session_committed(session: Session) -> None:
    if session.get_nested_transaction() is None:  # a savepoint that is released commits nothing
        session.info[_COMMITTED] = True


def _session_rolled_back(session: Session, previous: SessionTransaction) -> None:
    """Forget what was written in a savepoint that is undone, or in the whole transaction."""
    notes: list[_Note] = session.info[_NOTES]
    notes[:] = [note for note in notes if previous.parent is not None and not _inside(note.savepoint, previous)]


def _inside(savepoint: SessionTransaction | None, other: SessionTransaction) -> bool:
    while savepoint is not None:
        if savepoint is other:
            return True
        savepoint = savepoint.parent
    return False


def _session_ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is not None:
        return
    if session.info.pop(_COMMITTED, False):
        _tell(session.info, True)
    else:
        session.info[_NOTES].clear()


def _listen_to(connection: Connection, job_id: str, told: Told) -> None:
    from sqlalchemy import event

    if not event.contains(connection, "commit", _committing):
        event.listen(connection, "commit", _committing)
        event.listen(connection, "rollback", _rolled_back)
        connection.info[_NOTES] = []  # it belongs to the pooled connection, which may have been another's
    connection.info[_NOTES].append(_Note(job_id, told, None))


def _committing(connection: Connection) -> None:
    _tell(connection.info, False)  # it is about to commit


def _rolled_back(connection: Connection) -> None:
    connection.info[_NOTES].clear()


def _tell(info: Any, certain: bool) -> None:
    notes: list[_Note] = info[_NOTES]
    by_told: dict[Told, list[str]] = {}
    for note in notes:
        by_told.setdefault(note.told, []).append(note.job_id)
    notes.clear()
    for told, ids in by_told.items():
        told(ids, certain)
