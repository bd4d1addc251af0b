"""A guarded section: install, then read and work, then verify, write the effect row, commit.

The order is the whole point. A token that is checked only at the end loses updates: the new holder may read before the
late write of the old one lands, and both checks pass. Once the new holder has *installed* its token, every late write
is refused, so what it reads afterwards is settled. Measured on PostgreSQL READ COMMITTED and MariaDB REPEATABLE READ.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fencepost.codec import decode_result, encode_result
from fencepost.errors import SectionRepeat, StaleToken, TransactionEnded
from fencepost.log import emit
from fencepost.sql.channel import Channel, Row
from fencepost.sql.faults import fault_of, short_cause

from . import statements
from .hands import Hands, Opened
from .holder import Holder
from .statements import Claim, Verdict, stored_key

__all__ = [
    "PATIENCE_LEASES",
    "Effect",
    "Section",
    "as_text",
    "claim_of",
    "flush",
    "from_text",
    "install",
    "pause_s",
    "refuse",
    "wait_limit_s",
]

_log = logging.getLogger("fencepost.fence")
_BUMPS: Final = 5
_INSTALLS: Final = 10
PATIENCE_LEASES: Final = 3
"""For how many leases a section asks again for a fence that somebody else has locked."""
_QUESTIONS: Final = 6
"""How often the outcome of a COMMIT is asked for, with pauses from 50 ms doubled: 1.5 s in all."""


@dataclass(slots=True)
class Effect:
    """One effect, inside its transaction.

    first: nobody did it before; do it, and set `result`. Else result is what was stored then, and nothing that the
    block writes is kept. result: plain data, up to 64 KiB of JSON; after the block it is what a later attempt would
    find, so a tuple has become a list and a date its text. session: the connection to work on. key: as stored.
    """

    first: bool
    result: Any
    session: Any
    key: str


def claim_of(holder: Holder, name: str, resource: str | None) -> Claim:
    """Who writes, with the token as it is now. name: of the effect, "" for none."""
    return Claim(
        namespace=holder.namespace,
        resource=stored_key(holder.fence_resource(resource)),
        effect_key=stored_key(holder.effect_key(name)) if name else "",
        job_id=holder.job_id,
        token=holder.token,
        nonce=holder.nonce,
        idle_ms=max(1_000, round(holder.lease_s * 1_000)),
    )


def wait_limit_s(holder: Holder) -> int:
    """How long a section waits for one lock, and may stand still, in whole seconds: its lease, at least 1."""
    return max(1, math.ceil(holder.lease_s))


async def flush(channel: Channel, key: str) -> None:
    """Write what an ORM session still keeps to itself. Raises TransactionEnded where an error was swallowed before."""
    try:
        await channel.flush()
    except Exception as error:
        if fault_of(error) == "aborted":
            raise TransactionEnded(key) from error
        raise


def pause_s() -> float:
    """How long to wait before something is repeated: 5 to 100 ms, so that two who collided do not do so again."""
    return random.uniform(0.005, 0.1)


@contextlib.contextmanager
def told(holder: Holder) -> Iterator[None]:
    """A refusal of Redis that passes: the holder remembers that it is stale."""
    try:
        yield
    except StaleToken as error:
        holder.newer(error.newest)
        raise


async def refuse(hands: Hands, holder: Holder, claim: Claim, verdict: Verdict) -> SectionRepeat:
    """What becomes of a section whose verification failed, when nothing of it is left in the database.

    A holder that still owns its lease is the newest whatever the database says (Redis lost its newest tokens): its
    token is raised, and the section has to be repeated. Otherwise raises what Redis said: StaleToken, …
    """
    if verdict.word == "stale":
        with told(holder):
            await hands.bump(holder, verdict.token, "verify")
        why = f"the database knew token {verdict.token}, ours is raised to {holder.token}"
    else:
        why = "the database does not know our token any more"
    return SectionRepeat(holder.job_id, claim.effect_key, why)


async def install(hands: Hands, holder: Holder, channel: Channel, name: str, resource: str | None) -> Claim:
    """Make the holder's token the newest of the resource, in short transactions of their own. Returns the claim.

    Raises StaleToken, LeaseExpired or JobNotFound where somebody else is the owner, RedisUnavailable where that could
    not be found out, SectionRepeat where the token could not be raised above the others.
    """
    for _ in range(_BUMPS):
        claim = claim_of(holder, name, resource)
        verdict = await _install_once(hands, holder, channel, claim)
        if verdict.word == "mine":
            return claim
        with told(holder):
            await hands.bump(holder, verdict.token, "install")
        emit(_log, logging.INFO, "token_raised", job_id=holder.job_id, floor=verdict.token, fencing_token=holder.token)
    raise SectionRepeat(holder.job_id, claim.effect_key, f"token {claim.token} was overtaken {_BUMPS} times")


async def _install_once(hands: Hands, holder: Holder, channel: Channel, claim: Claim) -> Verdict:
    until = time.monotonic() + PATIENCE_LEASES * holder.lease_s
    for tried in range(1, _INSTALLS + 1):
        try:
            await channel.begin()
            try:
                await channel.limit_waits(wait_limit_s(holder))
                verdict = await channel.follow(statements.install(channel.dialect, claim))
                await channel.commit()
            except BaseException:
                with contextlib.suppress(Exception):
                    await channel.rollback()
                raise
        except Exception as error:
            if fault_of(error) != "repeat":
                raise
            if tried == _INSTALLS or time.monotonic() >= until:
                raise SectionRepeat(claim.job_id, claim.effect_key, short_cause(error)) from error
            holder.check()
            await hands.pause(pause_s())
        else:
            return verdict
    raise AssertionError("unreachable")


class Section:
    """One passage through a guarded section, on a connection of its own. enter() once, then leave() once."""

    def __init__(self, hands: Hands, holder: Holder, factory: Any, name: str, resource: str | None) -> None:
        self._hands, self._holder, self._factory, self._name, self._resource = hands, holder, factory, name, resource
        self._opened: Opened
        self._claim: Claim
        self._effect: Effect
        self._mark = ""
        self._stored: str | None = None

    async def enter(self) -> Effect:
        """Install, open the transaction, see whether the effect is there. What it raises leaves nothing open."""
        self._holder.check()
        self._opened = await self._hands.open(self._factory)
        channel = self._opened.channel
        try:
            self._claim = await install(self._hands, self._holder, channel, self._name, self._resource)
            await channel.begin()
            await channel.limit_waits(wait_limit_s(self._holder))
            if channel.dialect == "sqlite":
                await channel.become_writer(statements.writer_lock(self._claim))
            found = await channel.follow(statements.look(channel.dialect, self._claim, False))
        except BaseException as error:
            await self._undo()
            self._repeat_for(error)
            raise
        self._mark = found.mark
        self._effect = Effect(found.effect is None, None, self._opened.session, self._claim.effect_key)
        if found.effect is not None:
            self._stored = found.effect[2]
            self._effect.result = from_text(self._stored)
        return self._effect

    async def leave(self, error: BaseException | None) -> None:
        """End the section. error: what the block raised; it is the caller's to raise on, unless this raises."""
        if error is not None:
            await self._undo()
            self._repeat_for(error)
            return
        if not self._effect.first:
            await self._undo()
            self._done(False)
            return
        channel = self._opened.channel
        try:
            verdict = await self._verdict(channel)
        except BaseException as problem:
            await self._undo()
            if isinstance(problem, Duplicate):
                return await self._found_late(problem)
            self._repeat_for(problem)
            raise
        if verdict.word != "mine":
            await self._undo()
            if verdict.word == "ended":
                raise TransactionEnded(self._claim.effect_key)
            raise await refuse(self._hands, self._holder, self._claim, verdict)
        await self._commit(channel)

    async def _verdict(self, channel: Channel) -> Verdict:
        self._stored = as_text(self._effect.result, self._name)
        await flush(channel, self._claim.effect_key)
        self._holder.check()
        try:
            return await channel.follow(statements.conclude(channel.dialect, self._claim, self._mark, self._stored))
        except Exception as error:
            if fault_of(error) == "duplicate":
                raise Duplicate from error
            raise

    async def _commit(self, channel: Channel) -> None:
        try:
            await channel.commit()
        except BaseException as error:
            await self._undo()
            if not isinstance(error, Exception):
                raise  # cancelled meanwhile: the next attempt finds the effect row, or does not
            self._repeat_for(error)
            await self._settle(error)
        else:
            await self._close()
            self._done(True)

    # -- afterwards ---------------------------------------------------------------------------------------

    def _done(self, first: bool) -> None:
        """The effect is there. The block gets the result that every later attempt gets, now and not only then."""
        self._effect.first, self._effect.result = first, from_text(self._stored)
        self._holder.note_effect(self._effect.key, first)

    async def _settle(self, error: Exception) -> None:
        """COMMIT raised an error that says nothing about its outcome: ask on a new connection. Raises it if undone."""
        row = await self._ask_until_answered(error)
        if row is None:
            raise error
        mine = row[1] == self._claim.nonce
        emit(_log, logging.WARNING, "commit_settled", effect=self._effect.key, committed=mine, cause=short_cause(error))
        self._stored = row[2]
        self._done(mine)

    async def _found_late(self, duplicate: Duplicate) -> None:
        """The insert met an effect that another transaction has committed meanwhile: ours is undone, theirs counts."""
        row = None
        with contextlib.suppress(Exception):
            row = await self._ask()
        if row is None:  # it was deleted again, or cannot be read now: the next passage sees
            again = SectionRepeat(self._holder.job_id, self._claim.effect_key, "another transaction had the effect")
            raise again from duplicate.__cause__
        self._stored = row[2]
        self._done(False)

    async def _ask_until_answered(self, error: Exception) -> Row | None:
        pause = 0.05
        for left in reversed(range(_QUESTIONS)):
            try:
                return await self._ask()
            except Exception as problem:
                if not left:
                    error.add_note(
                        f"Fencepost: whether the effect {self._effect.key!r} was committed is unknown; asking for it "
                        f"failed as well ({short_cause(problem)}). The next attempt finds it out by itself."
                    )
                    raise error from problem
            await self._hands.pause(pause)
            pause *= 2
        raise AssertionError("unreachable")

    async def _ask(self) -> Row | None:
        opened = await self._hands.open(self._factory)
        channel = opened.channel
        try:
            await channel.begin()
            await channel.limit_waits(wait_limit_s(self._holder))
            if channel.dialect == "sqlite":
                await channel.become_writer(statements.writer_lock(self._claim))
            return await channel.follow(statements.settle(channel.dialect, self._claim))
        finally:
            with contextlib.suppress(Exception):
                await channel.rollback()
            with contextlib.suppress(Exception):
                await self._hands.close(opened)

    async def _undo(self) -> None:
        try:
            with contextlib.suppress(Exception):  # what led here says more
                await self._opened.channel.rollback()
        finally:
            await self._close()

    async def _close(self) -> None:
        with contextlib.suppress(Exception):
            await self._hands.close(self._opened)

    def _repeat_for(self, error: BaseException) -> None:
        """Raise SectionRepeat for an error of the database that all of the section, done again, may not meet."""
        if not isinstance(error, SectionRepeat) and fault_of(error) == "repeat":
            raise SectionRepeat(self._holder.job_id, self._claim_key(), short_cause(error)) from error

    def _claim_key(self) -> str:
        return self._holder.effect_key(self._name)


class Duplicate(Exception):
    """Inside this package only: the effect row is there already."""


def as_text(result: Any, name: str) -> str | None:
    """The result as it is stored. Raises ResultRefused for what JSON cannot hold, or more than 64 KiB of it."""
    raw = encode_result(result, name)
    return None if raw is None else raw.decode()


def from_text(stored: str | None) -> Any:
    """The result that a row holds."""
    return None if stored is None else decode_result(stored.encode())
