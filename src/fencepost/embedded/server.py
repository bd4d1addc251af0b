"""The supervisor of a private server.

The server process itself holds the folder's lock: it inherits the locked file, so the lock lasts exactly as long as
the server, whatever becomes of the process that started it.

The server dies with that process, also when it is killed with SIGKILL. A small shell waits at a pipe whose other end
only the owner holds; end of file means the owner is gone. PR_SET_PDEATHSIG would be shorter, but Linux sends it when
the *thread* that forked ends, so a server started from a short-lived thread would die too, and macOS lacks it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost.embedded import folder
from fencepost.embedded.binary import find_binary
from fencepost.errors import ConfigurationError

START_WITHIN_S: Final = 10.0
LOAD_WITHIN_S: Final = 300.0  # a server that answers "loading" is alive and is given longer
STOP_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.005
_SILENT: Final = 0
_LOADING: Final = -1

# Reads the server's pid, then waits. A word: the owner ended the server itself. End of file: the owner is gone.
_WATCHER: Final = """
read -r pid || exit 0
read -r word && exit 0
kill -TERM "$pid" 2>/dev/null || exit 0
n=0
while [ $n -lt 50 ] && kill -0 "$pid" 2>/dev/null; do sleep 0.1; n=$((n+1)); done
kill -KILL "$pid" 2>/dev/null
"""


def _answer(socket: str) -> int:
    """Ask PING at a socket: the server's pid, or _LOADING, or _SILENT. Waits for 1 s at most."""
    client = redis.Redis(unix_socket_path=socket, socket_timeout=1, retry=Retry(NoBackoff(), 0))
    try:
        client.ping()
        return int(client.info("server")["process_id"])
    except redis.BusyLoadingError:
        return _LOADING
    except (redis.ConnectionError, redis.TimeoutError):
        return _SILENT
    finally:
        client.close()


class EmbeddedServer:
    """A running private server. Made by `start`; ends with `stop`, with the `with` block, or with its owner.

    url, socket: where it listens; the same for every start on one folder, so clients find a restarted server.
    attached: True where somebody else (or another object of this process) owns the server.
    pid: the server's process id.
    """

    def __init__(self, path: Path, extra_config: Mapping[str, str], ephemeral: bool, env: Mapping[str, str]) -> None:
        """Not for callers; use `start`."""
        self.path = path
        self.ephemeral = ephemeral
        self.attached = False
        self.pid = 0
        self.socket = ""
        self._extra = dict(extra_config)
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    @classmethod
    def start(
        cls,
        path: Path | str | None = None,
        *,
        extra_config: Mapping[str, str] | None = None,
        ephemeral: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> EmbeddedServer:
        """Start a server on a data folder, or attach to the one that runs there. Returns when it answers.

        path: the data folder, made if missing; without it FENCEPOST_DATA, else `.fencepost` in the working directory.
        ephemeral: use a fresh folder (below `path`, else the system's temporary folder) and delete it at `stop`.
        extra_config: further lines of redis.conf, by name; a server that is attached to keeps its own.
        env: set on top of this process's environment, for the server and for finding its program.

        Raises ConfigurationError when there is no server program, the folder cannot be used, or the server does
        not come up (with the end of its log).
        """
        if os.name != "posix":
            raise ConfigurationError(
                "embedded server",
                f"it needs unix sockets and file locks, which {sys.platform} lacks",
                "run a Redis or Valkey server and give its URL. No server was started",
            )
        # The packaged server has no allocator of its own: with glibc's, small scripts take a seventh less CPU so.
        environment = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=4000", **os.environ, **(env or {})}
        if ephemeral:
            data = Path(tempfile.mkdtemp(prefix="fencepost-", dir=folder.prepare(Path(path)) if path else None))
        else:
            data = folder.prepare(Path(path) if path is not None else folder.default_path(environment))
        server = cls(data, extra_config or {}, ephemeral, environment)
        try:
            server._start_or_attach()
        except BaseException:
            server._end(signal.SIGKILL)
            server._clear()
            raise
        return server

    @property
    def url(self) -> str:
        """The address, for redis-py and for `Fencepost(url)`."""
        return f"unix://{quote(self.socket)}?db=0"

    def alive(self) -> bool:
        """Return whether the server's process runs; of a server that is attached to, whether it answers."""
        if self._process is None:
            return self.attached and _answer(self.socket) != _SILENT
        if self._process.poll() is None:
            return True
        self._dismiss_watcher()  # the pid is free now: nobody may signal it any more
        return False

    def ensure(self) -> bool:
        """Start the server again, on the same address, if its owner ended or it crashed. Returns whether it was gone.

        Who was attached may become the owner by this.
        """
        if self.alive():
            return False
        self._start_or_attach()
        return True

    def stop(self) -> None:
        """End the server with SIGTERM and wait until it is gone; one that is attached to goes on. May be repeated.

        A server that has not ended after 10 s is killed; its last second of writes may then be lost.
        """
        if self._owner == os.getpid() and not self.attached:
            self._end(signal.SIGTERM)
            self._clear()

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would. The data folder stays; `restart` takes it up again."""
        self._refuse_if_attached()
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start the server again on the same folder and address, after a clean stop if it runs.

        Raises ConfigurationError for a server that is attached to.
        """
        self._refuse_if_attached()
        self._end(signal.SIGTERM)
        self._start_or_attach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.path} pid={self.pid}{' attached' if self.attached else ''}>"

    # -- start

    def _start_or_attach(self) -> None:
        """Take the folder's lock and start, or wait until the server of the one who holds it answers."""
        deadline = time.monotonic() + START_WITHIN_S
        while (lock := folder.try_lock(self.path)) is None:
            self.socket = folder.pointed_socket(self.path) or ""
            answer = _answer(self.socket) if self.socket else _SILENT
            if answer > 0:
                self.attached, self.pid = True, answer
                return
            if time.monotonic() > deadline + (LOAD_WITHIN_S if answer == _LOADING else 0):
                raise ConfigurationError(
                    "data folder",
                    f"another process holds {self.path} but does not answer at {self.socket or 'any socket'}",
                    f"end that process (`fuser {self.path / 'lock'}` names it) or use another folder. "
                    "No server was started",
                )
            time.sleep(_POLL_S)
        with lock:
            self._launch(lock)
        self._await_ready()

    def _launch(self, lock: IO[bytes]) -> None:
        binary = find_binary(self._env)
        self.socket = folder.place_socket(self.path)
        lines = folder.configuration(self.path, self.socket, self._extra)
        with contextlib.suppress(FileNotFoundError):
            (self.path / "server.log").replace(self.path / "server.log.old")
        watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": self._env.get("PATH", os.defpath)},
            start_new_session=True,
        )
        self.attached, self._owner, self._watcher = False, os.getpid(), watcher
        _owned.add(self)
        with open(self.path / "server.log", "ab") as log:
            # A session of its own: Ctrl-C is for us, who stop the server after our own work is handed back.
            server = subprocess.Popen(
                # Should we die before the configuration is written, it has no place to listen and ends.
                [binary, "-", "--port", "0"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=self.path,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
                umask=0o077,
            )
        self._process, self.pid = server, server.pid
        assert watcher.stdin is not None
        assert server.stdin is not None
        watcher.stdin.write(b"%d\n" % server.pid)
        watcher.stdin.flush()
        with contextlib.suppress(BrokenPipeError):  # it ended at once; _await_ready says why
            server.stdin.write(lines.encode())
            server.stdin.close()

    def _await_ready(self) -> None:
        """Wait for the answer to PING; raise ConfigurationError if the server ends or stays silent."""
        assert self._process is not None
        began = time.monotonic()
        while (answer := _answer(self.socket)) <= 0:
            waited = time.monotonic() - began
            code = self._process.poll()
            if code is not None or waited > (LOAD_WITHIN_S if answer == _LOADING else START_WITHIN_S):
                self._end(signal.SIGKILL)
                what = f"did not answer within {waited:.0f} s" if code is None else f"ended with code {code}"
                raise ConfigurationError(
                    "embedded server",
                    f"the server {what} when it was started on {self.path}; the end of its log:\n"
                    f"{folder.log_tail(self.path)}",
                    "mend what the log names, or use another folder. Nothing was deleted",
                )
            time.sleep(_POLL_S)

    # -- end

    def _refuse_if_attached(self) -> None:
        if self.attached:
            raise ConfigurationError(
                "embedded server",
                f"process {self.pid} on {self.path} belongs to another owner",
                "end it from there. It was left running",
            )

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if self._owner != os.getpid():
            return  # a forked child: not ours to end
        try:
            if process is not None:
                process.send_signal(how)
                process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            assert process is not None
            process.kill()
            process.wait()
        finally:
            self._dismiss_watcher()
            _owned.discard(self)

    def _dismiss_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.communicate(b"stopped\n")

    def _clear(self) -> None:
        if not self.attached:
            folder.remove_socket_folder(self.path, self.socket)
            if self.ephemeral:
                shutil.rmtree(self.path, ignore_errors=True)

    def _disown(self) -> None:
        """In a forked child: close its copy of the pipe, or the owner's death would go unnoticed."""
        if self._watcher is not None and self._watcher.stdin is not None:
            self._watcher.stdin.close()


_owned: Final[set[EmbeddedServer]] = set()


def _stop_owned() -> None:
    for server in tuple(_owned):
        server.stop()


def _disown_in_child() -> None:
    for server in _owned:
        server._disown()
    _owned.clear()


atexit.register(_stop_owned)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_in_child)
