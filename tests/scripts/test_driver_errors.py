"""Errors by class: what was surely not executed, what may have been, and what is a mistake. By both drivers."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py

from fencepost import driver as driver_module
from fencepost.driver import AsyncDriver, Call, Connections, SyncDriver
from fencepost.errors import ConfigurationError, RedisUnavailable, ScriptError
from fencepost.job import JobSpec
from fencepost.scripts import load, names
from tests.support.partition import Partition
from tests.support.proxy import CUT_REPLY, DROP_REPLY, DROP_REQUEST, HOLD, RESET, Fault, FaultProxy, answer

SAID_NO = (
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "MOVED 3999 127.0.0.1:6381",
    "ASK 3999 127.0.0.1:6381",
    "NOREPLICAS Not enough good replicas to write.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
)
MAY_HAVE = (DROP_REPLY, DROP_REQUEST, RESET, CUT_REPLY)


class Both:
    """One driver of each sort behind one `run`."""

    def __init__(self, how: str, connections: Connections) -> None:
        self.how, self.connections = how, connections

    def run(self, call: Call[Any], give_up_s: float = 0.0) -> Any:
        if self.how == "sync":
            sync = SyncDriver(self.connections)
            try:
                return sync.run(call, give_up_s)
            finally:
                sync.close()

        async def work() -> Any:
            driver = AsyncDriver(self.connections)
            try:
                return await driver.run(call, give_up_s)
            finally:
                await driver.close()

        return asyncio.run(work())


@pytest.fixture
def proxy(server, partition: Partition) -> Iterator[FaultProxy]:
    for name in names():
        partition.redis.script_load(load(name).text)
    with FaultProxy(server.socket) as one:
        yield one


@pytest.fixture(params=["sync", "async"])
def client(request, partition: Partition, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Both:
    monkeypatch.setattr("fencepost.driver._FIRST_WAIT_S", 0.0005)
    return Both(request.param, partition.connections(proxy.url))


def enqueue(p: Partition) -> Call[Any]:
    return p.store.enqueue([JobSpec(id=p.name("job-"), kind="mail")])


def unavailable(client: Both, call: Call[Any], give_up_s: float = 0.0) -> RedisUnavailable:
    with pytest.raises(RedisUnavailable) as caught:
        client.run(call, give_up_s)
    return caught.value


@pytest.mark.parametrize("text", SAID_NO, ids=lambda text: text.split()[0])
def test_a_server_that_said_no_is_asked_again_and_nothing_was_changed(partition, proxy, client, text):
    proxy.plan.append(answer(text))
    error = unavailable(client, enqueue(partition))
    assert error.executed is False
    assert error.what == "enqueue"
    assert text.split(" ", 1)[1] in error.cause or text.split()[0] in error.cause
    assert "Nothing was changed" in str(error)
    proxy.plan.extend([answer(text)] * 2)
    [(word, _, _)] = client.run(enqueue(partition), 5.0)
    assert word == "QUEUED"
    assert partition.stats()["enqueued:mail"] == 1


def test_every_code_that_counts_as_not_executed_stands_in_the_table():
    assert {text.split()[0] for text in SAID_NO} == set(driver_module.NOT_EXECUTED)


def test_a_full_memory_is_told_at_once_because_waiting_does_not_help(partition, proxy, client):
    proxy.plan.append(answer("OOM command not allowed when used memory > 'maxmemory'."))
    error = unavailable(client, enqueue(partition), 60.0)
    assert error.executed is False
    assert len(proxy.seen) == 1


@pytest.mark.parametrize("fault", MAY_HAVE, ids=lambda fault: fault.name)
def test_an_answer_that_did_not_come_leaves_it_unknown(partition, proxy, client, fault):
    proxy.plan.append(fault)
    error = unavailable(client, enqueue(partition))
    assert error.executed is None
    assert "is unknown" in str(error)
    assert "may be sent again safely" in str(error)


def test_a_reply_that_comes_too_late_leaves_it_unknown_and_is_never_read_by_another_call(partition, proxy, client):
    client.connections.timeout_s = 0.05
    proxy.plan.append(HOLD)
    call = enqueue(partition)
    error = unavailable(client, call)
    assert error.executed is None
    proxy.release()
    assert [(word, state) for word, _, state in client.run(call)] == [("QUEUED", "queued")]
    assert partition.stats()["enqueued:mail"] == 1


@pytest.mark.parametrize("last", [*SAID_NO[:2], "OOM command not allowed when used memory > 'maxmemory'."])
@pytest.mark.parametrize("first", MAY_HAVE[:2], ids=lambda fault: fault.name)
def test_what_was_unknown_once_stays_unknown_whatever_the_server_says_later(partition, proxy, client, first, last):
    """The first try may have been carried out, so nobody may be told that nothing was changed."""
    proxy.plan.extend([first, *[answer(last)] * 50])
    assert unavailable(client, enqueue(partition), 0.05).executed is None
    assert len(proxy.seen) >= 1


def test_a_server_that_is_not_there_has_surely_not_done_it(partition, client):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client.connections = Connections(f"redis://127.0.0.1:{port}/0")
    error = unavailable(client, enqueue(partition))
    assert error.executed is False
    assert str(port) in error.cause


def test_a_forgotten_script_is_no_error_and_takes_one_more_round_trip(partition, proxy, client):
    partition.redis.script_flush()
    client.run(enqueue(partition))
    assert [command for command, _ in proxy.seen] == [b"EVALSHA", b"EVAL"]
    client.run(enqueue(partition))
    assert [command for command, _ in proxy.seen] == [b"EVALSHA", b"EVAL", b"EVALSHA"]


@pytest.mark.leaks_keys("a key is spoilt on purpose")
def test_a_fault_in_a_script_names_its_line_and_is_not_tried_again(partition, proxy, client):
    partition.redis.set(partition.keys.meta, "spoilt")
    with pytest.raises(ScriptError, match=r"_begin\.lua:\d+: .*WRONGTYPE") as caught:
        client.run(enqueue(partition), 60.0)
    assert (caught.value.script, caught.value.line > 0) == ("_begin", True)
    assert len(proxy.seen) == 1


def test_a_key_outside_of_the_partition_is_refused_to_the_user_of_these_tests(partition, client):
    """Without this the rest of this folder would prove nothing about the keys that scripts touch."""
    other = Partition(partition.redis, partition.url, "another")
    try:
        with pytest.raises(ScriptError, match=r"(?i)permission"):
            client.run(enqueue(other))
    finally:
        other.close()
    assert partition.redis.keys("*") == []


def test_a_plain_command_that_the_server_refuses_raises_its_own_error(partition, client):
    with pytest.raises(redis_py.ResponseError, match="wrong number"):
        client.run(partition.store.read(["HGET", partition.keys.meta], lambda reply: reply), 60.0)


# -- how long, how often ----------------------------------------------------------------------------------


def pauses(monkeypatch: pytest.MonkeyPatch, draw: float, tries: int, give_up_s: float) -> list[float]:
    """The pauses between tries that all fail, without any I/O and with a clock that stands still."""
    monkeypatch.setattr("fencepost.driver.random.random", lambda: draw)
    monkeypatch.setattr("fencepost.driver.time.monotonic", lambda: 0.0)
    talk = driver_module._converse(Call("ping", None, (), ["PING"], str), give_up_s)
    next(talk)
    found: list[float] = []
    for _ in range(tries):
        pause = talk.throw(ConnectionError("gone"))
        assert isinstance(pause, float)
        found.append(pause)
        talk.send(None)
    return found


def test_pauses_double_up_to_a_second_and_are_drawn_apart(monkeypatch):
    longest = pauses(monkeypatch, 1.0, 12, math.inf)
    assert longest[:4] == pytest.approx([0.02, 0.04, 0.08, 0.16])
    assert longest[-1] == 1.0
    assert pauses(monkeypatch, 0.0, 12, math.inf) == pytest.approx([one / 2 for one in longest])


def test_a_driver_that_never_gives_up_goes_on_and_one_that_does_says_how_it_stood(monkeypatch):
    assert len(pauses(monkeypatch, 0.5, 5000, math.inf)) == 5000
    with pytest.raises(RedisUnavailable, match="gone"):
        pauses(monkeypatch, 0.5, 1, 0.01)


@pytest.mark.parametrize("source", ["localhost:6379", "http://localhost", 5, None])
def test_what_is_no_address_is_refused_with_an_example(source):
    with pytest.raises(ConfigurationError, match=r"redis://|Give a URL"):
        Connections(source)


def test_an_address_is_shown_without_credentials():
    assert Connections("redis://user:secret@example.org:7000/3").where == "example.org:7000/3"
    assert Connections("unix://user:secret@/run/redis.sock?db=2").where == "unix:///run/redis.sock"


def test_a_held_reply_is_a_fault_of_the_network_and_not_of_the_proxy(partition, proxy):
    """The proxy passes what it has no fault for, byte for byte."""
    assert Fault("pass") not in MAY_HAVE
    driver = SyncDriver(partition.connections(proxy.url))
    payload = bytes(range(256)) * 300
    driver.run(partition.store.enqueue([JobSpec(id="j", kind="mail", payload=payload)]))
    assert driver.run(partition.store.claim(partition.request(1))).jobs[0].payload == payload
    assert proxy.connections == 1
    driver.close()
