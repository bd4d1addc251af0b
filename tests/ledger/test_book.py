"""Accepting durable jobs, taking them back, and asking the ledger."""

from __future__ import annotations

from functools import partial

import pytest

from fencepost.errors import ConfigurationError, LedgerUnavailable
from fencepost.job import JobSpec
from fencepost.ledger import Ledger
from fencepost.sql.engines import now_ms
from tests.support.waiting import wait_until


def spec(job_id: str, **more: object) -> JobSpec:
    return JobSpec(id=job_id, kind="mail", durable=True, **more)  # type: ignore[arg-type]


def test_an_accepted_job_is_there_with_all_that_enqueue_sends(ledger):
    sent = spec("a", payload=b'{"x":"\xc3\xa9"}', resource="thing", priority=3, dedup="d", queue="slow")
    assert ledger.accept([sent]) == {"a"}
    row = ledger.job("a")
    assert row.spec == sent
    assert (row.state, row.durable, row.kind, row.queue, row.resource) == ("accepted", True, "mail", "slow", "thing")
    assert abs(row.created_at_ms - now_ms()) < 60_000


def test_accepting_twice_tells_which_are_new_and_changes_nothing(ledger):
    ledger.accept([spec("a", priority=1)])
    before = ledger.job("a")
    assert ledger.accept([spec("a", priority=2), spec("b")]) == {"b"}
    assert ledger.job("a") == before


def test_more_jobs_than_one_statement_takes_are_accepted_in_one_transaction(ledger):
    ids = {f"j{number}" for number in range(1_203)}
    assert ledger.accept([spec(one) for one in ids]) == ids
    assert ledger.withdraw(ids) == 1_203


def test_withdrawing_takes_back_only_what_redis_has_not_told_of(partition, ledger, archiver):
    ledger.accept([spec("told"), spec("refused")])
    partition.enqueue(spec("told"))
    archiver.copy_all()
    assert ledger.withdraw(["told", "refused", "unknown"]) == 1
    assert ledger.job("refused") is None
    assert ledger.job("told").state == "queued"


def test_an_ended_job_is_not_accepted_again_while_redis_keeps_it_and_is_after_that(partition, ledger, archiver):
    for retention_ms, again in ((60_000, frozenset[str]()), (1, frozenset({"short"}))):
        one = spec("short" if retention_ms == 1 else "long", retention_ms=retention_ms, failed_retention_ms=1)
        ledger.accept([one])
        partition.enqueue(one)
        [run] = partition.claim()
        partition.finish(run.key, "DONE")
        archiver.copy_all()
        ended_at = ledger.job(one.id).finished_at_ms
        wait_until(partial(_is_past, ended_at + 5))
        assert ledger.accept([one]) == again
        assert ledger.job(one.id).state == ("accepted" if again else "done")


def _is_past(moment_ms: int) -> bool:
    return now_ms() > moment_ms


def test_what_was_never_heard_of_is_none(ledger):
    assert ledger.job("x") is None
    assert ledger.history("x") == []


def test_a_server_that_is_away_is_told_as_such_and_nothing_was_done(namespace):
    ledger = Ledger("postgresql://nobody@127.0.0.1:1/none", namespace)
    with pytest.raises(LedgerUnavailable) as away:
        ledger.accept([spec("a")])
    assert away.value.executed is False
    ledger.close()


def test_a_file_that_somebody_else_writes_for_too_long_is_away(sqlite_url, namespace):
    ledger, other = Ledger(sqlite_url, namespace), Ledger(sqlite_url, namespace)
    ledger.prepare()
    other.prepare()
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 10")
    with other.begin("hold"), pytest.raises(LedgerUnavailable, match="locked"):
        ledger.accept([spec("a")])
    assert ledger.accept([spec("a")]) == {"a"}
    ledger.close()
    other.close()


def test_reading_holds_up_no_writer(sqlite_url, namespace):
    ledger, other = Ledger(sqlite_url, namespace), Ledger(sqlite_url, namespace)
    ledger.accept([spec("a")])
    with other.reading("look") as connection:
        connection.exec_driver_sql("SELECT count(*) FROM fencepost_jobs").all()
        assert ledger.accept([spec("b")]) == {"b"}
    ledger.close()
    other.close()


@pytest.mark.parametrize("url", ["nonsense", "mysql+pymysql://root@127.0.0.1/x"])
def test_a_url_no_ledger_can_be_kept_at_is_refused(url, namespace):
    with pytest.raises(ConfigurationError, match="Nothing was changed"):
        Ledger(url, namespace)
