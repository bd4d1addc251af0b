"""What must not be shown: the one place of the rules. A value is hidden by the name it stands under, at any depth.

Names are compared in parts, whatever their spelling: `apiKey`, `API_KEY` and `api-key` are the parts api and key. So
`token` and `refresh_token` hide what they hold, `token_count`, `max_tokens` and `author` do not. A value that stands
under such a name in a job's arguments is a known secret: it is hidden in every text about that job as well.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from .errors import ConfigurationError

__all__ = ["HIDDEN", "checked_names", "is_secret", "redact", "redact_json", "redact_text", "secrets_of"]

HIDDEN: Final = "[redacted]"
"""What stands in the place of a hidden value."""

# A name is secret where it ends with one of these, part by part, in singular or plural.
_ENDS: Final = frozenset(
    tuple(name.split())
    for name in (
        "password", "passwd", "pwd", "passphrase", "passcode", "secret", "token", "api key", "apikey", "authorization",
        "auth", "credential", "private key", "privatekey", "access key", "accesskey", "secret key", "secretkey",
        "client key", "signing key", "encryption key", "session", "session id", "sessionid", "cookie", "card",
        "card number", "cardnumber", "card no", "pan", "cvv", "cvc", "csc", "security code", "recovery code", "iban",
        "ssn", "pin", "pin code", "otp", "totp", "bearer", "jwt", "signature",
    )
)  # fmt: skip
# What follows a secret's name and still is the secret.
_TAILS: Final = frozenset({"value", "text", "string", "hash", "plain", "old", "new", "current", "confirm"})
# What makes a token a number or a place in a list: max_tokens counts words, a page token is a cursor.
_NO_SECRET: Final = frozenset(
    {"max", "min", "total", "prompt", "completion", "input", "output", "cached", "num", "page", "fencing"}
)
_PARTS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_a-zA-Z]+")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]*")  # written alike everywhere
_SLASHES: Final = r"\\{1,8}"
_SHORTEST: Final = 4
_DEEPEST: Final = 200

# Secrets that any text shows by their form. Each pattern is bounded: texts are long, and may be hostile.
_FORMS: Final = (
    (re.compile(r"(://[^\s:/@]{0,200}:)[^\s/\"'<>]{1,500}@"), rf"\1{HIDDEN}@"),  # the password of a URL
    (re.compile(r"\b(Bearer|Basic)(\s+)(?=\S{0,500}[\d=])[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1\2{HIDDEN}"),
    (re.compile(r"\b(fp_[a-z2-7]{12}_)[\w-]{16,}"), rf"\1{HIDDEN}"),  # the tokens of this service
    (
        re.compile(
            r"((?:password|passwd|pwd|secret|api_?key|access_?key|(?:access|refresh|auth|id)_token)=)"
            r"(?:'[^'\n]{0,500}'|\"[^\"\n]{0,500}\"|[^\s&;,'\"()\[\]]{1,500})",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
)


def is_secret(name: str, more: Collection[str] = ()) -> bool:
    """Whether what stands under a name is hidden. more: further names, in any spelling."""
    return _is_secret(name, tuple(more)) if len(name) <= 200 else _judged(name, tuple(more))


def checked_names(names: Collection[str]) -> tuple[str, ...]:
    """Further secret names, as an application declares them. Raises ConfigurationError for what could match nothing."""
    hint = 'Write redact=("tax_id", "salary").'
    if isinstance(names, str):
        raise ConfigurationError("redact", f"{names!a:.80} is one text, not several names", hint)
    for name in names:
        if not _is_name(name):
            raise ConfigurationError("redact", f"{name!a:.80} is no name", hint)
    return tuple(names)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(_parts_of(name))


def redact(value: Any, more: Collection[str] = (), known: Collection[str] = ()) -> Any:
    """Return JSON data with every secret hidden: dicts and lists are copied, nothing is changed in place.

    known: secrets to hide wherever they stand, as secrets_of found them elsewhere.
    """
    return _redacted(value, tuple(more), known, 0)


def redact_json(raw: bytes | None, more: Collection[str] = (), known: Collection[str] = ()) -> Any:
    """Open stored JSON with every secret hidden; None for nothing. Bytes that are no JSON are hidden whole."""
    if not raw:
        return None
    try:
        return redact(msgspec.json.decode(raw), more, known)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return HIDDEN


def redact_text(text: str, payload: bytes | Any = b"", more: Collection[str] = ()) -> str:
    """Hide in free text the values that stand under a secret name in the payload, those of 4 characters or more.

    payload: stored JSON, or data. Also hides what shows itself as a secret: the password of a URL, what follows
    `Bearer` or `password=`, a token of the service. Cut a text afterwards, never before: half a secret is not found.
    """
    if isinstance(payload, bytes):
        try:
            payload = msgspec.json.decode(payload) if payload else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            payload = None
    return _hidden_in(text, secrets_of(payload, more))


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


def _redacted(value: Any, more: tuple[str, ...], known: Collection[str], depth: int) -> Any:
    if depth > _DEEPEST:
        return HIDDEN
    if isinstance(value, dict):
        return {
            name: HIDDEN
            if one not in (None, "") and is_secret(str(name), more)
            else _redacted(one, more, known, depth + 1)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redacted(one, more, known, depth + 1) for one in value]
    if isinstance(value, str):
        return _hidden_in(value, known)
    if known and isinstance(value, int | float) and not isinstance(value, bool) and str(value) in known:
        return HIDDEN
    return value


def _hidden_in(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, in whatever way they may be written there."""
    there = {one for secret in set(secrets) for one in _writings(secret, text)}
    if there:  # in one pass, the longest first: what was hidden is not looked at again
        text = re.sub("|".join(sorted(there, key=len, reverse=True)), HIDDEN, text)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def _writings(secret: str, text: str) -> Iterator[str]:
    """Patterns of a secret as it may stand in the text: as it is, escaped by Python or JSON (more than once, where an
    error quotes another), or as a part of a URL."""
    if _PLAIN.fullmatch(secret):
        if secret in text:
            yield re.escape(secret)
        return
    pattern = "".join(_character(one) for one in secret)
    if re.search(pattern, text):
        yield pattern
    for in_url in {quote(secret, "", errors="replace"), quote_plus(secret, errors="replace")}:
        if in_url in text:
            yield re.escape(in_url)


def _character(one: str) -> str:
    if one == "\\":
        return _SLASHES
    if one in "'\"":
        return rf"\\{{0,8}}{one}"
    if one.isascii() and one.isprintable():
        return re.escape(one)
    escaped = {one.encode("unicode_escape").decode(), json.dumps(one)[1:-1]}
    ways = ["".join(_SLASHES if part == "\\" else re.escape(part) for part in way) for way in sorted(escaped)]
    return f"(?:{'|'.join([re.escape(one), *ways])})"


def _judged(name: str, more: tuple[str, ...]) -> bool:
    parts = _parts_of(name)
    if any(parts[at:] in {_parts_of(one) for one in more} for at in range(len(parts))):
        return True
    while parts and (parts[-1] in _TAILS or parts[-1].isdigit()):
        parts = parts[:-1]
    if not parts:
        return False
    singular = (*parts[:-1], parts[-1].removesuffix("s"))
    if singular[-1] == "token" and parts[-2:-1] and parts[-2] in _NO_SECRET:
        return False
    return any(parts[at:] in _ENDS or singular[at:] in _ENDS for at in range(len(parts)))


_is_secret: Final = functools.lru_cache(4_096)(_judged)


def _parts_of(name: str) -> tuple[str, ...]:
    return tuple(part.lower() for part in _PARTS.findall(name))
