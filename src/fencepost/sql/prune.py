"""Deleting old rows of the guard. What a run could still ask for is never deleted."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import and_, delete, func, select
from sqlalchemy.exc import DBAPIError

from fencepost.errors import ConfigurationError, LedgerUnavailable
from fencepost.sql.engines import now_ms, open_engine
from fencepost.sql.tables import effects, fences
from fencepost.sql.upgrade import require

__all__ = ["RETENTION_MS", "GuardPruned", "prune"]

RETENTION_MS: Final = 7 * 86_400_000
"""How long Redis keeps a failed job where its kind says nothing else."""


class GuardPruned(NamedTuple):
    """How many rows went."""

    effects: int
    fences: int


def prune(
    url: str, older_than_ms: int, *, retention_ms: int = RETENTION_MS, namespace: str | None = None
) -> GuardPruned:
    """Delete effects and fences that nobody has written for longer than older_than_ms; of all namespaces, or of one.

    retention_ms: the longest that any kind keeps its jobs; a younger effect may still be asked for by a job that comes
    again, and would be carried out twice. One transaction. Raises ConfigurationError where older_than_ms is less, or
    tables are missing; LedgerUnavailable.
    """
    if older_than_ms < retention_ms:
        raise ConfigurationError(
            "older_than",
            f"{older_than_ms / 86_400_000:g} days are less than the {retention_ms / 86_400_000:g} days for which a job "
            f"may come again",
            "Without its effect row such a job would do its work twice. Prune what is older.",
        )
    engine, until = open_engine(url), now_ms() - older_than_ms
    try:
        with engine.begin() as connection:
            require(connection, "guard")
            gone = []
            for table, at in ((effects, effects.c.created_at_ms), (fences, fences.c.updated_at_ms)):
                old = at < until if namespace is None else and_(table.c.namespace == namespace, at < until)
                gone.append(connection.execute(select(func.count()).select_from(table).where(old)).scalar() or 0)
                connection.execute(delete(table).where(old))
            return GuardPruned(*gone)
    except DBAPIError as error:
        raise LedgerUnavailable("sql prune", str(error.orig).split("\n")[0][:300], None) from error
    finally:
        engine.dispose()
