"""Who may write about a run: each write of a run, from each state of its job, under each sort of key, sent twice."""

from __future__ import annotations

import pytest

from fencepost.states import Verb, legal
from fencepost.store import Answer, RunKey
from tests.support.partition import STATES, Partition

OUTCOMES = ("DONE", "RETRY", "BURY", "RELEASE", "CANCEL")
WRITES = (*OUTCOMES, "RENEW", "CHECKPOINT")
SORTS = ("current", "stale", "other nonce", "future", "future, same nonce", "missing job")
SETTLED_BY = {"scheduled": "RETRY", "queued": "RETRY", "waiting": "RETRY", "done": "DONE", "failed": "BURY",
              "cancelled": "CANCEL"}  # fmt: skip
MOVES = {"DONE": Verb.FINISH, "RETRY": Verb.RETRY, "BURY": Verb.BURY, "RELEASE": Verb.RELEASE, "CANCEL": Verb.CANCEL}


def key_of(sort: str, run: RunKey) -> RunKey:
    token = int(run.token)
    return {
        "current": run,
        "stale": RunKey(run.job_id, str(token - 1), "other.1"),
        "other nonce": RunKey(run.job_id, run.token, "other.1"),
        "future": RunKey(run.job_id, str(token + 1_000_000), "other.1"),
        "future, same nonce": RunKey(run.job_id, str(token + 1_000_000), run.nonce),
        "missing job": RunKey("nobody", run.token, run.nonce),
    }[sort]


def send(partition: Partition, write: str, key: RunKey) -> Answer:
    if write == "RENEW":
        return partition.renew(key)[0]
    if write == "CHECKPOINT":
        return partition.checkpoint(key, b'{"at":7}')
    return partition.finish(key, write)


def expected(write: str, state: str, sort: str, run: RunKey) -> Answer:
    if sort == "missing job":
        return Answer("GONE", "")
    if sort == "current" and SETTLED_BY.get(state) == write:
        return Answer("REPLAY", "")
    if sort == "current" and state == "processing":
        return Answer("OK", "")
    if state in ("scheduled", "queued", "waiting"):
        return Answer("EXPIRED", "")
    return Answer("STALE", run.token)


def innocents(partition: Partition) -> None:
    """Other jobs and a lease beside the one that is written about: nothing of theirs may move."""
    partition.put("processing", resource="innocent")
    partition.put("waiting")
    partition.put("failed")
    partition.job(queue="other", dedup="innocent")


CASES = [
    (write, state, sort)
    for write in WRITES
    for state in STATES
    for sort in SORTS
    # A nonce belongs to one token: without a run that goes on there is nothing to compare.
    if sort != "future, same nonce" or state == "processing"
]


@pytest.mark.parametrize(("write", "state", "sort"), CASES)
def test_only_the_run_that_holds_the_job_may_write(partition, write, state, sort):
    """Anybody else is refused with the reason, is counted and told once for each try, and changes nothing."""
    innocents(partition)
    run = partition.put(state, resource="thing", dedup="thing")
    key, before, counted, known = key_of(sort, run), partition.matter(), partition.stats(), len(partition.told())
    wanted = expected(write, state, sort, run)
    first = send(partition, write, key)
    assert first == wanted
    if first.word == "OK":
        accepted(partition, write, run, before)
        return
    assert partition.matter() == before
    assert send(partition, write, key) == first
    assert partition.matter() == before
    tries = 0 if first.word == "REPLAY" else 2
    counted[f"refused:{write.lower()}"] = tries
    assert partition.stats() == {name: n for name, n in counted.items() if n}
    told = partition.told(after=known)
    assert [(t.name, t.job_id, t.token, t.nonce) for t in told] == [("refused_stale", *key)] * tries
    newest = f" newest {first.detail}" if first.detail else ""
    assert {t.reason for t in told} <= {f"{write.lower()} {first.word.lower()}{newest}"}


def accepted(partition: Partition, write: str, run: RunKey, before: object) -> None:
    """An accepted write moves the job along the table, and a second one like it changes nothing more."""
    state = partition.state(run.job_id)
    if write in MOVES:
        assert legal("processing", MOVES[write], state)
        assert state != "processing"
    else:
        assert state == "processing"
    if write != "RENEW":  # it may prolong by nothing when it comes within the same millisecond
        assert partition.matter() != before
    after, counted, known = partition.matter(), partition.stats(), len(partition.told())
    second = send(partition, write, run)
    assert second == Answer("OK" if write in ("RENEW", "CHECKPOINT") else "REPLAY", "")
    if write == "RENEW":
        for key in ("leases", "slots:thing"):
            after[key] = after[key]._replace(value=[member for member, _ in after[key].value])
        now = partition.matter()
        for key in ("leases", "slots:thing"):
            now[key] = now[key]._replace(value=[member for member, _ in now[key].value])
        assert now == after
    else:
        assert partition.matter() == after
    assert partition.stats() == counted
    assert partition.told(after=known) == []


@pytest.mark.parametrize("write", WRITES)
def test_a_run_whose_lease_ran_out_may_not_write_although_nobody_took_it_yet(partition, write):
    run = partition.put("processing", resource="thing")
    partition.lapse(run)
    before, known = partition.matter(), len(partition.told())
    assert send(partition, write, run) == Answer("EXPIRED", "")
    if write in OUTCOMES:  # finish sweeps as well, so it takes the job back in the very same call
        record = partition.record(run.job_id)
        assert legal("processing", Verb.RECLAIM, record.state)
        assert (record.crashes, record.attempts, record.nonce, record.result) == (1, 0, "", None)
        assert [t.name for t in partition.told(after=known)] == ["refused_stale", "lost"]
    else:
        assert partition.matter() == before
    assert send(partition, write, run) == Answer("EXPIRED", "")
    assert partition.stats()[f"refused:{write.lower()}"] == 2


@pytest.mark.parametrize("write", WRITES)
def test_the_write_of_a_run_that_was_replaced_names_the_newer_token(partition, write):
    """report: celery/celery#6090"""
    old = partition.put("processing", resource="thing")
    queue = partition.record(old.job_id).queue
    partition.take_back(old)
    [new] = partition.claim(queues=(queue,), worker="w2")
    before = partition.matter()
    for _ in range(2):
        assert send(partition, write, old) == Answer("STALE", new.token)
        assert partition.matter() == before
    assert int(new.token) > int(old.token)
    assert send(partition, write, new.key).word == "OK"


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("how", ["taken back", "cancelled hard"])
def test_a_run_that_was_ended_from_outside_is_dead_from_that_instant(partition, write, how):
    run = partition.put("processing", resource="thing")
    if how == "taken back":
        partition.take_back(run)
    else:
        assert partition.cancel(run.job_id, hard=True).word == "CANCELLED"
    newest = partition.redis.hget(partition.keys.job(run.job_id), "token").decode()
    before = partition.matter()
    wanted = Answer("EXPIRED", "") if how == "taken back" else Answer("STALE", newest)
    assert send(partition, write, run) == wanted
    assert int(newest) > int(run.token)
    assert partition.matter() == before


def test_a_renewal_prolongs_a_lease_and_its_place_and_never_shortens_them(partition):
    run = partition.put("processing", resource="thing")
    _, token, _ = partition.acquire("alone", "me")

    def deadlines():
        places = ("leases", run.job_id), ("slots:thing", run.nonce), ("leases", "@me"), ("slots:alone", "@me")
        return [partition.redis.zscore(partition.keys.prefix + key, member) for key, member in places]

    before = deadlines()
    assert partition.renew(run, RunKey("@me", token, "me"), lease_ms=60_000) == [("OK", "")] * 2
    longer = deadlines()
    assert longer[0] >= before[0] + 29_000
    assert longer[0] == longer[1]
    assert partition.renew(run, lease_ms=1_000) == [("OK", "")]
    assert deadlines() == longer


@pytest.mark.parametrize("sort", ["stale", "other nonce", "future", "missing"])
def test_a_stand_alone_lease_is_renewed_and_released_only_by_its_holder(partition, sort):
    _, token, _ = partition.acquire("thing", "me")
    key = {
        "stale": ("me", str(int(token) - 1)),
        "other nonce": ("you", token),
        "future": ("me", str(int(token) + 9)),
        "missing": ("nobody", token),
    }[sort]
    before = partition.matter()
    wanted = ("STALE", token) if key[0] == "me" else ("GONE", "")
    for tries in (1, 2):
        assert partition.renew(RunKey("@" + key[0], key[1], key[0])) == [wanted]
        assert partition.release(*key) == wanted
        assert partition.matter() == before
        assert partition.stats()["refused:renew"] == tries
        assert partition.stats().get("refused:release", 0) == (tries if wanted[0] == "STALE" else 0)
    assert partition.renew(RunKey("@me", token, "me")) == [("OK", "")]
    assert partition.release("me", token) == ("OK", "")
    assert partition.release("me", token) == ("GONE", "")


@pytest.mark.parametrize("nonce", ["other.1", ""])
def test_a_run_that_redis_does_not_know_any_more_is_told_that_its_lease_is_over(partition, nonce):
    """After a rewind the job may stand in its queue as if it had never been claimed."""
    job_id = partition.job()
    assert partition.finish(RunKey(job_id, "1700000000000000", nonce), "DONE") == ("EXPIRED", "")
