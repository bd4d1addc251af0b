"""The states of a job and the one table of legal transitions.

    enqueue ──▶ queued, or scheduled if it has a delay

    scheduled ──promote (it is due)─────────────┐
    waiting ────promote (the resource is free)──┤
                                                ▼
                                             queued ──claim──▶ processing ──finish──▶ done
    queued ──claim, the resource is busy:                      │  │  └──────bury────▶ failed
      wait ──▶ waiting        skip ──▶ cancelled               │  └─ retry, release ──▶ scheduled, or queued (no wait)
      later ──▶ scheduled     fail ──▶ failed                  └─ reclaim (lease ran out) ──▶ queued, or failed (poison)

    retry, release, reclaim of a run that was asked to cancel ──▶ cancelled
    reclaim: the lease ran out, or an operator revoked it (then the job is queued or cancelled, never failed)
    scheduled, queued, waiting ──cancel──▶ cancelled
    processing ──cancel──▶ processing (asked for; obeyed when the run next settles) or cancelled (hard, bumps the token)
    failed, cancelled ──requeue──▶ queued, a new generation              done, failed, cancelled ──purge──▶ gone
    any live state ──conclude──▶ done, failed or cancelled, as the ledger knows it ended and Redis had forgotten

`None` stands for "no such job": before enqueue and after purge. Scripts, ledger and tools all obey TRANSITIONS.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from .errors import IllegalTransition

__all__ = [
    "CANCELLED_REASONS",
    "FAILED_REASONS",
    "LIVE",
    "TERMINAL",
    "TRANSITIONS",
    "Reason",
    "State",
    "Verb",
    "check",
    "legal",
]


class State(StrEnum):
    """Where a job is in its life. Members compare and hash like their text, as stored in Redis."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    WAITING = "waiting"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Verb(StrEnum):
    """What moves a job from one state to another."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    FINISH = "finish"
    RETRY = "retry"
    BURY = "bury"
    RELEASE = "release"
    RECLAIM = "reclaim"
    PROMOTE = "promote"
    CANCEL = "cancel"
    REQUEUE = "requeue"
    CONCLUDE = "conclude"
    PURGE = "purge"


class Reason(StrEnum):
    """Why a job ended without success."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    POISON = "poison"
    DECODE_ERROR = "decode_error"
    UNKNOWN_KIND = "unknown_kind"
    BUSY = "busy"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({State.DONE, State.FAILED, State.CANCELLED})
LIVE: Final = frozenset(State) - TERMINAL
FAILED_REASONS: Final = frozenset(
    {Reason.EXHAUSTED, Reason.PERMANENT, Reason.POISON, Reason.DECODE_ERROR, Reason.UNKNOWN_KIND, Reason.BUSY}
)
CANCELLED_REASONS: Final = frozenset({Reason.CANCELLED, Reason.BUSY})

_S, _Q, _W, _P = State.SCHEDULED, State.QUEUED, State.WAITING, State.PROCESSING
_D, _F, _C = State.DONE, State.FAILED, State.CANCELLED


def _to(*states: State | None) -> frozenset[State | None]:
    return frozenset(states)


TRANSITIONS: Final[Mapping[tuple[State | None, Verb], frozenset[State | None]]] = MappingProxyType(
    {
        (None, Verb.ENQUEUE): _to(_Q, _S),
        # A claim that meets a busy resource parks, skips, delays or fails the job, as its kind declares.
        (_Q, Verb.CLAIM): _to(_P, _W, _C, _S, _F),
        (_P, Verb.FINISH): _to(_D),
        # A run that was asked to cancel ends as cancelled instead of coming back.
        (_P, Verb.RETRY): _to(_S, _Q, _C),
        # Released for a kind that nobody knew for a day, a job fails.
        (_P, Verb.RELEASE): _to(_S, _Q, _C, _F),
        (_P, Verb.RECLAIM): _to(_Q, _F, _C),
        (_P, Verb.BURY): _to(_F),
        (_S, Verb.PROMOTE): _to(_Q),
        (_W, Verb.PROMOTE): _to(_Q),
        (_S, Verb.CANCEL): _to(_C),
        (_Q, Verb.CANCEL): _to(_C),
        (_W, Verb.CANCEL): _to(_C),
        (_P, Verb.CANCEL): _to(_P, _C),
        # What was done is not done again: enqueue a new job for that.
        (_F, Verb.REQUEUE): _to(_Q),
        (_C, Verb.REQUEUE): _to(_Q),
        (_S, Verb.CONCLUDE): _to(_D, _F, _C),
        (_Q, Verb.CONCLUDE): _to(_D, _F, _C),
        (_W, Verb.CONCLUDE): _to(_D, _F, _C),
        (_P, Verb.CONCLUDE): _to(_D, _F, _C),
        (_D, Verb.PURGE): _to(None),
        (_F, Verb.PURGE): _to(None),
        (_C, Verb.PURGE): _to(None),
    }
)


def legal(state: State | str | None, verb: Verb | str, to: State | str | None) -> bool:
    """Whether `verb` may take a job from `state` to `to`. Unknown words are simply not legal."""
    # A StrEnum hashes like its text, so plain strings find their entry.
    return to in TRANSITIONS.get((state, verb), frozenset())  # type: ignore[arg-type]


def check(job_id: str, state: State | str | None, verb: Verb | str, to: State | str | None) -> None:
    """Raise IllegalTransition unless `verb` may take the job from `state` to `to`."""
    if not legal(state, verb, to):
        raise IllegalTransition(job_id, str(state or ""), str(verb))
