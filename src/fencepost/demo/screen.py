"""What is seen while it goes on: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fencepost.demo.records import Records
from fencepost.demo.shop import Booking

__all__ = ["Screen"]

_LINE_EVERY_S: Final = 2.0
_SHOWN: Final = {"generate_invoice": "invoices", "sync_stock": "stock bookings", "send_email": "e-mails"}


class Screen:
    """Where the demo speaks. With json, to the standard error, so that the last line of the output is the object."""

    def __init__(self, *, json: bool) -> None:
        self.console = Console(file=sys.stderr if json else sys.stdout, highlight=False, soft_wrap=True)
        self._began = self._told_at = time.monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """Say one line."""
        self.console.print(f"{time.monotonic() - self._began:5.1f} s  {text}", markup=False)

    @contextmanager
    def bars(self, bookings: Mapping[int, Sequence[Booking]]) -> Iterator[None]:
        """Show how many effects of each kind there will be, and how many there are."""
        self._began = self._told_at = time.monotonic()
        totals = {
            "generate_invoice": len(bookings),
            "sync_stock": sum(map(len, bookings.values())),
            "send_email": len(bookings),
        }
        if not self.console.is_terminal:
            yield
            return
        columns = TextColumn("{task.description:>15}"), BarColumn(40), MofNCompleteColumn()
        with Progress(*columns, console=self.console) as self._progress:
            for kind, total in totals.items():
                self._tasks[kind] = self._progress.add_task(_SHOWN[kind], total=total)
            yield
        self._progress = None

    def show(self, records: Records) -> None:
        """Show how far it is."""
        counts = records.done_by_kind
        if self._progress is not None:
            for kind, task in self._tasks.items():
                self._progress.update(task, completed=counts[kind])
        elif time.monotonic() - self._told_at >= _LINE_EVERY_S:
            self._told_at = time.monotonic()
            self.say(", ".join(f"{counts[kind]} {name}" for kind, name in _SHOWN.items()))
