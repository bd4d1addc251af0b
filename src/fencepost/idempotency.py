"""Keys about a request (idempotency) and about a piece of work (dedup): what they become in Redis."""

from __future__ import annotations

import hashlib

from fencepost.errors import ConfigurationError

__all__ = ["dedup_name", "idempotency_name"]

_LONGEST = 255


def idempotency_name(key: str, client: str = "") -> str:
    """Return the name of an idempotency key, scoped to the client that sent it.

    key: 1 to 255 characters. client: whatever tells callers apart (a tenant, a credential's id); two clients never
    meet. Raises ConfigurationError for anything else. Text that could not stand in a key is hashed.
    """
    if not _is_text(key) or not 1 <= len(key) <= _LONGEST:
        raise ConfigurationError("idempotency_key", f"{str(key)[:40]!a} is not a text of 1 to {_LONGEST} characters")
    if not _is_text(client) or len(client) > _LONGEST:
        raise ConfigurationError("client", f"it is not a text of at most {_LONGEST} characters")
    return f"{_plain(client).replace(':', '%3A')}:{_plain(key)}"  # the first colon ends the client


def dedup_name(kind: str, key: str) -> str:
    """Return the name of a dedup key: the kind and the key. Raises ConfigurationError as idempotency_name."""
    if not 1 <= len(key) <= 512:
        raise ConfigurationError("dedup", f"{str(key)[:40]!a} is not a text of 1 to 512 characters")
    return f"{kind.replace('%', '%25').replace(':', '%3A')}:{_plain(key)}"  # the first colon ends the kind


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _plain(text: str) -> str:
    """Readable text stays; what has braces, spaces or control characters, or looks hashed, is hashed."""
    if text.isprintable() and len(text) <= 200 and not set("{} %").intersection(text):
        return text
    return "%" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
