"""The guard for those who own their transaction: `install` before it, `effect` inside it.

await fence.install(session, run)
async with session.begin():
    order = await session.get(Order, order_id)
    async with fence.effect(session, run, "invoice") as effect:
        if effect.first:
            order.invoice_number = effect.result = next_number(order)
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

from fencepost.errors import ConfigurationError, SectionRepeat, TransactionEnded
from fencepost.sql.channel import Channel, at_once, channel_of, kind_of, require_transaction
from fencepost.sql.faults import fault_of, short_cause

from . import section, statements
from .hands import BLOCKING, LOOPED, Hands
from .holder import Holder
from .section import Effect

__all__ = ["OwnEffect", "effect", "install", "install_sync"]


async def install(connection: Any, holder: Holder, resource: str | None = None) -> None:
    """Make the holder's token the newest of the resource, in a short transaction of its own, committed at once.

    connection: asynchronous, with no transaction open. From here on no older holder's effect is accepted, so what is
    read afterwards stays true until the effect is written; before it, nothing must be read that the effect rests on.
    Raises StaleToken, LeaseExpired, LeaseLost or JobNotFound where somebody else is the owner, RedisUnavailable where
    that could not be found out, ConfigurationError inside a transaction, SectionRepeat where the database refused to.
    """
    await _install(LOOPED, connection, holder, resource)


def install_sync(connection: Any, holder: Holder, resource: str | None = None) -> None:
    """As install, with a synchronous connection."""
    at_once(_install(BLOCKING, connection, holder, resource))


def effect(connection: Any, holder: Holder, key: str, resource: str | None = None) -> OwnEffect:
    """A block inside the user's own transaction that writes one effect: `async with`, or `with` on a synchronous one.

    key: names the effect within the job. resource: the one given to install. Leaving the block verifies, by a locking
    statement, that the holder is still the newest, and adds the effect row; the user commits soon after. Whatever this
    raises, the user's transaction must be rolled back, as it is where the error passes through `begin()` or `atomic()`.
    The ledger hears of the effect after the commit of a Session, an AsyncSession or Django; the others do not tell.
    Raises ConfigurationError in autocommit mode or without install; StaleToken, LeaseExpired or LeaseLost where
    somebody else is the owner; SectionRepeat where all has to be done again from install; ResultRefused,
    TransactionEnded.
    """
    return OwnEffect(connection, holder, key, resource)


async def _install(hands: Hands, connection: Any, holder: Holder, resource: str | None) -> None:
    channel = channel_of(connection)
    hands.require(channel)
    holder.check()
    if channel.in_transaction():
        raise ConfigurationError(
            "fence.install",
            f"{kind_of(channel.held)} has an open transaction, and a token that is installed in it would be seen by "
            f"nobody before its commit, so a late holder could still write over what you read",
            "Call it before the transaction begins, and before anything is read.",
        )
    try:
        await section.install(hands, holder, channel, "", resource)
    finally:
        with contextlib.suppress(Exception):
            await channel.put_back()


class OwnEffect:
    """What `effect` returns: a context manager, asynchronous and synchronous, for one block."""

    def __init__(self, connection: Any, holder: Holder, key: str, resource: str | None) -> None:
        if not key:
            raise ConfigurationError("key", f"{key!r:.60} does not name an effect", 'Write "invoice", or "charge:eur".')
        self._connection, self._holder, self._key, self._resource = connection, holder, key, resource
        self._channel: Channel
        self._claim: statements.Claim
        self._effect: Effect
        self._mark = ""
        self._stored: str | None = None

    async def __aenter__(self) -> Effect:
        return await self._enter(LOOPED)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self._leave(LOOPED)

    def __enter__(self) -> Effect:
        return at_once(self._enter(BLOCKING))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            at_once(self._leave(BLOCKING))

    async def _enter(self, hands: Hands) -> Effect:
        channel = channel_of(self._connection)
        hands.require(channel)
        require_transaction(channel, "fence.effect")
        self._holder.check()
        claim = section.claim_of(self._holder, self._key, self._resource)
        with self._repeated():
            if channel.dialect == "sqlite":
                await channel.become_writer(statements.writer_lock(claim))
            found = await channel.follow(statements.look(channel.dialect, claim, True))
        self._channel, self._claim, self._mark = channel, claim, found.mark
        if found.effect is not None:
            self._stored = found.effect[2]
            self._effect = Effect(False, section.from_text(self._stored), self._connection, claim.effect_key)
            return self._effect
        verdict = statements.judge(claim, found.fence)
        if verdict.word == "behind":
            raise ConfigurationError(
                "fence.effect",
                f"the token of this holder is not installed at {claim.resource!r}",
                "Call `fence.install(connection, run)` before the transaction, with the same resource.",
            )
        if verdict.word == "stale":
            raise await section.refuse(hands, self._holder, claim, verdict)
        self._effect = Effect(True, None, self._connection, claim.effect_key)
        return self._effect

    async def _leave(self, hands: Hands) -> None:
        channel, done = self._channel, self._effect
        if not done.first:
            done.result = section.from_text(self._stored)
            self._holder.note_effect(done.key, False)
            return
        self._stored = section.as_text(done.result, self._key)
        await section.flush(channel, done.key)
        self._holder.check()
        with self._repeated():
            verdict = await channel.follow(statements.conclude(channel.dialect, self._claim, self._mark, self._stored))
        if verdict.word == "ended":
            raise TransactionEnded(done.key)
        if verdict.word != "mine":
            raise await section.refuse(hands, self._holder, self._claim, verdict)
        done.result = section.from_text(self._stored)  # what every later attempt gets
        channel.after_commit(lambda: self._holder.note_effect(done.key, True))

    @contextlib.contextmanager
    def _repeated(self) -> Any:
        """Errors of our own statements after which all has to be done again: the effect may be there by then."""
        try:
            yield
        except Exception as error:
            if fault_of(error) not in ("repeat", "duplicate"):
                raise
            raise SectionRepeat(self._holder.job_id, self._holder.effect_key(self._key), short_cause(error)) from error
