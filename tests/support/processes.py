"""Whether a process is still there."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["gone"]


def gone(pid: int) -> bool:
    """Whether a process has ended. One that only waits to be collected has: not every init collects orphans."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:  # it ended meanwhile, or this system has no /proc
        return Path("/proc/self").exists()
