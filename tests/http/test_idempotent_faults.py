"""Idempotent endpoints in real processes that are killed and frozen: one takes over, and one answer counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import create_engine, text

from fencepost.sql.upgrade import upgrade
from tests.http.idempotent_process import LEASE_S
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
KEY = {"Idempotency-Key": "order-7"}


class Web:
    """One of the processes. pid: its own."""

    def __init__(self, url: str, namespace: str, folder: Path) -> None:
        self.folder, self._pool = folder, ThreadPoolExecutor(1)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.http.idempotent_process", url, namespace, str(folder)],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        self.url, self.pid = "", self._process.pid

    def wait_until_it_answers(self) -> None:
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        wait_until(self._answers, 20)

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/openapi.json").status_code == 200
        except httpx2.TransportError:
            return False

    def ask(self, path: str, body: str = "{}") -> httpx2.Response:
        kind = {"Content-Type": "application/json"}
        return httpx2.post(f"{self.url}{path}", content=body, headers={**KEY, **kind}, timeout=15)

    def start(self, path: str) -> Future[httpx2.Response]:
        """Ask, and return when the handler waits."""
        (self.folder / "hold").touch()
        answer = self._pool.submit(self.ask, path)
        wait_until((self.folder / f"began-{self.pid}").exists, 10)
        return answer

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.pid, number)

    def end(self) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._pool.shutdown()


@pytest.fixture
def webs(url: str, namespace: str, tmp_path: Path) -> Iterator[tuple[Web, Web]]:
    """Two processes of one application, and the tables of its orders."""
    base = f"sqlite:///{tmp_path / 'orders.sqlite'}"
    upgrade(base)
    engine = create_engine(base)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number INTEGER PRIMARY KEY, made_by INTEGER)"))
    engine.dispose()
    both = Web(url, namespace, tmp_path), Web(url, namespace, tmp_path)
    try:
        for one in both:
            one.wait_until_it_answers()
        yield both
    finally:
        for one in both:
            one.end()


def orders(folder: Path) -> list[int]:
    """Who made each order."""
    engine = create_engine(f"sqlite:///{folder / 'orders.sqlite'}")
    with engine.connect() as connection:
        found = list(connection.scalars(text("SELECT made_by FROM orders")))
    engine.dispose()
    return found


def let_go(folder: Path) -> None:
    (folder / "hold").unlink()


def taken_over(web: Web, path: str) -> httpx2.Response:
    """Ask again until it is no more told that the first one runs."""
    answers: list[httpx2.Response] = []

    def answered() -> bool:
        answers.append(web.ask(path))
        if answers[-1].status_code != 409:
            return True
        assert answers[-1].json()["type"] == "/v1/problems/request-in-progress"
        return False

    wait_until(answered, 10)
    assert len(answers) > 1, "it was told at least once that the first one runs"
    return answers[-1]


def test_when_the_owner_is_killed_the_next_request_takes_over_within_the_lease(webs, tmp_path):
    first, second = webs
    lost = first.start("/plain")
    assert second.ask("/plain").json()["type"] == "/v1/problems/request-in-progress"
    first.signal(signal.SIGKILL)
    killed_at = time.monotonic()
    let_go(tmp_path)
    answer = taken_over(second, "/plain")
    assert time.monotonic() - killed_at < LEASE_S + 1.0
    assert (answer.status_code, answer.json()) == (200, {"by": second.pid})
    with pytest.raises(httpx2.TransportError):
        lost.result(10)
    assert second.ask("/plain").headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("path", ["/plain", "/guarded/before"])
def test_the_answer_of_an_owner_that_was_frozen_for_longer_than_its_lease_is_refused(webs, tmp_path, path):
    """Its caller is told so, and its guarded effect is not written; the answer of the other counts for all."""
    first, second = webs
    late = first.start(path)
    first.signal(signal.SIGSTOP)
    wait_until(lambda: second.ask(path, "{ }").json()["type"] == "/v1/problems/request-in-progress", 5)
    let_go(tmp_path)
    answer = taken_over(second, path)
    assert (answer.status_code, answer.json()["by"]) == (200, second.pid)
    first.signal(signal.SIGCONT)
    refused = late.result(10)
    assert refused.status_code == 409
    assert refused.json()["type"] == "/v1/problems/answer-refused"
    assert first.ask(path).content == answer.content
    assert orders(tmp_path) == ([second.pid] if path != "/plain" else [])


def test_an_effect_that_was_committed_before_its_process_was_killed_is_found_by_the_next(webs, tmp_path):
    first, second = webs
    first.start("/guarded/after")
    assert orders(tmp_path) == [first.pid]
    first.signal(signal.SIGKILL)
    let_go(tmp_path)
    answer = taken_over(second, "/guarded/after")
    assert answer.json() == {"by": second.pid, "number": 1}
    assert orders(tmp_path) == [first.pid]
