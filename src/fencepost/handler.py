"""A registered handler: what it needs, what it is called, and how to enqueue a job of its kind."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from fencepost.clock import epoch_ms, parse_duration_s, uuid7
from fencepost.codec import ArgumentsCodec, canonical_key, request_fingerprint
from fencepost.enqueue import Enqueuer
from fencepost.errors import ConfigurationError, FencepostError
from fencepost.handle import Job
from fencepost.idempotency import dedup_name, idempotency_name
from fencepost.job import JobSpec
from fencepost.keys import check_queue
from fencepost.resource import ResourceRule, ResourceTemplate
from fencepost.retry import RetryPolicy

__all__ = ["Bound", "Handler", "HandlerSettings", "Options", "Prepared", "durable_by"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """What app.job declares about a kind. timeout_s: the longest one run may take. dedup: template, or True for
    "kind and all arguments". retention_s, failed_retention_s: how long an ended job can be read. durable: the ledger
    has a job before its caller has an answer. idempotency: whether a request over HTTP needs a key. caller_resource:
    whether an enqueue may name the resource itself. remote: done over HTTP, by no worker of ours."""

    kind: str
    queue: str = "default"
    resource: ResourceRule | None = None
    timeout_s: float = 900.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    dedup: str | bool = False
    priority: int = 0
    version: int = 1
    max_crashes: int = 3
    retention_s: float = 86_400.0
    failed_retention_s: float = 604_800.0
    durable: bool = False
    idempotency: Literal["optional", "required"] = "optional"
    caller_resource: bool = False
    remote: bool = False

    def __post_init__(self) -> None:
        if not self.kind or len(self.kind) > 200 or not self.kind.isprintable() or " " in self.kind:
            raise ConfigurationError("kind", f"{self.kind[:60]!a} is not a name", 'Write "generate_invoice".')
        check_queue(self.queue)
        if self.idempotency not in ("optional", "required"):
            problem = f"{self.idempotency!r} is unknown"
            raise ConfigurationError("idempotency", problem, 'Write "optional" or "required".')
        if not 0.01 <= self.timeout_s <= 30 * 86_400:
            raise ConfigurationError("timeout", f"{self.timeout_s!r} is not 0.01 s to 30 days")
        for name, least in (("retention_s", 1.0), ("failed_retention_s", 1.0)):
            if not least <= getattr(self, name) <= 3_650 * 86_400:
                raise ConfigurationError(name[:-2], f"{getattr(self, name)!r} is not {least:g} s to 10 years")
        for name, low, high in (("priority", 0, 9), ("version", 0, 1_000_000), ("max_crashes", 0, 1_000)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ConfigurationError(name, f"{value!r} is not a whole number from {low} to {high}")


@dataclass(frozen=True, slots=True)
class Options:
    """What one enqueue may change. delay: seconds, text like "2m" or a timedelta. run_at: an aware datetime. dedup: a
    key, template or True; False switches the kind's own off. client: whose idempotency key it is. durability: "ledger"
    or "redis", by default the kind's. resource: what the job works on, where its kind lets callers name it."""

    delay: float | str | timedelta | None = None
    run_at: datetime | None = None
    priority: int | None = None
    dedup: str | bool | None = None
    idempotency_key: str | None = None
    client: str = ""
    queue: str | None = None
    job_id: str | None = None
    idempotency_ttl: float = 86_400.0
    durability: Literal["redis", "ledger"] | None = None
    resource: str | None = None


_NONE = Options()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked job that was not sent yet; see Fencepost.enqueue_many."""

    spec: JobSpec


class Handler(Generic[P, R]):
    """A registered handler. Calling it runs the function here and now, without a queue, as a unit test would."""

    def __init__(self, function: Callable[..., Any], settings: HandlerSettings, enqueuer: Enqueuer) -> None:
        self.function, self.settings, self._enqueuer = function, settings, enqueuer
        self.kind = settings.kind
        self.codec = ArgumentsCodec(function, settings.kind)
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(self.kind, "a generator cannot be a handler", "Return a value instead.")
        if settings.resource is not None:
            assert isinstance(settings.resource.template, ResourceTemplate)
            settings.resource.template.check_names(self.codec.names, self.kind)
        self._dedup = settings.dedup if isinstance(settings.dedup, bool) else self._template(settings.dedup)
        self.__name__ = getattr(function, "__name__", self.kind)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Handler {self.kind}{self.codec.signature_text} on queue {self.settings.queue!r}>"

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job and return its handle; see Bound.enqueue."""
        return await self._enqueuer.enqueue(self.spec(_NONE, args, kwargs))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As enqueue, for code without an event loop: Django, Flask, scripts."""
        return self._enqueuer.enqueue_sync(self.spec(_NONE, args, kwargs))

    async def enqueue_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job inside the transaction of an asynchronous connection or session; see Bound.enqueue_in."""
        return await Bound(self, _NONE).enqueue_in(connection, *args, **kwargs)

    def enqueue_in_sync(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As enqueue_in, with a synchronous connection or session; see Bound.enqueue_in."""
        return Bound(self, _NONE).enqueue_in_sync(connection, *args, **kwargs)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Check the arguments and return a job for Fencepost.enqueue_many. Raises ArgumentsRefused."""
        return Prepared(self.spec(_NONE, args, kwargs))

    async def enqueue_many(self, items: Iterable[Mapping[str, Any]]) -> list[Job[R] | FencepostError]:
        """Enqueue one job for each dict of arguments; see Bound.enqueue_many."""
        return await Bound(self, _NONE).enqueue_many(items)

    def enqueue_many_sync(self, items: Iterable[Mapping[str, Any]]) -> list[Job[R] | FencepostError]:
        """As enqueue_many, for code without an event loop."""
        return Bound(self, _NONE).enqueue_many_sync(items)

    def options(
        self,
        *,
        delay: float | str | timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        dedup: str | bool | None = None,
        idempotency_key: str | None = None,
        client: str = "",
        queue: str | None = None,
        job_id: str | None = None,
        idempotency_ttl: float = 86_400.0,
        durability: Literal["redis", "ledger"] | None = None,
        resource: str | None = None,
    ) -> Bound[P, R]:
        """Return the handler with other options for this enqueue; see Options for their meaning."""
        return Bound(
            self,
            Options(
                delay,
                run_at,
                priority,
                dedup,
                idempotency_key,
                client,
                queue,
                job_id,
                idempotency_ttl,
                durability,
                resource,
            ),
        )

    # -- from arguments to a JobSpec ----------------------------------------------------------------------

    def spec(self, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec:
        """Check arguments and options and return the job. Raises ArgumentsRefused, ConfigurationError."""
        codec, settings = self.codec, self.settings
        arguments = codec.bind(args, kwargs)
        payload = codec.encode(arguments)
        spec = JobSpec(
            id=uuid7(),
            kind=settings.kind,
            queue=settings.queue,
            payload=payload,
            version=settings.version,
            priority=settings.priority,
        )
        if settings.max_crashes != 3:
            spec.max_crashes = settings.max_crashes
        if settings.retention_s != 86_400.0:
            spec.retention_ms = round(settings.retention_s * 1000)
        if settings.failed_retention_s != 604_800.0:
            spec.failed_retention_ms = round(settings.failed_retention_s * 1000)
        spec.durable = settings.durable
        rule = settings.resource
        if options.resource is not None:
            spec.resource = self._named_resource(options.resource)
        elif rule is not None:
            spec.resource = rule.render({**codec.defaults, **arguments}, settings.kind)
        if rule is not None:
            spec.limit, spec.ordered = rule.limit, rule.ordered
            spec.on_busy = f"later:{rule.later_ms}" if rule.later_ms else rule.on_busy
        dedup = self._dedup if options.dedup is None else options.dedup
        if dedup is not False:  # not "if dedup": an empty or zero key is a mistake or a key, never a wish to do without
            spec.dedup = self._dedup_key(dedup, {**codec.defaults, **arguments})
        if options is not _NONE:
            self._apply(spec, options)
        return spec

    def _apply(self, spec: JobSpec, options: Options) -> None:
        if options.queue is not None:
            spec.queue = check_queue(options.queue)
        if options.priority is not None:
            spec.priority = options.priority
        if options.delay is not None and options.run_at is not None:
            raise ConfigurationError("delay", "delay and run_at are both given", "Give one of them.")
        if options.delay is not None:
            spec.delay_ms = round(parse_duration_s(options.delay, "delay") * 1000)
        if options.run_at is not None:
            spec.run_at_ms = max(0, epoch_ms(options.run_at))
        if options.job_id is not None:
            spec.id = options.job_id
        if options.durability is not None:
            spec.durable = durable_by(options.durability)
        if options.idempotency_key is not None:
            spec.idem = idempotency_name(options.idempotency_key, options.client)
            spec.fingerprint = request_fingerprint(spec.kind, spec.payload)
            spec.idem_ttl_ms = round(parse_duration_s(options.idempotency_ttl, "idempotency_ttl") * 1000)
        spec.check()

    def _named_resource(self, resource: str) -> str:
        if not self.settings.caller_resource:
            problem = f"{self.kind} does not let its callers name the resource"
            raise ConfigurationError(
                "resource", problem, "Leave it out, or declare the kind with caller_resource=True."
            )
        if not isinstance(resource, str):
            raise ConfigurationError("resource", f"a text is needed, got {type(resource).__name__}")
        return unicodedata.normalize("NFC", resource)

    def _dedup_key(self, dedup: str | bool | ResourceTemplate, arguments: dict[str, Any]) -> str:
        if dedup is True:
            return canonical_key(self.kind, arguments)
        if isinstance(dedup, str) and "{" not in dedup:
            return dedup_name(self.kind, unicodedata.normalize("NFC", dedup))
        template = dedup if isinstance(dedup, ResourceTemplate) else self._template(str(dedup))
        return dedup_name(self.kind, template.render(arguments, self.kind))

    def _template(self, text: str) -> ResourceTemplate:
        template = ResourceTemplate(text, "dedup")
        template.check_names(self.codec.names, self.kind)
        return template


class Bound(Generic[P, R]):
    """A handler with options. Made by Handler.options."""

    __slots__ = ("_handler", "_options")

    def __init__(self, handler: Handler[P, R], options: Options) -> None:
        self._handler, self._options = handler, options

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job and return its handle.

        Dedup key, idempotency key and job are stored in one atomic step. With durability="ledger" the job is in SQL
        before that: it is accepted even while Redis is away, and put into it later. Raises ArgumentsRefused (nothing
        was sent), IdempotencyConflict, QueueFull, LedgerUnavailable, RedisUnavailable (its `executed` tells whether the
        job may have been stored; enqueue again with the same job_id or idempotency_key to find out).
        """
        handler = self._handler
        return await handler._enqueuer.enqueue(handler.spec(self._options, args, kwargs))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As enqueue, for code without an event loop."""
        handler = self._handler
        return handler._enqueuer.enqueue_sync(handler.spec(self._options, args, kwargs))

    async def enqueue_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job inside the transaction that is open on a connection or session, or that it begins by itself.

        connection: an AsyncSession or AsyncConnection of SQLAlchemy, or an AsyncConnection of psycopg, of the database
        that Fencepost(outbox=…) names. One row is written, nothing is sent: rolled back, there is no job and no key is
        taken; committed, the job is published at once, or by a relay. Its id is fixed here. Dedup and idempotency keys
        are honoured when it is published: `status` then tells of the job that was there first.
        Raises ArgumentsRefused, ConfigurationError (autocommit, no outbox), and what the driver raises.
        """
        spec = self._handler.spec(self._options, args, kwargs)
        return await self._handler._enqueuer.enqueue_in(connection, spec)

    def enqueue_in_sync(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As enqueue_in, with a Session or Connection of SQLAlchemy, or one of psycopg, sqlite3 or Django."""
        return self._handler._enqueuer.enqueue_in_sync(connection, self._handler.spec(self._options, args, kwargs))

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Check and return a job for Fencepost.enqueue_many."""
        return Prepared(self._handler.spec(self._options, args, kwargs))

    async def enqueue_many(self, items: Iterable[Mapping[str, Any]]) -> list[Job[R] | FencepostError]:
        """Enqueue one job for each dict of arguments. The answer has, in the order of the items, the job or the error
        of each: a bad item does not keep the others out."""
        specs, out = self._checked(items)
        return _filled(out, await self._handler._enqueuer.enqueue_many(specs))

    def enqueue_many_sync(self, items: Iterable[Mapping[str, Any]]) -> list[Job[R] | FencepostError]:
        """As enqueue_many, for code without an event loop."""
        specs, out = self._checked(items)
        return _filled(out, self._handler._enqueuer.enqueue_many_sync(specs))

    def _checked(self, items: Iterable[Mapping[str, Any]]) -> tuple[list[JobSpec], list[FencepostError | None]]:
        specs: list[JobSpec] = []
        out: list[FencepostError | None] = []
        for item in items:
            try:
                specs.append(self._handler.spec(self._options, (), dict(item)))
            except FencepostError as error:
                out.append(error)
            else:
                out.append(None)
        return specs, out


def durable_by(durability: str) -> bool:
    """Whether a job goes to the ledger first. Raises ConfigurationError for a word that is none."""
    if durability not in ("redis", "ledger"):
        raise ConfigurationError("durability", f"{durability!r} is unknown", 'Write "ledger" or "redis".')
    return durability == "ledger"


def _filled(
    out: list[FencepostError | None], answers: list[Job[Any] | FencepostError]
) -> list[Job[Any] | FencepostError]:
    left = iter(answers)
    return [next(left) if one is None else one for one in out]
