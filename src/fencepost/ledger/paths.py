"""Which ways through its states the events of a job tell of, by the one table of transitions."""

from __future__ import annotations

from collections.abc import Set
from typing import Final, NamedTuple

from fencepost.states import LIVE, TERMINAL, TRANSITIONS, State, Verb

__all__ = ["ANYWHERE", "AUDIT_EVENTS", "KNOWN_EVENTS", "NOWHERE", "OF_NO_JOB", "Where", "after"]

Where = Set[State | None]
"""The states a job may be in: an event does not always tell. None: there is no such job."""

NOWHERE: Final[Where] = frozenset({None})
ANYWHERE: Final[Where] = frozenset({None, *State})


class _Meaning(NamedTuple):
    verbs: tuple[Verb, ...]
    source: Where
    target: Where


def _meaning(source: Where, target: Where, *verbs: Verb) -> _Meaning:
    return _Meaning(verbs, source, target)


_S, _Q, _W, _P = State.SCHEDULED, State.QUEUED, State.WAITING, State.PROCESSING
_MEANINGS: Final[dict[str, tuple[_Meaning, ...]]] = {
    "enqueued": (_meaning(NOWHERE, {_Q, _S}, Verb.ENQUEUE),),
    "acquired": (_meaning({_Q}, {_P}, Verb.CLAIM),),
    "parked": (_meaning({_Q}, {_W}, Verb.CLAIM),),
    "handed_over": (_meaning({_W}, {_Q}, Verb.PROMOTE),),
    "released": (_meaning({_P}, {_Q, _S}, Verb.RELEASE), _meaning({_Q}, {_S}, Verb.CLAIM)),
    "retry_scheduled": (_meaning({_P}, {_Q, _S}, Verb.RETRY),),
    "lost": (_meaning({_P}, {_Q}, Verb.RECLAIM),),
    "cancel_asked": (_meaning({_P}, {_P}, Verb.CANCEL),),
    "done": (_meaning({_P}, {State.DONE}, Verb.FINISH),),
    # After `lost` a job is queued, and may be buried or cancelled by the same call.
    "failed": (
        _meaning({_P}, {State.FAILED}, Verb.BURY, Verb.RELEASE),
        _meaning({_Q}, {State.FAILED}, Verb.CLAIM),
    ),
    "cancelled": (
        _meaning(LIVE, {State.CANCELLED}, Verb.CANCEL),
        _meaning({_P}, {State.CANCELLED}, Verb.RETRY, Verb.RELEASE),
    ),
    "concluded": (_meaning(LIVE, TERMINAL, Verb.CONCLUDE),),
    "requeued": (_meaning({State.FAILED, State.CANCELLED}, {_Q}, Verb.REQUEUE),),
    "purged": (_meaning(TERMINAL, NOWHERE, Verb.PURGE),),
}
# These move no job, but a run must be going on.
_WITHIN_A_RUN: Final = frozenset({"bumped", "step", "intent", "outcome"})
# These say nothing of where a job is: the fence refused, SQL had accepted, or the event is about another call.
_ASIDE: Final = frozenset({"refused_stale", "duplicate", "effect", "effect_found", "late_effect"})

OF_NO_JOB: Final = ("@", "/", "%")
"""How an id begins that is no job's: a stand-alone lease, a queue, a credential of the HTTP service."""
AUDIT_EVENTS: Final = frozenset({"queue_paused", "queue_resumed", "credential_made", "credential_revoked"})
"""What is told of queues and credentials: who did it stands in the event, and no job moves."""

KNOWN_EVENTS: Final = frozenset(_MEANINGS) | _WITHIN_A_RUN | _ASIDE | {"healed"}


def after(where: Where, name: str, reason: str = "") -> Where:
    """Where the job may be after an event; empty if no legal way leads there. A delay ends without an event."""
    if name in _ASIDE:
        return where
    if State.SCHEDULED in where:
        where = where | {State.QUEUED}
    if name in _WITHIN_A_RUN:
        return where & {State.PROCESSING}
    if name == "healed":  # a hand or a restore had left it in no list; it stands where it says
        return {State(reason)} if reason in LIVE and where & LIVE else frozenset()
    if name not in _MEANINGS:
        return where
    out: set[State | None] = set()
    for meaning in _MEANINGS[name]:
        for state in where & meaning.source:
            for verb in meaning.verbs:
                out |= TRANSITIONS.get((state, verb), frozenset()) & meaning.target
    if name == "concluded" and out:
        out &= {State(reason)} if reason in TERMINAL else frozenset()
    return out
