"""Credentials of the HTTP service: who may call, and what. Made, listed and revoked here; looked up by the service.

A token is `fp_<id>_<secret>`. Of the secret only the SHA-256 is stored: it is 32 random bytes, which nobody finds by
trying, so that a slow hash (as for passwords) would only cost time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from fencepost.driver import Call
from fencepost.errors import ConfigurationError, FencepostError
from fencepost.keys import Keys
from fencepost.operate.acts import check_reason
from fencepost.operate.plan import Plan, View, look, text
from fencepost.store import Answer, Store

__all__ = [
    "SCOPES",
    "Credential",
    "Held",
    "Made",
    "checked_scopes",
    "find",
    "listed",
    "make",
    "matches",
    "opened",
    "revoke",
]

SCOPES: Final = ("read", "operate", "work", "enqueue:*")
"""The scopes there are, and "enqueue:<kind>" for one kind."""

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
_TOKEN: Final = re.compile(r"fp_([a-z2-7]{12})_([A-Za-z0-9_-]{43})")
_ID: Final = re.compile(r"[a-z2-7]{12}")
_NOBODYS: Final = hashlib.sha256(b"").hexdigest()
_LONGEST_S: Final = 3_660 * 86_400.0


class Credential(msgspec.Struct, frozen=True):
    """What is stored of one. hash: SHA-256 of the secret, in hex. created_at, expires_at: ms since 1970 by the clock of
    Redis; None for one that does not run out."""

    id: str
    name: str
    hash: str
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int | None = None

    def expired(self, now_ms: int) -> bool:
        """Whether it has run out at a moment of Redis' clock."""
        return self.expires_at is not None and now_ms >= self.expires_at


class Held(NamedTuple):
    """A token as a caller shows it, taken apart."""

    id: str
    secret: str


class Made(NamedTuple):
    """A new credential, and its token, which is told this once."""

    credential: Credential
    token: str


def opened(token: str) -> Held | None:
    """Take a token apart; None for a text that cannot be one."""
    found = _TOKEN.fullmatch(token)
    return None if found is None else Held(found[1], found[2])


def matches(credential: Credential | None, secret: str) -> bool:
    """Whether the secret is that of the credential. Takes as long for one that does not exist."""
    digest = hashlib.sha256(secret.encode("ascii", "replace")).hexdigest()
    same = hmac.compare_digest(digest, _NOBODYS if credential is None else credential.hash)
    return same and credential is not None


def checked_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes, each once. Raises ConfigurationError for a word that grants nothing."""
    out = tuple(dict.fromkeys(scopes))
    if not out:
        raise ConfigurationError("scope", "a credential without a scope may do nothing", _SCOPES_HINT)
    for scope in out:
        kind = scope.removeprefix("enqueue:")
        is_kind = scope.startswith("enqueue:") and 0 < len(kind) <= 512 and kind.isprintable()
        if scope not in SCOPES and not (is_kind and set("{}* ,").isdisjoint(kind)):
            raise ConfigurationError("scope", f"{scope[:80]!a} grants nothing", _SCOPES_HINT)
    return out


_SCOPES_HINT: Final = 'Write "enqueue:KIND", "enqueue:*", "read", "operate" or "work".'


def make(
    store: Store, name: str, scopes: Iterable[str], *, actor: str, expires_s: float | None = None, reason: str = ""
) -> Plan[Made]:
    """Make a credential. name: 1 to 100 printable characters; it stands as the actor of what its owner does. expires_s:
    how long it is good, None for ever. Raises ConfigurationError; RedisUnavailable, and then none is known to exist."""
    if not 0 < len(name) <= 100 or not name.isprintable() or name != name.strip():
        raise ConfigurationError(
            "name", f"{name[:80]!a} is not a line of 1 to 100 characters", "Write who will use it."
        )
    if expires_s is not None and not 1 <= expires_s <= _LONGEST_S:
        raise ConfigurationError("expires", f"{expires_s!r} s is not 1 s to ten years", "Write 30d, or leave it out.")
    granted = checked_scopes(scopes)
    view: View = yield look(store.keys, [])
    secret = secrets.token_urlsafe(32)
    until = None if expires_s is None else view.now_ms + round(expires_s * 1000)
    chosen = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    digest = hashlib.sha256(secret.encode()).hexdigest()
    credential = Credential(chosen, name, digest, granted, view.now_ms, until)
    about = f"{name}: {' '.join(granted)}" + (f": {reason}" if reason else "")
    record = msgspec.json.encode(credential).decode()
    answer: Answer = yield store.credential("make", chosen, record, about, actor)
    if answer.word == "FULL":
        problem = f"there are {answer.detail} credentials already, no more fit"
        raise ConfigurationError("credentials", problem, "Revoke those that nobody uses: `fencepost token list`.")
    if answer.word != "MADE":
        raise FencepostError(f"credential {chosen}: the id is taken. Nothing was changed. Call again.")
    return Made(credential, f"fp_{chosen}_{secret}")


def listed(store: Store) -> Plan[tuple[int, list[Credential]]]:
    """The time of Redis in ms, and every credential, the newest first."""
    view: View = yield look(store.keys, [("HGETALL", store.keys.credentials)])
    flat = view.replies[0]
    found = [_decoded(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)]
    return view.now_ms, sorted(filter(None, found), key=lambda one: (-one.created_at, one.id))


def find(keys: Keys, credential_id: str) -> Call[tuple[int, Credential | None]]:
    """The time of Redis in ms, and one credential, both at one instant."""
    call = look(keys, [("HGET", keys.credentials, credential_id)])

    def parse(reply: object) -> tuple[int, Credential | None]:
        view = call.parse(reply)
        raw = view.replies[0]
        return view.now_ms, None if raw is None else _decoded(credential_id.encode(), raw)

    return Call(call.verb, call.script, call.keys, call.args, parse)


def revoke(store: Store, credential_id: str, *, reason: str, actor: str) -> Plan[Credential | None]:
    """Forget a credential: who shows its token is refused from 2 s later on. None: there is none of this id (any more).
    reason: 1 to 200 characters. Raises ConfigurationError, RedisUnavailable."""
    if not _ID.fullmatch(credential_id):
        hint = "It is the part of a token between its first two underscores; never give the whole token."
        raise ConfigurationError("id", "it is not the id of a credential", hint)
    answer: Answer = yield store.credential("revoke", credential_id, "", check_reason(reason), actor)
    return None if answer.word == "GONE" else _decoded(credential_id.encode(), answer.detail.encode())


def _decoded(credential_id: bytes, raw: bytes) -> Credential | None:
    """Open a record. One that a hand has spoilt admits nobody: it is as if it was not there."""
    try:
        found = msgspec.json.decode(raw, type=Credential)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if found.id == text(credential_id) else None
