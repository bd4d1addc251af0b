"""The demo as its users start it: real workers, one killed, one frozen and woken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait_until
from tests.support.processes import gone

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(150)]

ASKED_FOR = {
    *("jobs", "done", "lost", "runs", "duplicate_enqueues", "overlaps", "stale_refused", "doubled_effects"),
    *("killed", "frozen", "seconds"),
}


def demo(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost.demo", *arguments], capture_output=True, text=True, check=False, **options
    )


def test_nothing_is_lost_overlapped_or_doubled_while_workers_are_killed_and_frozen():
    ended = demo("--json", "--jobs", "60")
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures.keys() >= ASKED_FOR
    harm = {name: figures[name] for name in ("lost", "overlaps", "doubled_effects", "missing_effects")}
    assert harm == dict.fromkeys(harm, 0), ended.stderr
    assert (figures["stale_overwrites"], figures["out_of_order"], figures["queue_is_wrong"]) == (0, 0, 0)
    assert (figures["killed"], figures["frozen"], figures["missed"]) == (1, 1, [])
    assert figures["frozen_s"] > 2.5, "past its lease"
    assert figures["jobs"] == figures["done"] < figures["runs"], "what the killed and the frozen held ran again"
    assert figures["duplicate_enqueues"] >= 2 * 60, "each order came three times"
    assert figures["refused"]["sql write"] >= 1
    assert figures["refused"]["done"] >= 1
    assert figures["refused"]["checkpoint"] >= 1
    assert figures["stale_refused"] == sum(figures["refused"].values())
    ledger = figures["ledger"]
    assert (ledger["ok"], ledger["findings"], ledger["lost"]) == (True, [], 0)
    assert (ledger["completions"], ledger["durable"]) == (figures["jobs"], 60)
    assert ledger["effects"] == figures["sql_effects"] > 2 * 60, "an invoice and a booking or more for each order"
    assert ledger["found"] >= 1, "the killed worker had written an invoice and not said so"
    assert ledger["refusals"] == figures["stale_refused"]
    assert figures["seconds"] < 40
    assert ended.returncode == 0


def test_without_lease_fence_and_guard_the_same_faults_do_damage():
    ended = demo("--naive", "--json", "--jobs", "60")
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert (figures["killed"], figures["frozen"]) == (1, 1), "the faults hit here too"
    assert figures["doubled_effects"] >= 1, ended.stderr
    assert figures["overlaps"] >= 1
    assert figures["stale_refused"] == 0, "nobody can tell a late write from a good one"
    assert figures["ledger"] is None
    assert ended.returncode == 1


def test_without_a_terminal_it_prints_plain_lines_and_a_table_in_the_projects_words():
    ended = demo("--jobs", "20")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "\x1b" not in ended.stdout
    story = ("killed worker1 (SIGKILL)", "woke worker2 (SIGCONT)")
    table = ("jobs accepted", "stale writes refused", "ledger: completions", "fencepost ledger verify`: ok")
    for words in story + table:
        assert words in ended.stdout
    assert ended.stdout.rstrip().endswith("faults.py"), "it ends with what to read next"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A demo that goes on, its temporary folder below tmp_path."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "fencepost.demo"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        yield process
        process.kill()


def children(process: subprocess.Popen[bytes]) -> list[int]:
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout.splitlines()  # fmt: skip
    rows = [line.split(None, 2) for line in listed]
    return [int(row[0]) for row in rows if row[1] == str(process.pid) and "fencepost.demo" in row[2]]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_of_the_demo_outlives_it_not_even_a_frozen_one(started, tmp_path, how):
    gates = wait_until(lambda: list(tmp_path.glob("fencepost-demo-*/gate")), 60)
    pids = children(started)
    assert len(pids) >= 3
    wait_until(lambda: (gates[0].parent / "jams" / "worker2").exists(), 60)
    os.kill(pids[1], signal.SIGSTOP)
    started.send_signal(how)
    started.wait(30)
    wait_until(lambda: all(map(gone, pids)), 20)
    if how != signal.SIGKILL:
        wait_until(lambda: not list(tmp_path.glob("fencepost-demo-*")), 5)
