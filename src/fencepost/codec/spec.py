"""A job as a line of JSON, as the outbox and the ledger keep it: what a later enqueue sends, readable by people."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from fencepost.job import JobSpec

__all__ = ["after_waiting", "spec_from_text", "spec_to_text"]

_BARE = JobSpec(id="", kind="")


class _Kept(JobSpec, kw_only=True, gc=False):
    payload: msgspec.Raw = msgspec.Raw(b"{}")


def spec_to_text(spec: JobSpec) -> str:
    """Return the spec as one JSON object without what has its default. The payload stands in it as it is, byte for
    byte; one that is no JSON object becomes base64 text."""
    out: dict[str, Any] = {"id": spec.id, "kind": spec.kind}
    for name in spec.__struct_fields__:
        if name not in ("id", "kind", "payload") and getattr(spec, name) != getattr(_BARE, name):
            out[name] = getattr(spec, name)
    out["payload"] = _readable(spec.payload)
    return msgspec.json.encode(out).decode()


def spec_from_text(text: str | bytes) -> JobSpec:
    """Read what spec_to_text wrote; fields of a newer release are left out. Raises ValueError for anything else."""
    kept = msgspec.json.decode(text, type=_Kept)
    raw = bytes(kept.payload)
    payload = raw if raw[:1] == b"{" else base64.b64decode(msgspec.json.decode(raw, type=str), validate=True)
    values = {name: getattr(kept, name) for name in JobSpec.__struct_fields__ if name != "payload"}
    return JobSpec(**values, payload=payload)


def after_waiting(spec: JobSpec, waited_ms: int) -> JobSpec:
    """The spec as it is to be sent after it was kept for so long: of a delay, what is left. A new object."""
    return msgspec.structs.replace(spec, delay_ms=max(0, spec.delay_ms - max(0, waited_ms)))


def _readable(payload: bytes) -> Any:
    try:
        payload.decode()
        good = payload == payload.strip() and msgspec.json.decode(payload, type=dict[str, msgspec.Raw]) is not None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        good = False
    return msgspec.Raw(payload) if good else base64.b64encode(payload).decode()
