"""Fencepost: background jobs whose effects happen once, even when workers freeze, crash, time out or wake up late.

At-least-once runs, exactly-once guarded SQL effects, no stale write ever accepted.

The names below are imported when they are first used: the command line must look after its signals, and show its help,
before the client library and all else have been loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fencepost.app import Fencepost
    from fencepost.errors import (
        ArgumentsRefused,
        ConfigurationError,
        FencepostError,
        IdempotencyConflict,
        JobCancelled,
        JobFailed,
        JobNotFound,
        LeaseExpired,
        LeaseLost,
        LedgerUnavailable,
        QueueFull,
        RedisUnavailable,
        ResourceBusy,
        ResultExpired,
        ResultTimeout,
        StaleToken,
        UnsafeSetup,
    )
    from fencepost.handle import Job
    from fencepost.lease import Lease
    from fencepost.resource import ResourceRule
    from fencepost.retry import Permanent, Retry, RetryPolicy, Snooze
    from fencepost.worker import Run, Worker

__version__ = "0.1.0"

__all__ = [
    "ArgumentsRefused",
    "ConfigurationError",
    "Fencepost",
    "FencepostError",
    "IdempotencyConflict",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "Lease",
    "LeaseExpired",
    "LeaseLost",
    "LedgerUnavailable",
    "Permanent",
    "QueueFull",
    "RedisUnavailable",
    "ResourceBusy",
    "ResourceRule",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Run",
    "Snooze",
    "StaleToken",
    "UnsafeSetup",
    "Worker",
]

_HOMES: Final = {
    "Fencepost": "fencepost.app",
    "ArgumentsRefused": "fencepost.errors",
    "ConfigurationError": "fencepost.errors",
    "FencepostError": "fencepost.errors",
    "IdempotencyConflict": "fencepost.errors",
    "JobCancelled": "fencepost.errors",
    "JobFailed": "fencepost.errors",
    "JobNotFound": "fencepost.errors",
    "LeaseExpired": "fencepost.errors",
    "LeaseLost": "fencepost.errors",
    "LedgerUnavailable": "fencepost.errors",
    "QueueFull": "fencepost.errors",
    "RedisUnavailable": "fencepost.errors",
    "ResourceBusy": "fencepost.errors",
    "ResultExpired": "fencepost.errors",
    "ResultTimeout": "fencepost.errors",
    "StaleToken": "fencepost.errors",
    "UnsafeSetup": "fencepost.errors",
    "Job": "fencepost.handle",
    "Lease": "fencepost.lease",
    "ResourceRule": "fencepost.resource",
    "Permanent": "fencepost.retry",
    "Retry": "fencepost.retry",
    "RetryPolicy": "fencepost.retry",
    "Snooze": "fencepost.retry",
    "Run": "fencepost.worker",
    "Worker": "fencepost.worker",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
