"""The data folder of a private server: its lock, its socket, its configuration.

lock            locked for as long as the server lives
socket          the path of the unix socket, for those who attach
run/redis.sock  the socket (a short private folder elsewhere, if this path is too long for one)
server.log      what the server said since its start; server.log.old, what it said before
appendonlydir/  the data
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from fencepost.errors import ConfigurationError

if sys.platform != "win32":
    import fcntl

DATA_SETTING: Final = "FENCEPOST_DATA"
SOCKET_PATH_LIMIT: Final = 100  # bytes; the kernel's own limit is 104 on macOS, 108 on Linux

# What would break the supervision if it were set from outside.
_OURS: Final = frozenset({"port", "unixsocket", "unixsocketperm", "dir", "daemonize", "logfile", "pidfile"})


def default_path(env: Mapping[str, str]) -> Path:
    """Return the data folder of those who name none: FENCEPOST_DATA, else .fencepost in the working directory."""
    return Path(env.get(DATA_SETTING) or ".fencepost")


def prepare(path: Path) -> Path:
    """Return the absolute path of the folder, made for this user alone if it was missing.

    Raises ConfigurationError where it cannot be made or written.
    """
    path = path.expanduser().absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            (path / ".gitignore").write_text("*\n")
        with open(path / "lock", "ab"):
            pass
    except OSError as error:
        raise ConfigurationError(
            "data folder",
            f"{path} cannot be used: {error.strerror or error}",
            f"give a folder this user may write, by argument or by {DATA_SETTING}. No server was started",
        ) from error
    return path


def try_lock(path: Path) -> IO[bytes] | None:
    """Return the folder's lock file, locked, or None while somebody else holds it.

    The lock belongs to the open file: a child that inherits it keeps it after we close ours.
    """
    if sys.platform == "win32":
        raise NotImplementedError("file locks of this kind do not exist on Windows")
    lock = open(path / "lock", "ab")  # noqa: SIM115 - handed to the caller, open
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError as error:
        lock.close()
        raise ConfigurationError(
            "data folder",
            f"{path} is on a file system that cannot lock files: {error.strerror or error}",
            "use a folder on a local disk. No server was started: two of them on one folder would lose writes",
        ) from error
    return lock


def pointed_socket(path: Path) -> str | None:
    """Return where the server of this folder listens, by its own account, or None if it never said."""
    try:
        return (path / "socket").read_text().strip() or None
    except FileNotFoundError:
        return None


def place_socket(path: Path) -> str:
    """Choose the socket's path, in a folder of mode 0700, clear it and note it down. For the lock's holder only."""
    folder = path / "run"
    if len(os.fsencode(folder / "redis.sock")) > SOCKET_PATH_LIMIT:
        # The same name every time, so that the address outlives a restart.
        name = f"fencepost-{os.getuid()}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
        folder = Path(tempfile.gettempdir(), name)
        if len(os.fsencode(folder / "redis.sock")) > SOCKET_PATH_LIMIT:
            folder = Path("/tmp", name)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        # Anybody may make this name in a shared temporary folder before us.
        raise ConfigurationError(
            "data folder",
            f"{folder}, the place for its socket, belongs to somebody else",
            "remove it, or use a data folder with a shorter path. No server was started",
        )
    folder.chmod(0o700)
    socket = folder / "redis.sock"
    socket.unlink(missing_ok=True)
    note = path / "socket.new"
    note.write_text(f"{socket}\n")
    note.replace(path / "socket")
    return str(socket)


def remove_socket_folder(path: Path, socket: str) -> None:
    """Remove the folder of a stopped server's socket, if it lies outside the data folder and is empty."""
    if socket and path not in Path(socket).parents:
        with contextlib.suppress(OSError):
            Path(socket).parent.rmdir()


def configuration(path: Path, socket: str, extra: Mapping[str, str]) -> str:
    """Return the server's configuration as text.

    Raises ConfigurationError for a name the supervisor keeps to itself.
    """
    if taken := _OURS & {name.lower() for name in extra}:
        raise ConfigurationError(
            "extra_config",
            f"{', '.join(sorted(taken))} is set by the supervisor",
            "leave it out; `CONFIG SET port` opens a port on the running server. No server was started",
        )
    lines = {
        "unixsocket": socket,
        "unixsocketperm": "700",
        "dir": str(path),
        "daemonize": "no",
        "logfile": "",
        "pidfile": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        **extra,
    }
    return "".join(f"{name} {_quoted(value)}\n" for name, value in lines.items())


def _quoted(value: str) -> str:
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\x{b:02x}" for b in os.fsencode(value))
    return f'"{"".join(plain)}"'


def log_tail(path: Path, lines: int = 12) -> str:
    """Return the last lines of the server's log, or a word that there is none."""
    try:
        text = (path / "server.log").read_text(errors="replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(text.strip().splitlines()[-lines:]) or "(the log is empty)"
