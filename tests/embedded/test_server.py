"""The private server: one for each data folder, gone with its owner, its data kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fencepost.embedded import EmbeddedServer
from fencepost.embedded.folder import try_lock
from fencepost.errors import ConfigurationError
from tests.support import raw_client, wait_until
from tests.support.processes import gone

ROOT = Path(__file__).parents[2]


def python(code: str, *args: str | Path, **env: str) -> subprocess.Popen[str]:
    """Run a program in a process of its own, with its input and output at hand."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
    )


OWNER = """
    import sys
    from fencepost.embedded import EmbeddedServer
    server = EmbeddedServer.start(sys.argv[1])
    print(server.pid, server.attached, flush=True)
    sys.stdin.readline()
"""


def start_owner(path: Path, code: str = OWNER) -> tuple[subprocess.Popen[str], int]:
    """Start another process that owns a server on `path`; returns the process and the server's pid."""
    owner = python(code, path)
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline().split()[0])


def end(process: subprocess.Popen[str], how: signal.Signals | None = None) -> None:
    if how:
        process.send_signal(how)
    process.communicate("\n", timeout=10)


def test_it_listens_on_a_private_unix_socket_only(new_server):
    server = new_server()
    config: Any = raw_client(server.url, protocol=2).config_get("*")
    asked = ("port", "appendonly", "appendfsync", "save", "maxmemory-policy")
    assert [config[name] for name in asked] == ["0", "yes", "everysec", "", "noeviction"]
    assert Path(server.socket).parent.stat().st_mode & 0o777 == 0o700


def test_a_second_start_on_the_folder_attaches_and_its_stop_changes_nothing(tmp_path, new_server):
    first = new_server(tmp_path / "data")
    second = new_server(tmp_path / "data")
    assert (first.attached, second.attached) == (False, True)
    assert (second.url, second.pid) == (first.url, first.pid)
    second.stop()
    assert first.alive()
    assert raw_client(first.url).ping()


def test_a_start_in_another_process_attaches_and_leaves_the_server_running(tmp_path, new_server):
    first = new_server(tmp_path / "data")
    other = python(OWNER, tmp_path / "data")
    said, _ = other.communicate("\n", timeout=10)
    assert said.split() == [str(first.pid), "True"]
    assert first.alive()


def test_many_starts_at_once_make_one_server(tmp_path):
    starters = [python(OWNER, tmp_path / "data") for _ in range(4)]
    said = [one.stdout.readline().split() for one in starters if one.stdout]
    for one in starters:
        end(one)
    assert len({pid for pid, _ in said}) == 1
    assert sorted(attached for _, attached in said) == ["False", "True", "True", "True"]


def test_who_is_attached_may_not_kill_or_restart(tmp_path, new_server):
    first = new_server(tmp_path / "data")
    second = new_server(tmp_path / "data")
    for act in (second.kill, second.restart):
        with pytest.raises(ConfigurationError, match="belongs to another owner"):
            act()
    assert first.alive()


def test_the_server_dies_with_an_owner_that_is_killed(tmp_path):
    owner, pid = start_owner(tmp_path)
    end(owner, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    with EmbeddedServer.start(tmp_path) as server:
        assert not server.attached


def test_the_server_dies_with_its_owner_though_a_forked_child_lives_on(tmp_path):
    owner, pid = start_owner(
        tmp_path,
        """
        import os, sys
        from fencepost.embedded import EmbeddedServer
        server = EmbeddedServer.start(sys.argv[1])
        if os.fork() == 0:
            server.stop()  # not the child's to stop
            sys.stdin.readline()
            os._exit(0)
        print(server.pid, server.attached, flush=True)
        os.waitpid(-1, 0)
        """,
    )
    assert not gone(pid)
    owner.kill()
    wait_until(lambda: gone(pid))
    end(owner)


def test_the_server_stops_when_its_owner_simply_ends(tmp_path):
    owner, pid = start_owner(tmp_path)
    end(owner)
    assert owner.returncode == 0
    wait_until(lambda: gone(pid))


def test_ctrl_c_at_the_terminal_does_not_reach_the_server(new_server):
    server = new_server()
    assert os.getpgid(server.pid) == server.pid


def test_a_clean_stop_leaves_no_process_no_socket_and_no_lock(tmp_path):
    server = EmbeddedServer.start(tmp_path)
    server.stop()
    server.stop()
    assert gone(server.pid)
    assert not Path(server.socket).exists()
    lock = try_lock(tmp_path)
    assert lock is not None
    lock.close()


def test_the_data_survives_a_stop_and_a_new_start(tmp_path):
    with EmbeddedServer.start(tmp_path) as server:
        raw_client(server.url).set("kept", "yes")
    with EmbeddedServer.start(tmp_path) as server:
        assert raw_client(server.url).get("kept") == b"yes"


def test_the_data_and_the_address_survive_a_kill_and_a_restart(new_server):
    server = new_server(config={"appendfsync": "always"})
    url = server.url
    raw_client(url).set("kept", "yes")
    server.kill()
    assert not server.alive()
    server.restart()
    assert server.url == url
    assert raw_client(url).get("kept") == b"yes"


def test_a_server_that_crashed_is_started_again_by_ensure(new_server):
    server = new_server()
    crashed = server.pid
    assert not server.ensure()
    os.kill(crashed, signal.SIGKILL)
    wait_until(lambda: not server.alive())
    assert server.ensure()
    assert server.pid != crashed
    assert raw_client(server.url).ping()


def test_who_was_attached_takes_over_when_the_owner_has_gone(tmp_path):
    owner, pid = start_owner(tmp_path)
    with EmbeddedServer.start(tmp_path) as server:
        assert server.attached
        end(owner)
        wait_until(lambda: gone(pid))
        assert server.ensure()
        assert not server.attached
        assert raw_client(server.url).ping()


def test_an_ephemeral_server_leaves_no_folder(tmp_path):
    with EmbeddedServer.start(tmp_path, ephemeral=True) as server:
        assert server.path.parent == tmp_path
    assert not server.path.exists()


def test_a_path_too_long_for_a_socket_gets_a_short_private_one(tmp_path):
    path = tmp_path / ("long-" * 30) / "data"
    with EmbeddedServer.start(path) as server, EmbeddedServer.start(path) as second:
        assert second.attached
        assert len(server.socket) <= 100
        assert Path(server.socket).parent.stat().st_mode & 0o777 == 0o700
        assert raw_client(second.url).ping()
        first_url = server.url
    assert not Path(server.socket).parent.exists()
    with EmbeddedServer.start(path) as again:
        assert again.url == first_url


def test_a_path_with_odd_letters_works(tmp_path):
    with EmbeddedServer.start(tmp_path / 'a "b" c?d%20é#') as server:
        assert raw_client(server.url).ping()
