"""Two or more transactions, one statement at a time, in an order that the test chooses. No sleeps, no luck.

Each actor is a thread. It stops before every statement and before every COMMIT of a watched engine, and goes on when
the test lets it. An actor that waits for a lock of the database counts as stopped too: the server is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import NullPool

__all__ = ["Actor", "Interleaving", "LockWaits", "switches", "watch"]

T = TypeVar("T")
_PATIENCE_S: Final = 15.0
_LOOK_S: Final = 0.004  # how long a statement may run before the server is asked whether it waits for a lock
_ALL: Final = 99  # steps: to the end
_here = threading.local()


class Actor:
    """Work on a thread of its own that stops at each point. Made by Interleaving.actor()."""

    def __init__(self, name: str, work: Callable[[], Any], moved: threading.Condition) -> None:
        self.name = name
        self.connection_id: int | None = None  # the server's number of the connection used last
        self.trace: list[str] = []  # the statements at which it stopped
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.refused = False  # its last step ended in a rollback
        self._work, self._moved = work, moved
        self._parked, self._granted = False, False
        self._thread = threading.Thread(target=self._run, name=f"actor {name}", daemon=True)

    def outcome(self) -> Any:
        """What the work returned; raises what it raised."""
        assert self.done, f"{self.name} has not ended; it stands at {self.trace[-1:]}"
        if self.error is not None:
            raise self.error
        return self.result

    def _run(self) -> None:
        _here.actor = self
        try:
            self._stop("start")
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - given to whoever asks for the outcome
            self.error = error
        with self._moved:
            self.done = True
            self._moved.notify_all()

    def _stop(self, label: str) -> None:
        with self._moved:
            self.trace.append(label)
            self._parked, self._granted = True, False
            self._moved.notify_all()
            if not self._moved.wait_for(lambda: self._granted, _PATIENCE_S):
                raise AssertionError(f"{self.name} was left standing at {label!r}")
            self._parked = False


class Interleaving:
    """Actors and the hand that moves them.

    waits(connection id): whether a connection waits for a lock. after_commit: called after each COMMIT.
    """

    def __init__(self, waits: Callable[[int], bool], after_commit: Callable[[], None] = lambda: None) -> None:
        self._waits, self._after_commit = waits, after_commit
        self._moved = threading.Condition()
        self.actors: dict[str, Actor] = {}

    def actor(self, name: str, work: Callable[[], Any]) -> Actor:
        """Add an actor that stands before its first step."""
        actor = self.actors[name] = Actor(name, work, self._moved)
        actor._thread.start()
        with self._moved:
            assert self._moved.wait_for(lambda: actor._parked, _PATIENCE_S)
        return actor

    def blocked(self, name: str) -> bool:
        """Whether the actor waits for a lock of the database."""
        actor = self.actors[name]
        return not actor.done and not actor._parked

    def ended(self, name: str) -> bool:
        """Whether the actor has come to its end, with a result or an error."""
        return self.actors[name].done

    def step(self, name: str) -> bool:
        """Let one actor go on until its next point, its end, or a lock it has to wait for. False: that led nowhere.

        Nowhere: it waits for a lock, has ended, or was refused, rolled back and tries again (SQLite does not wait).
        Actors that get by this step the lock they wait for move on to their next point, before this returns.
        """
        actor = self.actors[name]
        if actor.done or not actor._parked:
            return False
        stood = actor.trace[-1]
        with self._moved:
            actor._granted, actor._parked, actor.refused = True, False, False
            self._moved.notify_all()
        self._settle()
        if stood == "COMMIT":
            self._after_commit()
        return not actor.refused or self.ended(name)

    def run(self, name: str, before: str | None = None) -> None:
        """Step one actor to its end, or until it stands before a statement that contains a text (case ignored)."""
        while self.step(name):
            if before is not None and before.lower() in self.actors[name].trace[-1].lower():
                return
        assert before is None or self.blocked(name), f"{name} never came to {before!r}: {self.actors[name].trace}"

    def play(self, turns: Iterable[tuple[str, int]]) -> None:
        """Give each actor named its number of steps, as far as it can move; then let all end, the first named first."""
        for name, steps in turns:
            for _ in range(steps):
                if not self.step(name):
                    break
        self.finish()

    def finish(self) -> None:
        """Let all actors end, in the order in which they were added; who waits for a lock is passed over."""
        while waiting := [actor for actor in self.actors.values() if not actor.done]:
            if any(self.step(actor.name) for actor in waiting):
                continue
            with self._moved:  # a deadlock, or a wait with an end: the server decides who goes on
                assert self._moved.wait_for(lambda: any(a.done or a._parked for a in waiting), _PATIENCE_S), (
                    self._where()
                )
            self._settle()

    def _settle(self) -> None:
        """Wait until every actor stands, has ended, or waits for a lock."""
        for _ in range(int(_PATIENCE_S / _LOOK_S)):
            with self._moved:
                if self._moved.wait_for(lambda: not self._running(), _LOOK_S):
                    return
            still = [actor.connection_id for actor in self._running()]
            if all(number is not None and self._waits(number) for number in still):
                return
        raise AssertionError(f"stuck: {self._where()}")

    def _running(self) -> list[Actor]:
        return [actor for actor in self.actors.values() if not actor.done and not actor._parked]

    def _where(self) -> str:
        return ", ".join(f"{actor.name} at {actor.trace[-1]!r}" for actor in self.actors.values() if not actor.done)


def watch(engine: Engine, quiet: Callable[[str], bool] = lambda _statement: False) -> Engine:
    """Make every statement and COMMIT of an engine a point at which actors stop. For async engines: .sync_engine.

    quiet: statements that touch nothing which others touch too; to stop there would only be the same order once more.
    """

    def before_statement(connection: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not quiet(statement):
            _point(connection, statement)

    def before_commit(connection: Connection) -> None:
        _point(connection, "COMMIT")

    event.listen(engine, "before_cursor_execute", before_statement)
    event.listen(engine, "commit", before_commit)
    event.listen(engine, "rollback", lambda _connection: _refused())
    return engine


def _point(connection: Connection, label: str) -> None:
    actor: Actor | None = getattr(_here, "actor", None)
    if actor is not None:
        actor.connection_id = _server_number(connection.connection.driver_connection)
        actor._stop(" ".join(label.split()))


def _refused() -> None:
    actor: Actor | None = getattr(_here, "actor", None)
    if actor is not None:
        actor.refused = True


def _server_number(raw: Any) -> int | None:
    """The number by which the server knows a connection of psycopg, asyncpg, PyMySQL or aiomysql; SQLite has none."""
    if hasattr(raw, "info") and hasattr(raw.info, "backend_pid"):
        return int(raw.info.backend_pid)
    if hasattr(raw, "get_server_pid"):
        return int(raw.get_server_pid())
    return int(raw.thread_id()) if hasattr(raw, "thread_id") else None


class LockWaits:
    """Asks a server whether one of its connections waits for a lock. SQLite cannot be asked: there nobody waits."""

    def __init__(self, url: str) -> None:
        engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self._dialect = engine.dialect.name
        self._connection = engine.connect()

    def __call__(self, connection_id: int) -> bool:
        if self._dialect == "postgresql":
            question = text("SELECT cardinality(pg_blocking_pids(:id)) > 0")
            return bool(self._connection.execute(question, {"id": connection_id}).scalar_one())
        # Not information_schema.innodb_trx: that is only filled anew when nobody has read it for 0.1 s.
        status = str(self._connection.exec_driver_sql("SHOW ENGINE INNODB STATUS").one()[2])
        transactions = status.partition("TRANSACTIONS\n")[2].split("---TRANSACTION")
        mine = [one for one in transactions if f"thread id {connection_id}," in one]
        return any("\nLOCK WAIT " in one for one in mine)

    def close(self) -> None:
        self._connection.close()


def switches(names: tuple[str, str], stops: int, budget: int = 2) -> Iterator[list[tuple[str, int]]]:
    """Yield every order of two actors that is made by at most `budget` interruptions, for Interleaving.play().

    stops: of the longer actor, its start and its last COMMIT included; after two steps it has done one statement.
    Races need few interruptions: a lost update needs two. budget: 1 to 3.
    """
    for first, second in (names, names[::-1]):
        yield [(first, _ALL), (second, _ALL)]
        for i in range(2, stops):
            yield [(first, i), (second, _ALL), (first, _ALL)]
            for j in range(2, stops) if budget > 1 else ():
                yield [(first, i), (second, j), (first, _ALL)]
                for k in range(1, stops - i) if budget > 2 else ():
                    yield [(first, i), (second, j), (first, k), (second, _ALL)]
