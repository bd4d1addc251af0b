"""Fixtures: private servers for each test process, a namespace for each test, a clock that can be moved; databases."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from hypothesis import HealthCheck, settings

from fencepost.embedded import EmbeddedServer
from tests.support.clock import MovedClock, OffsetFile, build_shim
from tests.support.databases import DatabaseServer, start_mariadb, start_postgres, why_no_mariadb, why_no_postgres
from tests.support.servers import chosen_binary, raw_client, start_server
from tests.support.state import leaks

# A script that starts the tests in the background hands SIGINT down as ignored, and so would we to every process that
# a test starts and interrupts. A handler is not handed down: they begin with the default, as from a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast examples are drawn says something about the machine only: in a fresh clone the first Unicode example builds
# its tables, which took longer than the two seconds that this check allows. What the examples find counts as before.
settings.register_profile("fencepost", settings(), suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("fencepost")


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Take back what a command that ran in this process has made of its signals. Where it had left them ignored, every
    process that a later test starts would ignore them, too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def server_binary() -> dict[str, str]:
    """The environment that selects the server program, by FENCEPOST_TEST_SERVER; skips if it is not there."""
    chosen = chosen_binary()
    if isinstance(chosen, str):
        pytest.skip(chosen)
    return chosen


@pytest.fixture(scope="session")
def clock_shim(pytestconfig: pytest.Config) -> Path | str:
    """The compiled clock shim, or the reason why there is none."""
    assert pytestconfig.cache is not None
    return build_shim(pytestconfig.cache.mkdir("clockshim"))


@pytest.fixture(scope="session")
def clock_offset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OffsetFile]:
    """The file through which the clock of the shared server is moved."""
    offset = OffsetFile(tmp_path_factory.mktemp("clock") / "offset")
    yield offset
    offset.close()


@pytest.fixture(scope="session")
def server(server_binary: dict[str, str], clock_shim: Path | str, clock_offset: OffsetFile) -> Iterator[EmbeddedServer]:
    """The private server of this test process. Tests must not stop it or leave its settings changed."""
    shim = clock_shim if isinstance(clock_shim, Path) else None
    with start_server(server_binary, shim=shim, offset=clock_offset.path) as running:
        yield running


@pytest.fixture
def new_server(server_binary: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., EmbeddedServer]]:
    """Start further servers that a test may kill: `new_server(path=None, config=None)`. Stopped at the end."""
    started: list[EmbeddedServer] = []

    def start(path: Path | None = None, config: dict[str, str] | None = None) -> EmbeddedServer:
        started.append(start_server(server_binary, path=path or tmp_path / f"server{len(started)}", config=config))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def url(server: EmbeddedServer) -> str:
    """The address of the shared server."""
    return server.url


@pytest.fixture
def redis(server: EmbeddedServer, clock_offset: OffsetFile) -> Iterator[redis_py.Redis]:
    """A plain client of the shared server: bytes, no retries. After the test the server is emptied, its clock reset."""
    client: Any = raw_client(server.url)
    yield client
    client.client_unpause()
    client.flushall()
    if clock_offset.us:
        MovedClock(client, clock_offset).reset()  # backwards, so only now that no key is left
    client.close()


@pytest.fixture
def clock(redis: redis_py.Redis, clock_shim: Path | str, clock_offset: OffsetFile) -> MovedClock:
    """The clock of the shared server: `clock.advance(seconds)`. The `redis` fixture sets it right after the test."""
    if isinstance(clock_shim, str):
        pytest.skip(clock_shim)
    return MovedClock(redis, clock_offset)


@pytest.fixture
def namespace(redis: redis_py.Redis, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test alone. Fails the test that leaves a key `fencepost.keys` does not allow."""
    name = f"t{secrets.token_hex(4)}"
    yield name
    if request.node.get_closest_marker("leaks_keys") is None:
        problems = leaks(redis, name)
        assert not problems, "keys left behind:\n" + "\n".join(problems)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    """The PostgreSQL of this test process, started when the first test asks. Nothing is flushed (fsync=off)."""
    if reason := why_no_postgres():
        pytest.skip(reason)
    server = start_postgres()
    yield server
    server.close()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[DatabaseServer]:
    """The MariaDB of this test process, started when the first test asks; skips where the program is not installed."""
    if reason := why_no_mariadb():
        pytest.skip(reason)
    server = start_mariadb()
    yield server
    server.close()


@pytest.fixture
def new_postgres() -> Iterator[Callable[..., DatabaseServer]]:
    """Start further PostgreSQL servers that a test may stop or kill: `new_postgres(fsync="on")`. Closed at the end."""
    if reason := why_no_postgres():
        pytest.skip(reason)
    started: list[DatabaseServer] = []

    def start(**settings: str) -> DatabaseServer:
        started.append(start_postgres(settings))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Make empty databases of this test alone: `new_database("postgresql" | "mariadb" | "sqlite") -> URL`.

    The URLs are SQLAlchemy's, with a synchronous driver; PostgreSQL is meant where nothing is said.
    """
    made: list[tuple[DatabaseServer, str]] = []

    def make(kind: str = "postgresql") -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / f'database{secrets.token_hex(3)}.sqlite'}"
        server: DatabaseServer = request.getfixturevalue(
            {"postgresql": "postgres_server", "mariadb": "mariadb_server"}[kind]
        )
        made.append((server, server.new_database()))
        return made[-1][1]

    yield make
    for server, url in made:
        server.drop(url)


@pytest.fixture
def postgres_url(new_database: Callable[..., str]) -> str:
    """An empty PostgreSQL database of this test alone."""
    return new_database("postgresql")


@pytest.fixture
def mariadb_url(new_database: Callable[..., str]) -> str:
    """An empty MariaDB database of this test alone; skips where MariaDB is not installed."""
    return new_database("mariadb")


@pytest.fixture
def sqlite_url(new_database: Callable[..., str]) -> str:
    """A SQLite file of this test alone, not made yet."""
    return new_database("sqlite")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def any_database(request: pytest.FixtureRequest, new_database: Callable[..., str]) -> str:
    """An empty database of this test alone, on each engine in turn."""
    return new_database(str(request.param))
