"""Redis comes back older, empty, or with holes: the ledger keeps all that was told and notices what was lost."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from fencepost.job import JobSpec
from fencepost.ledger import Archiver, Copied
from fencepost.ledger.verify import verify
from fencepost.sql.tables import events
from tests.ledger.copies import Past, copied_lines, cursor_of, marks_of, tick, told_lines
from tests.support.waiting import wait_until


def test_an_older_copy_of_redis_begins_an_epoch_and_no_event_is_copied_twice(partition, ledger, archiver):
    old = partition.job()
    archiver.copy_all()
    past = Past(partition)
    lost = partition.job()
    archiver.copy_all()
    told = told_lines(partition)
    past.restore()
    assert archiver.copy_some() == Copied(rewound=True, more=True, epoch=2)
    assert archiver.copy_all() == Copied(epoch=2)
    anew = partition.job()
    assert archiver.copy_all() == Copied(events=1, epoch=2)
    told |= told_lines(partition)
    assert copied_lines(ledger) == told
    assert {one: ledger.job(one).state for one in (old, lost, anew)} == dict.fromkeys((old, lost, anew), "queued")
    assert [(one.epoch, one.seq) for one in ledger.history(anew)] == [(2, 2)]
    assert marks_of(ledger) == [(2, "rewind", 0, 1)]
    assert verify(ledger).ok


def test_a_rewind_is_noticed_although_the_numbers_have_passed_the_cursor_again(partition, ledger, archiver):
    partition.job()
    past = Past(partition)
    partition.job()
    archiver.copy_all()
    before = told_lines(partition)
    past.restore()
    for _ in range(5):
        partition.job()
    assert archiver.copy_all().rewound
    assert copied_lines(ledger) == before | told_lines(partition)
    assert cursor_of(ledger).rewinds == 1


def test_an_emptied_redis_begins_an_epoch_at_once_and_only_one(partition, ledger, archiver):
    partition.job()
    archiver.copy_all()
    before = told_lines(partition)
    partition.redis.flushall()
    assert archiver.copy_some().rewound
    assert archiver.copy_some() == Copied(epoch=2)
    tick(partition)
    partition.job()
    assert archiver.copy_some() == Copied(events=1, epoch=2)
    assert archiver.copy_some() == Copied(epoch=2)
    assert copied_lines(ledger) == before | told_lines(partition)
    assert verify(ledger).ok


def test_a_lost_meta_record_begins_an_epoch_and_copies_nothing_again(partition, ledger, archiver):
    partition.job()
    partition.job()
    archiver.copy_all()
    partition.redis.delete(partition.keys.meta)
    assert archiver.copy_some().rewound
    partition.job()
    assert archiver.copy_all().events == 1
    assert archiver.copy_all() == Copied(epoch=2)
    assert copied_lines(ledger) == told_lines(partition)
    assert (cursor_of(ledger).seq, cursor_of(ledger).lost) == (3, 0)
    assert verify(ledger).ok


def test_a_rewind_in_the_middle_of_the_reading_begins_another_epoch(partition, ledger, archiver):
    for _ in range(6):
        partition.job()
    archiver.copy_all()
    past = Past(partition)
    partition.job()
    archiver.copy_all()
    told = told_lines(partition)
    past.restore()
    assert archiver.copy_some(2).rewound
    archiver.copy_some(2)
    partition.redis.flushall()
    tick(partition)
    partition.job()
    assert archiver.copy_all().rewound
    assert copied_lines(ledger) == told | told_lines(partition)
    assert cursor_of(ledger).epoch == 3
    assert verify(ledger).ok


def test_what_was_trimmed_before_it_was_copied_is_counted_marked_and_told(partition, ledger, archiver, caplog):
    partition.job()
    archiver.copy_all()
    for _ in range(4):
        partition.job()
    partition.redis.xtrim(partition.keys.events, minid="4", approximate=False)
    assert archiver.copy_some() == Copied(events=2, lost=2)
    assert cursor_of(ledger).lost == 2
    assert marks_of(ledger) == [(1, "lost", 2, 3)]
    assert partition.stats()["events_lost:ledger"] == 2
    assert "events_lost" in caplog.text
    verdict = verify(ledger)
    assert verdict.ok
    assert [(one.first_seq, one.last_seq) for one in verdict.gaps] == [(2, 3)]


def test_a_hole_in_the_stream_is_found(partition, ledger, archiver):
    for _ in range(5):
        partition.job()
    partition.redis.xdel(partition.keys.events, "2-0", "4-0")
    assert archiver.copy_some() == Copied(events=3, lost=2)
    assert marks_of(ledger) == [(1, "lost", 2, 2), (1, "lost", 4, 4)]


def test_a_stream_that_was_trimmed_away_altogether_is_found(partition, ledger, archiver):
    partition.job()
    archiver.copy_all()
    for _ in range(3):
        partition.job()
    partition.redis.xtrim(partition.keys.events, maxlen=0, approximate=False)
    assert archiver.copy_some() == Copied(lost=3)
    assert archiver.copy_some() == Copied()
    partition.job()
    assert archiver.copy_some() == Copied(events=1)
    assert marks_of(ledger) == [(1, "lost", 2, 4)]


def test_trimming_up_to_the_cursor_loses_nothing(partition, ledger, archiver):
    for _ in range(3):
        partition.job()
    archiver.copy_all()
    partition.job()
    partition.redis.xtrim(partition.keys.events, minid="4", approximate=False)
    assert archiver.copy_some() == Copied(events=1)
    assert marks_of(ledger) == []


def test_what_went_before_the_ledger_was_there_is_not_lost(partition, ledger, archiver):
    for _ in range(5):
        partition.job()
    partition.redis.xtrim(partition.keys.events, minid="4", approximate=False)
    assert archiver.copy_all() == Copied(events=2)
    assert marks_of(ledger) == [(1, "before", 1, 3)]
    assert cursor_of(ledger).lost == 0
    assert verify(ledger).ok


def test_holes_are_not_counted_again_when_the_stream_is_read_again(partition, ledger, archiver):
    for _ in range(5):
        partition.job()
    partition.redis.xdel(partition.keys.events, "2-0")
    archiver.copy_all()
    past = Past(partition)
    partition.job()
    archiver.copy_all()
    past.restore()
    partition.job()
    assert archiver.copy_all().rewound
    assert cursor_of(ledger).lost == 1
    assert verify(ledger).ok


def test_a_done_job_stays_done_when_redis_comes_back_with_it(partition, ledger, archiver):
    """It runs again, for Redis knows no better; the ledger says so and keeps the first end."""
    job_id = partition.job()
    past = Past(partition)
    [run] = partition.claim()
    partition.finish(run.key, "DONE")
    archiver.copy_all()
    first = ledger.job(job_id)
    past.restore()
    [again] = partition.claim()
    archiver.copy_all()
    assert ledger.job(job_id) == first
    partition.finish(again.key, "DONE")
    archiver.copy_all()
    assert ledger.job(job_id) == first
    verdict = verify(ledger)
    assert verdict.ok
    assert [one.what for one in verdict.notes] == ["repeated_after_a_rewind"]


def test_a_failed_job_that_redis_brings_back_stays_failed_until_it_ends_otherwise(partition, ledger, archiver):
    job_id = partition.job()
    past = Past(partition)
    [run] = partition.claim()
    partition.finish(run.key, "BURY")
    archiver.copy_all()
    past.restore()
    [again] = partition.claim()
    archiver.copy_all()
    assert ledger.job(job_id).state == "failed"
    partition.finish(again.key, "DONE")
    archiver.copy_all()
    assert ledger.job(job_id).state == "done"
    assert verify(ledger).ok


def test_a_requeue_that_was_lost_and_given_again_opens_the_job_again(partition, ledger, archiver):
    run = partition.put("failed")
    archiver.copy_all()
    past = Past(partition)
    partition.requeue(run.job_id)
    [second] = partition.claim(queues=(partition.record(run.job_id).queue,))
    partition.finish(second.key, "BURY")
    archiver.copy_all()
    assert (ledger.job(run.job_id).generation, ledger.job(run.job_id).state) == (2, "failed")
    past.restore()
    partition.requeue(run.job_id)
    archiver.copy_all()
    assert (ledger.job(run.job_id).generation, ledger.job(run.job_id).state) == (2, "queued")
    assert verify(ledger).ok


def test_an_id_that_is_enqueued_anew_after_its_retention_starts_over(partition, ledger, archiver):
    spec = JobSpec(id="nightly", kind="mail", retention_ms=1)
    partition.enqueue(spec)
    [run] = partition.claim()
    partition.finish(run.key, "DONE")
    wait_until(lambda: partition.record("nightly") is None)
    partition.enqueue(spec)
    archiver.copy_all()
    assert ledger.job("nightly").state == "queued"
    verdict = verify(ledger)
    assert verdict.ok
    assert [one.what for one in verdict.notes] == ["enqueued_anew"]


def test_a_durable_job_that_is_done_is_not_opened_by_an_enqueue_of_a_rewound_redis(partition, ledger, archiver):
    spec = JobSpec(id="once", kind="mail", durable=True)
    past = Past(partition)
    ledger.accept([spec])
    partition.enqueue(spec)
    [run] = partition.claim()
    partition.finish(run.key, "DONE")
    archiver.copy_all()
    past.restore()
    partition.enqueue(spec)
    archiver.copy_all()
    assert ledger.job("once").state == "done"


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_small_steps_copy_the_same(partition, ledger, limit):
    archiver = Archiver(ledger, partition.store, partition.driver)
    partition.enqueue(*(JobSpec(id=f"j{number}", kind="mail") for number in range(9)))
    for one in partition.claim(5):
        partition.finish(one.key, "DONE")
    steps = [archiver.copy_some(limit)]
    while steps[-1].more:
        steps.append(archiver.copy_some(limit))
    assert len(steps) > 1
    assert copied_lines(ledger) == told_lines(partition)


def test_a_line_that_is_none_of_ours_does_not_stop_the_archiver(partition, ledger, archiver):
    partition.job()
    odd = b"\xff\x00odd\tjob\t" + b"k" * 2_000 + b"\tno number\tn\tx\tbecause\x00\xff"
    partition.redis.xadd(partition.keys.events, {"t": "5", "w": b"w" * 500, "e": odd}, id="2-0")
    partition.redis.xadd(partition.keys.events, {"other": "1"}, id="3-0")
    partition.redis.hset(partition.keys.meta, "seq", 3)
    partition.job()
    assert archiver.copy_all().events == 3
    with ledger.reading("test") as connection:
        row = connection.execute(select(events).where(events.c.seq == 2)).one()
    assert row.name == "\\xff\\x00odd"
    assert (row.token, row.attempt, len(row.kind)) == (None, None, 512)
    found = verify(ledger)
    assert {one.what for one in found.findings} == {"unknown_event"}
