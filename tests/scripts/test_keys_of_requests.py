"""Dedup and idempotency keys, the names of things, and the text of events: odd ones and broken ones."""

from __future__ import annotations

import pytest

from fencepost.errors import ConfigurationError
from fencepost.job import JobSpec
from tests.support.partition import Partition


def spec(job_id: str, **options: object) -> JobSpec:
    return JobSpec(id=job_id, kind="mail", payload=b"{}", **options)  # type: ignore[arg-type]


# -- dedup ------------------------------------------------------------------------------------------------


def owner_is_gone(p: Partition) -> str:
    return "nobody"


def owner_has_ended(p: Partition) -> str:
    return p.put("done").job_id


def owner_has_another_key(p: Partition) -> str:
    return p.job(dedup="other")


def owner_has_no_key(p: Partition) -> str:
    return p.job()


@pytest.mark.parametrize("owner", [owner_is_gone, owner_has_ended, owner_has_another_key, owner_has_no_key])
def test_a_dedup_key_whose_owner_is_no_live_job_with_it_heals_itself(partition, owner):
    """report: laravel/framework#49890"""
    partition.redis.set(partition.keys.dedup("k"), owner(partition))
    assert partition.enqueue(spec("new", dedup="k")) == [("QUEUED", "new", "queued")]
    assert partition.redis.get(partition.keys.dedup("k")) == b"new"
    assert partition.stats()["healed:dedup"] == 1
    assert partition.enqueue(spec("again", dedup="k")) == [("DUPLICATE", "new", "queued")]


@pytest.mark.parametrize("state", ["scheduled", "queued", "waiting", "processing"])
def test_a_dedup_key_belongs_to_its_job_in_every_live_state(partition, state):
    run = partition.put(state, dedup="k")
    assert partition.enqueue(spec("new", dedup="k")) == [("DUPLICATE", run.job_id, state)]
    assert partition.redis.pttl(partition.keys.dedup("k")) == -1


@pytest.mark.parametrize("how", ["DONE", "BURY", "CANCEL", "cancelled", "hard", "poison", "skip", "fail"])
def test_each_end_of_a_job_frees_its_dedup_key_in_the_same_step(partition, how):
    """Also the ends that never reach user code. report: laravel/framework#49890"""
    if how in ("skip", "fail"):
        partition.acquire("thing", "holder")
        partition.job(dedup="k", resource="thing", on_busy=how)
        partition.claim()
    elif how == "cancelled":
        partition.cancel(partition.put("queued", dedup="k").job_id)
    else:
        run = partition.put("processing", dedup="k", max_crashes=0)
        if how == "hard":
            partition.cancel(run.job_id, hard=True)
        elif how == "poison":
            partition.take_back(run)
        else:
            partition.finish(run, how)
    assert not partition.redis.exists(partition.keys.dedup("k"))
    assert partition.enqueue(spec("new", dedup="k"))[0][0] == "QUEUED"


@pytest.mark.parametrize("how", ["RETRY", "RELEASE", "lost"])
def test_a_job_that_comes_back_keeps_its_dedup_key(partition, how):
    """report: zoolutions/sidekiq-unique-jobs#861"""
    run = partition.put("processing", dedup="k")
    if how == "lost":
        partition.take_back(run)
    else:
        partition.finish(run, how)
    assert partition.enqueue(spec("new", dedup="k")) == [("DUPLICATE", run.job_id, "queued")]


def test_an_old_holder_cannot_free_the_key_that_a_newer_job_owns(partition):
    old = partition.put("processing", dedup="k")
    partition.cancel(old.job_id, hard=True)
    partition.enqueue(spec("new", dedup="k"))
    for word in ("DONE", "BURY", "CANCEL", "RETRY"):
        assert partition.finish(old, word).word == "STALE"
    assert partition.redis.get(partition.keys.dedup("k")) == b"new"


# -- idempotency ------------------------------------------------------------------------------------------


def test_a_request_is_answered_with_its_first_job_and_the_state_it_is_in_now(partition):
    job_id = partition.job(idem="c:1", fingerprint="f")
    for state in ("queued", "processing", "done"):
        if state == "processing":
            [run] = partition.claim()
        elif state == "done":
            partition.finish(run.key, "DONE")
        assert partition.enqueue(spec("new", idem="c:1", fingerprint="f")) == [("REPLAYED", job_id, state)]
    partition.purge(job_id)
    assert partition.enqueue(spec("new", idem="c:1", fingerprint="f")) == [("REPLAYED", job_id, "")]


def test_a_request_that_met_a_duplicate_is_bound_to_the_job_it_met(partition):
    owner = partition.job(dedup="k")
    assert partition.enqueue(spec("a", dedup="k", idem="c:1", fingerprint="f"))[0][:2] == ("DUPLICATE", owner)
    partition.cancel(owner)
    assert partition.enqueue(spec("a", dedup="k", idem="c:1", fingerprint="f"))[0][:2] == ("REPLAYED", owner)


def test_an_idempotency_key_lives_as_long_as_it_was_asked_to_and_no_longer(partition):
    partition.job(idem="c:1", fingerprint="f", idem_ttl_ms=5_000)
    assert 0 < partition.redis.pttl(partition.keys.idem("c:1")) <= 5_000
    partition.enqueue(spec("new", idem="c:1", fingerprint="f", idem_ttl_ms=90_000))
    assert partition.redis.pttl(partition.keys.idem("c:1")) <= 5_000, "a repetition does not prolong it"


# -- names ------------------------------------------------------------------------------------------------

ODD = ["ü", "漢字", "a:b:c", "a=b=c", "x" * 512, "%s%d", "'\"", "\\n", "[a]*?", "😀"]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_name_goes_through_a_whole_life_unchanged(partition, name):
    one = spec("j", resource=name, dedup=name, idem=name, fingerprint=name, queue="q", priority=9)
    one.kind = name
    one.check()
    assert partition.enqueue(one) == [("QUEUED", "j", "queued")]
    call = partition.store.claim(partition.request(1, queues=("q",)))
    [run] = partition.run(call).jobs
    assert (run.kind, run.resource) == (name, name)
    assert partition.run(call).jobs == [run]
    assert partition.renew(run.key) == [("OK", "")]
    assert partition.enqueue(spec("other", dedup=name)) == [("DUPLICATE", "j", "processing")]
    assert partition.enqueue(spec("other", idem=name, fingerprint=name)) == [("REPLAYED", "j", "processing")]
    assert partition.finish(run.key, "DONE") == ("OK", "")
    assert not partition.redis.exists(partition.keys.slots(name), partition.keys.dedup(name), partition.keys.leases)
    assert (partition.told()[-1].kind, partition.told()[-1].resource) == (name, name)


@pytest.mark.parametrize("job_id", ["=a", "@a", "a b", "{a}", "", "a\tb", "a\nb", "x" * 513])
def test_an_id_that_a_script_would_take_for_something_else_is_refused_before_it_is_sent(job_id):
    """= and @ mark places and leases beside the ids of jobs; a space ends an id in the record for replays."""
    with pytest.raises(ConfigurationError, match=r"^(job_)?id: .* is not a"):
        spec(job_id).check()


def test_no_text_of_a_caller_can_break_an_event_or_forge_one(partition):
    evil = "why\tnot\nenqueued\tforged\tmail"
    asked, purged = partition.put("processing"), partition.put("done")
    known = len(partition.told())
    partition.cancel(asked.job_id, reason=evil)
    partition.run(partition.store.purge([purged.job_id], evil))
    partition.finish(asked, "CANCEL", evil)
    told = partition.told(after=known)
    assert [t.name for t in told] == ["cancel_asked", "purged", "cancelled"]
    assert {t.reason for t in told} == {"why not enqueued forged mail"}
    assert partition.record(asked.job_id).reason == evil
