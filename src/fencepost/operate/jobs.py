"""Reading jobs: one with all that is known of it, and the jobs of a state, page by page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from fencepost.errors import ConfigurationError, JobNotFound
from fencepost.job import JobRecord
from fencepost.keys import Keys, check_queue
from fencepost.operate.plan import LOOKS, Place, Plan, View, after, cursor_of, look, place_of, text
from fencepost.redact import redact_text
from fencepost.states import State

__all__ = ["Event", "JobView", "Page", "events_of", "history", "job", "jobs", "present", "records", "summary"]

T = TypeVar("T")

SUMMARY: Final = (
    "state", "kind", "queue", "attempts", "crashes", "releases", "generation", "created_at", "updated_at",
    "finished_at", "due_at", "claimed_at", "worker", "token", "reason", "error_class", "cancel", "opts",
)  # fmt: skip
_SHOWN: Final = (
    "id", "state", "kind", "queue", "attempts", "crashes", "releases", "generation", "created_at", "finished_at",
    "due_at", "claimed_at", "worker", "resource", "priority", "reason", "error_class", "cancel",
)  # fmt: skip
_MOST: Final = 1_000
_EXAMINED: Final = 10_000
_PART: Final = 400
_HISTORY_CALLS: Final = 60


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. cursor: for the next page, None at the end. missing: what the index names, but is gone.

    Lists move while they are read: what stays in the list is shown on some page, what moves may be shown twice.
    """

    items: list[T]
    cursor: str | None = None
    missing: list[str] = []


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the event stream. at: server ms. by: the worker or owner that caused it, as far as known."""

    seq: int
    at: int
    name: str
    job_id: str
    kind: str = ""
    by: str = ""
    token: str = ""
    nonce: str = ""
    attempt: str = ""
    reason: str = ""
    resource: str = ""

    def to_json(self, payload: bytes = b"", hidden: Collection[str] = ()) -> dict[str, Any]:
        """The event to be shown, without the secrets of its job. payload: the arguments of the job."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        if self.reason:
            told["reason"] = redact_text(self.reason, payload, hidden)
        return told


class JobView(msgspec.Struct, frozen=True):
    """All that is known of a job. lease_left_ms: of its run, negative once it has run out. position: jobs that are
    served before it in its queue or in the line of its resource. history: oldest first; whole: it goes back to the
    job's first event."""

    record: JobRecord
    now_ms: int
    lease_left_ms: int | None = None
    position: int | None = None
    history: list[Event] = []
    whole: bool = False

    def to_json(self, hidden: Collection[str] = ()) -> dict[str, Any]:
        """All of it to be shown, secrets hidden. hidden: further names whose values are secret."""
        out = {"now": self.now_ms, **self.record.to_json(hidden)}
        if self.lease_left_ms is not None:
            out["lease_left_ms"] = self.lease_left_ms
        if self.position is not None:
            out["position"] = self.position
        if self.history:
            out["history"] = [one.to_json(self.record.payload, hidden) for one in self.history]
            out["history_whole"] = self.whole
        return out


def summary(record: JobRecord) -> dict[str, Any]:
    """Return a line of a list as JSON: no payload, no result, only what is set."""
    out = {name: getattr(record, name) for name in _SHOWN}
    for name in ("reason", "cancel"):
        if out[name]:
            out[name] = redact_text(out[name])
    return {name: value for name, value in out.items() if value not in (None, "")}


# -- one job --------------------------------------------------------------------------------------------------


def job(keys: Keys, job_id: str, with_history: bool) -> Plan[JobView]:
    """Read a job. Raises JobNotFound."""
    view: View = yield look(keys, [("HGETALL", keys.job(job_id)), ("ZSCORE", keys.leases, job_id)])
    fields, deadline = view.replies
    if not fields:
        raise JobNotFound(job_id)
    record = JobRecord.from_hash(job_id, dict(zip(fields[::2], fields[1::2], strict=True)))
    found, position = JobView(record, view.now_ms), None
    if record.state == State.QUEUED:
        position = (yield look(keys, [("ZRANK", keys.ready(record.queue), job_id)])).replies[0]
    elif record.state == State.WAITING and record.resource:
        position = (yield look(keys, [("ZRANK", keys.line(record.resource), job_id)])).replies[0]
    events, whole = (yield from history(keys, job_id)) if with_history else ([], False)
    left = None if deadline is None else round(float(deadline)) - view.now_ms
    return msgspec.structs.replace(found, lease_left_ms=left, position=position, history=events, whole=whole)


def history(keys: Keys, job_id: str) -> Plan[tuple[list[Event], bool]]:
    """Read the events of a job backwards from the newest, at most _HISTORY_CALLS parts of the stream."""
    events: list[Event] = []
    end = "+"
    for _ in range(_HISTORY_CALLS):
        view: View = yield look(keys, [("XREVRANGE", keys.events, end, "-", "COUNT", _PART)])
        entries = view.replies[0]
        for entry_id, flat in entries:
            found = [one for one in reversed(list(events_of(text(entry_id), flat))) if one.job_id == job_id]
            events += found
            if any(one.name == "enqueued" for one in found):
                return events[::-1], True
        if len(entries) < _PART:
            break
        end = f"({text(entries[-1][0])}"
    return events[::-1], False


def events_of(entry_id: str, flat: list[Any]) -> Iterator[Event]:
    """The events of one entry of the stream, oldest first."""
    fields = {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}
    lines = fields.get("e", "").split("\n")
    last, at, by = int(entry_id.partition("-")[0]), int(float(fields.get("t", "0"))), fields.get("w", "")
    for number, line in enumerate(lines):
        name, job_id, kind, *rest = (*line.split("\t"), "", "")
        token, nonce, attempt, reason, resource = (*rest, "", "", "", "", "")[:5]
        seq = last - len(lines) + 1 + number
        yield Event(seq, at, name, job_id, kind, by, token, nonce, attempt, reason, resource)


# -- many jobs ------------------------------------------------------------------------------------------------


def records(keys: Keys, job_ids: list[str], fields: tuple[str, ...] = SUMMARY) -> Plan[dict[str, JobRecord | None]]:
    """Read some fields of jobs; None for one that is gone."""
    out: dict[str, JobRecord | None] = {}
    for at in range(0, len(job_ids), LOOKS):
        part = job_ids[at : at + LOOKS]
        view: View = yield look(keys, [("HMGET", keys.job(job_id), *fields) for job_id in part])
        for job_id, values in zip(part, view.replies, strict=True):
            known = {name: value for name, value in zip(fields, values, strict=True) if value is not None}
            out[job_id] = JobRecord.from_hash(job_id, known) if known else None
    return out


def present(keys: Keys, job_ids: Sequence[str]) -> Plan[set[str]]:
    """Those of the jobs that Redis still has, in whatever state. Asks Redis in any case, even for none."""
    out: set[str] = set()
    for at in range(0, max(len(job_ids), 1), LOOKS):
        part = job_ids[at : at + LOOKS]
        view: View = yield look(keys, [("EXISTS", keys.job(job_id)) for job_id in part])
        out |= {job_id for job_id, there in zip(part, view.replies, strict=True) if there}
    return out


Wanted = Callable[[JobRecord], bool]


def jobs(
    keys: Keys,
    state: str,
    queues: list[str],
    resources: list[str],
    wanted: Wanted,
    limit: int,
    cursor: str | None,
) -> Plan[Page[JobRecord]]:
    """Read a page of the jobs in a state that are wanted. queues, resources: where queued and waiting ones stand."""
    check_limit(limit)
    if state == State.QUEUED:
        lists = [(queue, keys.ready(check_queue(queue))) for queue in queues]
    elif state == State.WAITING:
        lists = [(resource, keys.line(resource)) for resource in resources]
    elif state == State.SCHEDULED:
        lists = [("", keys.later)]
    elif state == State.PROCESSING:
        lists = [("", keys.leases)]
    elif state == State.FAILED:
        lists = [("", keys.dead)]
    elif state in (State.DONE, State.CANCELLED):
        return (yield from _ended(keys, state, wanted, limit, cursor))
    else:
        raise ConfigurationError("state", f"{state!r} is no state", f"Use one of {', '.join(State)}.")
    return (yield from _indexed(keys, state, sorted(lists), wanted, limit, cursor))


def check_limit(limit: int) -> None:
    if not 1 <= limit <= _MOST:
        raise ConfigurationError("limit", f"{limit!r} is not 1 to {_MOST}", "Read more with the cursor.")


def _indexed(
    keys: Keys, state: str, lists: list[tuple[str, str]], wanted: Wanted, limit: int, cursor: str | None
) -> Plan[Page[JobRecord]]:
    """A page out of sorted sets, one after another."""
    items: list[JobRecord] = []
    missing: list[str] = []
    opened = place_of(cursor, (str, str, str))
    started = opened[0] if opened else ""
    examined, size = 0, limit
    for name, key in (pair for pair in lists if pair[0] >= started):
        place = Place(*opened[1:]) if opened and name == started and opened[1] else None
        more = True
        while more:
            found, more = yield from after(keys, key, place, size, reverse=state == State.FAILED)
            ids = [one.member for one in found if one.member[:1] not in ("=", "@")]
            read = yield from records(keys, ids)
            for one in found:
                place, record = one, read.get(one.member)
                if record is not None and record.state == state and wanted(record):
                    items.append(record)
                    if len(items) == limit:
                        return Page(items, cursor_of(name, *one), missing)
                elif one.member in read and record is None:
                    missing.append(one.member)
            examined, size = examined + len(found), max(limit, LOOKS)  # few agree: look at more at once
            if place and examined >= _EXAMINED:
                return Page(items, cursor_of(name, *place), missing)
    return Page(items, None, missing)


def _ended(keys: Keys, state: str, wanted: Wanted, limit: int, cursor: str | None) -> Plan[Page[JobRecord]]:
    """A page out of the list of ended jobs, newest first. New ones shift it, so the place is looked up again."""
    items: list[JobRecord] = []
    start = 0
    opened = place_of(cursor, (int, str))
    if opened:
        view: View = yield look(keys, [("LPOS", keys.recent, opened[1], "COUNT", 0)])
        later = [at for at in view.replies[0] if at >= opened[0]]
        if not later:  # trimmed away meanwhile, and all behind it too
            return Page([])
        start = min(later) + 1
    while True:
        view = yield look(keys, [("LRANGE", keys.recent, start, start + max(limit, 100) - 1)])
        ids = [text(raw) for raw in view.replies[0]]
        read = yield from records(keys, ids)
        for at, job_id in enumerate(ids, start):
            record = read.pop(job_id, None)  # one that ended twice is in the list twice
            if record is not None and record.state == state and wanted(record):
                items.append(record)
                if len(items) == limit:
                    return Page(items, cursor_of(at, job_id))
        start += len(ids)
        if len(ids) < max(limit, 100):
            return Page(items)
