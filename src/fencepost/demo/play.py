"""The director: sets the stage, starts everybody, lets the faults happen, and brings the curtain down."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fencepost.clock import boottime_s
from fencepost.demo import naive, shop
from fencepost.demo.books import balance, open_books
from fencepost.demo.faults import Faults, Scene, story
from fencepost.demo.late import LATE_RESULT
from fencepost.demo.mail import MailServer
from fencepost.demo.measure import Measured, QueueSays, measure
from fencepost.demo.orders import Order
from fencepost.demo.producers import PRODUCERS
from fencepost.demo.records import Records
from fencepost.demo.screen import Screen
from fencepost.demo.stage import NAMESPACE, QUEUES, STAGE_SETTING, Stage
from fencepost.demo.worker import WORKERS
from fencepost.embedded import EmbeddedServer
from fencepost.errors import ConfigurationError
from fencepost.keys import Keys

__all__ = ["play"]

_TICK_S: Final = 0.04
_START_WITHIN_S: Final = 60.0
_LONGEST_S: Final = 60.0
_LONGEST_PER_ORDER_S: Final = 0.25
_CALM_S: Final = 0.3
_THE_END: Final = object()


@dataclass(frozen=True, slots=True)
class _Cast:
    """Who plays."""

    stage: Stage
    orders: Sequence[Order]
    workers: dict[str, subprocess.Popen[bytes]]
    producers: dict[str, subprocess.Popen[bytes]]
    records: Records
    mail: MailServer
    client: Any
    screen: Screen


def play(orders: Sequence[Order], csv: Path | None, *, off: bool, screen: Screen) -> Measured:
    """Perform the demo and return what was measured. off: the naive queue instead of Fencepost.

    The folder is deleted, unless what must hold did not hold, or an accident happened.
    """
    if os.name != "posix":
        raise ConfigurationError("demo", f"it freezes processes with SIGSTOP, which {sys.platform} lacks")
    folder = Path(tempfile.mkdtemp(prefix="fencepost-demo-"))
    keep = False
    try:
        with ExitStack() as stack:
            measured = _perform(stack, folder, orders, csv, off, screen)
        keep = not measured.as_it_must_be and not off
    except Exception:
        keep = True
        raise
    finally:
        if keep:
            screen.say(f"everything that was written down is kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return measured


def _perform(
    stack: ExitStack, folder: Path, orders: Sequence[Order], csv: Path | None, off: bool, screen: Screen
) -> Measured:
    import redis

    server = stack.enter_context(EmbeddedServer.start(folder / "redis"))
    mail = stack.enter_context(MailServer())
    stage = Stage(
        str(folder),
        orders_csv=str(csv.resolve()) if csv else "",
        count=len(orders),
        naive=off,
        redis_url=server.url,
        smtp_port=mail.port,
        # Few orders take their time, so that there is work left while the faults happen.
        invoice_s=min(0.5, 24 / len(orders)),
        stock_s=min(0.2, 6 / len(orders)),
    )
    stage.set_up()
    shop.create(stage.database, orders)
    if not off:
        open_books(stage)
    client = redis.Redis.from_url(server.url)
    stack.callback(client.close)
    workers = _start(stack, stage, "worker", WORKERS)
    producers = _start(stack, stage, "producers", PRODUCERS)
    cast = _Cast(stage, orders, workers, producers, Records(stage.records), mail, client, screen)
    _until_ready(cast)
    began = boottime_s()
    scene = Scene(stage, workers, cast.records, len(orders), screen.say)
    with screen.bars(shop.expected_bookings(orders)):
        stage.gate.touch()
        screen.say(
            f"{len(orders)} orders, each enqueued by {len(PRODUCERS)} producers that race; {len(WORKERS)} workers, "
            + ("no lease" if off else f"lease {stage.lease_s:g} s")
        )
        if not _watch(cast, story(scene), scene.faults):
            scene.faults.missed.append("not everything ended in the time there was")
    seconds = boottime_s() - began
    _stop_workers(cast)
    cast.records.read()
    word = _word_of_the_queue(cast)
    return measure(stage, orders, cast.records, mail.arrivals, scene.faults, word, seconds)


# -- processes --------------------------------------------------------------------------------------------


def _start(stack: ExitStack, stage: Stage, module: str, names: Sequence[str]) -> dict[str, subprocess.Popen[bytes]]:
    """Start a process for each name. Whatever happens, they end with the stack."""
    environment = {**os.environ, STAGE_SETTING: stage.folder, "PYTHONUNBUFFERED": "1"}
    processes = {}
    for name in names:
        with open(stage.logs / f"{name}.log", "wb") as log:
            processes[name] = subprocess.Popen(
                [sys.executable, "-m", f"fencepost.demo.{module}", name],
                stdin=subprocess.PIPE,  # closed when this process is gone
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,  # Ctrl-C is for this process, which then ends them
            )
        stack.callback(_end, processes[name])
    return processes


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            process.kill()  # frozen ones, too
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _until_ready(cast: _Cast) -> None:
    """Wait until all processes have started. Raises ConfigurationError with the log of one that did not."""
    everybody = {**cast.workers, **cast.producers}
    end = time.monotonic() + _START_WITHIN_S
    while missing := [name for name in everybody if not cast.stage.ready(name).exists()]:
        dead = [name for name in missing if everybody[name].poll() is not None]
        if dead or time.monotonic() > end:
            raise _failed(cast.stage, (dead or missing)[0], "did not start")
        time.sleep(_TICK_S)


def _failed(stage: Stage, name: str, what: str) -> ConfigurationError:
    log = (stage.logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
    return ConfigurationError("demo", f"the process {name} {what}; the end of its log:\n" + "\n".join(log[-15:]))


def _stop_workers(cast: _Cast) -> None:
    for process in cast.workers.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in cast.workers.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(8.0)


# -- the performance --------------------------------------------------------------------------------------


def _watch(cast: _Cast, scenes: Iterator[None], faults: Faults) -> bool:
    """Look on, tell the screen, let the story go on. Returns whether all was done in time."""
    end = time.monotonic() + _LONGEST_S + len(cast.orders) * _LONGEST_PER_ORDER_S
    told_all, calm_since = False, 0.0
    while time.monotonic() < end:
        cast.records.read()
        cast.screen.show(cast.records)
        if not told_all:
            told_all = next(scenes, _THE_END) is _THE_END
        else:
            pending = _pending(cast)
            if pending:
                calm_since = 0.0
            elif not calm_since:
                calm_since = time.monotonic()
            elif time.monotonic() - calm_since > _CALM_S:
                return True
        _look_for_accidents(cast, faults.killed)
        time.sleep(_TICK_S)
    return False


def _look_for_accidents(cast: _Cast, killed: str) -> None:
    for name, process in cast.producers.items():
        if process.poll():
            raise _failed(cast.stage, name, "ended with an error")
    for name, process in cast.workers.items():
        if name != killed and process.poll() is not None:
            raise _failed(cast.stage, name, "ended, and nobody had asked it to")


def _pending(cast: _Cast) -> bool:
    """Whether anybody still has something to do, by the queue's own lists."""
    if any(process.poll() is None for process in cast.producers.values()):
        return True
    if cast.stage.naive:
        return any(cast.client.llen(key) for key in naive.LISTS)
    keys = Keys(NAMESPACE)  # a job that waits in a line waits for one that is in these
    places = [keys.leases, keys.later, *map(keys.ready, QUEUES)]
    return any(cast.client.zcard(key) for key in places)


def _word_of_the_queue(cast: _Cast) -> QueueSays:
    """What the queue itself says in the end: its counters, the jobs it shows in another way than the handlers, and its
    ledger."""
    if cast.stage.naive:
        return QueueSays({}, 0)
    keys = Keys(NAMESPACE)
    pipeline = cast.client.pipeline(transaction=False)
    for job in cast.records.accepted:
        pipeline.hmget(keys.job(job), "state", "result")
    wrong = sum(state != b"done" or result == LATE_RESULT for state, result in pipeline.execute())
    stats = cast.client.hgetall(keys.stats)
    return QueueSays({name.decode(): int(value) for name, value in stats.items()}, wrong, balance(cast.stage))
