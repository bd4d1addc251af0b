"""What must not be shown: the one place of the rules. A value is hidden by the name it stands under, at any depth.

Names are compared in parts, whatever their spelling: `apiKey`, `API_KEY` and `api-key` are the parts api and key. So
`token` and `refresh_token` hide what they hold, `token_count` and `author` do not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec

__all__ = ["HIDDEN", "is_secret", "redact", "redact_json", "redact_text", "secrets_of"]

HIDDEN: Final = "[redacted]"
"""What stands in the place of a hidden value."""

# A name is secret where it ends with one of these, part by part.
_ENDS: Final = frozenset(
    tuple(name.split())
    for name in (
        "password", "passwd", "pwd", "passphrase", "passcode", "secret", "secrets", "token", "tokens", "api key",
        "apikey", "authorization", "auth", "credential", "credentials", "private key", "privatekey", "access key",
        "accesskey", "secret key", "secretkey", "client key", "signing key", "encryption key", "session",
        "session id", "sessionid", "cookie", "cookies", "card", "card number", "cardnumber", "pan", "cvv", "cvc", "csc",
        "iban", "ssn", "pin", "otp", "bearer", "jwt", "signature",
    )
)  # fmt: skip
# What follows a secret's name and still is the secret.
_TAILS: Final = frozenset({"value", "text", "string", "hash", "plain", "old", "new", "current", "confirm"})
_PARTS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_a-zA-Z]+")
_SHORTEST: Final = 4
_DEEPEST: Final = 200


def is_secret(name: str, more: Collection[str] = ()) -> bool:
    """Whether what stands under a name is hidden. more: further names, in any spelling."""
    parts = _parts_of(name)
    while parts and (parts[-1] in _TAILS or parts[-1].isdigit()):
        parts = parts[:-1]
    ends = _ENDS if not more else _ENDS | {_parts_of(one) for one in more}
    return any(parts[at:] in ends for at in range(len(parts)))


def redact(value: Any, more: Collection[str] = ()) -> Any:
    """Return JSON data with every secret hidden: dicts and lists are copied, nothing is changed in place."""
    return _redacted(value, more, 0)


def redact_json(raw: bytes | None, more: Collection[str] = ()) -> Any:
    """Open stored JSON with every secret hidden. Bytes that are no JSON are hidden whole."""
    if not raw:
        return None
    try:
        return redact(msgspec.json.decode(raw), more)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return HIDDEN


def redact_text(text: str, payload: bytes | Any = b"", more: Collection[str] = ()) -> str:
    """Hide in free text the values that stand under a secret name in the payload, those of 4 characters or more.

    payload: stored JSON, or data. Also hides what a URL has for a password, and what follows `Bearer`.
    """
    if isinstance(payload, bytes):
        try:
            payload = msgspec.json.decode(payload) if payload else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            payload = None
    for secret in sorted(set(secrets_of(payload, more)), key=len, reverse=True):
        for shown in {secret, repr(secret)[1:-1], msgspec.json.encode(secret).decode()[1:-1]}:
            text = text.replace(shown, HIDDEN)
    text = _URL.sub(rf"\1{HIDDEN}@", text)
    return _BEARER.sub(rf"\1 {HIDDEN}", text)


_URL: Final = re.compile(r"(\w+://[^\s:/@]*:)[^\s@/]+@")
_BEARER: Final = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def secrets_of(value: Any, more: Collection[str] = (), hidden: bool = False, depth: int = 0) -> Iterator[str]:
    """The texts and numbers of at least 4 characters that stand under a secret name."""
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        for name, one in value.items():
            yield from secrets_of(one, more, hidden or is_secret(str(name), more), depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from secrets_of(one, more, hidden, depth + 1)
    elif hidden and isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value)
        if len(text) >= _SHORTEST:
            yield text


def _redacted(value: Any, more: Collection[str], depth: int) -> Any:
    if depth > _DEEPEST:
        return HIDDEN
    if isinstance(value, dict):
        return {
            name: HIDDEN if one not in (None, "") and is_secret(str(name), more) else _redacted(one, more, depth + 1)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redacted(one, more, depth + 1) for one in value]
    return value


def _parts_of(name: str) -> tuple[str, ...]:
    return tuple(part.lower() for part in _PARTS.findall(name))
