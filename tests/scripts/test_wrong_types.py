"""A key of a wrong type: a script fails above its first write and changes nothing, or goes on by design, soundly.

Redis does not undo a script that fails midway, so an error below a write would leave half a transition behind.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fencepost.errors import ScriptError
from tests.scripts.scenarios import SCENARIOS as ORDINARY
from tests.scripts.scenarios import Scenario
from tests.scripts.scenarios_of_operators import SCENARIOS
from tests.support.partition import Partition
from tests.support.state import Stored

# The kinds of keys with which a script goes on. What is not named here must make it fail.
UNUSED = {  # it never looks at them, in the cases in which it goes on
    "enqueue": {"dead"},
    "claim": {"dead"},
    "finish": set(),
    "renew": {"dead", "later", "worker", "bell"},
    "checkpoint": {"dead", "later", "worker", "bell", "ready", "slots"},
    "cancel": {"dead", "later", "worker", "bell", "lease"},
    "requeue": {"later", "worker", "bell", "ready"},
    "purge": {"later", "worker", "bell", "ready"},
    "heal": {"dead", "worker", "bell", "lease", "slots"},
    "acquire": {"dead", "worker", "bell", "lease", "job"},
    "release": {"dead", "later"},
    "bump": {"dead", "later", "worker", "bell", "ready", "slots"},
    "archived": {"dead", "later", "worker", "bell", "ready", "job"},
    "conclude": {"worker", "bell", "ready", "lease"},
    "pause": {"dead", "later", "worker", "bell", "job"},
    "revoke": {"dead", "later", "worker", "bell", "ready", "slots", "line"},
    "credential": {"dead", "later"},
    "answer": {"dead", "later", "slots", "lease"},
}
GUARDED = {
    # A known job whose idempotency key decides is not looked at; a bell is only a hint.
    "enqueue": {"bell", "job"},
    # An id whose record is no job leaves its list and is counted; what a resource's keys cannot take is put off.
    "claim": {"bell", "job", "slots", "line", "dedup", "workers"},
    # What hangs on a job that ends is freed as far as it can be; the job ends all the same.
    "finish": {"bell", "job", "slots", "line", "dedup", "ready", "workers"},
    "cancel": {"bell", "dedup", "job", "ready"},
    "heal": {"ready"},
    "release": {"bell", "job", "lease", "grant", "ready", "slots"},
    "conclude": {"bell", "job", "dedup", "ready"},
    "revoke": {"bell", "job", "dedup", "ready", "lease", "grant"},
}


def kind_of(key: str) -> str:
    return key.partition(":")[0]


def spoil(p: Partition, key: str) -> Stored:
    full = p.keys.prefix + key
    spec = p.keys.which(full)
    assert spec is not None, key
    p.redis.delete(full)
    if spec.type == "string":
        p.redis.rpush(full, "spoilt")
    else:
        p.redis.set(full, "spoilt")
    return p.dump()[key]


def fresh(p: Partition, one: Scenario) -> Any:
    p.redis.flushdb()
    p._numbers = itertools.count(1)  # so that each time the same names come up
    return one.prepare(p)


def keys_in_use(p: Partition, one: Scenario) -> list[str]:
    """Every key there is before or after the call, and every key the call declares."""
    call = fresh(p, one)
    names = set(p.dump()) | {key.removeprefix(p.keys.prefix) for key in call.keys}
    p.run(call)
    return sorted(names | set(p.dump()))


def places(state: dict[str, Stored]) -> dict[str, list[str]]:
    """For each job the lists it stands in."""
    found: dict[str, list[str]] = {}
    for key, one in state.items():
        if one.type == "zset" and kind_of(key) in ("ready", "later", "leases", "line"):
            for member, _ in one.value:
                if member[0] not in "=@":
                    found.setdefault(member, []).append(kind_of(key))
    return found


def unsound(state: dict[str, Stored], spoilt: str) -> list[str]:
    """Live jobs that do not stand in the one list of their state; the list that is spoilt cannot hold anybody."""
    at = {"queued": "ready", "scheduled": "later", "waiting": "line", "processing": "leases"}
    found, problems = places(state), []
    for key, one in state.items():
        if kind_of(key) != "job" or one.type != "hash":
            continue
        job_id, home = key.removeprefix("job:"), at.get(one.value["state"])
        wanted = [home] if home else []
        if found.get(job_id, []) != wanted and kind_of(spoilt) != home:
            problems.append(f"{job_id} is {one.value['state']} and stands in {found.get(job_id)}")
    return problems


def failure(p: Partition, call: Any) -> ScriptError | None:
    try:
        p.run(call)
    except ScriptError as error:
        return error
    return None


@pytest.mark.leaks_keys("keys are spoilt on purpose")
@pytest.mark.parametrize("one", SCENARIOS, ids=str)
def test_a_key_of_a_wrong_type_leaves_no_half_transition_behind(partition: Partition, one: Scenario):
    for key in keys_in_use(partition, one):
        call = fresh(partition, one)
        was_sound = unsound(partition.dump(), "") == []
        junk, before = spoil(partition, key), partition.dump()
        error = failure(partition, call)
        if error is not None:
            assert partition.dump() == before, f"{key}: {error}"
            assert "WRONGTYPE" in error.problem
            assert error.line > 0
            assert f"{error.script}.lua:{error.line}: " in str(error)
        else:
            assert kind_of(key) in UNUSED[one.script] | GUARDED.get(one.script, set()), key
            after = partition.dump()
            assert after[key] == junk or kind_of(key) == "grant", key  # a wake-up is always written anew
            if was_sound:
                assert unsound(after, key) == [], key


def test_a_broken_job_at_the_head_of_a_queue_does_not_stop_the_queue(partition):
    """It leaves the queue and is counted, and the jobs behind it run."""
    broken, good = partition.job(), partition.job()
    partition.redis.delete(partition.keys.job(broken))
    assert [one.job_id for one in partition.claim(5)] == [good]
    assert partition.stats()["orphan:ready"] == 1


@pytest.mark.leaks_keys("keys are spoilt on purpose")
def test_an_outcome_is_written_even_if_the_next_job_is_broken(partition):
    run, broken, good = partition.put("processing", dedup="a"), partition.job(), partition.job()
    spoil(partition, f"job:{broken}")
    served = partition.run(partition.finishing(run, "DONE", wanted=5))
    assert served.replies == [("OK", "")]
    assert [one.job_id for one in served.jobs] == [good]
    assert partition.stats()["done:mail"] == 1
    assert partition.told()[-2:] == [t for t in partition.told() if t.name in ("done", "acquired")][-2:]


def test_the_table_names_every_script_that_has_scenarios():
    assert set(UNUSED) == {one.script for one in ORDINARY}
