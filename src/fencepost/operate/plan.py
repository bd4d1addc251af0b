"""Operations as values: a plan yields calls, is sent their answers and returns what it found out.

The asynchronous and the synchronous driver run the same plan, so no operation is written twice.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Generator, Iterable, Sequence
from types import GenericAlias
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from fencepost.driver import AsyncDriver, Call, SyncDriver
from fencepost.errors import ConfigurationError
from fencepost.keys import Keys
from fencepost.scripts import load

__all__ = ["LOOKS", "Place", "Plan", "View", "after", "cursor_of", "look", "place_of", "run", "run_sync", "text"]

T = TypeVar("T")
Plan: TypeAlias = Generator[Call[Any], Any, T]
Words: TypeAlias = Sequence[str | int | bytes]

_SCORE: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?|[+-]?inf")
LOOKS: Final = 500
"""The most commands of one look."""


async def run(driver: AsyncDriver, plan: Plan[T], give_up_s: float | None = None) -> T:
    """Run a plan to its end. Raises what its calls raise, and what the plan itself does."""
    try:
        call = next(plan)
        while True:
            try:
                answer = await driver.run(call, give_up_s)
            except Exception as error:  # noqa: BLE001 - the plan may know what to do with it
                call = plan.throw(error)
            else:
                call = plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        plan.close()


def run_sync(driver: SyncDriver, plan: Plan[T], give_up_s: float | None = None) -> T:
    """As run, on the calling thread."""
    try:
        call = next(plan)
        while True:
            try:
                answer = driver.run(call, give_up_s)
            except Exception as error:  # noqa: BLE001 - as above
                call = plan.throw(error)
            else:
                call = plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        plan.close()


class View(NamedTuple):
    """What a look saw. now_ms: the server's time; replies: one a command, in order."""

    now_ms: int
    replies: list[Any]


def look(keys: Keys, commands: Iterable[Words]) -> Call[View]:
    """One consistent view of the partition: at most LOOKS read commands, answered in one step."""
    args: list[Any] = []
    for words in commands:
        args.append(len(words))
        args += words
    base = (keys.meta, keys.events, keys.stats, keys.leases, keys.later, keys.dead, keys.recent)
    return Call("look", load("look"), base, args, lambda reply: View(int(reply[0]), reply[1:]))


def text(raw: Any) -> str:
    """Return a reply as text; bytes that are none are shown escaped."""
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)


class Place(NamedTuple):
    """Where a reader of a sorted set stands: behind this member. score: as the server prints it."""

    score: str
    member: str


def after(
    keys: Keys, key: str, place: Place | None, count: int, *, reverse: bool = False, stop: str = ""
) -> Plan[tuple[list[Place], bool]]:
    """Read the next members of a sorted set by score, and whether there may be more.

    The place is a score and a member, not a rank: members that come and go in front of it shift nothing. A member
    whose score is raised meanwhile (a renewed lease) is seen again. stop: the last score that counts.
    """
    if place is not None and not _SCORE.fullmatch(place.score):  # out of a cursor that somebody made up
        hint = "Use the one the last page gave, unchanged."
        raise ConfigurationError("cursor", f"{place.score[:40]!a} is no score", hint)
    end = stop or ("-inf" if reverse else "+inf")
    begin = place.score if place else ("+inf" if reverse else "-inf")
    size, skip = max(count, 200) if place else count, 0
    while True:
        order = ("REV",) if reverse else ()
        command = ("ZRANGE", key, begin, end, "BYSCORE", *order, "LIMIT", skip, size, "WITHSCORES")
        view: View = yield look(keys, [command])
        flat = view.replies[0]
        found = [Place(text(flat[i + 1]), text(flat[i])) for i in range(0, len(flat), 2)]
        fresh = [one for one in found if place is None or _beyond(one, place, reverse)]
        if fresh or len(found) < size:
            return fresh[:count], len(fresh) > count or len(found) == size
        skip += size  # all of them share the score of the place: it lies further back


def _beyond(one: Place, place: Place, reverse: bool) -> bool:
    here, there = (float(one.score), one.member.encode()), (float(place.score), place.member.encode())
    return here < there if reverse else here > there


def cursor_of(*parts: Any) -> str:
    """Return a cursor: text that a later call understands and nobody else needs to."""
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).decode().rstrip("=")


def place_of(cursor: str | None, kinds: tuple[type, ...]) -> tuple[Any, ...] | None:
    """Open a cursor. kinds: the types of its parts. Raises ConfigurationError for one that is not from this list."""
    if not cursor:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        return msgspec.json.decode(raw, type=GenericAlias(tuple, kinds))  # type: ignore[no-any-return]
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise ConfigurationError(
            "cursor", f"{cursor[:40]!a} is not a cursor of this list", "Use the one the last page gave, unchanged."
        ) from error
