"""The application object: where it connects, what its handlers are, and what its users call."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from fencepost.clock import parse_duration_s, worker_identity
from fencepost.driver import Connections
from fencepost.embedded import EmbeddedServer
from fencepost.enqueue import Enqueuer
from fencepost.errors import ConfigurationError, FencepostError, UnknownKind
from fencepost.handle import Job
from fencepost.handler import Handler, HandlerSettings, Prepared, durable_by
from fencepost.job import JobRecord
from fencepost.keys import Keys
from fencepost.lease import Lease
from fencepost.link import Link
from fencepost.log import emit
from fencepost.outbox import Outbox
from fencepost.redact import checked_names
from fencepost.resource import ResourceRule
from fencepost.retry import RetryPolicy
from fencepost.sql.urls import LEDGERS, check_sql_url
from fencepost.store import Store
from fencepost.worker.run import Run

if TYPE_CHECKING:
    import redis
    import redis.asyncio
    from fastapi import FastAPI

    from fencepost.api import ApiSettings
    from fencepost.ledger import Ledger

__all__ = ["Fencepost"]

_log = logging.getLogger("fencepost.app")

P = ParamSpec("P")
R = TypeVar("R")
_Length = float | str


class _Decorator(Protocol):
    """What app.job returns: the handler's own types, without its run parameter."""

    @overload
    def __call__(self, function: Callable[Concatenate[Run, P], Awaitable[R]], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Run, P], R], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R]: ...


class Fencepost:
    """One application: a namespace in Redis and the handlers of its jobs.

    redis: a URL (redis://, rediss://, unix://) or a redis-py client, of which only the address and credentials are
    used. namespace: part of every key; two applications on one server need two. lease: how long a run or worker that
    went silent keeps what it has, 1 s to 1 h; renewed every third of it. give_up: how long a call waits for a server
    that is away before RedisUnavailable. queue_limit: most ready jobs of one queue, 0 for no limit. ledger: the URL of
    the database that remembers jobs and events whatever Redis loses, sqlite:///… or postgresql+psycopg://…. outbox:
    the URL of the database in whose transactions enqueue_in writes. Both need the extra `sql`, and are opened at their
    first use. redact: names of arguments and results that are never shown, such as "tax_id", beside password, token
    and the others that fencepost.redact knows.
    """

    def __init__(
        self,
        redis: str | redis.Redis | redis.asyncio.Redis = "redis://localhost:6379/0",
        *,
        namespace: str = "fencepost",
        lease: _Length = 30.0,
        give_up: _Length = 15.0,
        queue_limit: int = 0,
        ledger: str | None = None,
        outbox: str | None = None,
        redact: Collection[str] = (),
    ) -> None:
        self.lease_s = parse_duration_s(lease, "lease")
        if not 1.0 <= self.lease_s <= 3_600:
            raise ConfigurationError("lease", f"{lease!r} is not 1 s to 1 h", "30 suits most work.")
        if ledger is not None:
            check_sql_url(ledger, "ledger", LEDGERS)
        if outbox is not None:
            check_sql_url(outbox, "outbox")
        self.namespace, self.queue_limit, self.redact = namespace, queue_limit, checked_names(redact)
        self.link = Link(Connections(redis), Store(Keys(namespace)), parse_duration_s(give_up, "give_up"), self.redact)
        self.handlers: dict[str, Handler[Any, Any]] = {}
        self.server: EmbeddedServer | None = None
        self.ledger_url, self.outbox_url = ledger, outbox
        self._sql_lock = threading.Lock()
        self._ledger: Ledger | None = None
        self._outbox: Outbox | None = None
        self._enqueuer = Enqueuer(self.link, queue_limit, lambda: self.ledger, lambda: self.outbox)
        if ledger is not None or outbox is not None:
            self.link.recall = self._recall
        self._identity = worker_identity()

    @classmethod
    def embedded(cls, path: str | Path | None = None, **settings: Any) -> Fencepost:
        """Return an application on a private Valkey in a data folder, started here or attached to.

        path: the folder, by default FENCEPOST_DATA, else .fencepost in the working directory. settings: as for
        Fencepost, without redis; with the extra `sql`, the ledger is by default a SQLite file in the folder, and
        ledger=None does without.
        The server ends with the process that started it; its data stays. For development, tests and demos.
        """
        server = EmbeddedServer.start(path)
        if "ledger" not in settings and importlib.util.find_spec("sqlalchemy") is not None:
            settings["ledger"] = f"sqlite:///{server.path / 'ledger.sqlite'}"
        app = cls(server.url, **settings)
        app.server = server
        app.link.connections.revive = _reviver(server)
        return app

    @classmethod
    def from_environment(cls, **settings: Any) -> Fencepost:
        """Return an application at FENCEPOST_REDIS_URL, or an embedded one where that is not set.

        FENCEPOST_LEDGER_URL and FENCEPOST_OUTBOX_URL stand for ledger and outbox where those are not given.
        """
        url = os.environ.get("FENCEPOST_REDIS_URL")
        for name in ("ledger", "outbox"):
            if said := os.environ.get(f"FENCEPOST_{name.upper()}_URL"):
                settings.setdefault(name, said)
        return cls(url, **settings) if url else cls.embedded(**settings)

    def job(
        self,
        function: None = None,
        /,
        *,
        kind: str | None = None,
        queue: str = "default",
        resource: str | ResourceRule | None = None,
        limit: int = 1,
        on_busy: str = "wait",
        ordered: bool = False,
        when_redis_away: Literal["fail_closed", "fail_open"] = "fail_closed",
        timeout: _Length = 900.0,
        retry: RetryPolicy | None = None,
        dedup: str | bool = False,
        priority: int = 0,
        version: int = 1,
        max_crashes: int = 3,
        retention: _Length = 86_400.0,
        failed_retention: _Length = 604_800.0,
        durability: Literal["redis", "ledger"] = "redis",
        idempotency: Literal["optional", "required"] = "optional",
        caller_resource: bool = False,
        remote: bool = False,
    ) -> _Decorator:
        """Register a function as the handler of a kind.

        kind: its name, by default the function's. resource: a template such as "invoice:order:{order_id}"; two jobs
        with one resource never run together. limit, on_busy ("wait" | "skip" | "later:30s" | "fail"), ordered and
        when_redis_away: as in ResourceRule. timeout: the longest one run may take. dedup: a template, or True for all
        arguments: one live job a key. priority: 0 to 9, higher is earlier; a step is worth a minute of waiting.
        version: of the signature. max_crashes: how often its worker may die before the job is buried as poison.
        durability: "ledger" writes a job into SQL before its caller has an answer, so that no loss of Redis loses it.
        idempotency: "required" refuses a request over HTTP that has no Idempotency-Key. caller_resource: an enqueue may
        name the resource itself, options(resource=…). remote: a worker in another language does the work
        over HTTP; the function only says what the arguments are. The first parameter may be `run: Run`. Raises
        ConfigurationError.
        """
        if function is not None:
            raise ConfigurationError("app.job", "it stands above the function without parentheses", "Write @app.job().")

        return self._registering(
            kind,
            {
                "queue": queue, "resource": _rule(resource, limit, on_busy, ordered, when_redis_away),
                "timeout_s": parse_duration_s(timeout, "timeout"), "retry": retry or RetryPolicy(), "dedup": dedup,
                "priority": priority, "version": version, "max_crashes": max_crashes,
                "retention_s": parse_duration_s(retention, "retention"),
                "failed_retention_s": parse_duration_s(failed_retention, "failed_retention"),
                "durable": durable_by(durability), "idempotency": idempotency, "caller_resource": caller_resource,
                "remote": remote,
            },
        )  # fmt: skip

    def _registering(self, kind: str | None, declared: dict[str, Any]) -> _Decorator:
        def register(function: Callable[..., Any]) -> Handler[Any, Any]:
            settings = HandlerSettings(kind=kind or str(getattr(function, "__name__", "")), **declared)
            if settings.durable and self.ledger_url is None:
                raise ConfigurationError("durability", "the application has no ledger", 'Write Fencepost(ledger="…").')
            if settings.kind in self.handlers:
                raise ConfigurationError("kind", f"{settings.kind!r} is registered twice", "Give one another kind=….")
            handler: Handler[Any, Any] = Handler(function, settings, self._enqueuer)
            handler.codec.hidden = self.redact
            self.handlers[settings.kind] = handler
            return handler

        return register

    def handler(self, kind: str) -> Handler[Any, Any]:
        """Return the handler of a kind. Raises UnknownKind."""
        found = self.handlers.get(kind)
        if found is None:
            raise UnknownKind(kind, tuple(sorted(self.handlers)))
        return found

    async def enqueue_prepared(self, job: Prepared) -> Job[Any]:
        """Enqueue one prepared job of any kind; see Bound.enqueue for what it raises."""
        return await self._enqueuer.enqueue(job.spec)

    async def enqueue_many(self, jobs: Iterable[Prepared]) -> list[Job[Any] | FencepostError]:
        """Enqueue prepared jobs of any kinds; the answer has the job or the error of each, in order."""
        return await self._enqueuer.enqueue_many([job.spec for job in jobs])

    def enqueue_many_sync(self, jobs: Iterable[Prepared]) -> list[Job[Any] | FencepostError]:
        """As enqueue_many, for code without an event loop."""
        return self._enqueuer.enqueue_many_sync([job.spec for job in jobs])

    def get(self, job_id: str) -> Job[Any]:
        """Return a handle for a job id; nothing is read yet."""
        return Job(self.link, job_id, "")

    @property
    def ledger(self) -> Ledger | None:
        """The ledger, None for an application without one. Raises ConfigurationError where SQLAlchemy is missing."""
        if self._ledger is None and self.ledger_url is not None:
            with self._sql_lock:
                if self._ledger is None:
                    self._ledger = _opened(self.ledger_url, self.link.store.keys.namespace)
        return self._ledger

    @property
    def outbox(self) -> Outbox | None:
        """The outbox, None for an application without one."""
        if self._outbox is None and self.outbox_url is not None:
            with self._sql_lock:
                if self._outbox is None:
                    self._outbox = Outbox(self.outbox_url, self.link, lambda: self.ledger)
        return self._outbox

    def _recall(self, job_id: str) -> JobRecord | None:
        """What SQL knows of a job that Redis has not."""
        ledger, outbox = self.ledger, self.outbox
        job = ledger.job(job_id) if ledger is not None else None
        if job is not None:
            return JobRecord(
                id=job.job_id, state="queued" if job.state == "accepted" else job.state, kind=job.kind, queue=job.queue,
                payload=job.spec.payload if job.spec else b"", resource=job.resource or None, reason=job.reason or None,
                created_at=job.created_at_ms, updated_at=job.updated_at_ms, finished_at=job.finished_at_ms,
                attempts=job.attempts, generation=job.generation, token=job.token, worker=job.worker or None,
                durable=job.durable, other={"source": "ledger"},
            )  # fmt: skip
        return outbox.recall(job_id) if outbox is not None else None

    def lease(
        self,
        name: str,
        ttl: _Length = 30.0,
        *,
        wait: _Length | None = None,
        limit: int = 1,
        when_redis_away: Literal["fail_closed", "fail_open"] = "fail_closed",
        on_lost: Callable[[str], None] | None = None,
    ) -> Lease:
        """Return a lease on a resource, for code without a job: ``async with app.lease("stock:42") as lease``.

        wait: how long to stand in line, math.inf for ever; None tries once and raises ResourceBusy. The rest as in
        Lease.
        """
        return Lease(
            self.link.store,
            (lambda: self.link.asynchronous, lambda: self.link.synchronous),
            name,
            ttl_s=parse_duration_s(ttl, "ttl"),
            owner=self._identity,
            wait_s=0.0 if wait is None else math.inf if wait == math.inf else parse_duration_s(wait, "wait"),
            limit=limit,
            when_redis_away=when_redis_away,
            on_lost=on_lost,
        )

    def asgi(self, settings: ApiSettings | None = None) -> FastAPI:
        """Return the HTTP service of this application, to serve or to mount. Needs the extra `server`.

        settings: who may call, how large, how often; by default only callers with a token. Register all handlers first.
        Raises ConfigurationError.
        """
        try:
            api = importlib.import_module("fencepost.api")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("fastapi", "starlette"):
                raise
            hint = "pip install 'fencepost[server]'."
            raise ConfigurationError("server", f"{error.name} is not installed", hint) from error
        served: FastAPI = api.asgi(self, settings)
        return served

    async def close(self) -> None:
        """Close the connections of this event loop, and the embedded server if this object started it."""
        await self.link.asynchronous.close()
        self.close_sync()

    def close_sync(self) -> None:
        """As close, for code without an event loop."""
        if self._outbox is not None:
            self._outbox.close()
        if self._ledger is not None:
            self._ledger.close()
        self._enqueuer.close()
        self.link.synchronous.close()
        self.link.connections.revive = None
        if self.server is not None:
            self.server.stop()
            self.server = None


def _opened(url: str, namespace: str) -> Ledger:
    try:
        from fencepost.ledger import Ledger
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("sqlalchemy", "alembic"):
            raise
        raise ConfigurationError("ledger", f"{error.name} is not installed", "pip install 'fencepost[sql]'.") from error
    return Ledger(url, namespace)


def _rule(
    resource: str | ResourceRule | None,
    limit: int,
    on_busy: str,
    ordered: bool,
    when_redis_away: Literal["fail_closed", "fail_open"],
) -> ResourceRule | None:
    if isinstance(resource, str):
        return ResourceRule(resource, limit, on_busy, ordered, when_redis_away)
    if (limit, on_busy, ordered, when_redis_away) != (1, "wait", False, "fail_closed"):
        problem = "limit, on_busy, ordered and when_redis_away say how a resource template is shared"
        raise ConfigurationError("resource", problem, 'Write resource="order:{id}", or put them in ResourceRule.')
    return resource


def _reviver(server: EmbeddedServer) -> Callable[[], None]:
    """What a connection does that finds the private server gone: its starter ended, or it crashed. Start it again."""
    lock = threading.Lock()

    def revive() -> None:
        with lock:
            try:
                gone = server.ensure()
            except (ConfigurationError, OSError) as error:  # the next try of the call says that the server is away
                emit(_log, logging.ERROR, "server_not_restarted", path=str(server.path), cause=str(error)[:300])
            else:
                if gone:
                    emit(_log, logging.WARNING, "server_restarted", path=str(server.path), owner=not server.attached)

    return revive
