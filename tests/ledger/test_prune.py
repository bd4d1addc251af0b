"""Deleting what is old: whole jobs, never open ones, never younger than Redis keeps them."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select, update

from fencepost.errors import ConfigurationError, RedisUnavailable
from fencepost.job import JobSpec
from fencepost.ledger import Ledger
from fencepost.ledger.prune import Pruned, prune
from fencepost.ledger.verify import verify
from fencepost.sql.engines import now_ms, open_engine
from fencepost.sql.prune import prune as prune_guard
from fencepost.sql.tables import effects, events, fences, jobs, outbox
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


def test_jobs_that_redis_still_has_stay_however_old(partition, ledger, archiver):
    kept, gone = (partition.put("done").job_id for _ in range(2))
    archiver.copy_all()
    age(ledger, 100 * DAY_MS)
    assert prune(ledger, 90 * DAY_MS, kept=lambda ids: {kept} & set(ids))[:2] == (1, 3)
    assert ledger.job(gone) is None
    assert ledger.job(kept) is not None
    assert verify(ledger).ok


# -- the guard ------------------------------------------------------------------------------------------------


def _nobody(_ids) -> set[str]:
    return set()


@pytest.fixture
def guard(any_database):
    """A database with the guard's tables."""
    upgrade(any_database)
    engine = open_engine(any_database)
    yield engine
    engine.dispose()


def write(engine, table, name: str, age_days: int, *, namespace: str = "a", job_id: str = "j") -> None:
    """One row of the guard, written so long ago."""
    at = now_ms() - age_days * DAY_MS
    values = {"namespace": namespace, "token": 1, "nonce": "n"}
    values |= {"resource": name, "updated_at_ms": at} if table is fences else {}
    values |= {"effect_key": name, "created_at_ms": at, "job_id": job_id} if table is effects else {}
    with engine.begin() as connection:
        connection.execute(insert(table).values(values))


def left(engine) -> set[str]:
    """The keys of the effects that are there."""
    with engine.connect() as connection:
        return set(connection.scalars(select(effects.c.effect_key)))


def test_old_effects_and_fences_of_one_namespace_go_and_young_ones_stay(any_database, guard):
    for namespace in ("a", "b"):
        for name, days in (("old", 40), ("young", 10)):
            write(guard, fences, f"{namespace}.{name}", days, namespace=namespace)
            write(guard, effects, f"{namespace}.{name}", days, namespace=namespace)
            write(guard, effects, f"{namespace}.{name}.lease", days, namespace=namespace, job_id="")
    assert prune_guard(any_database, 30 * DAY_MS, namespace="a", kept=_nobody) == (2, 1, 0)
    stay = {"a.young", "b.young", "b.old"}
    assert left(guard) == stay | {f"{name}.lease" for name in stay}
    with guard.connect() as connection:
        assert set(connection.scalars(select(fences.c.resource))) == stay


def test_the_effect_of_a_job_that_redis_has_stays_however_old(any_database, guard, monkeypatch):
    monkeypatch.setattr("fencepost.sql.prune._PAGE", 3)
    for number in range(10):
        write(guard, effects, f"e{number}", 40 + number % 2, job_id=f"j{number}")
    asked: list[str] = []

    def kept(ids) -> set[str]:
        asked.extend(ids)
        return {"j4", "j7"} & set(ids)

    assert prune_guard(any_database, 30 * DAY_MS, namespace="a", kept=kept) == (8, 0, 2)
    assert left(guard) == {"e4", "e7"}
    assert sorted(asked) == sorted(f"j{number}" for number in range(10))


def test_the_effect_of_a_job_that_an_outbox_or_a_ledger_has_open_stays(any_database, guard, sqlite_url):
    upgrade(sqlite_url)
    for name in ("accepted", "ended", "unpublished", "published", "elsewhere"):
        write(guard, effects, name, 40, job_id=name)
    book, other = Ledger(sqlite_url, "a"), Ledger(sqlite_url, "b")
    book.accept([JobSpec(id="accepted", kind="mail"), JobSpec(id="ended", kind="mail")])
    other.accept([JobSpec(id="elsewhere", kind="mail")])
    with book.begin("test") as connection:
        connection.execute(update(jobs).where(jobs.c.job_id == "ended").values(state="done", finished_at_ms=1))
    book.close()
    other.close()
    with guard.begin() as connection:
        for name, at in (("unpublished", None), ("published", 1)):
            row = {"job_id": name, "namespace": "a", "spec": "{}", "created_at_ms": 1, "published_at_ms": at}
            connection.execute(insert(outbox).values(row))
    gone = prune_guard(any_database, 30 * DAY_MS, namespace="a", kept=_nobody, others=[sqlite_url])
    assert gone == (3, 0, 2)
    assert left(guard) == {"accepted", "unpublished"}


def test_nothing_of_the_guard_goes_while_redis_is_away(any_database, guard):
    write(guard, effects, "job", 40)
    write(guard, effects, "lease", 40, job_id="")
    write(guard, fences, "fence", 40)

    def away(_ids) -> set[str]:
        raise RedisUnavailable("look", "refused", False)

    with pytest.raises(RedisUnavailable):
        prune_guard(any_database, 30 * DAY_MS, namespace="a", kept=away)
    assert left(guard) == {"job", "lease"}
    assert prune_guard(any_database, 30 * DAY_MS, namespace="a", kept=_nobody) == (2, 1, 0)


@pytest.mark.parametrize(("age_ms", "shown"), [(1_000, "1 s"), (3_600_000, "1 h"), (5 * DAY_MS, "5 days")])
def test_an_age_below_the_retention_is_refused_in_its_own_unit(sqlite_url, age_ms, shown):
    for retention_ms, least in ((0, 7), (60 * DAY_MS, 60)):
        with pytest.raises(ConfigurationError, match=f"{shown} are less than the {least} days .* do its work twice"):
            prune_guard(sqlite_url, age_ms, namespace="a", kept=_nobody, retention_ms=retention_ms)
