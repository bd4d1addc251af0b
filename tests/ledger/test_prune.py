"""Deleting what is old: whole jobs, never open ones, never younger than Redis keeps them."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select, update

from fencepost.errors import ConfigurationError
from fencepost.job import JobSpec
from fencepost.ledger.prune import Pruned, prune
from fencepost.ledger.verify import verify
from fencepost.sql.engines import now_ms, open_engine
from fencepost.sql.prune import prune as prune_guard
from fencepost.sql.tables import effects, events, fences, jobs
from fencepost.sql.upgrade import upgrade
from tests.ledger.copies import copied_lines, cursor_of
from tests.ledger.stories import everything

DAY_MS = 86_400_000


def age(ledger, by_ms: int) -> None:
    """Let everything that is in the ledger have happened earlier."""
    with ledger.begin("test") as connection:
        connection.execute(update(events).values(at_ms=events.c.at_ms - by_ms))
        connection.execute(
            update(jobs).values(
                finished_at_ms=jobs.c.finished_at_ms - by_ms,
                created_at_ms=jobs.c.created_at_ms - by_ms,
                updated_at_ms=jobs.c.updated_at_ms - by_ms,
            )
        )


def test_old_jobs_go_whole_open_ones_stay_whole_and_the_rest_is_in_order(partition, ledger, archiver):
    told = everything(partition)
    archiver.copy_all()
    age(ledger, 100 * DAY_MS)
    young = partition.put("done").job_id
    archiver.copy_all()
    whole = sum(copied_lines(ledger).values())
    gone = prune(ledger, 90 * DAY_MS)
    assert gone.jobs > 10
    assert sum(copied_lines(ledger).values()) == whole - gone.events
    for name in ("done", "failed", "cancelled", "guarded", "purged"):
        assert ledger.job(told[name]) is None
        assert ledger.history(told[name]) == []
    for name in ("scheduled", "waiting", "running", "delayed"):
        assert ledger.job(told[name]) is not None
        assert ledger.history(told[name])[0].name == "enqueued"
    assert ledger.job(young).state == "done"
    assert cursor_of(ledger).pruned == gone.events
    assert verify(ledger).findings == []


def test_a_ledger_that_was_pruned_still_shows_what_is_missing_since(partition, ledger, archiver):
    partition.put("done")
    archiver.copy_all()
    age(ledger, 100 * DAY_MS)
    run = partition.put("done")
    archiver.copy_all()
    prune(ledger, 90 * DAY_MS)
    with ledger.begin("damage") as connection:
        mine = (events.c.job_id == run.job_id, events.c.name == "acquired")
        seq = connection.execute(select(events.c.seq).where(*mine)).scalar_one()
        connection.execute(events.delete().where(*mine))
    found = [one.text for one in verify(ledger).findings if one.what == "events_missing"]
    assert found == [f"the events {seq}-{seq} of epoch 1 are not there"]


def test_a_second_prune_finds_nothing(partition, ledger, archiver):
    partition.put("done")
    archiver.copy_all()
    age(ledger, 100 * DAY_MS)
    assert prune(ledger, 90 * DAY_MS)[:2] == (1, 3)
    assert prune(ledger, 90 * DAY_MS)[:2] == (0, 0)


def test_more_jobs_than_one_transaction_takes_all_go(partition, ledger, archiver, monkeypatch):
    monkeypatch.setattr("fencepost.ledger.prune._JOBS", 3)
    for _ in range(10):
        partition.put("done")
    archiver.copy_all()
    age(ledger, 100 * DAY_MS)
    assert prune(ledger, 90 * DAY_MS).jobs == 10


def test_a_job_with_a_longer_retention_of_its_own_stays(partition, ledger, archiver):
    spec = JobSpec(id="kept", kind="mail", retention_ms=365 * DAY_MS)
    ledger.accept([spec])
    partition.enqueue(spec)
    [run] = partition.claim()
    partition.finish(run.key, "DONE")
    archiver.copy_all()
    age(ledger, 100 * DAY_MS)
    assert prune(ledger, 90 * DAY_MS)[:2] == (0, 0)
    assert ledger.job("kept") is not None


def test_less_than_the_retention_is_refused_and_nothing_goes(partition, ledger, archiver):
    partition.put("done")
    archiver.copy_all()
    before = copied_lines(ledger)
    with pytest.raises(ConfigurationError, match=r"6 days are less than the 7 days .* Nothing was changed"):
        prune(ledger, 6 * DAY_MS)
    assert copied_lines(ledger) == before


def test_an_empty_ledger_has_nothing_to_prune(ledger):
    assert prune(ledger, 90 * DAY_MS)[:2] == (0, 0)
    assert isinstance(prune(ledger, 90 * DAY_MS), Pruned)


def test_old_effects_and_fences_go_and_young_ones_stay(any_database):
    upgrade(any_database)
    engine, now = open_engine(any_database), now_ms()
    with engine.begin() as connection:
        for name, at in (("old", now - 40 * DAY_MS), ("young", now - 10 * DAY_MS)):
            for namespace in ("a", "b"):
                who = {"namespace": namespace, "token": 1, "nonce": "n"}
                connection.execute(insert(fences).values(resource=name, updated_at_ms=at, **who))
                connection.execute(insert(effects).values(effect_key=name, job_id="j", created_at_ms=at, **who))
    with pytest.raises(ConfigurationError, match="would do its work twice"):
        prune_guard(any_database, 5 * DAY_MS)
    assert prune_guard(any_database, 30 * DAY_MS, namespace="a") == (1, 1)
    assert prune_guard(any_database, 30 * DAY_MS) == (1, 1)
    with engine.connect() as connection:
        assert set(connection.scalars(select(fences.c.resource))) == {"young"}
        assert set(connection.scalars(select(effects.c.effect_key))) == {"young"}
    engine.dispose()
