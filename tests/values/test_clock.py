"""Clocks, ids, nonces, lengths of time."""

import os
import re
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost import clock
from fencepost.clock import boottime_s, epoch_ms, new_nonce, parse_duration_s, uuid7, wall_ms, worker_identity
from fencepost.errors import ConfigurationError

CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_an_id_is_a_version_7_uuid_of_this_millisecond():
    before = wall_ms()
    text = uuid7()
    assert CANONICAL.fullmatch(text)
    parsed = uuid.UUID(text)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    # Other ids of this process may have pushed the shared clock on, never back.
    assert before <= parsed.int >> 80 <= wall_ms() + 1


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2**48 - 2), min_size=2, max_size=50))
def test_ids_rise_whatever_the_clock_does(moments):
    ids = clock._Ids()
    made = [ids.uuid7(moment) for moment in moments for _ in range(3)]
    assert made == sorted(set(made))
    assert all(CANONICAL.fullmatch(text) for text in made)


def test_ids_rise_past_the_end_of_a_millisecond():
    ids = clock._Ids()
    first = ids.uuid7(1_000)
    ids.counter = clock._COUNTER_MAX
    second = ids.uuid7(1_000)
    assert first < second
    assert uuid.UUID(second).int >> 80 == 1_001


def test_threads_never_share_an_id_or_a_nonce():
    made: list[list[str]] = [[] for _ in range(4)]

    def fill(into):
        into += [make() for _ in range(2_000) for make in (uuid7, new_nonce)]

    threads = [threading.Thread(target=fill, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({text for into in made for text in into}) == 16_000
    assert all(into[::2] == sorted(into[::2]) for into in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_ids_and_nonces_of_its_own():
    uuid7(), new_nonce()
    read_end, write_end = os.pipe()
    clock._ids.lock.acquire()  # another thread of the parent may hold it at the fork
    child = os.fork()
    if child == 0:
        os.write(write_end, f"{uuid7()} {new_nonce()}".encode())
        os._exit(0)
    clock._ids.lock.release()
    os.waitpid(child, 0)
    theirs = os.read(read_end, 200).decode().split()
    os.close(read_end)
    os.close(write_end)
    assert len(theirs) == 2
    assert uuid7()[19:] != theirs[0][19:]
    # The child's nonces start elsewhere, not at the next number.
    assert abs(int(new_nonce(), 16) - int(theirs[1], 16)) > 1_000


def test_a_nonce_is_sixteen_hex_digits():
    assert re.fullmatch(r"[0-9a-f]{16}", new_nonce())


def test_each_start_of_a_worker_has_an_identity_of_its_own(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "böx {1}\t" + "x" * 100)
    first, second = worker_identity(), worker_identity()
    assert first != second
    assert re.fullmatch(rf"[A-Za-z0-9.-]+-{os.getpid()}-[0-9a-f]{{8}}", first)
    assert len(first) <= 64


def test_the_boot_clock_runs_forward_and_is_no_wall_clock():
    first = boottime_s()
    assert boottime_s() >= first
    assert abs(wall_ms() - time.time() * 1_000) < 60_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5s", 1.5),
        ("2m", 120),
        ("1h", 3_600),
        ("1h30m", 5_400),
        ("250ms", 0.25),
        (" 7 D ", 604_800),
        (0, 0),
        (2.5, 2.5),
        (timedelta(minutes=1), 60),
    ],
)
def test_a_length_of_time_is_read_as_seconds(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    ["", "s", "-1s", "1x", "1e3", "1.s", "nan", "٣s", "1s2", True, None, [], -1, float("nan"), 10**400, "99999d"],
)
def test_what_is_no_length_of_time_is_refused_with_the_name_of_the_setting(value):
    with pytest.raises(ConfigurationError, match=r"^lease: .*1\.5s") as caught:
        parse_duration_s(value, "lease")
    assert caught.value.setting == "lease"


@pytest.mark.parametrize("process_zone", ["Asia/Jakarta", "UTC", "America/St_Johns"])
def test_an_aware_moment_means_the_same_in_every_process_time_zone(monkeypatch, process_zone):
    monkeypatch.setenv("TZ", process_zone)
    time.tzset()
    try:
        moment = datetime(2025, 1, 1, 12, tzinfo=UTC)
        zones = [UTC, ZoneInfo("Asia/Jakarta"), timezone(timedelta(hours=-3, minutes=-30))]
        assert {epoch_ms(moment.astimezone(zone)) for zone in zones} == {1_735_732_800_000}
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_naive_moment_is_refused_and_the_text_says_what_to_write():
    with pytest.raises(ConfigurationError, match=r"run_at: 2025-01-01T12:00:00 has no time zone.*timezone\.utc"):
        epoch_ms(datetime(2025, 1, 1, 12))  # noqa: DTZ001 - the mistake under test
