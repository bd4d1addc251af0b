"""The errors of Fencepost: one tree, a branch for each cause a caller can act on.

    FencepostError
    ├ FenceError ─ StaleToken · LeaseExpired · LeaseLost · SectionRepeat
    ├ TransactionEnded
    ├ ArgumentsRefused (ValueError) ─ ResultRefused
    ├ PayloadUndecodable · UnknownKind · JobNotFound
    ├ IdempotencyConflict · QueueFull · ResourceBusy
    ├ RedisUnavailable · ScriptError · LedgerUnavailable
    ├ JobFailed · JobCancelled · ResultTimeout · ResultExpired
    └ ConfigurationError (ValueError) · IllegalTransition · UnsafeSetup

Each carries its data as attributes and passes the same plain values to Exception, so it survives pickling and copying.
Each text says what happened, why, what was not changed, and what to do next.
"""

from __future__ import annotations

__all__ = [
    "ArgumentsRefused",
    "ConfigurationError",
    "FenceError",
    "FencepostError",
    "IdempotencyConflict",
    "IllegalTransition",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "LeaseExpired",
    "LeaseLost",
    "LedgerUnavailable",
    "PayloadUndecodable",
    "QueueFull",
    "RedisUnavailable",
    "ResourceBusy",
    "ResultExpired",
    "ResultRefused",
    "ResultTimeout",
    "ScriptError",
    "SectionRepeat",
    "StaleToken",
    "TransactionEnded",
    "UnknownKind",
    "UnsafeSetup",
]


class FencepostError(Exception):
    """The root: everything Fencepost raises on purpose."""


class FenceError(FencepostError):
    """This run does not own its job (any more). Stop working; never repeat the refused write."""


class StaleToken(FenceError):
    """A write carried an older fencing token than the newest one minted. Stop; never retry it."""

    def __init__(self, job_id: str, token: int, newest: int) -> None:
        super().__init__(job_id, token, newest)
        self.job_id, self.token, self.newest = job_id, token, newest

    def __str__(self) -> str:
        return (
            f"job {self.job_id}: token {self.token} is stale, the newest is {self.newest}; another worker owns this "
            f"job now. Nothing was written. Stop; read `fencepost job {self.job_id}` for what happened to it."
        )


class LeaseExpired(FenceError):
    """The lease ran out and the job was taken back; nobody holds it at the moment."""

    def __init__(self, job_id: str, token: int) -> None:
        super().__init__(job_id, token)
        self.job_id, self.token = job_id, token

    def __str__(self) -> str:
        return (
            f"job {self.job_id}: the lease of token {self.token} is over and the job was taken back; nobody "
            f"holds it at the moment. Nothing was written. Stop; the job runs again by itself. Its worker stood "
            f"still or was cut off from Redis for longer than the lease (often? raise `lease`), or an operator took it."
        )


_LOST = {
    "deadline": "the lease could not be renewed in time",
    "stale": "another worker holds a newer token",
    "expired": "the lease ran out and the job was taken back",
    "cancelled": "somebody asked to cancel the job",
    "timeout": "the handler ran for longer than its timeout",
    "shutdown": "the worker is shutting down",
    "released": "the lease was given back, or was never taken",
}


class LeaseLost(FenceError):
    """Raised inside a handler: this run must stop.

    why: "deadline" (not renewed in time) | "stale" | "expired" | "cancelled" | "timeout" | "shutdown"; of a
    stand-alone lease also "released" (not entered, or left).
    """

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(job_id, why)
        self.job_id, self.why = job_id, why

    def __str__(self) -> str:
        return (
            f"job {self.job_id}: this run must stop ({self.why}): {_LOST.get(self.why, 'it is not the owner')}. "
            f"Nothing it writes from here on is accepted. Release what you hold and let this error pass."
        )


class SectionRepeat(FenceError):
    """A guarded section was rolled back and has to be done again from its start; the run itself is good. why: what
    the database said, or that the token had to be raised first."""

    def __init__(self, job_id: str, key: str, why: str) -> None:
        super().__init__(job_id, key, why)
        self.job_id, self.key, self.why = job_id, key, why

    def __str__(self) -> str:
        return (
            f"effect {self.key}: the section has to be repeated: {self.why}. It was rolled back and nothing was "
            f"written. Let this error pass: the job runs again at once, and no attempt is charged. To repeat the "
            f"section alone, write it as a function and give it to `call`."
        )


class TransactionEnded(FencepostError):
    """A guarded block, or the database itself, ended the section's transaction before the section did."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return (
            f"effect {self.key}: the transaction of the section ended inside the block, so the fence could not be "
            f"checked. The effect was not recorded; what the block committed by itself stays. Take commit() and "
            f"rollback() out of the block, and let errors of the database pass."
        )


class ArgumentsRefused(FencepostError, ValueError):
    """The arguments of an enqueue do not fit the handler or would not survive the way to the worker.

    path: where, such as `order.lines[2].price`; an empty path means the whole payload.
    """

    def __init__(self, kind: str, path: str, problem: str) -> None:
        super().__init__(kind, path, problem)
        self.kind, self.path, self.problem = kind, path, problem

    def __str__(self) -> str:
        where = f"argument `{self.path}`" if self.path else "the arguments"
        return (
            f"{self.kind}: {where} refused: {self.problem}. Nothing was enqueued. Correct the call and enqueue again."
        )


class ResultRefused(ArgumentsRefused):
    """A handler's result cannot be stored as JSON. `path` starts with `result`."""

    def __str__(self) -> str:
        return (
            f"{self.kind or 'job'}: `{self.path}` cannot be stored: {self.problem}. The result was not written. "
            f"Return plain data (text, numbers, lists, dicts, dataclasses), or the key of where the data is kept."
        )


class PayloadUndecodable(FencepostError):
    """A worker cannot turn a stored payload into arguments. Trying again cannot help; the raw bytes are kept."""

    def __init__(self, kind: str, problem: str, raw: bytes) -> None:
        super().__init__(kind, problem, raw)
        self.kind, self.problem, self.raw = kind, problem, raw

    def __str__(self) -> str:
        return (
            f"{self.kind}: the payload of {len(self.raw)} bytes does not fit the handler: {self.problem}. The handler "
            f"did not run and the bytes are kept. Deploy a handler that accepts them, then `fencepost dead requeue`."
        )


class UnknownKind(FencepostError):
    """No handler is registered under this kind."""

    def __init__(self, kind: str, known: tuple[str, ...]) -> None:
        super().__init__(kind, known)
        self.kind, self.known = kind, known

    def __str__(self) -> str:
        known = ", ".join(self.known[:20]) + (", …" if len(self.known) > 20 else "")
        return (
            f"no handler is registered for kind `{self.kind}` (known: {known or 'none'}). Nothing ran and nothing was "
            f"thrown away. Import the module with its @app.job before the worker starts, or correct the name."
        )


class JobNotFound(FencepostError):
    """No job has this id: it never existed, or its retention is over."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"job {self.job_id} was not found: it never existed in this namespace or its retention is over. Nothing "
            f"was changed. Check the id, the URL and the namespace."
        )


class IdempotencyConflict(FencepostError):
    """The idempotency key was used before, for another request. `job_id` is the job of that first request."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(key, job_id)
        self.key, self.job_id = key, job_id

    def __str__(self) -> str:
        return (
            f"idempotency key {self.key!r} belongs to job {self.job_id}, which stands for another request. "
            f"Nothing was enqueued. Use a new key for a new request, or repeat the first request exactly."
        )


class QueueFull(FencepostError):
    """The queue holds as many jobs as it may. limit: jobs."""

    def __init__(self, queue: str, limit: int) -> None:
        super().__init__(queue, limit)
        self.queue, self.limit = queue, limit

    def __str__(self) -> str:
        return (
            f"queue `{self.queue}` is full: it holds its limit of {self.limit} jobs. Nothing was enqueued. Try again "
            f"later, start more workers, or raise the limit of the queue."
        )


class ResourceBusy(FencepostError):
    """Somebody else holds the resource. holder: who, as far as known; may be empty."""

    def __init__(self, resource: str, holder: str) -> None:
        super().__init__(resource, holder)
        self.resource, self.holder = resource, holder

    def __str__(self) -> str:
        by = f" by {self.holder}" if self.holder else ""
        return (
            f"resource `{self.resource}` is held{by}. Nothing was taken or changed. Try again later, wait with a "
            f"longer timeout, or see `fencepost locks` for the holder."
        )


class RedisUnavailable(FencepostError):
    """A call got no answer from Redis. executed: False = it did not run; True = it ran; None = unknown."""

    def __init__(self, what: str, cause: str, executed: bool | None) -> None:
        super().__init__(what, cause, executed)
        self.what, self.cause, self.executed = what, cause, executed

    def __str__(self) -> str:
        changed = {
            False: "Nothing was changed",
            True: "The change was made but its answer was lost",
            None: "Whether it was carried out is unknown",
        }[self.executed]
        return (
            f"Redis gave no answer to `{self.what}` ({self.cause}). {changed}. The same call may be sent again safely: "
            f"every call is made to be repeated with the same ids. If it goes on, see whether the server runs, and "
            f"whether the URL is right."
        )


class LedgerUnavailable(FencepostError):
    """The SQL database is away. executed: as above, never True. hint: what to do, where no job is being sent."""

    def __init__(self, what: str, cause: str, executed: bool | None = False, hint: str = "") -> None:
        super().__init__(what, cause, executed, hint)
        self.what, self.cause, self.executed, self.hint = what, cause, executed, hint

    def __str__(self) -> str:
        changed = "Nothing was changed" if self.executed is False else "Whether it was carried out is unknown"
        again = "Send it again with the same job id or idempotency key; if it goes on, see whether the server runs."
        then = self.hint or f"{again} Jobs that are not durable go on."
        return f"the SQL database gave no answer to `{self.what}` ({self.cause.rstrip('. ')}). {changed}. {then}"


class ScriptError(FencepostError):
    """A script failed inside Redis; a mistake in Fencepost or an older server. line: in its file, 0 = unknown."""

    def __init__(self, script: str, line: int, problem: str) -> None:
        super().__init__(script, line, problem)
        self.script, self.line, self.problem = script, line, problem

    def __str__(self) -> str:
        return (
            f"{self.script}.lua:{self.line}: {self.problem}. Redis stopped the script there; what it wrote before that "
            f"line stays. Run `fencepost doctor`; if it finds nothing, report this line."
        )


class JobFailed(FencepostError):
    """Waiting for a result: the job ended in `failed`. error: the stored error text of the last run."""

    def __init__(self, job_id: str, reason: str, error: str) -> None:
        super().__init__(job_id, reason, error)
        self.job_id, self.reason, self.error = job_id, reason, error

    def __str__(self) -> str:
        first = self.error.strip().split("\n", 1)[0][:600].rstrip(".") or "no error text was stored"
        return (
            f"job {self.job_id} failed ({self.reason}): {first}. It will not run again by itself. Read `fencepost job "
            f"{self.job_id}`; to run it anew, `fencepost dead requeue {self.job_id}`."
        )


class JobCancelled(FencepostError):
    """Waiting for a result: the job ended in `cancelled`."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(job_id, reason)
        self.job_id, self.reason = job_id, reason

    def __str__(self) -> str:
        return (
            f"job {self.job_id} was cancelled ({self.reason}), so it has no result. It will not run again by itself. "
            f"Enqueue a new job if the work is still wanted."
        )


class ResultTimeout(FencepostError):
    """The job did not end within the time the caller was ready to wait. waited_s: seconds."""

    def __init__(self, job_id: str, waited_s: float, state: str) -> None:
        super().__init__(job_id, waited_s, state)
        self.job_id, self.waited_s, self.state = job_id, waited_s, state

    def __str__(self) -> str:
        return (
            f"job {self.job_id} has no result after {self.waited_s:.3g} s; it is `{self.state}`. The job was not "
            f"touched and goes on. Wait again with a longer timeout, and check that a worker serves its queue."
        )


class ResultExpired(FencepostError):
    """Waiting for a result: the job is done, but only the ledger knows of it, and what it returned is gone."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"job {self.job_id} is done, and its result is gone: Redis keeps it for the `retention` of its kind, the "
            f"ledger keeps only that it was done. Nothing was changed. Read what the job wrote, or raise `retention`."
        )


class UnsafeSetup(FencepostError):
    """The doctor refuses to start. findings: one sentence each."""

    def __init__(self, findings: tuple[str, ...]) -> None:
        super().__init__(tuple(findings))
        self.findings = tuple(findings)

    def __str__(self) -> str:
        return (
            f"this set-up cannot keep the promises of Fencepost: {'; '.join(self.findings)}. Nothing was started and "
            f"nothing was changed. Correct the findings, then run `fencepost doctor` again."
        )


class ConfigurationError(FencepostError, ValueError):
    """A setting or a declaration is wrong. hint: a full sentence that says what to write instead; may be empty."""

    def __init__(self, setting: str, problem: str, hint: str = "") -> None:
        super().__init__(setting, problem, hint)
        self.setting, self.problem, self.hint = setting, problem, hint

    def __str__(self) -> str:
        text = f"{self.setting}: {self.problem}. Nothing was changed."
        return f"{text} {self.hint}" if self.hint else text


class IllegalTransition(FencepostError):
    """The verb does not apply to a job in this state."""

    def __init__(self, job_id: str, state: str, verb: str) -> None:
        super().__init__(job_id, state, verb)
        self.job_id, self.state, self.verb = job_id, state, verb

    def __str__(self) -> str:
        return (
            f"job {self.job_id} is `{self.state or 'absent'}`; `{self.verb}` does not apply to it. Nothing was "
            f"changed. Read `fencepost job {self.job_id}` and choose a verb that fits the state."
        )
