"""The public names of the package: each new one is a decision, written down here."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost

NAMES = [
    "ArgumentsRefused",
    "ConfigurationError",
    "Fencepost",
    "FencepostError",
    "IdempotencyConflict",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "Lease",
    "LeaseExpired",
    "LeaseLost",
    "LedgerUnavailable",
    "Permanent",
    "QueueFull",
    "RedisUnavailable",
    "ResourceBusy",
    "ResourceRule",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Run",
    "Snooze",
    "StaleToken",
    "UnsafeSetup",
    "Worker",
]


def test_the_public_names_are_those_of_the_list():
    assert fencepost.__all__ == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_a_docstring_of_its_own(name: str):
    value = getattr(fencepost, name)
    assert inspect.getdoc(value)
    bases = [inspect.getdoc(base) for base in value.__mro__[1:]]
    assert inspect.getdoc(value) not in bases, "it is that of its base"
    assert not (value.__doc__ or "").startswith(f"{name}("), "it is what dataclass makes, not what we wrote"


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_typed_all_through(name: str):
    for where, function in _functions(name, getattr(fencepost, name)):
        signature = inspect.signature(function)
        for parameter in signature.parameters.values():
            if parameter.name not in ("self", "cls"):
                assert parameter.annotation is not parameter.empty, f"{where}: {parameter.name} has no type"
        assert signature.return_annotation is not signature.empty, f"{where} has no return type"


@pytest.mark.parametrize("name", NAMES)
def test_a_public_method_has_a_docstring(name: str):
    for where, function in _functions(name, getattr(fencepost, name)):
        if not function.__name__.startswith("_"):
            assert function.__doc__, where


def _functions(name: str, owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods that a class of ours defines itself, __init__ included, properties as their getters."""
    for attribute, value in vars(owner).items():
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        elif isinstance(value, property):
            continue  # a value with a name; the class says what it is
        public = not attribute.startswith("_") or attribute == "__init__"
        if inspect.isfunction(value) and public and value.__module__.startswith("fencepost"):
            yield f"{name}.{attribute}", value
