"""What is done to the workers: one is killed, one is frozen past its lease and woken, both in the middle of their work.

Each is hit where it does most harm. The killed one has written and sent, and not said so: its jobs run again, and their
effects are there. The frozen one has read and not written, and when it wakes up, others have its jobs.

The story is told by a generator: each `yield` means "not yet, look again soon", so the director (play.py) can draw its
progress between two steps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from fencepost.clock import boottime_s
from fencepost.demo.books import writable
from fencepost.demo.jam import block
from fencepost.demo.records import Records, RunSeen
from fencepost.demo.stage import Stage

__all__ = ["Faults", "story"]

_PATIENCE_S = 15.0
_WISHES_S = 1.5
_KILLED_AT: Final = ("invoice written", "stock", "after mail")
_FROZEN_AT: Final = ("invoice", "stock", "before mail")
"""Where runs stand when they are hit. Those at the first place are a must."""
_SUCCESSOR_AT: Final = {"invoice": "invoice written", "stock": "stock"}
"""Where the new owner of a frozen run stands when that wakes up. Its token is in the shop's database by then."""
Say = Callable[[str], None]


@dataclass(slots=True)
class Faults:
    """What was done, and that it hit.

    killed_runs, frozen_runs: what the victims held at that moment. frozen_s: how long. missed: why a fault did not
    hit; empty when both did.
    """

    killed: str = ""
    killed_at: float = 0.0
    killed_runs: list[RunSeen] = field(default_factory=list)
    frozen: str = ""
    frozen_s: float = 0.0
    frozen_runs: list[RunSeen] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Scene:
    """What the story is played with. orders: how many invoices there will be."""

    stage: Stage
    workers: dict[str, subprocess.Popen[bytes]]
    records: Records
    orders: int
    say: Say
    faults: Faults = field(default_factory=Faults)

    def invoices_done(self) -> int:
        return self.records.done_by_kind["generate_invoice"]


def story(scene: Scene) -> Iterator[None]:
    """Kill the first worker when some of the invoices are written, freeze the second when more are."""
    first, second, *_ = scene.workers
    yield from _until(lambda: scene.invoices_done() >= scene.orders * 0.15, 60.0)
    yield from _kill(scene, first)
    yield from _until(lambda: scene.invoices_done() >= scene.orders * 0.35, 60.0)
    yield from _freeze_and_wake(scene, second)


def _until(condition: Callable[[], bool], patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Wait for a condition, but not for ever: who goes on looks again whether it is true."""
    end = time.monotonic() + patience_s
    while not condition() and time.monotonic() < end:
        yield


def _jam(scene: Scene, worker: str, places: tuple[str, ...]) -> Iterator[None]:
    """Let a worker's handlers stand still at these places, until it holds nothing else.

    A run at the first place is a must, a run at each of the others is waited for a little.
    """
    block(scene.stage, worker, places)
    began = time.monotonic()

    def ready() -> bool:
        held = scene.records.going_on(worker)
        there = {run.place for run in held}
        wished = there >= set(places) or time.monotonic() > began + _WISHES_S
        return _all_inside(held) and places[0] in there and wished

    yield from _until(ready)


def _all_inside(held: list[RunSeen]) -> bool:
    return bool(held) and all(run.place for run in held)


def _kill(scene: Scene, worker: str) -> Iterator[None]:
    faults, process = scene.faults, scene.workers[worker]
    places = _FROZEN_AT if scene.stage.naive else _KILLED_AT  # without effect rows there is harm enough before it
    yield from _jam(scene, worker, places)
    process.kill()
    process.wait()
    (scene.stage.jams / worker).unlink()
    scene.records.read()
    faults.killed, faults.killed_at = worker, boottime_s()
    faults.killed_runs = scene.records.going_on(worker)
    if not any(run.place == places[0] for run in faults.killed_runs):
        faults.missed.append(f"{worker} held no invoice when it was killed")
    scene.say(f"killed {worker} (SIGKILL) in the middle of {_told(faults.killed_runs)}")


def _freeze_and_wake(scene: Scene, worker: str) -> Iterator[None]:
    faults, records = scene.faults, scene.records
    jam = scene.stage.jams / worker
    hit = False
    for _ in range(20):
        yield from _jam(scene, worker, _FROZEN_AT)
        _stop(scene.workers[worker])
        since = boottime_s()
        records.read()  # it is stopped: nothing is added any more
        faults.frozen_runs = records.going_on(worker)
        hit = _caught(scene, faults.frozen_runs)
        if hit or scene.invoices_done() >= scene.orders:
            break
        os.kill(scene.workers[worker].pid, signal.SIGCONT)
        yield
    faults.frozen = worker
    if not hit:
        faults.missed.append(f"{worker} held no invoice when it was frozen")
    scene.say(f"froze {worker} (SIGSTOP) in the middle of {_told(faults.frozen_runs)}")
    # The new owners shall be in the middle when the late ones wake up.
    writers = [run for run in faults.frozen_runs if run.place in _SUCCESSOR_AT]
    successors = [block(scene.stage, run.job, [_place_of_successor(scene, run)]) for run in writers]
    past_lease = since + scene.stage.lease_s * 1.1
    yield from _until(lambda: boottime_s() > past_lease and all(_taken_over(scene, run) for run in faults.frozen_runs))
    untaken = [run for run in faults.frozen_runs if not _taken_over(scene, run)]
    if untaken:
        faults.missed.append(f"nobody had taken over {_told(untaken)} when {worker} was woken")
    jam.unlink()  # the first thing it will see
    os.kill(scene.workers[worker].pid, signal.SIGCONT)
    faults.frozen_s = boottime_s() - since
    scene.say(f"woke {worker} (SIGCONT) after {faults.frozen_s:.1f} s; its jobs have new owners, who are at work")
    yield from _until(lambda: all(run.end is not None for run in faults.frozen_runs), 5.0)
    for file in successors:
        file.unlink()
    _tell_late_writes(scene)


def _caught(scene: Scene, runs: list[RunSeen]) -> bool:
    """Whether a worker was frozen well: as the owner of all it holds, one of them an invoice, and all at the jam.

    Stopped inside a transaction it would hold up the whole shop; a run at the jam is in none. The thread that keeps
    the ledger may be in one.
    """
    if scene.stage.naive:
        return _all_inside(runs) and any(run.place == _FROZEN_AT[0] for run in runs)
    owner = not any(scene.records.successor(run) for run in runs)
    good = owner and _all_inside(runs) and any(run.place == _FROZEN_AT[0] for run in runs)
    return good and writable(scene.stage)


def _tell_late_writes(scene: Scene) -> None:
    faults, runs = scene.faults, scene.faults.frozen_runs
    if scene.stage.naive:
        scene.say(f"{faults.frozen} went on with {len(runs)} runs as if nothing had happened")
        return
    late = sum(run.how == "late" for run in runs)
    refused = sum(len(run.refused) for run in runs)
    if not any("write" in run.refused for run in runs):
        faults.missed.append(f"{faults.frozen} tried no late write to the shop's database that was refused")
    scene.say(f"{faults.frozen} went on, late: {late} of {len(runs)} runs stopped, {refused} of their writes refused")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Freeze a process and return when it is frozen (or has ended by itself, which is noticed later)."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


def _place_of_successor(scene: Scene, run: RunSeen) -> str:
    return run.place if scene.stage.naive else _SUCCESSOR_AT[run.place]


def _taken_over(scene: Scene, run: RunSeen) -> bool:
    """Another run of the same job has begun; if it writes to the shop, it stands in the middle, its token installed."""
    other = scene.records.successor(run)
    if other is None or scene.stage.naive or run.place not in _SUCCESSOR_AT:
        return other is not None
    return other.place == _place_of_successor(scene, run)


def _told(runs: list[RunSeen]) -> str:
    return ", ".join(sorted(run.resource or run.kind for run in runs)) or "nothing"
