"""What the server says about itself between two moments: CPU, commands, memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import redis

__all__ = ["Meter", "Usage"]


class Usage(NamedTuple):
    """Since the last reading: CPU seconds of the server, commands from clients, and all commands, scripts' included."""

    cpu_s: float
    sent: int
    executed: int


class Meter:
    """Reads the server's own counters. INFO itself is taken out of the counts."""

    def __init__(self, url: str) -> None:
        self.redis = redis.Redis.from_url(url)
        self._last = self._read()

    def _read(self) -> tuple[float, int, int]:
        info: Any = self.redis.info("all")
        stats = {name: value["calls"] for name, value in info.items() if name.startswith("cmdstat_")}
        executed = sum(
            calls for name, calls in stats.items() if not name.startswith(("cmdstat_info", "cmdstat_client"))
        )
        cpu_s = info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]
        return (
            cpu_s,
            stats.get("cmdstat_evalsha", 0) + stats.get("cmdstat_eval", 0) + stats.get("cmdstat_blpop", 0),
            executed,
        )

    def lap(self) -> Usage:
        """Return what happened since the last call, and start anew."""
        now, last = self._read(), self._last
        self._last = now
        return Usage(now[0] - last[0], now[1] - last[1], now[2] - last[2])

    def memory(self) -> int:
        """Bytes the server uses now."""
        return int(self.redis.info("memory")["used_memory"])

    def forget(self) -> None:
        """Empty the database between two measurements."""
        self.redis.execute_command("FLUSHALL", "SYNC")  # type: ignore[no-untyped-call]
        self.lap()
