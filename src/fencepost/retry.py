"""When a failed run comes back, and after how long.

A handler steers this with what it raises (`Retry`, `Permanent`, or any exception, judged by the policy) or returns
(`Snooze`). `decide` turns the exception of a run into a verdict; it knows nothing of Redis and never raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from .errors import ConfigurationError, TransactionEnded

__all__ = ["Permanent", "Retry", "RetryPolicy", "Snooze", "Verdict", "backoff_s", "decide", "horizon_s"]

_MAX_ATTEMPTS: Final = 100_000
_MAX_WAIT_S: Final = 10 * 366 * 86_400.0
# 2^61 s is beyond every cap. The exponent itself is bounded: 2.0**1100 overflows a float.
_MAX_EXPONENT: Final = 61


class Retry(Exception):
    """Raised by a handler: this run failed, try again. It counts as an attempt.

    after: seconds to wait, 0 to ten years, instead of the policy's backoff. Not a FencepostError: it is the handler's
    own word, and a handler that catches FencepostError must not swallow it.
    """

    def __init__(self, after: float | None = None, reason: str = "") -> None:
        if after is not None:
            _check_seconds("Retry(after=…)", after)
        super().__init__(after, reason)
        self.after, self.reason = after, reason

    def __str__(self) -> str:
        when = "after the backoff" if self.after is None else f"in {self.after:g} s"
        return f"retry {when}" + (f": {self.reason}" if self.reason else "")


class Permanent(Exception):
    """Raised by a handler: trying again cannot help; bury the job as `failed`, reason `permanent`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler says that trying again cannot help"


@dataclass(frozen=True, slots=True)
class Snooze:
    """Returned by a handler: not now, run me again in `seconds` (0 to ten years). Charges no attempt."""

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds("Snooze(seconds)", self.seconds)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and after what wait a failing job runs again.

    attempts: runs in all, the first included, 1 to 100 000. base, cap: seconds; the wait before run n+1 is at most
    min(cap, base * 2**(n-1)). jitter: "full" draws the wait evenly from 0 to that, "none" takes it whole.
    permanent, transient: exception classes that end the job at once, or never do; of several that fit, the class
    nearest to the exception wins; what neither names is retried. when: asked first; True = retry, False = permanent,
    None = judge by class; if it raises, the class decides.
    Raises ConfigurationError for anything outside these bounds.
    """

    attempts: int = 5
    base: float = 2.0
    cap: float = 300.0
    jitter: Literal["full", "none"] = "full"
    permanent: tuple[type[BaseException], ...] = ()
    transient: tuple[type[BaseException], ...] = ()
    when: Callable[[BaseException], bool | None] | None = None

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= _MAX_ATTEMPTS:
            raise ConfigurationError(
                "RetryPolicy.attempts",
                f"{self.attempts!r} is not a whole number from 1 to {_MAX_ATTEMPTS}",
                "It counts all runs, so 1 means: never retry.",
            )
        _check_seconds("RetryPolicy.base", self.base)
        _check_seconds("RetryPolicy.cap", self.cap)
        if self.jitter not in ("full", "none"):
            raise ConfigurationError("RetryPolicy.jitter", f"{self.jitter!r} is unknown", 'Write "full" or "none".')
        for name, classes in (("permanent", self.permanent), ("transient", self.transient)):
            if not _are_exceptions(classes):
                raise ConfigurationError(
                    f"RetryPolicy.{name}",
                    f"{classes!r} is not a tuple of exception classes",
                    f"Write {name}=(OrderGone,), with the comma.",
                )
        if both := set(self.permanent) & set(self.transient):
            names = ", ".join(sorted(cls.__name__ for cls in both))
            raise ConfigurationError(
                "RetryPolicy.permanent", f"{names} is also in transient", "Leave each class in one of the two."
            )
        if self.when is not None and not callable(self.when):
            raise ConfigurationError("RetryPolicy.when", "it is not callable", "Write when=lambda error: True.")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a failed run. delay_ms: milliseconds until it is due, 0 for a bury. reason: only of a bury."""

    word: Literal["retry", "bury"]
    delay_ms: int = 0
    reason: Literal["", "exhausted", "permanent"] = ""


def backoff_s(attempt: int, policy: RetryPolicy, draw: Callable[[], float]) -> float:
    """Return the wait before the next run, in seconds, from 0 to policy.cap. Never raises.

    attempt: runs already made; below 1 counts as 1. draw: uniform in [0, 1); tests pass a constant.
    Full jitter, after Brooker, "Exponential Backoff and Jitter" (2015).
    """
    # The exponent is capped, not only the product: it would overflow in exactly the long outage it is made for.
    exponent = min(max(attempt, 1) - 1, _MAX_EXPONENT)
    whole = min(policy.cap, policy.base * 2.0**exponent)
    return whole * draw() if policy.jitter == "full" else whole


def decide(exc: BaseException, attempts_used: int, policy: RetryPolicy, draw: Callable[[], float]) -> Verdict:
    """Judge the exception of a run. attempts_used: runs charged so far, this one included. Never raises."""
    if not _may_retry(exc, policy):
        return Verdict("bury", reason="permanent")
    if attempts_used >= policy.attempts:
        return Verdict("bury", reason="exhausted")
    asked_s = exc.after if isinstance(exc, Retry) else None
    wait_s = backoff_s(attempts_used, policy, draw) if asked_s is None else asked_s
    return Verdict("retry", delay_ms=round(wait_s * 1_000))


def horizon_s(policy: RetryPolicy) -> float:
    """Return the longest time all waits of the policy can add up to, in seconds.

    What must outlive every retry (an idempotency key, an effect row) is kept longer than this.
    """
    waits = policy.attempts - 1
    grown = min(waits, _MAX_EXPONENT)
    total = math.fsum(min(policy.cap, policy.base * 2.0**n) for n in range(grown))
    # Beyond the exponent's bound every wait is the same.
    return total + (waits - grown) * min(policy.cap, policy.base * 2.0**_MAX_EXPONENT)


def _are_exceptions(classes: object) -> bool:
    return isinstance(classes, tuple) and all(isinstance(c, type) and issubclass(c, BaseException) for c in classes)


def _may_retry(exc: BaseException, policy: RetryPolicy) -> bool:
    if isinstance(exc, Permanent):
        return False
    if isinstance(exc, Retry):
        return True
    if policy.when is not None:
        try:
            answer = policy.when(exc)
        except BaseException:  # noqa: BLE001 - a broken classifier must not lose the outcome of the run
            answer = None
        if answer is not None:
            return bool(answer)
    for cls in type(exc).__mro__:
        if cls in policy.transient:
            return True
        if cls in policy.permanent:
            return False
    # Its block ends the transaction in each attempt, and what it commits by itself would be there as often.
    return not isinstance(exc, TransactionEnded)


def _check_seconds(setting: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_WAIT_S:
        raise ConfigurationError(
            setting, f"{value!r} is not a number of seconds from 0 to ten years", "Write seconds, such as 2.0."
        )
