"""`worker module:app`: a process that runs jobs, from its first signal to its last."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

import click
import msgspec

from fencepost.app import Fencepost
from fencepost.cli import logs, signals, start
from fencepost.cli.keeper import keep
from fencepost.cli.leaving import Leftovers, leftovers
from fencepost.cli.running import loop_factory, unless_stopped
from fencepost.cli.session import Session, connected
from fencepost.cli.supervise import Supervisor
from fencepost.clock import parse_duration_s
from fencepost.doctor import WorkerSettings, check_or_refuse
from fencepost.errors import ConfigurationError
from fencepost.log import emit
from fencepost.worker import Worker

__all__ = ["worker"]

_log = logging.getLogger("fencepost.cli")
_CHILD_URL: Final = "FENCEPOST_CHILD_URL"
_ORPHAN_S: Final = 1.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line said. queues: (name, most slots or 0 for all)."""

    queues: tuple[tuple[str, int], ...]
    concurrency: int
    lease_s: float
    grace_s: float
    burst: bool
    force: bool
    loop: str
    parent: int | None

    def seen_by_doctor(self) -> WorkerSettings:
        return WorkerSettings(
            lease_s=self.lease_s,
            grace_s=self.grace_s,
            concurrency=self.concurrency,
            queues=tuple(name for name, _ in self.queues),
        )

    def worker(self, app: Fencepost) -> Worker:
        queues = [(name, most) if most else name for name, most in self.queues]
        return Worker(
            app, queues, concurrency=self.concurrency, lease_s=self.lease_s, grace_s=self.grace_s, burst=self.burst,
            doctor=False,
        )  # fmt: skip


@click.command
@click.argument("target_argument", metavar="[MODULE:APP]", required=False)
@click.option("-q", "--queues", default="default", show_default=True, help="In the order to serve; a:5 caps a at 5.")
@click.option("-c", "--concurrency", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Slots.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="With -c slots each.")
@click.option("--burst", is_flag=True, help="End when nothing is left to do.")
@click.option("--lease", metavar="TIME", help="How long a silent worker keeps its runs. [the application's]")
@click.option("--grace", metavar="TIME", default="25s", show_default=True, help="For running jobs at shutdown.")
@click.option("--force", is_flag=True, help="Start although the doctor found errors; this is logged.")
@click.option(
    "--loop", type=click.Choice(["auto", "asyncio", "uvloop"]), default="auto", help="[auto: uvloop if there]"
)
@click.option("--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True)
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
@click.option("--parent", type=int, hidden=True)
@connected
def worker(
    session: Session, target_argument: str | None, log_format: str, log_level: str, processes: int, **said: Any
) -> int:
    """Run the jobs of an application.

    SIGTERM or Ctrl-C: claim no more, let running jobs end within the grace, hand back the rest at once. The same again
    after a second or later: hand back now.
    """
    session.target = target_argument or session.target
    if not session.target:
        raise ConfigurationError("app", "a worker needs the code of its jobs", "Write `fencepost worker module:app`.")
    if session.as_json:
        log_format = "json"
    handler = logs.set_up(log_format, log_level)
    if said["parent"]:
        session.url = os.environ.pop(_CHILD_URL, None)
    app = session.app
    logs.adopt_root(handler, log_level)
    settings = _settings(app, **said)
    settings.worker(app)  # refuses what cannot be, before anything starts
    if start.asked():
        return 0
    if processes == 1:
        return _work(app, settings)
    command = _command(session, said, log_format, log_level)
    env = {**os.environ, **({_CHILD_URL: session.url} if session.url else {})}
    return _supervise(app, settings, lambda: Supervisor(command, env, processes, burst=settings.burst))


def _settings(app: Fencepost, queues: str, lease: str | None, grace: str, **rest: Any) -> Settings:
    pairs = []
    for part in filter(None, (part.strip() for part in queues.split(","))):
        name, colon, most = part.partition(":")
        if colon and not (most.isdecimal() and int(most)):
            raise ConfigurationError("queues", f"{part!r} does not cap at a whole number", "Write a:5,b.")
        pairs.append((name, int(most) if colon else 0))
    lease_s = app.lease_s if lease is None else parse_duration_s(lease, "lease")
    return Settings(queues=tuple(pairs), lease_s=lease_s, grace_s=parse_duration_s(grace, "grace"), **rest)


def _command(session: Session, said: dict[str, Any], log_format: str, log_level: str) -> list[str]:
    """The command of a child: the same without --processes. A URL, which may hold a password, goes by environment."""
    command = [sys.executable, "-m", "fencepost", "worker", str(session.target), "--parent", str(os.getpid())]
    for name in ("queues", "concurrency", "lease", "grace", "loop"):
        if said[name] is not None:
            command += [f"--{name}", str(said[name])]
    command += [f"--{name}" for name in ("burst", "force") if said[name]]
    if session.namespace:
        command += ["--namespace", session.namespace]
    return [*command, "--log-format", log_format, "--log-level", log_level]


# -- one process ----------------------------------------------------------------------------------------------


def _work(app: Fencepost, settings: Settings) -> int:
    """Run one worker in this process until it has ended."""
    one = settings.worker(app)
    stopped = asyncio.Event()

    def heard(name: str, now: bool) -> None:
        emit(_log, logging.INFO, "stopping", signal=name, now=now, worker_id=one.id, running=len(one.runs))
        stopped.set()
        one.stop(now=now)

    failed: BaseException | None = None
    with asyncio.Runner(loop_factory=loop_factory(settings.loop)) as runner:
        executor = ThreadPoolExecutor(thread_name_prefix="fencepost-to-thread")
        runner.get_loop().set_default_executor(executor)
        with signals.listen(runner.get_loop(), signals.Asked(heard)):
            try:
                runner.run(_life(app, one, settings, stopped, heard))
            except BaseException as error:  # noqa: BLE001 - raised again below
                failed = error
            left = runner.run(leftovers(executor))
        if left:
            _leave_behind(app, left, failed)
    if failed is not None:
        raise failed
    return 1 if one.unwritten else 0


async def _life(
    app: Fencepost, one: Worker, settings: Settings, stopped: asyncio.Event, heard: Callable[[str, bool], None]
) -> None:
    helpers: list[asyncio.Task[None]] = []
    try:
        if settings.parent is None and not await unless_stopped(
            check_or_refuse(app, settings.seen_by_doctor(), force=settings.force), stopped
        ):
            return
        if settings.parent is not None:
            helpers.append(asyncio.create_task(_watch_parent(settings.parent, heard)))
        elif app.server is not None:
            helpers.append(asyncio.create_task(keep(app.server)))
        kinds = sorted(app.handlers)
        emit(_log, logging.INFO, "serving", worker_id=one.id, redis=app.link.connections.where, kinds=",".join(kinds))
        await one.run()
    finally:
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    await app.link.asynchronous.close()


async def _watch_parent(parent: int, heard: Callable[[str, bool], None]) -> None:
    """A child whose parent was killed has lost its embedded server and whoever would end it: it ends by itself."""
    while os.getppid() == parent:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(_ORPHAN_S)
    heard("the parent is gone", False)


def _leave_behind(app: Fencepost, left: Leftovers, failed: BaseException | None) -> NoReturn:
    """End although something does not: its runs were handed back, whatever it still writes is refused."""
    emit(_log, logging.WARNING, "left_behind", threads=",".join(left.threads), tasks=",".join(left.tasks))
    if failed is not None:
        emit(_log, logging.CRITICAL, "worker_failed", error=repr(failed))
    app.close_sync()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if failed is None else 1)


# -- several processes ----------------------------------------------------------------------------------------


def _supervise(app: Fencepost, settings: Settings, make: Callable[[], Supervisor]) -> int:
    """The parent: examines once, keeps the embedded server, and looks after its children."""
    stopped = asyncio.Event()
    ours: list[Supervisor] = []

    def asked(name: str) -> None:
        stopped.set()
        for one in ours:
            one.forward(name)

    async def life() -> int:
        if not await unless_stopped(check_or_refuse(app, settings.seen_by_doctor(), force=settings.force), stopped):
            return 0
        keeper = asyncio.create_task(keep(app.server)) if app.server is not None else None
        ours.append(make())
        try:
            return await ours[0].run()
        finally:
            if keeper is not None:
                keeper.cancel()
            await app.link.asynchronous.close()

    with asyncio.Runner() as runner, signals.listen(runner.get_loop(), asked):
        return runner.run(life())
