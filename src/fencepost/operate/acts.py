"""What operators do to queues and to holders, and how it is kept who did it and why."""

from __future__ import annotations

import getpass
import os
import socket
from functools import cache
from typing import Final

import msgspec

from fencepost.errors import ConfigurationError, IllegalTransition, JobNotFound, StaleToken
from fencepost.keys import check_queue
from fencepost.operate.plan import Plan
from fencepost.store import Answer, Store

__all__ = ["Paused", "QueueChange", "check_actor", "check_reason", "local_actor", "pauses", "revoke", "set_paused"]

_REASON: Final = 200
_HOLDER: Final = 200


class Paused(msgspec.Struct, frozen=True):
    """Why a queue hands out nothing. by: who paused it; paused_at: server ms."""

    reason: str
    by: str
    paused_at: int


class QueueChange(msgspec.Struct, frozen=True):
    """What became of a queue. word: "paused" | "resumed" | "running" (it was not paused). paused_at: since when it is,
    or was, in server ms."""

    queue: str
    word: str
    paused_at: int | None = None


def check_reason(reason: str) -> str:
    """Return the reason, or raise ConfigurationError where it is no line that a ledger could show."""
    if not reason.strip() or not reason.isprintable() or len(reason) > _REASON:
        raise ConfigurationError(
            "reason", f"{reason[:40]!a} is not a line of 1 to {_REASON} characters", "Say why, in a few words."
        )
    return reason


def check_actor(actor: str) -> str:
    """Return the name of who acts, or raise ConfigurationError."""
    if not actor.strip() or not actor.isprintable() or len(actor) > _REASON:
        raise ConfigurationError("actor", f"{actor[:40]!a} is not a name of 1 to {_REASON} characters")
    return actor


@cache
def _user_and_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return "".join(one if one.isprintable() else "?" for one in f"{user}@{socket.gethostname()}")[:150]


def local_actor(by_way_of: str) -> str:
    """Who acts on this machine, such as "cli:ann@host7"."""
    return f"{by_way_of}:{_user_and_host()}"


def pauses(lines: str) -> dict[str, Paused]:
    """Open what the partition keeps of its paused queues: a line each, see pause.lua. What is torn is left out."""
    found: dict[str, Paused] = {}
    for line in lines.split("\n"):
        queue, since, actor, reason = (line.split("\t", 3) + [""] * 3)[:4]
        if queue and since.isdecimal():
            found[queue] = Paused(reason, actor, int(since))
    return found


def set_paused(store: Store, op: str, queue: str, reason: str, actor: str) -> Plan[QueueChange]:
    """Pause or resume a queue. Raises ConfigurationError: no queue name, no reason, or too many paused already."""
    check_queue(queue)
    check_reason(reason)
    answer: Answer = yield store.pause(op, queue, reason, actor)
    if answer.word == "FULL":
        raise ConfigurationError(
            "queue",
            f"{answer.detail} queues are paused already, so {queue!r} was not: each claim reads their names",
            "Resume some, or stop the workers.",
        )
    return QueueChange(queue, answer.word.lower(), int(answer.detail) if answer.detail else None)


def revoke(store: Store, holder: str, token: str, request_id: str, reason: str, actor: str) -> Plan[str]:
    """Take a run or a stand-alone lease from its holder. Raises StaleToken, IllegalTransition, JobNotFound."""
    check_reason(reason)
    if not (token.isascii() and token.isdecimal() and len(token) <= 16):
        raise ConfigurationError("token", f"{token[:40]!a} is no fencing token", "Use the one that you see, unchanged.")
    if not 0 < len(holder) <= _HOLDER or not holder.isprintable():
        raise ConfigurationError("id", f"{holder[:40]!a} is neither a job id nor @ and the nonce of a lease")
    answer: Answer = yield store.revoke(holder, token, request_id, reason, actor)
    if answer.word == "GONE":
        raise JobNotFound(holder)
    if answer.word == "STALE":
        raise StaleToken(holder, int(token), int(answer.detail))
    if answer.word == "ILLEGAL":
        raise IllegalTransition(holder, answer.detail, "revoke")
    return answer.detail
