"""The moved clock: a test moves the wall clock of its Redis server instead of sleeping."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import redis

SOURCE = Path(__file__).with_name("clockshim.c")


def build_shim(cache: Path) -> Path | str:
    """Return the compiled shim, built once into `cache`, or the reason why there is none."""
    if sys.platform != "linux":
        return f"the clock shim works on Linux only, this is {sys.platform}"
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if compiler is None:
        return "the clock shim needs a C compiler (cc, gcc or clang), and none is on PATH"
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    target = cache / f"clockshim-{digest}-{os.uname().machine}.so"
    if not target.exists():
        fresh = target.with_suffix(f".{os.getpid()}")  # several test processes may build at once
        built = subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-Wall", "-o", fresh, SOURCE], capture_output=True, text=True
        )
        if built.returncode:
            return f"the clock shim does not compile: {built.stderr.strip()}"
        fresh.replace(target)
    return target


class OffsetFile:
    """The shared bytes that say by how many microseconds the server's wall clock is ahead, and where it stands still
    (microseconds since 1970; 0: it runs)."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(16))
        with open(path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), 16)
        self.path = path

    @property
    def us(self) -> int:
        return cast(int, struct.unpack_from("=q", self._page)[0])

    @us.setter
    def us(self, value: int) -> None:
        struct.pack_into("=q", self._page, 0, value)

    @property
    def still_us(self) -> int:
        return cast(int, struct.unpack_from("=q", self._page, 8)[0])

    @still_us.setter
    def still_us(self, value: int) -> None:
        struct.pack_into("=q", self._page, 8, value)

    def close(self) -> None:
        self._page.close()


class StoppedClock:
    """The server's wall clock, standing still: it moves only where a test says so, by whole ms.

    To the ms, not to the µs: between two readings within a millisecond Valkey counts on by its own monotonic clock.
    Commands that block on the server never time out while it stands.
    """

    def __init__(self, client: redis.Redis, offset: OffsetFile) -> None:
        self._client, self._offset = client, offset
        offset.still_us = self._read_ms() * 1000
        self.advance_ms(0)

    def now_ms(self) -> int:
        """Return the server's time in ms since the epoch."""
        return self._offset.still_us // 1000

    def advance(self, seconds: float) -> int:
        """As MovedClock.advance, and there it stands."""
        return self.advance_ms(round(seconds * 1000))

    def advance_ms(self, by: int) -> int:
        """Move the clock, wait until the server goes by it, and return its new time in ms since the epoch."""
        return self.advance_to(self.now_ms() + by)

    def advance_to(self, at_ms: int) -> int:
        """Move the clock to an instant, in ms since the epoch."""
        self._offset.still_us = at_ms * 1000
        give_up = time.monotonic() + 1.0
        while self._read_ms() != at_ms:
            if time.monotonic() > give_up:
                raise AssertionError(f"the server's clock did not go to {at_ms}")
        return at_ms

    def _read_ms(self) -> int:
        seconds, us = self._client.time()
        return int(seconds) * 1_000 + int(us) // 1_000


class MovedClock:
    """Moves the wall clock of the test server. The clock goes on running; it is never stopped.

    Commands that block on the server measure their timeout by this clock: an advance may end them early.
    """

    def __init__(self, client: redis.Redis, offset: OffsetFile) -> None:
        self._client = client
        self._offset = offset

    def advance(self, seconds: float) -> int:
        """Move the server's clock forward (or back, if negative) and return its new time in ms."""
        return self._move(self._offset.us + round(seconds * 1_000_000))

    def advance_to(self, at_ms: int) -> int:
        """Move the server's clock to an instant, in ms since the epoch; it never lands before it."""
        return self._move(self._offset.us + (at_ms - self.now_ms() + 1) * 1000)

    def now_ms(self) -> int:
        """Return the server's time in ms since the epoch."""
        return self._now_us() // 1000

    @property
    def ahead_s(self) -> float:
        """How far the server's clock is ahead of the real one, in seconds."""
        return self._offset.us / 1_000_000

    def reset(self) -> None:
        """Set the clock right again. It goes backwards: only for a server that holds no data."""
        self._move(0)

    def _now_us(self) -> int:
        seconds, us = self._client.time()
        return int(seconds) * 1_000_000 + int(us)

    def _move(self, offset_us: int) -> int:
        """Set the offset and wait until the server goes by it: Valkey reuses a reading for some milliseconds."""
        first, began = self._now_us(), time.monotonic()
        by, self._offset.us = offset_us - self._offset.us, offset_us
        while True:
            now, waited_us = self._now_us(), (time.monotonic() - began) * 1_000_000
            if now >= first + by if by >= 0 else now <= first + by / 2 + waited_us:
                return now // 1000
            if waited_us > 1_000_000:
                raise AssertionError(f"the server's clock did not follow a move by {by / 1e6} s")
