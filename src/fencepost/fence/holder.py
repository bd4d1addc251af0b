"""Who writes: a run of a job, or a lease without a job. What a guarded section needs to know of it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Holder"]


class Holder(Protocol):
    """The owner of a lease with its fencing token.

    job_id: "" for a stand-alone lease. token: may rise by `bump`, never falls. nonce: identity of the claim, constant.
    lease_s: how long the lease outlives a holder that stopped renewing, in seconds.
    """

    @property
    def namespace(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def nonce(self) -> str: ...
    @property
    def lease_s(self) -> float: ...

    def fence_resource(self, resource: str | None) -> str:
        """The resource whose token is checked. None: the run's own, `=<job id>` without one; a lease: its name."""
        ...

    def effect_key(self, name: str) -> str:
        """The key of an effect, the same in every attempt."""
        ...

    def check(self) -> None:
        """Raise LeaseLost where the local clock or an answer of the server says that this holder must stop."""
        ...

    async def bump(self, floor: int, where: str) -> None:
        """Ask Redis: a holder that still owns its lease has a token above `floor` afterwards.

        where: "install" | "verify". Otherwise raises StaleToken, LeaseExpired or JobNotFound, counted and told to the
        ledger already; or RedisUnavailable.
        """
        ...

    def bump_sync(self, floor: int, where: str) -> None:
        """As bump, on the calling thread."""
        ...

    def note_effect(self, key: str, first: bool) -> None:
        """Remember an effect that is committed (first) or was found, for the ledger."""
        ...

    def newer(self, token: int) -> None:
        """Remember that a newer token exists: this holder is stale."""
        ...
