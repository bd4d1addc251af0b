"""Time and identity of this process: clocks, job ids, nonces, the worker's name, lengths of time.

Truth about time is Redis' own clock; what is here measures lengths on this host and makes ids.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
import time
from array import array
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from .errors import ConfigurationError

__all__ = ["boottime_s", "epoch_ms", "new_nonce", "parse_duration_s", "uuid7", "wall_ms", "worker_identity"]

_MAX_DURATION_S: Final = 10 * 366 * 86_400.0
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_COUNTER_MAX: Final = (1 << 30) - 1
_VARIANT: Final = 1 << 63


def boottime_s() -> float:
    """Seconds since this host booted, asleep or awake: a lease must also run out while a laptop is closed.

    CLOCK_BOOTTIME where the system has it (Linux), otherwise the monotonic clock.
    """
    return _read_boottime()


def wall_ms() -> int:
    """Milliseconds since 1970 by this host's clock. For display and hints only; never for a lease."""
    return time.time_ns() // 1_000_000


if hasattr(time, "CLOCK_BOOTTIME"):  # macOS and Windows have none

    def _read_boottime() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
else:
    _read_boottime = time.monotonic


class _Ids:
    """The id makers of one process; replaced as a whole in a forked child, which must not repeat its parent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last_ms = -1
        self.counter = 0
        self.head = ""
        self.random: list[int] = []  # 32-bit draws of os.urandom, bought in bulk: a system call an id costs too much
        # A random start and steps of one: two processes repeat a nonce only if their short stretches of 2^63 overlap.
        self.nonces: Iterator[int] = itertools.count(int.from_bytes(os.urandom(8), "big") >> 1)

    def draw(self) -> int:
        if not self.random:
            self.random = array("I", os.urandom(2_048)).tolist()
        return self.random.pop() & 0xFFFFFFFF

    def open_ms(self, ms: int) -> None:
        """Start the ids of a millisecond: what they share, and a random count that leaves room for 2^29 of them."""
        self.last_ms = ms
        self.head = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{self.draw() & 0xFFF:03x}-"
        self.counter = self.draw() & _COUNTER_MAX >> 1

    def uuid7(self, now_ms: int) -> str:
        with self.lock:
            if now_ms > self.last_ms:
                self.open_ms(now_ms)
            elif self.counter < _COUNTER_MAX:
                self.counter += 1
            else:
                self.open_ms(self.last_ms + 1)
            tail = (_VARIANT | self.counter << 32 | self.draw()).to_bytes(8, "big").hex()
            return f"{self.head}{tail[:4]}-{tail[4:]}"


_ids = _Ids()


def _start_over() -> None:
    global _ids
    _ids = _Ids()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over)


def uuid7() -> str:
    """Return a new job id: a UUID version 7 (RFC 9562, method 1) as canonical text, sorted by time of creation.

    Strictly increasing within the process, from any thread, also when the clock steps back; a forked child draws its
    own. `uuid.uuid7` of Python 3.14 is not used: it takes no lock, and one behaviour on every version is worth more.
    """
    return _ids.uuid7(time.time_ns() // 1_000_000)


def new_nonce() -> str:
    """Return 16 hex digits that no other claim has. Cheap, safe from any thread and after a fork; not a secret."""
    return f"{next(_ids.nonces) & 0xFFFFFFFFFFFFFFFF:016x}"


def worker_identity() -> str:
    """Return a new worker id `host-pid-random`, at most 64 characters. Call it once for each start of a worker.

    The random part makes two starts different even when host and pid repeat, as they do in a restarted container.
    """
    host = re.sub(r"[^A-Za-z0-9.]+", "-", socket.gethostname()).strip("-.")[:40] or "host"
    return f"{host}-{os.getpid()}-{os.urandom(4).hex()}"


def parse_duration_s(value: str | int | float | timedelta, setting: str = "duration") -> float:
    """Return a length of time in seconds, 0 to ten years.

    Accepts numbers (seconds), timedelta, and text: "90", "250ms", "1.5s", "2m", "1h", "1h30m", "7d".
    Raises ConfigurationError naming `setting`.
    """
    hint = 'Write seconds as a number, or text such as "1.5s", "2m", "1h30m".'
    if isinstance(value, str):
        text = value.strip().lower().replace(" ", "")
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            seconds = float(text)
        elif _DURATION.fullmatch(text):
            seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION_PART.findall(text))
        else:
            raise ConfigurationError(setting, f"{value[:60]!r} is not a length of time", hint)
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif type(value) in (int, float):
        seconds = value if 0 <= value <= _MAX_DURATION_S else -1.0  # float() of a huge int would overflow
    else:
        raise ConfigurationError(setting, f"a length of time is needed, got {type(value).__name__}", hint)
    if not 0 <= seconds <= _MAX_DURATION_S:  # also false for NaN
        raise ConfigurationError(setting, f"{value!r} is outside 0 s to 10 years", hint)
    return float(seconds)


def epoch_ms(moment: datetime, setting: str = "run_at") -> int:
    """Return an aware datetime as milliseconds since 1970, the same in every process time zone.

    Raises ConfigurationError for a naive one: it would be read hours early or late elsewhere.
    """
    if not isinstance(moment, datetime):
        raise ConfigurationError(setting, f"{moment!r} is no datetime", "Use datetime.now(timezone.utc) + ….")
    if moment.utcoffset() is None:
        raise ConfigurationError(
            setting,
            f"{moment.isoformat()} has no time zone",
            "Use datetime.now(timezone.utc) + …, or attach the zone that is meant with ZoneInfo.",
        )
    return round(moment.timestamp() * 1_000)
