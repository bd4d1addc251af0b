"""What a run leaves behind: its result and its error text.

The work is done when these are written, so `encode_result_safely` and `error_text` never raise: an odd value is stored
as a description of itself, and the problem is handed back for the log.
"""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fencepost.errors import ResultRefused

from .checks import enc_hook, find_unsafe

__all__ = ["RESULT_LIMIT", "decode_result", "encode_result", "encode_result_safely", "error_text", "harmless_text"]

RESULT_LIMIT: Final = 64 * 1024
"""The most bytes the result of one job may take."""

_encode: Final = msgspec.json.Encoder(enc_hook=enc_hook, decimal_format="string").encode
_SAFE: Final = (str, bool)  # once encoded, these need no second look
_FRAMES: Final = 30

_short = reprlib.Repr()
_short.maxlevel, _short.maxlist, _short.maxtuple, _short.maxdict, _short.maxset = 4, 50, 50, 50, 50
_short.maxstring = _short.maxother = 1_000


def encode_result(value: Any, kind: str = "") -> bytes | None:
    """Return a handler's result as JSON of at most RESULT_LIMIT bytes, None for None; bytes become base64 text.

    Raises ResultRefused, with a path from `result`, for what JSON cannot hold.
    """
    if value is None:
        return None
    try:
        raw = _encode(value)
    except Exception as error:  # a property or hook of the value may raise anything
        path, text = find_unsafe(value, "result") or ("result", str(error) or type(error).__name__)
        raise ResultRefused(kind, path, text) from error
    if type(value) not in _SAFE and (problem := find_unsafe(value, "result")):
        raise ResultRefused(kind, problem.path, problem.text)
    if len(raw) > RESULT_LIMIT:
        raise ResultRefused(kind, "result", f"it has {len(raw)} bytes, {RESULT_LIMIT} are allowed")
    return raw


def encode_result_safely(
    value: Any, kind: str = "", clean: Callable[[str], str] = str
) -> tuple[bytes | None, str | None]:
    """Return the result as JSON and None; or {"repr": …} and the problem, for the log. Never raises.

    A result that cannot be stored must not fail the job: the work is done and would be done again. clean: takes the
    secrets out of a text, before it is cut.
    """
    try:
        return encode_result(value, kind), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the job has succeeded
        problem = _cut(_harmless(clean(_say(error))), 2_000)
    return msgspec.json.encode({"repr": _cut(_harmless(clean(_describe(value))), 2_000)}), problem


def decode_result(raw: bytes | None) -> Any:
    """Return a stored result as plain data; None for none. Raises msgspec.DecodeError if it is not JSON."""
    return None if raw is None else msgspec.json.decode(raw)


def error_text(exc: BaseException, limit: int = 8 * 1024, clean: Callable[[str], str] = str) -> str:
    """Return class, message and the end of the traceback, of at most `limit` bytes of UTF-8. Never raises.

    Too long a text loses its middle: the head names the error, the tail the line. NUL and broken surrogates are
    written as escapes, because no SQL text column takes them. clean: takes the secrets out of a text, before it is cut.
    """
    head = f"{_class_name(type(exc))}: {_say(exc)}"
    try:
        lines = traceback.format_exception(type(exc), exc, exc.__traceback__, limit=-_FRAMES)
        tail = "".join(lines).rstrip()
    except BaseException:  # noqa: BLE001 - a hostile __str__ or __cause__; the head is enough
        tail = "(the traceback could not be written)"
    head, tail = clean(head), clean(tail)
    return _cut(_harmless(_cut(_harmless(head), max(limit // 4, 100)) + "\n\n" + tail), limit)


def harmless_text(text: str, limit: int = 8 * 1024) -> str:
    """Return a text cut and escaped as in error_text."""
    return _cut(_harmless(text), limit)


def _class_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _say(exc: BaseException) -> str:
    try:
        return str(exc)
    except BaseException as error:  # noqa: BLE001 - see module docstring
        return f"(its text cannot be written: {type(error).__name__})"


def _describe(value: Any) -> str:
    try:
        return _short.repr(value)
    except BaseException as error:  # noqa: BLE001 - see module docstring
        return f"<{_class_name(type(value))} object; its repr() failed with {type(error).__name__}>"


def _harmless(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _cut(text: str, limit: int) -> str:
    raw = text.encode()
    if len(raw) <= limit:
        return text
    mark = f"\n… {len(raw) - limit} bytes left out …\n".encode()
    room = max(limit - len(mark), 0)
    head, tail = raw[: room // 3], raw[len(raw) - (room - room // 3) :]
    return (
        (head.decode("utf-8", "ignore") + mark.decode() + tail.decode("utf-8", "ignore"))
        if room
        else text[: limit // 4]
    )
