"""Jobs as the service shows them: the record's own names, secrets hidden, the lease in words."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from fencepost.api.story import Found, Story
from fencepost.job import JobRecord
from fencepost.operate import summary
from fencepost.redact import redact_json
from fencepost.states import State

__all__ = ["job_json", "line_json", "preview"]

_PREVIEW: Final = 200


def job_json(found: Found, story: Story | None, hidden: Collection[str]) -> dict[str, Any]:
    """A job with all that is known of it. hidden: further names whose values are secret."""
    view, record = found.view, found.view.record
    out = view.to_json(hidden)
    out["source"] = found.source
    if found.lost:
        out |= {"state": "lost", "last_known_state": record.state, "comes_back": record.durable}
    if record.state == State.DONE and record.result is None and "ledger" in (found.source, record.reason):
        out["result_expired"] = True
    if record.state == State.PROCESSING and found.source == "redis":
        out["lease"] = _lease(view.lease_left_ms)
    if story is not None:
        out["history"] = [one.to_json(record.payload, hidden) for one in story.events]
        out["history_whole"] = story.whole
    return out


def _lease(left_ms: int | None) -> dict[str, Any]:
    if left_ms is None:
        text = (
            "the run has no entry among the leases; workers put that right by and by, `fencepost heal --apply` at once"
        )
        return {"state": "missing", "text": text}
    if left_ms > 0:
        return {"state": "held", "left_s": round(left_ms / 1000, 1), "text": f"held for {_s(left_ms)} more"}
    ago = f"lease ran out {_s(-left_ms)} ago"
    text = f"{ago}; what its worker still writes is refused, and the next worker that asks for work takes the job back"
    return {"state": "ran_out", "ran_out_for_s": round(-left_ms / 1000, 1), "text": text}


def _s(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms / 1000:.0f} s"


def line_json(record: JobRecord) -> dict[str, Any]:
    """A job as a line of a list: no payload, no result, no error text."""
    return summary(record) | ({"token": str(record.token)} if record.token else {})


def preview(payload: bytes, hidden: Collection[str]) -> str:
    """The beginning of the arguments, as JSON text of at most 200 characters. It is cut after secrets are hidden."""
    text = msgspec.json.encode(redact_json(payload, hidden)).decode()
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 1]}…"
