"""What JSON would change silently, and where in the data it is.

A value either arrives equal or is refused where it is enqueued. `find_unsafe` looks at one value; `find_change`
compares what was given with what the worker's decoder made of it. Both answer the first problem found, or None.
Accepted on purpose: a tuple arrives as a list where no tuple is annotated; a zone becomes its offset (the instant
stays); text, numbers and dicts are turned into what is annotated (a datetime, a Decimal, a model).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

__all__ = ["INT_MAX", "INT_MIN", "MAX_DEPTH", "Problem", "enc_hook", "find_change", "find_unsafe", "is_model"]

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1
MAX_DEPTH: Final = 64
"""Levels of nesting. The worker decodes deeper in its stack than the caller encodes, so the limit is ours."""

_LEAVES: Final = (bytes, bytearray, memoryview, dt.date, dt.timedelta, UUID, enum.Enum)
_SEQUENCES: Final = (list, tuple, set, frozenset)


class Problem(NamedTuple):
    """path: as in `order.lines[2].price`. text: half a sentence."""

    path: str
    text: str


def is_model(cls: Any) -> bool:
    """Whether this is a pydantic model class, without importing pydantic."""
    return isinstance(cls, type) and hasattr(cls, "model_validate") and hasattr(cls, "model_dump")


def enc_hook(value: Any) -> Any:
    """Encode what msgspec does not know: pydantic models, and subclasses of plain types (a template's safe text)."""
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{_name(value)} objects cannot be sent as JSON")


def find_unsafe(value: Any, path: str, depth: int = 0) -> Problem | None:
    """Find NaN, infinity, a naive datetime or time, a number beyond 64 bit, a broken surrogate, too deep nesting, or
    an object that JSON has no form for."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, enum.Enum):
        return None if value is value.value else find_unsafe(value.value, path, depth + 1)
    if text := _leaf_problem(value):
        return Problem(path, text)
    if isinstance(value, (str, int, float, Decimal, dt.time, *_LEAVES)):
        return None
    if depth >= MAX_DEPTH:
        return Problem(path, f"it is nested more than {MAX_DEPTH} levels deep, or contains itself")
    children = _children(value)
    if children is None:
        return Problem(path, f"{_name(value)} objects cannot be sent as JSON")
    if isinstance(value, dict) and (problem := _key_problem(value, path)):
        return problem
    for suffix, child in children:
        # A key stands for itself: `prices[nan]`.
        where = path + suffix if path else suffix.lstrip(".")
        if problem := find_unsafe(child, where, depth + 1):
            return problem
    return None


def find_change(given: Any, arrived: Any, path: str) -> Problem | None:
    """Find a value that would reach the handler as something else. Both were found safe by find_unsafe."""
    if given is arrived or given is None:
        return None
    if isinstance(given, bool | str) or (isinstance(given, enum.Enum) and isinstance(given, str | int)):
        # Text may become what is annotated; the decoder has vouched for that.
        return None
    if isinstance(given, int | float):
        return _number_change(given, arrived, path)
    if isinstance(given, dict):
        return _dict_change(given, arrived, path)
    if isinstance(given, list) or type(given) is tuple:
        return _sequence_change(given, arrived, path)
    if isinstance(given, set | frozenset):
        if not isinstance(arrived, set | frozenset):
            return _becomes(given, arrived, path)
        lost = len(given) != len(arrived) or any(not isinstance(x, str) and x not in arrived for x in given)
        return Problem(path, "the members of the set would change; annotate their type") if lost else None
    return _object_change(given, arrived, path)


def _leaf_problem(value: Any) -> str:
    if isinstance(value, str):
        if value.isascii():
            return ""
        try:
            value.encode()
        except UnicodeEncodeError:
            return "the text has a lone surrogate, which UTF-8 cannot hold"
    elif isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            return "the number is beyond 64 bit; send it as text or Decimal"
    elif isinstance(value, float):
        if not math.isfinite(value):
            return f"{value} is not a JSON number; send None or a text"
    elif isinstance(value, Decimal):
        if not value.is_finite():
            return f"Decimal {value} is no number that a database or JSON can hold"
    elif isinstance(value, dt.datetime):
        if value.utcoffset() is None:
            return f"the datetime {value.isoformat()} has no time zone; it would mean another moment elsewhere"
    elif isinstance(value, dt.time) and value.utcoffset() is None:
        return f"the time {value.isoformat()} has no time zone; send it with a UTC offset, or as text"
    return ""


def _key_problem(value: dict[Any, Any], path: str) -> Problem | None:
    for key in value:
        if key is None or isinstance(key, bool) or not isinstance(key, (str, int, float, Decimal, dt.time, *_LEAVES)):
            return Problem(path + _key(key), f"a {_name(key)} cannot be a key in JSON")
    return None


def _children(value: Any) -> Iterable[tuple[str, Any]] | None:
    """The parts of a container or object with their path suffixes; None if it is neither."""
    if isinstance(value, dict):
        return _entries(value)
    if isinstance(value, _SEQUENCES) and not hasattr(value, "_fields"):
        return ((f"[{i}]", item) for i, item in enumerate(value))
    names = _field_names(value)
    return None if names is None else ((f".{name}", getattr(value, name, None)) for name in names)


def _entries(value: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        suffix = _key(key)
        if not isinstance(key, str) or not key.isascii():
            yield suffix, key
        yield suffix, item


def _field_names(value: Any) -> Iterable[str] | None:
    """Names of the data fields of a Struct, dataclass, named tuple, attrs class or pydantic model."""
    cls = type(value)
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(cls):
        return [item.name for item in dataclasses.fields(cls)]
    if isinstance(value, tuple):
        return tuple(getattr(cls, "_fields", ()))
    if hasattr(cls, "__attrs_attrs__"):
        return [item.name for item in cls.__attrs_attrs__]
    if is_model(cls):
        return [*value.__dict__, *(getattr(value, "__pydantic_extra__", None) or {})]
    return None


def _number_change(given: Any, arrived: Any, path: str) -> Problem | None:
    # Text that stands for a number is only made where it is annotated (Decimal), and a Decimal compares exactly to
    # an int but not to a float, whose shortest text is what was sent.
    if isinstance(arrived, Decimal):
        same = arrived == Decimal(repr(given)) if isinstance(given, float) else arrived == given
    else:
        same = not isinstance(arrived, int | float) or arrived == given
    return None if same else Problem(path, f"{given!r} would arrive as {arrived!r}")


def _dict_change(given: dict[Any, Any], arrived: Any, path: str) -> Problem | None:
    if not isinstance(arrived, dict):
        for key, item in given.items():
            if (
                isinstance(key, str)
                and hasattr(arrived, key)
                and (problem := find_change(item, getattr(arrived, key), path + _key(key)))
            ):
                return problem
        return None
    if len(given) != len(arrived):
        return Problem(path, "two of its keys are the same in JSON")
    for (key, item), (arrived_key, arrived_item) in zip(given.items(), arrived.items(), strict=True):
        if not isinstance(key, str) and not (key == arrived_key and isinstance(key, type(arrived_key))):
            return Problem(
                path + _key(key),
                f"the key would arrive as {_name(arrived_key)} {arrived_key!r}; annotate dict[{_name(key)}, …]",
            )
        if problem := find_change(item, arrived_item, path + _key(key)):
            return problem
    return None


def _sequence_change(given: Any, arrived: Any, path: str) -> Problem | None:
    if not isinstance(arrived, list | tuple):
        return None  # a set or an object by position: annotated so, and vouched for by the decoder
    for i, (item, arrived_item) in enumerate(zip(given, arrived, strict=False)):
        if problem := find_change(item, arrived_item, f"{path}[{i}]"):
            return problem
    return None


def _object_change(given: Any, arrived: Any, path: str) -> Problem | None:
    if isinstance(given, bytes | bytearray | memoryview):
        if isinstance(arrived, bytes | bytearray | memoryview) and bytes(given) == bytes(arrived):
            return None
        return _becomes(given, arrived, path)
    names = _field_names(given)
    if names is None:
        # Enum, Decimal, UUID, date, datetime, time, timedelta. A subclass may arrive as its base, of equal value.
        if arrived is None or not isinstance(given, type(arrived)):
            return _becomes(given, arrived, path)
        # By the instant: datetimes in a fold never compare equal across zones.
        same = given.timestamp() == arrived.timestamp() if isinstance(given, dt.datetime) else given == arrived
        return None if same else Problem(path, f"{given!r} would arrive as {arrived!r}")
    if type(arrived) is not type(given):
        return _becomes(given, arrived, path)
    for name in names:
        if problem := find_change(getattr(given, name, None), getattr(arrived, name, None), f"{path}.{name}"):
            return problem
    return None


def _becomes(given: Any, arrived: Any, path: str) -> Problem:
    return Problem(path, f"a {_name(given)} would arrive as {_name(arrived)}; annotate it as {_name(given)}")


def _key(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!a:.40}]"


def _name(value: Any) -> str:
    return type(value).__name__
