"""The answer of an idempotent endpoint is kept once, by the holder of the lease of its key, and by nobody else."""

from __future__ import annotations

import pytest

from fencepost.errors import ScriptError
from tests.scripts.scenarios_of_answers import asked
from tests.support.partition import BOOKS, Partition


def test_a_key_is_bound_to_the_first_request_and_forgotten_after_its_time(partition):
    assert partition.begin_answer("c:1").word == "NEW"
    assert partition.begin_answer("c:1").word == "SAME"
    assert partition.begin_answer("c:1", "another").word == "CONFLICT"
    assert partition.begin_answer("c:2", "another").word == "NEW"
    assert 0 < partition.redis.pttl(partition.keys.answer("c:1")) <= 60_000
    assert partition.redis.hgetall(partition.keys.answer("c:1")) == {b"fingerprint": b"f"}


def test_an_answer_comes_back_byte_for_byte(partition):
    body = bytes(range(256)) * 10
    assert partition.run(partition.keeping("c:1", "me", asked(partition), body=body)).word == "STORED"
    found = partition.begin_answer("c:1")
    assert (found.word, found.status, found.about, found.body) == ("DONE", 200, b"{}", body)


def test_the_first_answer_stands_for_ever_whatever_its_own_writer_sends_later(partition):
    token = asked(partition)
    partition.run(partition.keeping("c:1", "me", token, body=b"first"))
    assert partition.run(partition.keeping("c:1", "me", token, body=b"second")).word == "STORED"
    assert partition.begin_answer("c:1").body == b"first"


def test_the_late_writer_is_refused_and_the_answer_of_the_other_stays(partition: Partition):
    """The owner was silent for longer than its lease; another one took the key over and answered."""
    late = asked(partition, "late")
    for key in (partition.keys.leases, partition.keys.slots("answer:c:1")):
        partition.redis.zadd(key, {"@late": 1}, xx=True)
    partition.sweep()
    partition.run(partition.keeping("c:1", "next", asked(partition, "next"), body=b"counts"))
    before = {key: one for key, one in partition.dump().items() if key not in BOOKS}
    assert partition.run(partition.keeping("c:1", "late", late, body=b"late")).word == "GONE"
    assert {key: one for key, one in partition.dump().items() if key not in BOOKS} == before
    assert partition.stats()["refused:answer"] == 1
    told = partition.told()[-1]
    assert (told.name, told.job_id, told.reason, told.resource) == (
        "refused_stale", "@late", "answer gone", "answer:c:1",
    )  # fmt: skip


def test_a_late_writer_is_refused_before_anybody_has_taken_over(partition: Partition):
    token = asked(partition)
    for key in (partition.keys.leases, partition.keys.slots("answer:c:1")):
        partition.redis.zadd(key, {"@me": 1}, xx=True)
    assert partition.run(partition.keeping("c:1", "me", token)).word == "EXPIRED"
    assert partition.begin_answer("c:1").word == "SAME"


def test_the_lease_of_one_key_keeps_no_answer_of_another(partition: Partition):
    token = asked(partition)
    before = partition.dump()
    with pytest.raises(ScriptError, match="a lease of answer:c:1"):
        partition.run(partition.keeping("c:2", "me", token))
    assert partition.dump() == before


def test_an_answer_is_kept_for_its_whole_time_from_when_it_was_made(partition: Partition):
    token = asked(partition)
    partition.redis.pexpire(partition.keys.answer("c:1"), 1_000)
    partition.run(partition.keeping("c:1", "me", token))
    assert partition.redis.pttl(partition.keys.answer("c:1")) > 50_000
