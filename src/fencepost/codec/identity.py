"""Keys and fingerprints that tell whether two requests are the same.

Computed once, where the job is enqueued, and stored with it: the key that is freed is the key that was taken.
"""

from __future__ import annotations

import unicodedata
from hashlib import blake2b
from typing import Any, Final

import msgspec

from .checks import enc_hook

__all__ = ["canonical_key", "request_fingerprint"]

_KEY_LIMIT: Final = 128
_encode: Final = msgspec.json.Encoder(enc_hook=enc_hook, decimal_format="string", order="sorted").encode


def canonical_key(kind: str, arguments: dict[str, Any]) -> str:
    """Return a dedup key for this work: `kind:{"a":1}`, or `kind:#<32 hex digits>` when that is long or not ASCII.

    The same for arguments in another order, dicts in another order, and text in another Unicode spelling (all text is
    taken in form NFC); different for 1 and "1", and for 1 and 1.0. Takes arguments that encode() has accepted.
    """
    raw = _encode(arguments)
    if not raw.isascii():
        raw = _encode(_nfc(msgspec.json.decode(raw)))
    if len(raw) <= _KEY_LIMIT and raw.isascii() and (text := raw.decode()).isprintable():
        return f"{kind}:{text}"
    return f"{kind}:#{blake2b(raw, digest_size=16).hexdigest()}"


def request_fingerprint(kind: str, payload: bytes, queue: str = "") -> str:
    """Return 32 hex digits that stand for the request itself, byte for byte but for the order of keys and whitespace.

    payload: JSON as encode() returned it or a client sent it. Raises msgspec.DecodeError if it is not JSON.
    """
    canonical = _encode([kind, queue, msgspec.json.decode(payload)])
    return blake2b(canonical, digest_size=16).hexdigest()


def _nfc(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, list):
        return [_nfc(item) for item in value]
    if isinstance(value, dict):
        folded = {_nfc(key): _nfc(item) for key, item in value.items()}
        # Two spellings of one key in one dict: keep them apart rather than lose an entry.
        return folded if len(folded) == len(value) else {key: _nfc(item) for key, item in value.items()}
    return value
