"""The example shop, started for real: its web server, its workers, and an order that gets one invoice."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fencepost.client import Client, NoAnswer
from tests.support.waiting import wait_until
from tests.surface.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

QUEUES = "billing,stock,mail,upkeep"


class Shop:
    """A copy of the example with its processes."""

    def __init__(self, folder: Path, url: str) -> None:
        shutil.copytree(ROOT / "examples/shop-api", folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        self.folder, self._started = folder, list[subprocess.Popen[bytes]]()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        self._env = {**kept, "FENCEPOST_REDIS_URL": url, "FENCEPOST_APP": "jobs:app", "PYTHONUNBUFFERED": "1"}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.run("books.py")

    def run(self, *words: str) -> str:
        """Run a program to its end and return what it prints."""
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self._env, check=True, capture_output=True, text=True
        )
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"log{len(self._started)}", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=self.folder, env=self._env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def start_web(self) -> subprocess.Popen[bytes]:
        process = self.start("uvicorn", "api:web", "--port", str(self.port))
        wait_until(self._answers, timeout=20)
        return process

    def _answers(self) -> bool:
        assert all(one.poll() is None for one in self._started), self.logs()
        try:
            return httpx2.get(f"{self.url}/queue/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self.start("fencepost", "worker", "jobs:app", "--queues", QUEUES)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log*")))

    def end(self) -> None:
        for one in self._started:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGCONT)
                os.killpg(one.pid, signal.SIGKILL)
            one.wait(10)


@pytest.fixture
def shop(tmp_path: Path, new_server: Any) -> Iterator[Shop]:
    one = Shop(tmp_path / "shop", new_server().url)
    yield one
    one.end()


@pytest.fixture
def customer(shop: Shop) -> Iterator[httpx2.Client]:
    """A customer's browser, with the shop's web server running."""
    shop.start_web()
    with httpx2.Client(base_url=shop.url, headers={"X-User": "ann"}) as one:
        yield one


def state_of(customer: httpx2.Client, job: str) -> str:
    return str(customer.get(f"/jobs/{job}").json()["state"])


def test_an_order_gets_one_invoice_whatever_is_sent_twice_or_killed(shop: Shop, customer: httpx2.Client):
    key = {"Idempotency-Key": "form-7"}
    with ThreadPoolExecutor(8) as pool:  # the form is sent eight times at once
        posts = list(pool.map(lambda _: customer.post("/orders/7/invoice", headers=key), range(8)))
    assert {post.status_code for post in posts} == {202}
    [job] = {post.json()["job"] for post in posts}
    assert sorted(post.json()["known"] for post in posts) == [False] + [True] * 7
    assert {post.headers["location"] for post in posts} == {f"/jobs/{job}"}
    assert state_of(customer, job) == "queued"

    shop.start_worker()
    wait_until(lambda: state_of(customer, job) == "done", timeout=20)
    invoices = customer.get("/orders/7/invoice").json()["invoices"]
    assert len(invoices) == 1

    again = customer.post("/orders/7/invoice", headers=key).json()  # the browser comes back
    assert (again["job"], again["known"], again["state"]) == (job, True, "done")
    anew = customer.post("/orders/7/invoice").json()  # and somebody asks anew, in another form
    assert anew["job"] != job
    wait_until(lambda: state_of(customer, anew["job"]) == "done", timeout=20)
    assert customer.get("/orders/7/invoice").json()["invoices"] == invoices

    conflict = customer.post("/orders/8/invoice", headers=key)
    assert conflict.status_code == 422
    assert customer.post("/orders/1000/invoice").status_code == 404
    assert customer.post("/orders/7/invoice", headers={"X-User": ""}).status_code == 422


def test_the_other_jobs_of_the_shop_are_done_and_the_cache_is_rebuilt_once(shop: Shop, customer: httpx2.Client):
    body = {"tenant": "acme", "part": "prices"}
    asked = [customer.post("/jobs/rebuild-cache", json=body).json() for _ in range(3)]
    assert len({one["job"] for one in asked}) == 1
    other = customer.post("/jobs/rebuild-cache", json={**body, "tenant": "emca"}).json()
    stock = customer.post("/stock/mug/sync").json()
    mail = customer.post("/users/1/mail", json={"template": "welcome"}).json()
    shop.start_worker()
    for one in (asked[0], other, stock, mail):
        wait_until(lambda job=one["job"]: state_of(customer, job) == "done", timeout=20)  # type: ignore[misc]
    assert {path.name for path in shop.folder.glob("cache-*")} == {"cache-acme-prices.json", "cache-emca-prices.json"}
    assert [path.read_text() for path in (shop.folder / "sent").iterdir()] == ["welcome for 1"]
    assert customer.get("/jobs/no-such-job").status_code == 404


def test_operators_come_in_by_the_mounted_service_with_a_token(shop: Shop, customer: httpx2.Client):
    job = customer.post("/orders/9/invoice").json()["job"]
    assert customer.get(f"/queue/v1/jobs/{job}").status_code == 401
    scopes = [word for scope in ("read", "operate", "enqueue:sync_stock") for word in ("--scope", scope)]
    token = shop.run("-m", "fencepost", "token", "make", "operator", *scopes).strip()
    with Client(f"{shop.url}/queue", token) as client:
        assert client.job(job).payload == {"order_id": 9}
        assert client.resource("stock:mug") is None
        assert client.enqueue("sync_stock", {"sku": "mug"}).queue == "stock"
        shop.start_worker()
        assert [event.name for event in client.events(job)][-1] == "done"
        assert client.result(job) == customer.get("/orders/9/invoice").json()["invoices"][0]


def test_the_document_of_the_shop_has_its_routes_and_those_of_the_service(customer: httpx2.Client):
    paths = customer.get("/openapi.json").json()["paths"]
    assert {"/orders/{order_id}/invoice", "/jobs/{job_id}", "/queue/v1/jobs/generate_invoice"} <= set(paths)


def test_the_web_server_ends_when_it_is_told_to_though_somebody_follows_a_job(shop: Shop):
    web = shop.start_web()
    token = shop.run("-m", "fencepost", "token", "make", "reader", "--scope", "read").strip()
    job = httpx2.post(f"{shop.url}/orders/1/invoice", headers={"X-User": "ann"}).json()["job"]
    with Client(f"{shop.url}/queue", token, give_up=0) as client:
        following = client.events(job)
        assert next(following).name == "enqueued"
        web.send_signal(signal.SIGTERM)
        assert web.wait(15) in (0, -signal.SIGTERM)
        with pytest.raises(NoAnswer):
            next(following)
