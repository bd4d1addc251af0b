"""SIGTERM and SIGINT in a worker's process before it works. Imports next to nothing: it must be there first.

Nothing is held yet, so a signal ends the process at once, with code 0 and no traceback.
"""

from __future__ import annotations

import signal

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_early: list[int] = []


def guard() -> None:
    """From now on a signal ends the process quietly, until the loop takes over."""
    for one in SIGNALS:
        signal.signal(one, _leave)


def _leave(number: int, frame: object) -> None:
    _early.append(number)
    ignore()
    raise SystemExit(0)


def asked() -> bool:
    """Whether a signal came, even if what was running then swallowed the exit."""
    return bool(_early)


def ignore() -> None:
    """From now on a signal means nothing: the process is leaving anyway."""
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
