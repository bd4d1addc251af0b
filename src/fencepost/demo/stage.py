"""Where one performance of the demo takes place: its folder, the addresses in it, and how long things take."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

__all__ = ["NAMESPACE", "QUEUES", "STAGE_SETTING", "Stage", "end_with_parent"]

STAGE_SETTING: Final = "FENCEPOST_DEMO_STAGE"
"""The environment variable that tells the processes of the demo their folder."""

NAMESPACE: Final = "shop"
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
QUEUES: Final = ("invoices", "stock", "mail", "upkeep")


@dataclass(frozen=True, slots=True)
class Stage:
    """Told to every process of the demo. All lengths in seconds.

    orders_csv: "" for the orders that ship with the package. count: how many of them. naive: without Fencepost.
    lease_s: short, so that a lost worker shows soon. invoice_s, stock_s: how long the work itself takes.
    """

    folder: str
    orders_csv: str = ""
    count: int = 0
    naive: bool = False
    redis_url: str = "redis://localhost:6379/0"
    smtp_port: int = 0
    lease_s: float = 2.5
    invoice_s: float = 0.12
    stock_s: float = 0.03

    @property
    def database(self) -> Path:
        """The shop's own database."""
        return Path(self.folder, "shop.sqlite")

    @property
    def ledger(self) -> str:
        """The URL of the ledger: a database of its own."""
        return f"sqlite:///{Path(self.folder, 'ledger.sqlite')}"

    @property
    def records(self) -> Path:
        """The folder of what the handlers and producers write down themselves, a file for each process."""
        return Path(self.folder, "records")

    @property
    def jams(self) -> Path:
        """The folder with a file for each worker and each job that is to stand still somewhere; see jam.py."""
        return Path(self.folder, "jams")

    @property
    def logs(self) -> Path:
        return Path(self.folder, "logs")

    def ready(self, name: str) -> Path:
        """The file that says: the process of this name has started."""
        return Path(self.folder, f"{name}.ready")

    @property
    def gate(self) -> Path:
        """The producers wait until this file is there, so that they really race."""
        return Path(self.folder, "gate")

    def set_up(self) -> None:
        """Make the folders and write the stage down for the other processes."""
        for folder in (self.records, self.jams, self.logs):
            folder.mkdir()
        Path(self.folder, "stage.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def here(cls) -> Stage:
        """Return the stage of this process; outside a performance, one on a local Redis where nobody plays."""
        folder = os.environ.get(STAGE_SETTING)
        if folder is None:
            return cls(tempfile.gettempdir())
        return cls(**json.loads(Path(folder, "stage.json").read_text()))


def end_with_parent() -> None:
    """End this process at once when its parent is gone: nobody is left who could ask it to stop.

    The pipe from the parent closes then. A frozen process does not notice that, so on Linux the kernel ends it;
    elsewhere the hang-up of an orphaned process group does, where whoever inherits it is not of the same session.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(3)

    threading.Thread(target=watch, name="fencepost-demo-parent", daemon=True).start()
