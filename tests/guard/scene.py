"""One row that two holders want to raise by one, and a witness who looks at it after every COMMIT.

The work: read the value, add one, write it, and leave an entry that says who did it for which job. Nothing may be
counted twice, no addition may be lost, and nobody may write after a newer holder has put its token there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import NullPool, QueuePool

from fencepost.sql.tables import PARTS
from tests.guard.interleaving import Actor, Interleaving, LockWaits, watch

__all__ = ["ISOLATION_LEVELS", "QUIET", "QUIET_OF_TWO_JOBS", "START", "Claim", "Scene", "add_one", "scene_on"]

START: Final = 100
NAMESPACE: Final = "matrix"
RESOURCE: Final = "account:1"
ISOLATION_LEVELS: Final = {
    "postgresql": ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"),
    "mariadb": ("REPEATABLE READ", "READ COMMITTED"),
    "sqlite": ("IMMEDIATE", "DEFERRED", "DRIVER"),
}
"""What each engine is tried with. SQLite: how a transaction begins; DRIVER: as it likes."""
# What no other session can change, or whose answer nobody uses; and the entry, which is new.
_QUIET: Final = (
    r"transaction_timestamp|^SAVEPOINT|^RELEASE|^SET @|INSERT INTO entries"
    r"|SELECT token, nonce FROM fencepost_fences WHERE (?!.*FOR UPDATE)"
)
QUIET: Final = re.compile(_QUIET, re.DOTALL)
QUIET_OF_TWO_JOBS: Final = re.compile(_QUIET + "|fencepost_effects", re.DOTALL)
"""Two jobs have no effect row in common; two attempts of one job have."""


class Claim(NamedTuple):
    """Who writes: a job, with the token and the nonce of one attempt."""

    job: str
    token: int
    nonce: str


class Entry(NamedTuple):
    """What a holder has left: its claim, the value it read, and the value it wrote."""

    job: str
    token: int
    nonce: str
    before: int
    after: int


@dataclass
class Scene:
    """A database with the row in it. engines: one for each holder, watched; their transactions have the isolation.

    quiet: the statements at which nobody stops. damage: what the witness has seen that must not be.
    """

    url: str
    isolation: str
    interleaving: Interleaving
    engines: dict[str, Engine]
    witness: Connection
    quiet: re.Pattern[str] = QUIET_OF_TWO_JOBS
    damage: list[str] = field(default_factory=list)
    _fence: tuple[int, str] = (0, "")
    _seen: list[Entry] = field(default_factory=list)

    def actor(self, name: str, work: Callable[[Engine], Any]) -> Actor:
        """Add a holder that works on an engine of its own."""
        return self.interleaving.actor(name, lambda: work(self.engines[name]))

    def reset(self) -> None:
        """Back to the start: the value, no entry, no fence, no effect, no actor."""
        assert all(actor.done for actor in self.interleaving.actors.values())
        self.interleaving.actors.clear()
        for statement in ("DELETE FROM entries", "DELETE FROM fencepost_fences", "DELETE FROM fencepost_effects"):
            self.witness.exec_driver_sql(statement)
        self.witness.execute(text("UPDATE account SET value = :start"), {"start": START})
        self.damage, self._seen, self._fence = [], [], (0, "")

    def value(self) -> int:
        return int(self.witness.exec_driver_sql("SELECT value FROM account").scalar_one())

    def entries(self) -> list[Entry]:
        """What has been left, in the order in which it was committed."""
        return self._seen

    def look(self) -> None:
        """Compare what is committed now with what was; write down what must not be. Called after every COMMIT."""
        rows = self.witness.exec_driver_sql("SELECT job, token, nonce, before_value, after_value FROM entries").all()
        fence = self.witness.exec_driver_sql("SELECT token, nonce FROM fencepost_fences").one_or_none()
        for entry in (Entry(*row) for row in rows):
            if entry not in self._seen:
                self._judge(entry)
                self._seen.append(entry)
        self._fence = (fence.token, fence.nonce) if fence else self._fence

    def _judge(self, entry: Entry) -> None:
        token, nonce = self._fence  # as it stood before this COMMIT: some ways write it and the entry at once
        if entry.token < token:
            self.damage.append(f"stale write: token {entry.token} wrote after token {token} had been put there")
        if entry.token == token and entry.nonce != nonce:
            self.damage.append(f"stale write: {entry.nonce} wrote with the token that {nonce} has put there")
        if self._seen and entry.before != self._seen[-1].after:
            self.damage.append(f"lost update: {entry.before} was read, but {self._seen[-1].after} was there")
        if any(entry.job == other.job for other in self._seen):
            self.damage.append(f"doubled: the work of {entry.job} was done again")


def add_one(connection: Any, claim: Claim, read: int | None = None) -> None:
    """The work of a holder, in whatever transaction there is: value and entry. read: what it has read already."""
    before = read if read is not None else connection.execute(text("SELECT value FROM account")).scalar_one()
    connection.execute(text("UPDATE account SET value = :after"), {"after": before + 1})
    connection.execute(
        text("INSERT INTO entries VALUES (:job, :token, :nonce, :before, :after)"),
        claim._asdict() | {"before": before, "after": before + 1},
    )


@contextmanager
def scene_on(url: str, isolation: str, holders: Sequence[str] = ("A", "B")) -> Iterator[Scene]:
    """Make the tables in an empty database and set up the scene. isolation: see ISOLATION_LEVELS."""
    witness_engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    _make_tables(witness_engine)
    waits = LockWaits(url)
    engines = {name: _engine(url, isolation) for name in holders}
    with witness_engine.connect() as witness:
        if witness.dialect.name == "sqlite":
            witness.exec_driver_sql("PRAGMA synchronous = OFF")
        scene = Scene(url, isolation, Interleaving(waits), engines, witness)
        scene.interleaving = Interleaving(waits, scene.look)
        for engine in engines.values():
            watch(engine, lambda statement: scene.quiet.search(statement) is not None)
        try:
            yield scene
        finally:
            scene.interleaving.finish()
            waits.close()
            for engine in engines.values():
                engine.dispose()


def _make_tables(engine: Engine) -> None:
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        for table in PARTS["guard"]:
            table.create(connection)
        connection.exec_driver_sql("CREATE TABLE account (id INTEGER PRIMARY KEY, value INTEGER NOT NULL)")
        connection.exec_driver_sql(
            "CREATE TABLE entries"
            " (job VARCHAR(40), token BIGINT, nonce VARCHAR(40), before_value INTEGER, after_value INTEGER)"
        )
        connection.exec_driver_sql(f"INSERT INTO account VALUES (1, {START})")


def _engine(url: str, isolation: str) -> Engine:
    """An engine as a user has it, but SQLite says at once that it is locked: nobody waits where no one can see it."""
    if not url.startswith("sqlite"):
        return create_engine(url, isolation_level=isolation)
    engine = create_engine(url, poolclass=QueuePool, connect_args={"timeout": 0})
    event.listen(engine, "connect", lambda raw, _record: raw.execute("PRAGMA synchronous = OFF"))
    if isolation != "DRIVER":
        event.listen(engine, "connect", lambda raw, _record: setattr(raw, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(f"BEGIN {isolation}"))
    return engine
