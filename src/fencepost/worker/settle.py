"""What becomes of a run: the outcome to write for a returned value, an error, or a run that had to stop."""

from __future__ import annotations

import inspect
import logging
import random
from typing import Any, Final

import msgspec

from fencepost.codec import encode_result_safely, error_text, harmless_text
from fencepost.errors import PayloadUndecodable, SectionRepeat
from fencepost.log import emit
from fencepost.retry import Permanent, RetryPolicy, Snooze, decide
from fencepost.store import Claimed, Outcome
from fencepost.worker.run import GONE, Run

__all__ = [
    "TimedOut",
    "handed_back",
    "of_error",
    "of_stopped",
    "of_undecodable",
    "of_unknown_kind",
    "of_value",
    "with_notes",
]

_log = logging.getLogger("fencepost.worker")
_REPEAT_MS: Final = 200
_MOST_REPEATS: Final = 20
_UNKNOWN_KIND_DELAY_MS: Final = 5_000


class _Repeats:
    """How often a job's section was repeated for free in this process; then it is charged, or it would never end."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def free(self, job_id: str) -> bool:
        """Count one more and return whether it is within the limit."""
        count = self._counts.pop(job_id, 0) + 1
        if count > _MOST_REPEATS:
            return False
        self._counts[job_id] = count
        if len(self._counts) > 10_000:  # the oldest were done long ago
            del self._counts[next(iter(self._counts))]
        return True


_repeats: Final = _Repeats()


class TimedOut(Exception):
    """A run took longer than its kind's timeout. Judged by the retry policy like any other error."""


def _outcome(claimed: Claimed, word: str, values: tuple[Any, ...]) -> Outcome:
    return Outcome(claimed.job_id, claimed.token, claimed.nonce, word, values)


def of_value(run: Run, value: Any) -> Outcome:
    """The handler returned."""
    if value is None:
        return _outcome(run.claimed, "DONE", ("",))
    if isinstance(value, Snooze):
        return _outcome(run.claimed, "RELEASE", (max(1, round(value.seconds * 1000)), "snooze"))  # 0: its old place
    if inspect.isawaitable(value):  # the function is not async, what it called is: nothing of that has run
        if inspect.iscoroutine(value):
            value.close()
        return of_error(
            run, Permanent(f"{run.kind} returned a {type(value).__name__} that nobody awaits; make it async")
        )
    raw, problem = encode_result_safely(value, run.kind, run.cleaned)
    if problem:
        emit(_log, logging.WARNING, "result_replaced", job_id=run.job_id, kind=run.kind, problem=problem)
    return _outcome(run.claimed, "DONE", (raw or "",))


def of_error(run: Run, error: BaseException) -> Outcome:
    """The handler raised: retry or bury, as its policy says."""
    if isinstance(error, SectionRepeat) and _repeats.free(run.job_id):  # nothing is wrong: it is to be done again
        delay_ms = random.randint(_REPEAT_MS // 4, _REPEAT_MS)
        cause = run.cleaned(str(error))[:200]
        emit(_log, logging.INFO, "section_repeated", job_id=run.job_id, kind=run.kind, cause=cause)
        return _outcome(run.claimed, "RELEASE", (delay_ms, "section_repeat"))
    policy: RetryPolicy = run.handler.settings.retry
    verdict = decide(error, run.attempt, policy, random.random)
    name, text = type(error).__name__, error_text(error, clean=run.cleaned)  # before it is stored, and logged
    if verdict.word == "retry":
        emit(
            _log, logging.INFO, "retry_scheduled", job_id=run.job_id, kind=run.kind, attempt=run.attempt,
            fencing_token=run.token, delay_ms=verdict.delay_ms, error=name,
        )  # fmt: skip
        return _outcome(run.claimed, "RETRY", (verdict.delay_ms, name, text))
    emit(
        _log, logging.ERROR, "failed", job_id=run.job_id, kind=run.kind, attempt=run.attempt,
        fencing_token=run.token, reason=verdict.reason, error=name, message=text.split("\n", 1)[0][:500],
    )  # fmt: skip
    return _outcome(run.claimed, "BURY", (verdict.reason, name, text))


def with_notes(run: Run, outcome: Outcome | None) -> Outcome:
    """Add what the run committed in SQL. A run that is not ours any more may say that, and nothing else."""
    notes = tuple(run.notes)
    if outcome is None:
        return Outcome(run.job_id, run.claimed.token, run.nonce, "NOTE", notes[-1], notes[:-1])
    return msgspec.structs.replace(outcome, notes=notes)


def of_stopped(run: Run) -> Outcome | None:
    """The run was told to stop and did: None where it is not ours any more and nothing may be written."""
    if run.why in GONE:
        return None
    if run.why == "cancelled":
        return _outcome(run.claimed, "CANCEL", (run.cancel_reason or "cancelled",))
    if run.why == "shutdown":
        return handed_back(run.claimed)
    timeout_s = run.handler.settings.timeout_s
    return of_error(run, TimedOut(f"{run.kind} ran for longer than its timeout of {timeout_s:g} s"))


def handed_back(claimed: Claimed) -> Outcome:
    """The worker goes: the job is queued again at once, at its old place, no attempt charged."""
    return _outcome(claimed, "RELEASE", (0, "shutdown"))


def of_unknown_kind(claimed: Claimed) -> Outcome:
    """No handler here: back with a delay, another worker may know it. After a day of that the script buries it."""
    emit(_log, logging.WARNING, "unknown_kind", job_id=claimed.job_id, kind=claimed.kind, queue=claimed.queue)
    return _outcome(claimed, "RELEASE", (_UNKNOWN_KIND_DELAY_MS, "unknown_kind"))


def of_undecodable(claimed: Claimed, error: PayloadUndecodable) -> Outcome:
    """The payload does not fit the handler; trying again cannot help. The raw bytes stay with the job."""
    emit(_log, logging.ERROR, "failed", job_id=claimed.job_id, kind=claimed.kind, reason="decode_error")
    return _outcome(claimed, "BURY", ("decode_error", type(error).__name__, harmless_text(str(error))))
