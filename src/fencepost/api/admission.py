"""Who may call: tokens, scopes, how often; and without tokens, only callers on this machine.

A credential that was read is believed for BELIEVED_S, so that a call costs no trip to Redis; a revocation counts within
that time. While Redis is away one that was good goes on for EXTENDED_S more. Of unknown tokens nothing is kept.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec
from fastapi import Request

from fencepost import credentials
from fencepost.api.problems import Problem
from fencepost.clock import boottime_s
from fencepost.credentials import Credential
from fencepost.errors import RedisUnavailable

if TYPE_CHECKING:
    from fencepost.api.settings import ApiSettings
    from fencepost.link import Link

__all__ = ["BELIEVED_S", "EXTENDED_S", "Admission", "Bucket", "Caller"]

BELIEVED_S: Final = 2.0
EXTENDED_S: Final = 10.0
_GIVE_UP_S: Final = 1.0
_RETRY_S: Final = 1.0
_MOST: Final = 2_000


class Caller(msgspec.Struct, frozen=True):
    """Who calls. id: of the credential, "" where authentication is off; idempotency keys are scoped to it. name: as
    given when it was made; it stands as the actor in the ledger."""

    id: str
    name: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """Whether a scope is granted; "enqueue:*" stands for every kind, "" needs none."""
        return not scope or scope in self.scopes or (scope.startswith("enqueue:") and "enqueue:*" in self.scopes)

    def check(self, scope: str) -> None:
        """Raise Problem 403 unless the scope is granted."""
        if not self.may(scope):
            text = f"This call needs the scope {scope}, which the credential {self.id} has not. Nothing was done."
            raise Problem(403, "forbidden", "The scope is missing", text, headers=_challenge(scope), scope=scope)


ANYBODY: Final = Caller("", "anonymous", frozenset({"enqueue:*", "read", "operate", "work"}))


class Bucket:
    """A token bucket: `burst` calls at once, `rate` a second in the long run. rate 0: no limit."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, float(burst), boottime_s()

    def wait_s(self, now_s: float) -> float:
        """Take one call; 0.0, or the seconds until there will be one."""
        if not self._rate:
            return 0.0
        self._left = min(self._burst, self._left + (now_s - self._at) * self._rate)
        self._at = now_s
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate


class _Known:
    """A credential as it was read last, and when: by this host's clock, before the question was sent."""

    __slots__ = ("bucket", "caller", "credential", "now_ms", "read_s", "retry_s")

    def __init__(self, credential: Credential, now_ms: int, read_s: float, bucket: Bucket) -> None:
        self.bucket, self.retry_s = bucket, 0.0
        self.renew(credential, now_ms, read_s)

    def renew(self, credential: Credential, now_ms: int, read_s: float) -> None:
        self.credential, self.now_ms, self.read_s = credential, now_ms, read_s
        self.caller = Caller(credential.id, credential.name, frozenset(credential.scopes))

    def expired(self, now_s: float) -> bool:
        return self.credential.expired(self.now_ms + round((now_s - self.read_s) * 1000))


class Admission:
    """The credentials of one service, as far as they were asked for."""

    def __init__(self, link: Link, settings: ApiSettings) -> None:
        self._link, self._settings = link, settings
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._reading: dict[str, asyncio.Task[_Known | None]] = {}
        self._anybody = self._bucket()

    async def admit(self, request: Request, scope: str) -> Caller:
        """Return who calls. Raises Problem 401, 403, 429 or 503 (a credential could not be looked up)."""
        now_s = boottime_s()
        if self._settings.auth == "off":
            _check_local(request)
            caller, bucket = ANYBODY, self._anybody
        else:
            known = await self._holder(request.headers.get("authorization"), now_s)
            caller, bucket = known.caller, known.bucket
        request.scope["fencepost_caller"] = caller.id
        wait_s = bucket.wait_s(now_s)
        if wait_s:
            seconds = max(1, math.ceil(wait_s))
            text = (
                f"This credential calls more often than {self._settings.rate_per_s:g} times a second. Nothing was done."
            )
            raise Problem(
                429,
                "rate-limited",
                "Too many calls",
                f"{text} Wait {seconds} s.",
                headers={"Retry-After": str(seconds)},
            )
        caller.check(scope)
        return caller

    async def recheck(self, request: Request, scope: str) -> None:
        """Raise as admit if the caller of a call that takes its time may not go on with it; it is not counted anew."""
        if self._settings.auth == "bearer":
            known = await self._holder(request.headers.get("authorization"), boottime_s())
            known.caller.check(scope)

    async def _holder(self, header: str | None, now_s: float) -> _Known:
        if header is None:
            raise _refused("The call has no credential", challenge="Bearer")
        scheme, _, token = header.partition(" ")
        shown = credentials.opened(token.strip())
        if scheme.lower() != "bearer" or shown is None:
            raise _refused("The header Authorization is not `Bearer fp_…`")
        known = self._known.get(shown.id)
        if known is None or now_s - known.read_s >= BELIEVED_S:
            known = await self._look_up(shown.id, known, now_s)
        credential = None if known is None else known.credential
        if not credentials.matches(credential, shown.secret) or known is None:
            raise _refused("The credential is unknown in this namespace, or was revoked")
        if known.expired(now_s):
            raise _refused("The credential has run out")
        return known

    async def _look_up(self, credential_id: str, known: _Known | None, now_s: float) -> _Known | None:
        """Read it from Redis, once for all who ask meanwhile."""
        may_go_on = known is not None and now_s - known.read_s < BELIEVED_S + EXTENDED_S
        if known is not None and may_go_on and now_s < known.retry_s:
            return known
        task = self._reading.get(credential_id)
        if task is None:
            task = asyncio.create_task(self._read(credential_id), name=credential_id)
            self._reading[credential_id] = task
            task.add_done_callback(self._read_is_over)
        try:
            return await asyncio.shield(task)  # one caller that goes does not take the answer from the others
        except RedisUnavailable:
            if known is None or not may_go_on:
                raise
            known.retry_s = boottime_s() + _RETRY_S
            return known

    def _read_is_over(self, task: asyncio.Task[_Known | None]) -> None:
        del self._reading[task.get_name()]
        if not task.cancelled():
            task.exception()  # so that nobody complains where all who had asked are gone

    async def _read(self, credential_id: str) -> _Known | None:
        asked_s = boottime_s()
        call = credentials.find(self._link.store.keys, credential_id)
        now_ms, found = await self._link.asynchronous.run(call, min(_GIVE_UP_S, self._link.asynchronous.give_up_s))
        if found is None:
            self._known.pop(credential_id, None)
            return None
        known = self._known.get(credential_id)
        if known is None:
            known = self._known[credential_id] = _Known(found, now_ms, asked_s, self._bucket())
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        else:
            known.renew(found, now_ms, asked_s)
            self._known.move_to_end(credential_id)
        return known

    def _bucket(self) -> Bucket:
        return Bucket(self._settings.rate_per_s, self._settings.burst)


def _challenge(scope: str) -> dict[str, str]:
    """The header that names the scope, where it can stand in a header."""
    plain = scope.isascii() and scope.isprintable() and set('"\\').isdisjoint(scope)
    return {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'} if plain else {}


def _refused(text: str, challenge: str = 'Bearer error="invalid_token"') -> Problem:
    text = f"{text}. Nothing was done. Send `Authorization: Bearer fp_…`; `fencepost token make` makes one."
    return Problem(401, "unauthenticated", "Who calls is not known", text, headers={"WWW-Authenticate": challenge})


# -- without tokens -------------------------------------------------------------------------------------------


def _check_local(request: Request) -> None:
    """Admit callers on this machine only. Raises Problem 403.

    A page of another site, opened in a browser on this machine, comes from loopback as well: such a browser says so in
    Origin or Sec-Fetch-Site, or (a name that was rebound to 127.0.0.1) in Host.
    """
    scope, headers = request.scope, request.headers
    client, server = scope.get("client"), scope.get("server")
    why = ""
    if client is not None and not _is_loopback(client[0]):
        why = "the caller's address is not of this machine"
    elif client is not None and server is not None and not _is_loopback(server[0]):
        why = "the service was called by an address that others reach, too"
    elif any(name in headers for name in ("forwarded", "x-forwarded-for", "x-real-ip")):
        why = "the call came through a proxy"
    elif client is not None and not _is_loopback(_host_of(headers.get("host", ""))):
        why = "the header Host names another machine"
    elif headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or not _own_origin(request):
        why = "the call came from a page of another site"
    if why:
        text = f"The service runs without authentication and serves this machine only, and {why}. Nothing was done."
        raise Problem(403, "not-admitted", "Only callers on this machine are served", text)


def _own_origin(request: Request) -> bool:
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def _host_of(header: str) -> str:
    """The name in a Host header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
