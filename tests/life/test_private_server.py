"""Two programs share the private server of a folder; the one that started it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fencepost import ConfigurationError, Fencepost
from tests.support import wait_until

STARTER = """
import sys
from fencepost import Fencepost
app = Fencepost.embedded(sys.argv[1], namespace="shared")
print("up", flush=True)
sys.stdin.read()
"""


def test_who_is_left_starts_the_private_server_again_at_the_first_failed_connection(tmp_path):
    folder = str(tmp_path / "data")
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "up\n"
        app = Fencepost.embedded(folder, namespace="shared")
        try:
            assert app.server is not None
            assert app.server.attached

            @app.job()
            def note(n: int) -> None: ...

            first = note.enqueue_sync(n=1)
            starter.kill()  # and its server with it
            starter.wait()
            wait_until(lambda: app.server is not None and not app.server.alive())
            second = note.enqueue_sync(n=2)
            assert [job.status_sync().state for job in (first, second)] == ["queued", "queued"]
            assert not app.server.attached
        finally:
            app.close_sync()


def test_a_decorator_without_parentheses_is_told_what_to_write(app):
    with pytest.raises(ConfigurationError, match=r"Write @app\.job\(\)"):

        @app.job
        def note() -> None: ...
