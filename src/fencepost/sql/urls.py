"""Which URLs name a SQL database. Needs no SQLAlchemy: an application checks its own when it is made."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from fencepost.errors import ConfigurationError

__all__ = ["LEDGERS", "check_sql_url"]

LEDGERS: Final = ("sqlite", "postgresql")
"""Where a ledger can be kept."""
_SCHEME: Final = re.compile(r"([\w+]+)://")
_NO_SQL: Final = ("redis", "rediss", "valkey", "unix", "http", "https", "file")


def check_sql_url(url: str, setting: str = "SQL URL", backends: Collection[str] = ()) -> None:
    """Raise ConfigurationError for text that is no URL of SQLAlchemy's, or not one of these backends."""
    found = _SCHEME.match(url)
    shown = url.split("@")[-1][:80]  # what stands before it may be a password
    name = found.group(1) if found else ""
    if found is None or name in _NO_SQL:
        hint = "Write sqlite:///shop.sqlite or postgresql+psycopg://host/database."
        raise ConfigurationError(setting, f"{shown!r} is no SQL URL", hint)
    backend = name.partition("+")[0]
    if backend == "postgres":
        hint = "Write postgresql+psycopg://… instead."
        raise ConfigurationError(setting, "'postgres://' is not a name that SQLAlchemy knows", hint)
    if backends and backend not in backends:
        hint = "Use sqlite:///ledger.sqlite or postgresql+psycopg://host/database."
        raise ConfigurationError(setting, f"a ledger cannot be kept in {backend}", hint)
    if backends and backend == "sqlite" and re.fullmatch(r"[\w+]+://(/(:memory:)?)?(\?.*)?", url):
        hint = "Name a file: sqlite:///ledger.sqlite."
        raise ConfigurationError(setting, "a ledger in memory would not outlive the process", hint)
