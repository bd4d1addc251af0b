"""An application and its operator on the namespace of the test."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from fencepost import Fencepost
from fencepost.cli import main
from fencepost.operate import Operator
from tests.edges.processes import Workers
from tests.support.partition import Partition


@pytest.fixture
def partition(redis: redis_py.Redis, url: str, namespace: str) -> Iterator[Partition]:
    """The namespace of this test, with a verb for each script."""
    one = Partition(redis, url, namespace)
    yield one
    one.close()


@pytest.fixture
def app(url: str, namespace: str) -> Iterator[Fencepost]:
    """An application without handlers on the namespace of this test."""
    one = Fencepost(url, namespace=namespace)
    yield one
    one.close_sync()


@pytest.fixture
def operator(app: Fencepost) -> Operator:
    return Operator(app)


class Cli:
    """The command line, called in this process. `cli(...)` returns what it printed, `cli.json(...)` opens it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        found = main(arguments)
        out, self.err = self._capsys.readouterr()
        assert found == code, f"exit code {found}: {out}{self.err}"
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        out = self(*arguments, "--json", code=code)
        assert out.count("\n") == 1, "one JSON value on one line"
        return json.loads(out)


@pytest.fixture
def cli(
    url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    """The command line on the namespace of the test, in an empty folder."""
    monkeypatch.setenv("FENCEPOST_REDIS_URL", url)
    monkeypatch.setenv("FENCEPOST_NAMESPACE", namespace)
    monkeypatch.delenv("FENCEPOST_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


@pytest.fixture
def shop(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with an application, on the namespace of the test; returns how --app names it."""
    name = f"shop_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield f"{name}:app"
    sys.modules.pop(name, None)


SHOP = """
import os
from fencepost import Fencepost

app = Fencepost(os.environ["FENCEPOST_REDIS_URL"], namespace=os.environ["FENCEPOST_NAMESPACE"])

@app.job(queue="sums")
async def add(a: int, b: int = 1, name: str = "", tags: list[str] = []) -> int:
    return a + b

@app.job(resource="stock:{sku}", dedup=True)
def book(sku: str) -> None: ...

not_an_app = 1
"""


@pytest.fixture
def workers(tmp_path: Path, url: str, namespace: str) -> Iterator[Workers]:
    """Real worker processes on the namespace of the test; whatever still runs is killed at the end."""
    one = Workers(tmp_path, url, namespace)
    yield one
    one.end()
