"""What callers ask of the service: enqueue jobs and follow them. Each function makes a call, or a plan of several."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from fencepost.client.answers import Accepted, JobInfo, Kind, NewJob, Page, Queue, Ready, Resource
from fencepost.client.problems import ApiError, of_document
from fencepost.client.sending import Call, Pause, Plan
from fencepost.clock import epoch_ms, uuid7
from fencepost.codec.checks import enc_hook, find_unsafe
from fencepost.errors import (
    ArgumentsRefused,
    ConfigurationError,
    FencepostError,
    JobCancelled,
    JobFailed,
    ResultExpired,
    ResultTimeout,
)

__all__ = ["dead", "enqueue", "enqueue_many", "job", "jobs", "kinds", "queues", "ready", "resource", "resources"]
__all__ += ["decoded", "keyed", "path", "result", "wait"]

T = TypeVar("T")

_PART: Final = 500
_LONG_POLL_S: Final = 20.0
_KEY: Final = 255


# -- enqueue --------------------------------------------------------------------------------------------------


def enqueue(
    kind: str,
    args: Mapping[str, Any] | None = None,
    *,
    delay: float | str | None = None,
    run_at: datetime | str | None = None,
    priority: int | None = None,
    dedup: str | bool | None = None,
    resource: str | None = None,
    queue: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Accepted]:
    """Have a job done. Returns as soon as it is stored.

    args: arguments by name. delay: seconds, or a text such as "2m". run_at: an aware datetime. resource: where the kind
    lets callers choose it. idempotency_key: the same one again is answered with the same job, for a day at least; if
    none is given one is made for this call, so that a repetition by the client itself never adds a second job.
    Raises ArgumentsRefused, IdempotencyConflict, QueueFull, RedisUnavailable, ApiError, NoAnswer.
    """
    key = idempotency_key or uuid7()
    job = NewJob(
        kind=kind, args=args or {}, delay=delay, run_at=run_at, priority=priority, dedup=dedup, resource=resource,
        queue=queue, idempotency_key=key,
    )  # fmt: skip
    body = _sent(job)
    del body["kind"], body["idempotency_key"]
    about = {"kind": kind, "queue": queue or "", "key": key}
    return keyed(path("v1", "jobs", kind), body, decoded(Accepted), key, about)


def enqueue_many(
    jobs: Sequence[NewJob], *, idempotency_key: str | None = None
) -> Plan[list[Accepted | FencepostError]]:
    """Have many jobs done, 500 at a time. Returns for each, in order, what enqueue would return or raise.

    idempotency_key: of the whole batch, for the jobs that have none of their own; made if none is given.
    """
    key = idempotency_key or uuid7()
    _check_key(f"{key}.{len(jobs)}#{_PART}")
    answers: list[Accepted | FencepostError] = []
    bodies = [_sent(job) for job in jobs]
    for at in range(0, len(jobs), _PART):
        part = jobs[at : at + _PART]
        whole = key if len(jobs) <= _PART else f"{key}.{at // _PART}"
        body = {"jobs": bodies[at : at + _PART]}
        items: list[_Item] = (yield keyed("/v1/jobs/batch", body, decoded(_Items), whole)).jobs
        answers += [_outcome(item, job, f"{whole}#{i}") for i, (item, job) in enumerate(zip(items, part, strict=True))]
    return answers


class _Item(msgspec.Struct):
    status: int = 500
    job: Accepted | None = None
    problem: dict[str, Any] = {}


class _Items(msgspec.Struct):
    jobs: list[_Item]


def _outcome(item: _Item, job: NewJob, key: str) -> Accepted | FencepostError:
    if item.job is not None:
        return item.job
    about = {"kind": job.kind, "queue": job.queue or "", "key": job.idempotency_key or key}
    return of_document(f"enqueue {job.kind}", item.status, item.problem, about)


def _sent(job: NewJob) -> dict[str, Any]:
    """What is sent of a job. Raises ArgumentsRefused, ConfigurationError."""
    if problem := find_unsafe(dict(job.args), ""):
        raise ArgumentsRefused(job.kind, problem.path, problem.text)
    if isinstance(job.run_at, datetime):
        epoch_ms(job.run_at)  # refuses one without a zone
    if job.idempotency_key is not None:
        _check_key(job.idempotency_key)
    try:
        encoded = msgspec.json.encode(job, enc_hook=enc_hook)
    except Exception as error:  # a property or hook of a value may raise anything
        raise ArgumentsRefused(job.kind, "", str(error) or type(error).__name__) from error
    body: dict[str, Any] = msgspec.json.decode(encoded)
    return body


def _check_key(key: str) -> None:
    if not (0 < len(key) <= _KEY and key.isascii() and key.isprintable()):
        raise ConfigurationError("idempotency_key", f"{key[:80]!a} is not 1 to {_KEY} printable ASCII characters")


# -- follow ---------------------------------------------------------------------------------------------------


def job(job_id: str, *, history: bool = False) -> Call[JobInfo]:
    """Read a job as it is now, with its events where asked for. Raises JobNotFound, RedisUnavailable, ApiError."""
    return _job(job_id, {"history": "1"} if history else {})


def _job(job_id: str, params: dict[str, str], waits_s: float = 0.0) -> Call[JobInfo]:
    return _get(path("v1", "jobs", job_id), decoded(JobInfo), params, {"job_id": job_id}, waits_s)


def wait(job_id: str, *, timeout: float = 30.0) -> Plan[JobInfo]:
    """Wait until a job has ended and return it then, at most `timeout` seconds. Raises ResultTimeout, JobNotFound."""
    began_s = time.monotonic()
    while True:
        asked_s = time.monotonic()
        waits_s = max(0.0, min(_LONG_POLL_S, began_s + timeout - asked_s))
        found: JobInfo = yield _job(job_id, {"wait": f"{waits_s:.1f}"}, waits_s)
        now_s = time.monotonic()
        if found.ended:
            return found
        if now_s - began_s >= timeout:
            raise ResultTimeout(job_id, now_s - began_s, found.state)
        # A service that waits for less than it is asked to must not be asked in a circle.
        yield Pause(max(0.0, min(0.5 - (now_s - asked_s), began_s + timeout - now_s)))


def result(job_id: str, *, timeout: float = 30.0) -> Plan[Any]:
    """Wait for a job and return what its handler returned, at most `timeout` seconds.

    Raises JobFailed, JobCancelled, ResultTimeout, ResultExpired (the ledger knows that it is done; what it returned is
    gone), JobNotFound.
    """
    found: JobInfo = yield from wait(job_id, timeout=timeout)
    if found.state == "failed":
        raise JobFailed(job_id, found.reason or "", found.error or "")
    if found.state == "cancelled":
        raise JobCancelled(job_id, found.reason or "")
    if found.result_expired:
        raise ResultExpired(job_id)
    return found.result


def jobs(
    state: str | None = None,
    *,
    kind: str | None = None,
    queue: str | None = None,
    resource: str | None = None,
    error_class: str | None = None,
    preview: bool = False,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[JobInfo]]:
    """Read a page of the jobs in a state: in the order in which they are served, ended ones newest first. Without a
    state: state by state. preview: the beginning of their arguments, too."""
    params = _params(
        state=state, kind=kind, queue=queue, resource=resource, error_class=error_class, limit=limit, cursor=cursor,
        preview="1" if preview else None,
    )  # fmt: skip
    return _get("/v1/jobs", decoded(Page[JobInfo]), params)


def dead(
    *,
    kind: str | None = None,
    reason: str | None = None,
    error_class: str | None = None,
    older_than_s: float | None = None,
    preview: bool = False,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[JobInfo]]:
    """Read a page of the dead letters, newest first. older_than_s: since they failed."""
    params = _params(
        kind=kind, reason=reason, error_class=error_class, older_than_s=older_than_s, limit=limit, cursor=cursor,
        preview="1" if preview else None,
    )  # fmt: skip
    return _get("/v1/dead", decoded(Page[JobInfo]), params)


def resources(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[Resource]]:
    """Read a page of the resources that are held, by name."""
    return _get("/v1/resources", decoded(Page[Resource]), _params(limit=limit, cursor=cursor))


def resource(name: str) -> Plan[Resource | None]:
    """Read who holds a resource and who waits for it; None where it is free."""
    try:
        found: Resource = yield _get(path("v1", "resources", name), decoded(Resource))
    except ApiError as error:
        if error.slug == "resource-free":
            return None
        raise
    return found


def queues() -> Call[list[Queue]]:
    """Read the queues there are."""
    return _get("/v1/queues", lambda raw: decoded(_Queues)(raw).queues)


class _Queues(msgspec.Struct):
    queues: list[Queue]


def kinds() -> Call[list[Kind]]:
    """Read the kinds that this caller may enqueue, with the JSON schema of their arguments."""
    return _get("/v1/kinds", lambda raw: decoded(_Kinds)(raw).kinds)


class _Kinds(msgspec.Struct):
    kinds: list[Kind]


def ready() -> Call[Ready]:
    """Ask whether the service can work. Needs no token; raises only NoAnswer and what is no answer of the service."""
    return Call("GET", "/readyz", decoded(Ready), accepts=frozenset({503}))


# -- parts ----------------------------------------------------------------------------------------------------


def keyed(
    route: str, body: Any, parse: Callable[[bytes], T], key: str = "", about: Mapping[str, Any] | None = None
) -> Call[T]:
    """A POST that may be sent twice because it has an idempotency key; one is made if none is given."""
    key = key or uuid7()
    _check_key(key)
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    headers = {"Idempotency-Key": f'"{escaped}"'}
    return Call("POST", route, parse, body, headers=headers, repeatable=True, about=about or {})


def decoded(kind: type[T]) -> Callable[[bytes], T]:
    """Return the parser of an answer. Numbers may come as text: tokens do."""
    return lambda raw: msgspec.json.decode(raw, type=kind, strict=False)


def path(*parts: str) -> str:
    """Join the parts of a path, each with what is special in it escaped."""
    if not all(parts) or {".", ".."} & set(parts):
        raise ConfigurationError("path", f"{parts!r} has a part that is empty or made of dots")
    return "/" + "/".join(quote(part, safe=":@") for part in parts)


def _get(
    route: str,
    parse: Callable[[bytes], T],
    params: Mapping[str, str] | None = None,
    about: Mapping[str, Any] | None = None,
    waits_s: float = 0.0,
) -> Call[T]:
    return Call("GET", route, parse, params=params or {}, repeatable=True, waits_s=waits_s, about=about or {})


def _params(**given: str | float | None) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if value is not None}
