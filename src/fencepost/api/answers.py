"""The turn of one request at an idempotent endpoint: its key, the lease it runs under, and its answer that is kept."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from fastapi import Request
from starlette.responses import Response

from fencepost.api.problems import Problem, of_error
from fencepost.codec import request_fingerprint
from fencepost.errors import (
    ConfigurationError,
    FencepostError,
    LeaseExpired,
    LeaseLost,
    RedisUnavailable,
    ResourceBusy,
    SectionRepeat,
    StaleToken,
)
from fencepost.idempotency import idempotency_name
from fencepost.lease import Lease
from fencepost.log import emit
from fencepost.store import Kept, RunKey

if TYPE_CHECKING:
    from fencepost.app import Fencepost
    from fencepost.fence import Guarded

__all__ = ["MOST_BYTES", "Once", "Policy", "Turn", "fingerprint"]

_log: Final = logging.getLogger("fencepost.api")
MOST_BYTES: Final = 256 * 1024
_LONGEST_NAME: Final = 400  # it stands in the name of a lease, which has at most 512 characters
_LATER: Final = frozenset({408, 425, 429})  # "not now": the next try is meant to run
# About this one connection or this one moment, or secret. What a middleware adds is not seen here.
_NOT_KEPT: Final = frozenset(
    {
        "connection", "content-length", "date", "idempotent-replayed", "keep-alive", "server", "set-cookie", "te",
        "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip


class Policy(NamedTuple):
    """What all requests of an endpoint share; see Idempotent."""

    app: Fencepost
    lease_s: float
    keep_ms: int


class _About(msgspec.Struct, gc=False):
    """What is stored beside the status and the body. kept: whether the body is there."""

    headers: list[tuple[str, str]]
    kept: bool


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_About).decode


class Turn:
    """key: as the caller sent it; None for a request that is not protected. lease: held from begin to end."""

    def __init__(self, policy: Policy, key: str | None = None, scope: str = "", print_: str = "") -> None:
        self.policy, self.key = policy, key
        self.lease: Lease | None = None
        self._name, self._print = "" if key is None else _named(key, scope), print_

    async def begin(self) -> Response | None:
        """Bind the key and take its lease; or return the answer that there is. Raises Problem: 422 (the key belongs to
        another request), 409 (the first request runs), 503."""
        if self.key is None:
            return None
        try:
            if stored := self._judged(await self._look()):
                return stored
            lease = self.policy.app.lease(f"answer:{self._name}", self.policy.lease_s)
            try:
                await lease.__aenter__()
            except (ResourceBusy, LeaseLost) as error:
                raise _in_progress(self.key) from error
            self.lease = lease
            # Between the look and the lease another one may have answered, and given the lease back.
            if stored := self._judged(await self._look()):
                await self.end()
            return stored
        except RedisUnavailable as error:
            error.executed = False  # whatever became of the call: the handler did not run
            raise of_error(error) from error

    async def _look(self) -> Kept:
        link = self.policy.app.link
        return await link.asynchronous.run(link.store.begin_answer(self._name, self._print, self.policy.keep_ms))

    def _judged(self, found: Kept) -> Response | None:
        if found.word == "CONFLICT":
            raise Problem(
                422, "idempotency-conflict", "The idempotency key was used for another request",
                f"The Idempotency-Key {self.key!a:.80} came first with another method, path or body. Nothing was "
                f"changed. Send a new key with a new request, or repeat the first request exactly.",
            )  # fmt: skip
        return _replayed(found) if found.word == "DONE" else None

    async def keep(self, response: Response) -> Response:
        """Store the answer of the handler under the lease, and return it. One that says "not now" (5xx, 408, 425, 429)
        is not stored. Raises Problem 409 where the lease is another's by now, 503 where Redis is away."""
        lease, status = self.lease, response.status_code
        if lease is None or status >= 500 or status in _LATER:
            return response
        body = getattr(response, "body", None)  # a stream or a file has none
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers]
        about = _About([(name, value) for name, value in headers if name.lower() not in _NOT_KEPT], True)
        packed = _encode(about)
        if not isinstance(body, bytes | memoryview) or len(body) + len(packed) > MOST_BYTES:
            emit(_log, logging.WARNING, "answer_not_kept", resource=lease.name, status=status)
            body, packed = b"", _encode(_About([], False))
        link, run = self.policy.app.link, RunKey(f"@{lease.nonce}", str(lease.token), lease.nonce)
        call = link.store.store_answer(
            self._name, self._print, self.policy.keep_ms, run, lease.owner, (status, packed, bytes(body))
        )
        try:
            word = (await link.asynchronous.run(call)).word
        except RedisUnavailable as error:
            error.executed = None  # the handler did run
            raise of_error(error) from error
        if word != "STORED":
            raise self.refused(word)
        return response

    def refused(self, why: str) -> Problem:
        """The answer of a request that lost its lease."""
        name = "" if self.lease is None else self.lease.name
        emit(_log, logging.WARNING, "answer_refused", resource=name, why=why.lower())
        return Problem(
            409, "answer-refused", "The answer came too late",
            "This request does not hold its lease any more: another one with the same Idempotency-Key may have taken "
            "over. The answer of this one was not kept, and what it guards is refused from then on. Send the request "
            "again with the same key: it gets the answer that counts.",
            changed="unknown", headers={"Retry-After": "1"},
        )  # fmt: skip

    def of_handler(self, error: FencepostError) -> Problem | None:
        """The answer for an error that the handler let pass, where that is about the lease of this turn."""
        if isinstance(error, SectionRepeat):
            text = f"{str(error.why).rstrip('.')}. It was rolled back. Send the request again with the same key."
            again = {"Retry-After": "1"}
            return Problem(503, "section-repeat", "The database wants it done again", text, headers=again)
        if isinstance(error, LeaseLost | LeaseExpired | StaleToken) and self.lease is not None:
            why = error.why if isinstance(error, LeaseLost) else type(error).__name__
            return self.refused(why) if error.job_id in ("", self.lease.name) else None
        return None

    async def end(self) -> None:
        """Give the lease back, also when the request was cancelled."""
        lease, self.lease = self.lease, None
        if lease is not None:
            await asyncio.shield(asyncio.ensure_future(lease.__aexit__(None, None, None)))


class Once:
    """What a handler gets for Depends(idempotent): the guard of its request. key: the caller's, or None where the
    request is not protected (GET; or no key was sent, and none is required)."""

    def __init__(self, turn: Turn) -> None:
        self._turn, self.key = turn, turn.key

    def check(self) -> None:
        """Raise LeaseLost if another request with this key may have taken over: before an effect, stop then."""
        if self.key is not None:
            self._held("check").check()

    def guarded(self, factory: Any, name: str, resource: str | None = None) -> Guarded:
        """Return a section that commits in the user's own SQL database only while this request has its key, and once a
        name for all tries of the request; the second finds `effect.result`. As Run.guarded."""
        return self._held("guarded").guarded(factory, name, resource)

    def effect_key(self, name: str) -> str:
        """Return a key for an effect outside SQL, the same in every try of the request; send it to the provider."""
        return self._held("effect_key").effect_key(name)

    def _held(self, verb: str) -> Lease:
        if self._turn.lease is None:
            problem = f"`{verb}` needs the lease of an Idempotency-Key, and this request has none"
            raise ConfigurationError("once", problem, "Require the key, or look at `once.key` first.")
        return self._turn.lease


def fingerprint(request: Request, body: bytes) -> str:
    """What a key stands for: method, path, query and body. Of a JSON body the order of keys and blanks do not count."""
    where, query = f"{request.method} {request.url.path}", request.url.query
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if body and (media == "application/json" or media.endswith("+json")):
        try:
            return request_fingerprint(where, body, query)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # no JSON: what it is, byte for byte; the handler decides
    return request_fingerprint(f"bytes {where}", _encode(hashlib.sha256(body).hexdigest()), query)


def _named(key: str, scope: str) -> str:
    """The key within its scope, as it stands in Redis; hashed where it would be too long for the name of a lease."""
    name = idempotency_name(key, scope)
    return name if len(name) <= _LONGEST_NAME else "%" + hashlib.sha256(name.encode()).hexdigest()[:40]


def _in_progress(key: str) -> Problem:
    return Problem(
        409, "request-in-progress", "The first request still runs",
        f"A request with the Idempotency-Key {key!a:.80} runs at this moment. Nothing was changed. Send this one again "
        f"after Retry-After: it gets the answer of the first, or runs if that one fails.",
        headers={"Retry-After": "1"},
    )  # fmt: skip


def _replayed(found: Kept) -> Response:
    about = _decode(found.about)
    if not about.kept:
        raise Problem(
            409, "answer-not-kept", "It was done, and its answer was not kept",
            f"The request with this key was carried out before and answered with status {found.status}. That "
            f"answer was a stream or larger than {MOST_BYTES} bytes, so it cannot be repeated. Nothing was changed. "
            f"Read what the request made; do not send it with a new key.",
            answered=found.status,
        )  # fmt: skip
    response = Response(found.body, found.status)
    response.raw_headers.extend((name.encode("latin-1"), value.encode("latin-1")) for name, value in about.headers)
    response.headers["Idempotent-Replayed"] = "true"
    return response
