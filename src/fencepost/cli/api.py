"""`api [module:app]`: serves the application over HTTP, from its first signal to its last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import click
import uvicorn
from fastapi import FastAPI

from fencepost.api import ApiSettings, asgi
from fencepost.api.access import AccessLog
from fencepost.app import Fencepost
from fencepost.cli import logs, signals, start
from fencepost.cli.keeper import keep
from fencepost.cli.leaving import leftovers
from fencepost.cli.listen import Listener, bound
from fencepost.cli.running import loop_factory, unless_stopped
from fencepost.cli.session import Session, connected
from fencepost.clock import parse_duration_s
from fencepost.doctor import check_or_refuse
from fencepost.log import emit

__all__ = ["api"]

_log = logging.getLogger("fencepost.cli")
_KEEP_ALIVE_S: Final = 30
_DEFAULT: Final = ApiSettings()


class _Server(uvicorn.Server):
    """A server whose signals are ours: uvicorn's own would send itself the signal again at the end, and the exit code
    would tell of a crash. cut_off: calls that were not let end."""

    cut_off = 0

    def __init__(self, config: uvicorn.Config, greet: Callable[[], None]) -> None:
        super().__init__(config)
        self._greet = greet

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._greet()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self, now: bool) -> None:
        """Accept nothing more and let calls in flight end; now: cut them off."""
        self.should_exit = True
        if now:
            self.force_exit = True
            logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # a traceback for each call would tell no news
            self.cut_off += len(self.server_state.tasks)
            for task in list(self.server_state.tasks):
                task.cancel()
            for connection in list(self.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()


@click.command
@click.argument("target_argument", metavar="[MODULE:APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 for all addresses.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8000, show_default=True, help="0: one that is free.")
@click.option("--uds", metavar="PATH", help="Listen on a Unix socket instead.")
@click.option("--no-auth", is_flag=True, help="Without tokens; for callers on this machine only.")
@click.option(
    "--rate", type=click.FloatRange(0, 1_000_000), default=_DEFAULT.rate_per_s, show_default=True,
    help="Calls of one credential a second; 0 for no limit.",
)  # fmt: skip
@click.option("--max-body", type=int, default=_DEFAULT.max_body, show_default=True, help="The largest body, in bytes.")
@click.option("--grace", metavar="TIME", default="25s", show_default=True, help="For calls in flight at shutdown.")
@click.option("--force", is_flag=True, help="Start although the doctor found errors; this is logged.")
@click.option(
    "--loop", type=click.Choice(["auto", "asyncio", "uvloop"]), default="auto", help="[auto: uvloop if there]"
)
@click.option("--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True)
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
@connected
def api(session: Session, target_argument: str | None, log_format: str, log_level: str, **said: Any) -> int:
    """Serve an application over HTTP: enqueue, follow, act, and work from any language.

    Without MODULE:APP (or FENCEPOST_APP) there are no kinds to enqueue; all else works. SIGTERM or Ctrl-C: accept
    nothing more, let calls in flight end within the grace. The same again after a second or later: cut them off.
    """
    session.target = target_argument or session.target
    handler = logs.set_up("json" if session.as_json else log_format, log_level)
    settings = _settings(said)
    grace_s = parse_duration_s(said["grace"], "grace")
    app = session.app
    logs.adopt_root(handler, log_level)
    if log_level != "debug":
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # what it would say is told in our own words
    served = asgi(app, settings)
    if start.asked():
        return 0
    with bound(said["host"], said["port"], said["uds"], private=said["no_auth"]) as listener:
        return _serve(app, served, listener, grace_s, said["force"], said["loop"])


def _settings(said: dict[str, Any]) -> ApiSettings:
    burst = max(1, min(1_000_000, round(2 * said["rate"])))
    auth = "off" if said["no_auth"] else "bearer"
    return ApiSettings(auth=auth, rate_per_s=said["rate"], burst=burst, max_body=said["max_body"])  # type: ignore[arg-type]


def _serve(app: Fencepost, served: FastAPI, listener: Listener, grace_s: float, force: bool, loop: str) -> int:
    """Serve until told to stop; 0 unless calls were cut off."""
    config = uvicorn.Config(
        AccessLog(served), lifespan="on", ws="none", log_config=None, access_log=False, server_header=False,
        proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE_S,
    )  # fmt: skip
    server, stopped = _Server(config, lambda: _greet(app, served, listener)), asyncio.Event()

    def heard(name: str, now: bool) -> None:
        calls = len(server.server_state.tasks)
        emit(_log, logging.INFO, "stopping", signal=name, now=now, calls=calls)
        stopped.set()
        served.state.fencepost.stopping.set()  # streams and long polls end at once
        server.stop(now)
        if not now:  # not by uvicorn's own timeout: it would not tell how many calls it cut off
            runner.get_loop().call_later(grace_s, server.stop, True)

    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        executor = ThreadPoolExecutor(thread_name_prefix="fencepost-to-thread")
        runner.get_loop().set_default_executor(executor)
        with signals.listen(runner.get_loop(), signals.Asked(heard)):
            try:
                code = runner.run(_life(app, server, listener, stopped, force))
            finally:
                left = runner.run(leftovers(executor))
    if left:  # a thread that asks SQL, for instance: nothing waits for its answer
        emit(_log, logging.WARNING, "left_behind", threads=",".join(left.threads), tasks=",".join(left.tasks))
        app.close_sync()
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    return code


async def _life(app: Fencepost, server: _Server, listener: Listener, stopped: asyncio.Event, force: bool) -> int:
    keeper: asyncio.Task[None] | None = None
    try:
        if not await unless_stopped(check_or_refuse(app, force=force), stopped):
            return 0
        if app.server is not None:
            keeper = asyncio.create_task(keep(app.server))
        await server.serve([listener.socket])
        if server.force_exit:
            await server.lifespan.shutdown()  # uvicorn leaves it out then
        cut = server.cut_off
        emit(_log, logging.WARNING if cut else logging.INFO, "stopped", cut_off=cut)
        return 1 if cut else 0
    finally:
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        await app.link.asynchronous.close()


def _greet(app: Fencepost, served: FastAPI, listener: Listener) -> None:
    if served.state.fencepost.settings.auth == "off":
        text = "no tokens are asked for: every process on this machine may do anything here"
        emit(_log, logging.WARNING, "no_authentication", text=text)
    elif not listener.local:
        text = "tokens travel in the clear; put a proxy with TLS in front of what leaves this machine"
        emit(_log, logging.WARNING, "no_tls", text=text)
    docs = f"{listener.where}/openapi.json" if listener.where.startswith("http") else ""
    kinds = ",".join(sorted(app.handlers))
    emit(
        _log, logging.INFO, "listening", where=listener.where, docs=docs, redis=app.link.connections.where,
        namespace=app.namespace, kinds=kinds,
    )  # fmt: skip
