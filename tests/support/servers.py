"""Which server program the tests run against, and how it is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost.embedded import BINARY_SETTING, EmbeddedServer, server_version

CHOICE = "FENCEPOST_TEST_SERVER"  # valkey (default) | redis7 | the path of a server program


def chosen_binary() -> dict[str, str] | str:
    """Return the environment that selects the server FENCEPOST_TEST_SERVER names, or the reason it cannot be had."""
    choice = os.environ.get(CHOICE, "valkey")
    if choice == "valkey":
        return {}
    if choice == "redis7":
        path = shutil.which("redis-server")
        if path is None or server_version(path) != (7, 0):
            return f"{CHOICE}=redis7, but the redis-server on PATH is {path and server_version(path)}, not 7.0"
        return {BINARY_SETTING: path}
    return {BINARY_SETTING: choice}


def start_server(
    binary: Mapping[str, str],
    *,
    path: Path | None = None,
    shim: Path | None = None,
    offset: Path | None = None,
    config: Mapping[str, str] | None = None,
) -> EmbeddedServer:
    """Start a server for tests: DEBUG allowed, and its clock movable if `shim` and `offset` are given."""
    env = dict(binary)
    if shim and offset:
        env |= {"LD_PRELOAD": str(shim), "CLOCKSHIM_FILE": str(offset)}
    lines = {"enable-debug-command": "yes", **(config or {})}
    return EmbeddedServer.start(path, extra_config=lines, ephemeral=path is None, env=env)


def raw_client(url: str, **options: Any) -> redis.Redis:
    """Return a plain client that never retries and answers in bytes."""
    return redis.Redis.from_url(url, decode_responses=False, retry=Retry(NoBackoff(), 0), **options)
