"""Fencepost: background jobs whose effects happen once, even when workers freeze, crash, time out or wake up late.

At-least-once runs, exactly-once guarded SQL effects, no stale write ever accepted.
"""

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
    QueueFull,
    RedisUnavailable,
    ResourceBusy,
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
    "Permanent",
    "QueueFull",
    "RedisUnavailable",
    "ResourceBusy",
    "ResourceRule",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Run",
    "Snooze",
    "StaleToken",
    "UnsafeSetup",
    "Worker",
]
