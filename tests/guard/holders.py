"""Holders of a lease whose tokens the test hands out, and the record that stands for Redis: who owns the lease."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencepost.errors import StaleToken
from tests.guard.scene import NAMESPACE, RESOURCE, Claim

__all__ = ["Lease", "PaperHolder"]


@dataclass
class Lease:
    """Who owns the lease now, and the newest token that was handed out. Both can be set back: that is a rewind."""

    owner: str = ""
    newest: int = 0
    bumps: list[tuple[str, str, int]] = field(default_factory=list)  # who, where, floor

    def bump(self, nonce: str, token: int, floor: int, where: str) -> int:
        """What the script does: a token above floor for the owner, StaleToken for anybody else."""
        self.bumps.append((nonce, where, floor))
        if nonce != self.owner:
            raise StaleToken(nonce, token, max(self.newest, floor))
        self.newest = max(floor, self.newest) + 1
        return self.newest


@dataclass
class PaperHolder:
    """A run as the guard sees it. It never notices by itself that its lease is gone: the worst kind of holder."""

    lease: Lease
    job_id: str
    token: int
    nonce: str
    lease_s: float = 30.0
    namespace: str = NAMESPACE
    notes: list[tuple[str, bool]] = field(default_factory=list)
    stale: bool = False

    @property
    def claim(self) -> Claim:
        return Claim(self.job_id, self.token, self.nonce)

    def fence_resource(self, resource: str | None) -> str:
        return RESOURCE if resource is None else resource

    def effect_key(self, name: str) -> str:
        return f"{self.job_id}:{name}"

    def check(self) -> None:
        """Its clock shows nothing unusual."""

    async def bump(self, floor: int, where: str) -> None:
        self.bump_sync(floor, where)

    def bump_sync(self, floor: int, where: str) -> None:
        self.token = self.lease.bump(self.nonce, self.token, floor, where)

    def note_effect(self, key: str, first: bool) -> None:
        self.notes.append((key, first))

    def newer(self, token: int) -> None:
        self.stale = True
