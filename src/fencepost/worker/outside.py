"""An effect outside SQL: a note before it, a note after it, and an honest answer for the attempt that comes later."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from fencepost.codec import encode_result_safely
from fencepost.log import emit

if TYPE_CHECKING:
    from fencepost.worker.run import Run

__all__ = ["Outside"]

_log = logging.getLogger("fencepost.worker")
_NEW: Final = "new"


class Outside:
    """One effect outside SQL, as a context manager (asynchronous or not). Made by Run.outside.

    key: the same in every attempt; send it to the provider as its idempotency key. known: "new" (nobody began it),
    "unknown" (an earlier attempt began it and did not come to say how it ended: ask the provider for `key`) or "done"
    (then result is what was stored; do nothing). result: set it inside, up to 64 KiB of JSON; what is no JSON or too
    large is stored as a description of itself, because the effect has happened.
    Entering writes the intent, leaving writes the outcome, each checked against token, nonce and lease in its step:
    StaleToken or LeaseExpired before the effect means that it must not happen. An error inside leaves the effect
    unknown, unless not_done was called.
    """

    __slots__ = ("_name", "_run", "_state", "key", "known", "result")

    def __init__(self, run: Run, name: str, key: str) -> None:
        self._run, self._name, self.key = run, name, key
        self.known, self._state = _NEW, "done"
        self.result: Any = None

    def not_done(self) -> None:
        """Say that the effect did not happen, for example because the provider refused it: the next attempt starts new.

        Only for what is certain. A timeout or a broken connection is not.
        """
        self._state = _NEW

    async def __aenter__(self) -> Self:
        raw = await self._run.kept(f"outside:{self._name}")
        if self._begins(raw):
            await self._run.keep(f"outside:{self._name}", self._note("unknown"), "intent", self._told("begins"))
        return self

    def __enter__(self) -> Self:
        raw = self._run.kept_sync(f"outside:{self._name}")
        if self._begins(raw):
            self._run.keep_sync(f"outside:{self._name}", self._note("unknown"), "intent", self._told("begins"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ends(error):
            await self._run.keep(f"outside:{self._name}", self._note(self._state), "outcome", self._told(self._state))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ends(error):
            self._run.keep_sync(f"outside:{self._name}", self._note(self._state), "outcome", self._told(self._state))

    def _begins(self, raw: bytes | None) -> bool:
        if raw is not None:
            kept = msgspec.json.decode(raw)
            self.known, self.result = kept["state"], kept.get("result")
            self.key = kept["key"]  # what the provider was told the first time
        elif self._run.claimed.restored:  # an earlier run may have begun it: that is lost with Redis
            self.known = "unknown"
        self._run.check()
        return self.known != "done"

    def _ends(self, error: BaseException | None) -> bool:
        return self.known != "done" and (error is None or self._state == _NEW)

    def _note(self, state: str) -> bytes:
        run_token = str(self._run.token)  # as text: programs that read numbers as doubles stay exact
        note: dict[str, Any] = {"state": state, "key": self.key, "attempt": self._run.attempt, "token": run_token}
        if state == "done" and self.result is not None:
            raw, problem = encode_result_safely(self.result, self._run.kind, self._run.cleaned)
            note["result"] = msgspec.Raw(raw or b"null")
            if problem:
                run = self._run
                emit(_log, logging.WARNING, "result_replaced", job_id=run.job_id, kind=run.kind, problem=problem)
        return msgspec.json.encode(note)

    def _told(self, state: str) -> str:
        return f"{self._name} {state}" + (f" (was {self.known})" if self.known != _NEW else "")
