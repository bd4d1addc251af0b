"""Several worker processes under one parent: it forwards signals, replaces a child that died, and ends last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from typing import Final

from fencepost.clock import boottime_s
from fencepost.log import emit

__all__ = ["Supervisor"]

_log = logging.getLogger("fencepost.cli")
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_LIVED_WELL_S: Final = 60.0
_USAGE: Final = 2
_BY_SIGNAL: Final = frozenset({-signal.SIGTERM, -signal.SIGINT})


class Supervisor:
    """Runs `count` processes of one command.

    A child that ends without having been told to is replaced, after 0.5 s at first, up to 30 s while it keeps dying
    young. In a burst, a child that ends well is not. A child that says its usage is wrong (2) ends them all.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], count: int, *, burst: bool) -> None:
        self._command, self._env, self._count, self._burst = list(command), dict(env), count, burst
        self._children: dict[int, Process] = {}
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Return when all have ended: 0, or the highest exit code of those that did not end well."""
        codes = await asyncio.gather(*(self._keep(number) for number in range(self._count)))
        return max(codes)

    def forward(self, name: str) -> None:
        """Pass a signal on. Each child judges for itself what a repeated one means."""
        if not self._stop.is_set():
            emit(_log, logging.INFO, "stopping", signal=name, children=len(self._children))
        self._stop.set()
        for child in self._children.values():
            self._tell(child)

    def _tell(self, child: Process) -> None:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)

    async def _keep(self, number: int) -> int:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            started_s = boottime_s()
            child = await asyncio.create_subprocess_exec(*self._command, env=self._env)
            self._children[number] = child
            emit(_log, logging.INFO, "child_started", number=number, child=child.pid)
            if self._stop.is_set():
                self._tell(child)
            code = await child.wait()
            del self._children[number]
            if self._stop.is_set() or (self._burst and code == 0):
                return 0 if code in _BY_SIGNAL else abs(code)
            lived_s = boottime_s() - started_s
            emit(
                _log, logging.ERROR, "child_died", number=number, child=child.pid, code=code, lived_s=round(lived_s, 1)
            )  # fmt: skip
            if code == _USAGE:
                self.forward("a child's usage error")
                return code
            pause_s = _FIRST_PAUSE_S if lived_s > _LIVED_WELL_S else pause_s
            await self._pause(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return 0

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
