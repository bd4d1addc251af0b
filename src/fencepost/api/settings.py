"""What an HTTP service allows: who may call, how large, how often, how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from fencepost.errors import ConfigurationError

__all__ = ["ApiSettings"]

_BOUNDS: Final = (
    ("max_body", 1_024, 64 * 1024 * 1024),
    ("max_batch", 1, 500),
    ("rate_per_s", 0, 1_000_000),
    ("burst", 1, 1_000_000),
    ("max_wait_s", 0, 300),
    ("max_streams", 1, 100_000),
    ("idempotency_ttl_s", 86_400, 365 * 86_400),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """auth: "bearer" wants a token with the right scope for every call; "off" serves loopback callers only. kinds:
    which may be enqueued over HTTP, None for all. max_body: bytes. max_batch: jobs of one batch. rate_per_s, burst:
    calls of one credential to this process, rate 0 for no limit. max_wait_s: the longest long poll. max_streams:
    event streams and long polls at a time.
    idempotency_ttl_s: how long an idempotency key is remembered, a day at least."""

    auth: Literal["bearer", "off"] = "bearer"
    kinds: tuple[str, ...] | None = None
    max_body: int = 1024 * 1024
    max_batch: int = 500
    rate_per_s: float = 500.0
    burst: int = 1_000
    max_wait_s: float = 60.0
    max_streams: int = 1_000
    idempotency_ttl_s: int = 86_400

    def __post_init__(self) -> None:
        if self.auth not in ("bearer", "off"):
            raise ConfigurationError("auth", f"{self.auth!r} is unknown", 'Write "bearer" or "off".')
        for name, low, high in _BOUNDS:
            if not low <= getattr(self, name) <= high:
                raise ConfigurationError(name, f"{getattr(self, name)!r} is not {low} to {high}")
