"""Redis over TLS: commands, workers and leases work, and a certificate that does not fit is refused before a password.

The server is the Redis 7 of the PATH: the one that the tests bring along is built without TLS.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from fencepost import Fencepost
from fencepost.embedded import BINARY_SETTING
from fencepost.errors import RedisUnavailable
from fencepost.worker import Worker
from tests.support.servers import raw_client, start_server

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def program() -> str:
    """A server with TLS; skips where there is none."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server on PATH, and the server of the tests has no TLS")
    libraries = subprocess.run(["ldd", found], capture_output=True, text=True, timeout=10, check=False).stdout
    if "libssl" not in libraries:
        pytest.skip(f"{found} is built without TLS")
    return found


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def serve(program: str, authority: trustme.CA, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Start a server that speaks TLS only: `serve("localhost", clients="no")` returns its port."""
    started = []

    def start(*names: str, clients: str = "no") -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        ca, key, certificate = (str(tmp_path / f"{name}.pem") for name in ("ca", "key", "certificate"))
        issued = authority.issue_cert(*names)
        authority.cert_pem.write_to_path(ca)
        issued.private_key_pem.write_to_path(key)
        for part in issued.cert_chain_pems:
            part.write_to_path(certificate, append=True)
        config = {
            "tls-port": str(port), "tls-cert-file": certificate, "tls-key-file": key, "tls-ca-cert-file": ca,
            "tls-auth-clients": clients, "bind": "127.0.0.1",
        }  # fmt: skip
        started.append(start_server({BINARY_SETTING: program}, path=tmp_path / "server", config=config))
        admin = raw_client(started[-1].url)
        admin.execute_command("ACL", "SETUSER", "fencepost", "reset", "on", f">{PASSWORD}", "~*", "+@all")
        admin.config_resetstat()
        admin.close()
        return port

    yield start
    for one in started:
        one.stop()


def heard(server_folder: Path) -> int:
    """How often somebody gave the server a password or a script."""
    client = raw_client(f"unix://{(server_folder / 'socket').read_text().strip()}")
    stats: dict[str, Any] = client.info("commandstats")
    client.close()
    return sum(
        int(stats[name]["calls"]) for name in ("cmdstat_auth", "cmdstat_evalsha", "cmdstat_eval") if name in stats
    )


def url(port: int, tmp_path: Path, host: str = "localhost", more: str = "") -> str:
    return f"rediss://fencepost:{PASSWORD}@{host}:{port}/0?ssl_ca_certs={tmp_path / 'ca.pem'}{more}"


@pytest.mark.slow
async def test_a_job_and_a_lease_go_their_way_over_tls(serve, tmp_path):
    app = Fencepost(url(serve("localhost"), tmp_path), namespace="tls", lease=2.0, give_up=5.0)

    @app.job()
    async def add(a: int, b: int) -> int:
        return a + b

    worker = Worker(app, lanes=1)
    running = asyncio.create_task(worker.run())
    job = await add.enqueue(a=1, b=2)
    assert await job.result(10) == 3
    async with app.lease("stock:1", 2.0) as lease:
        lease.check()
    worker.stop()
    await running
    sync = add.enqueue_sync(a=1, b=2)
    assert sync.status_sync().state == "queued"
    assert heard(tmp_path / "server") > 0
    await app.close()


@pytest.mark.parametrize(
    ("host", "trusted", "cause"),
    [
        ("127.0.0.1", True, "IP address mismatch"),
        ("localhost", False, "self.signed certificate|unable to get local issuer"),
    ],
    ids=["of another host", "of another authority"],
)
def test_a_certificate_that_does_not_fit_is_refused_before_a_password_is_sent(serve, tmp_path, host, trusted, cause):
    whole = url(serve("localhost"), tmp_path, host)
    app = Fencepost(whole if trusted else whole.partition("?")[0], namespace="tls", give_up=0.3)

    @app.job()
    async def add(a: int) -> int:
        return a

    with pytest.raises(RedisUnavailable, match=cause):
        add.enqueue_sync(a=1)
    assert heard(tmp_path / "server") == 0
    app.close_sync()


def test_a_server_that_wants_a_certificate_gets_it(serve, authority, tmp_path):
    port = serve("localhost", clients="yes")
    mine = authority.issue_cert("worker-1")
    mine.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "mine.pem"))
    without = Fencepost(url(port, tmp_path), namespace="tls", give_up=0.3)
    with pytest.raises(RedisUnavailable):
        without.link.synchronous.run(without.link.store.read(["PING"], bytes))
    with_it = f"&ssl_certfile={tmp_path / 'mine.pem'}&ssl_keyfile={tmp_path / 'mine.pem'}"
    app = Fencepost(url(port, tmp_path, more=with_it), namespace="tls", give_up=5.0)
    assert app.link.synchronous.run(app.link.store.read(["PING"], bytes)) == b"PONG"
    without.close_sync()
    app.close_sync()
