"""Whatever the network loses, a call that is repeated until it is answered takes effect once."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.driver import AsyncDriver, SyncDriver
from fencepost.scripts import load, names
from tests.scripts.scenarios import Scenario, word_of
from tests.scripts.scenarios_of_operators import SCENARIOS
from tests.support.partition import Partition
from tests.support.proxy import CUT_REPLY, DROP_REPLY, DROP_REQUEST, RESET, Fault, FaultProxy


@pytest.fixture
def proxy(server, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A faulty network in front of the server, which knows all scripts already; clients try again at once."""
    monkeypatch.setattr("fencepost.driver._FIRST_WAIT_S", 0.0005)
    for name in names():
        partition.redis.script_load(load(name).text)
    with FaultProxy(server.socket) as one:
        yield one


def effects(p: Partition) -> tuple[Any, ...]:
    """What came of a call, in a form that two runs of one scenario share: no tokens, no times."""
    state = p.dump()
    jobs = {key: one.value["state"] for key, one in state.items() if key.startswith("job:")}
    members = {
        key: [member for member, _ in one.value]
        for key, one in state.items()
        if one.type == "zset" and key != "workers"
    }
    return jobs, members, set(state), Counter(t.name for t in p.told()), p.stats()


def prepared(p: Partition, one: Scenario) -> Any:
    p.redis.flushdb()
    p._numbers = itertools.count(1)
    return one.prepare(p)


def without_recounts(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """A refusal, a duplicate or a late note is counted and told for each try."""
    *rest, told, stats = found
    again = ("refused", "duplicate", "late")
    told = {name: n for name, n in told.items() if not name.startswith(again)}
    return (*rest, told, {name: n for name, n in stats.items() if not name.startswith(again)})


@pytest.mark.parametrize("one", SCENARIOS, ids=str)
def test_a_call_whose_reply_or_request_was_lost_takes_effect_once(
    partition: Partition, proxy: FaultProxy, one: Scenario
):
    """By the asynchronous driver for one half of the faults, by the synchronous one for the other."""
    call = prepared(partition, one)
    partition.run(call)
    plain = effects(partition)
    connections = partition.connections(proxy.url)
    for fault, hits in ((DROP_REPLY, 2), (RESET, 1), (DROP_REQUEST, 1), (CUT_REPLY, 1)):
        call = prepared(partition, one)
        proxy.plan.extend([fault] * hits)
        if fault in (DROP_REPLY, DROP_REQUEST):
            word = word_of(call, by_async(connections, call))
        else:
            driver = SyncDriver(connections)
            word = word_of(call, driver.run(call))
            driver.close()
        assert not proxy.plan, f"{fault.name} did not hit"
        assert word == (one.word if fault is DROP_REQUEST else one.again)
        found = effects(partition)
        if one.recounted:
            assert without_recounts(found) == without_recounts(plain), fault.name
        else:
            assert found == plain, fault.name


def by_async(connections: Any, call: Any) -> Any:
    async def work() -> Any:
        driver = AsyncDriver(connections)
        try:
            return await driver.run(call)
        finally:
            await driver.close()

    return asyncio.run(work())


def test_a_claim_whose_replies_are_lost_burns_no_attempt_and_no_token(partition: Partition, proxy: FaultProxy):
    for _ in range(3):
        partition.job()
    driver = SyncDriver(partition.connections(proxy.url))
    faults: list[Fault] = [DROP_REPLY, RESET, CUT_REPLY, DROP_REQUEST, DROP_REPLY]
    proxy.plan.extend(faults)
    runs = driver.run(partition.store.claim(partition.request(3))).jobs
    driver.close()
    assert [name for _, name in proxy.seen] == [*(fault.name for fault in faults), "pass"]
    assert [run.attempt for run in runs] == [1, 1, 1]
    assert [t.name for t in partition.told()] == ["enqueued"] * 3 + ["acquired"] * 3
    assert [partition.finish(run.key, "DONE").word for run in runs] == ["OK"] * 3
