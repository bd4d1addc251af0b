"""What is known about one job: as it is sent to Redis and as it is read back."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from .errors import ConfigurationError
from .redact import redact, redact_json, redact_text, secrets_of

__all__ = ["JobRecord", "JobSpec"]

_DAY_MS: Final = 86_400_000


class JobSpec(msgspec.Struct, kw_only=True, gc=False):
    """A job as enqueue sends it. Made on the hot path, so only `check` validates.

    payload: JSON object of arguments by name. version: of the handler's signature. priority: 0 to 9, higher is served
    earlier. delay_ms: from now by the clock of Redis; run_at_ms: a moment, milliseconds since 1970; of both, the later
    counts. resource, limit, on_busy, ordered: as in ResourceRule. dedup: key about the work. idem, fingerprint,
    idem_ttl_ms: key, request and lifetime about the request. retention_ms: how long a done or cancelled job can be
    read; failed_retention_ms: the same for a failed one. durable: the ledger has it before Redis; generation: above 1
    only where the ledger puts a requeued job back; restored: it had run before Redis lost it.
    """

    id: str
    kind: str
    queue: str = "default"
    payload: bytes = b"{}"
    version: int = 1
    priority: int = 0
    delay_ms: int = 0
    run_at_ms: int | None = None
    resource: str | None = None
    limit: int = 1
    on_busy: str = "wait"
    ordered: bool = False
    dedup: str | None = None
    idem: str | None = None
    fingerprint: str | None = None
    idem_ttl_ms: int = _DAY_MS
    max_crashes: int = 3
    retention_ms: int = _DAY_MS
    failed_retention_ms: int = 7 * _DAY_MS
    durable: bool = False
    generation: int = 1
    restored: bool = False

    def check(self) -> None:
        """Raise ConfigurationError if a value is outside its bounds."""
        for name, low, high in _SPEC_BOUNDS:
            value = getattr(self, name)
            if value is None and name == "run_at_ms":
                continue
            if type(value) is not int or not low <= value <= high:
                raise ConfigurationError(name, f"{value!r} is not a whole number from {low} to {high}")
        for name in ("id", "kind", "queue", "resource", "dedup", "idem"):
            text = getattr(self, name)
            if text is None and name in ("resource", "dedup", "idem"):
                continue
            if not isinstance(text, str) or not text or len(text) > 512 or not text.isprintable():
                raise ConfigurationError(name, f"{text!a:.80} is not a printable text of 1 to 512 characters")
        if not _ID.fullmatch(self.id):
            raise ConfigurationError(
                "job_id", f"{self.id[:80]!a} is not an id", "Letters, digits and _ . : - are allowed."
            )
        for name in ("kind", "queue", "resource"):
            if not set("{} ").isdisjoint(getattr(self, name) or ""):
                raise ConfigurationError(name, f"{getattr(self, name)!r} has a space or a brace")
        if self.idem is not None and not self.fingerprint:
            raise ConfigurationError("idem", "an idempotency key needs the fingerprint of its request")


_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
_SPEC_BOUNDS: Final = (
    ("version", 0, 1_000_000),
    ("priority", 0, 9),
    ("delay_ms", 0, 3_660 * _DAY_MS),
    ("run_at_ms", 0, 1 << 46),
    ("limit", 1, 10_000),
    ("idem_ttl_ms", 1_000, 3_660 * _DAY_MS),
    ("max_crashes", 0, 1_000_000),
    ("retention_ms", 0, 3_660 * _DAY_MS),
    ("failed_retention_ms", 0, 3_660 * _DAY_MS),
    ("generation", 1, 1_000_000),
)


class JobRecord(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """A job as one read of its hash gives it. Times are milliseconds since 1970 by the clock of Redis; score is
    microseconds. A field the hash lacks has its default, so records of an older release can be read."""

    id: str
    state: str = ""
    kind: str = ""
    queue: str = ""
    payload: bytes = b""
    version: int = 1
    created_at: int | None = None
    updated_at: int | None = None
    score: int | None = None
    priority: int = 0
    resource: str | None = None
    limit: int = 1
    on_busy: str = "wait"
    ordered: bool = False
    dedup: str | None = None
    idem: str | None = None
    max_crashes: int = 3
    retention_ms: int | None = None
    failed_retention_ms: int | None = None
    durable: bool = False
    restored: bool = False
    attempts: int = 0
    crashes: int = 0
    releases: int = 0
    generation: int = 1
    token: int = 0
    nonce: str | None = None
    worker: str | None = None
    claimed_at: int | None = None
    due_at: int | None = None
    progress: bytes | None = None
    checkpoint: bytes | None = None
    result: bytes | None = None
    error: str | None = None
    error_class: str | None = None
    reason: str | None = None
    cancel: str | None = None
    finished_at: int | None = None
    settled: str | None = None
    bumped: str | None = None
    steps: dict[str, bytes] = msgspec.field(default_factory=dict)
    """Results of run.step by name, as JSON."""
    outside: dict[str, bytes] = msgspec.field(default_factory=dict)
    """What run.outside knows of each effect by name, as JSON."""
    other: dict[str, str] = msgspec.field(default_factory=dict)
    """Fields of the hash that this release does not know."""

    @classmethod
    def from_hash(cls, job_id: str, fields: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[Any, Any]) -> JobRecord:
        """Read the reply of HGETALL, from a client that decodes text or one that does not. Never raises for odd data:
        a number that is none is left at its default and the text is kept in `other`."""
        known: dict[str, Any] = {}
        other: dict[str, str] = {}
        steps: dict[str, bytes] = {}
        outside: dict[str, bytes] = {}
        packed = fields.get("opts") or fields.get(b"opts") or ""  # type: ignore[call-overload]
        pairs = [line.partition("=")[::2] for line in _text(packed).split("\n") if line]
        for raw_name, raw in (*pairs, *fields.items()):
            name = raw_name if isinstance(raw_name, str) else _text(raw_name)
            if name in _BYTES:
                known[name] = _raw(raw)
            elif name in _TEXTS:
                known[name] = _text(raw)
            elif name.startswith(("step:", "outside:")):
                kept = steps if name.startswith("step:") else outside
                kept[name.partition(":")[2]] = _raw(raw)
            elif name in ("ordered", "durable", "restored"):
                known[name] = _text(raw) not in ("", "0", "false")
            elif name in _INTS and (number := _integer(raw)) is not None:
                known[name] = number
            elif name not in ("id", "opts"):
                other[name] = _text(raw)
        return cls(id=job_id, other=other, steps=steps, outside=outside, **known)

    def to_json(self, hidden: Collection[str] = ()) -> dict[str, Any]:
        """Return the record to be shown: only fields that are set, JSON texts opened, secrets hidden by the rules of
        fencepost.redact, the token as a decimal string (programs that read numbers as doubles stay exact).

        hidden: further names whose values are secret. Bytes that are no JSON have no names, so they are hidden whole.
        """
        out: dict[str, Any] = {}
        known = frozenset(secrets_of(_opened(self.payload), hidden))
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value in (None, b"") or name in ("other", "steps", "outside"):
                continue
            if isinstance(value, bytes):
                value = redact_json(value, hidden, known)
            elif name in _PROSE:
                value = redact_text(value, self.payload, hidden)
            out[name] = value
        out["token"] = str(self.token)
        for name in ("steps", "outside"):
            if kept := getattr(self, name):
                out[name] = redact({key: redact_json(value, hidden, known) for key, value in kept.items()}, hidden)
        if self.other:
            out["other"] = redact(self.other, hidden, known)
        return out


_BYTES: Final = frozenset({"payload", "progress", "checkpoint", "result"})
_TEXTS: Final = frozenset(
    {"state", "kind", "queue", "resource", "on_busy", "dedup", "idem", "nonce", "worker"}
    | {"error", "error_class", "reason", "cancel", "settled", "bumped"}
)
_INTS: Final = (
    frozenset(JobRecord.__struct_fields__)
    - _BYTES
    - _TEXTS
    - {"id", "other", "ordered", "durable", "restored", "steps", "outside"}
)
# What a handler, a caller or an operator wrote, or what was made of arguments. A resource stays, it is to be looked up.
_PROSE: Final = frozenset({"error", "reason", "cancel", "dedup", "idem"})


def _raw(raw: Any) -> bytes:
    return raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogateescape")


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)


def _integer(raw: Any) -> int | None:
    try:
        return int(raw)
    except (ValueError, TypeError):
        pass
    try:  # a script may have written a number in floating form, such as 1.7e+12
        return int(float(raw))
    except (ValueError, TypeError, OverflowError):
        return None


def _opened(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
