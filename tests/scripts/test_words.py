"""Each word a header promises is answered somewhere; each answered call, sent again, changes nothing more."""

from __future__ import annotations

import re

import pytest

from fencepost.scripts import names, source
from tests.scripts.scenarios import Scenario, word_of
from tests.scripts.scenarios_of_operators import SCENARIOS
from tests.support.partition import BOOKS, Partition, without_clock


def promised(script: str) -> set[str]:
    """The reply words of a header's RETURNS."""
    text = re.search(r"^-- RETURNS:(.*?)^-- TWICE:", source(script), re.M | re.S)
    assert text
    plain = re.sub(r"\([^()]*\)", "", text.group(1).replace("\n--", " "))
    return set(re.findall(r"\b[A-Z]{2,}\b", plain))


@pytest.mark.parametrize("script", names())
def test_every_word_of_a_header_has_a_scenario_and_no_scenario_has_a_word_of_its_own(script):
    answered = {one.word for one in SCENARIOS if one.script == script}
    answered |= {one.again for one in SCENARIOS if one.script == script}
    assert answered == promised(script)


@pytest.mark.parametrize("one", SCENARIOS, ids=str)
def test_a_call_gets_its_word_and_sent_again_it_changes_nothing_more(partition: Partition, one: Scenario):
    """The second answer is equivalent, and all that counts in Redis is the same to the byte."""
    call = one.prepare(partition)
    first = partition.run(call)
    assert word_of(call, first) == one.word
    before, counted, known = partition.dump(), partition.stats(), len(partition.told())
    second = partition.run(call)
    assert word_of(call, second) == one.again
    if one.again == one.word and one.script not in ("claim", "finish", "renew"):
        assert second == first
    if one.script in ("claim", "finish"):
        assert second.jobs == first.jobs
    after = partition.dump()
    if one.recounted:
        assert sum(partition.stats().values()) == sum(counted.values()) + 1
        assert len(partition.told()) == known + 1
        for book in BOOKS:
            before.pop(book, None), after.pop(book, None)
    if one.script == "renew":  # prolonged to its own time, as a later heartbeat would
        for state in (before, after):
            for key in ("leases", "slots:thing"):
                if key in state:
                    state[key] = state[key]._replace(value=[member for member, _ in state[key].value])
    assert without_clock(after) == without_clock(before)


@pytest.mark.parametrize("one", SCENARIOS, ids=str)
def test_a_script_that_the_server_forgot_is_sent_again_with_its_text(partition: Partition, one: Scenario):
    """report: Openpanel-dev/groupmq#16"""
    call = one.prepare(partition)
    partition.redis.script_flush()
    assert word_of(call, partition.run(call)) == one.word
    partition.redis.script_flush()
    assert word_of(call, partition.run(call)) == one.again
