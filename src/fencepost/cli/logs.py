"""Log lines of a worker process: readable ones, or one JSON object a line."""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
import sys
from typing import Any, Final

import msgspec

__all__ = ["LEVELS", "adopt_root", "set_up"]

LEVELS: Final = ("debug", "info", "warning", "error")
_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


class _Human(logging.Formatter):
    """`2026-11-30 20:51:03.123 INFO     worker_started worker_id=… queues=a,b`"""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-8s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return (
            text if hasattr(record, "event") else text.replace(record.message, f"[{record.name}] {record.message}", 1)
        )


class _Json(logging.Formatter):
    """One object a line: time, level, host, pid, event, and the fields of the event as they are."""

    def __init__(self) -> None:
        super().__init__()
        self._fixed = {"host": socket.gethostname(), "pid": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
            **self._fixed,
        }
        if line["event"] == "log":
            line |= {"logger": record.name, "message": record.getMessage()}
        for name, value in getattr(record, "fields", {}).items():
            line[name if name not in line else f"{name}_"] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        try:
            return _encode(line).decode()
        except (TypeError, ValueError, OverflowError, RecursionError):  # a lone surrogate, a number beyond 64 bit
            return json.dumps(line, default=repr)


def set_up(form: str, level: str) -> logging.Handler:
    """Send Fencepost's own log lines to stderr. form: "human" | "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Human())
    logger = logging.getLogger("fencepost")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    return handler


def adopt_root(handler: logging.Handler, level: str) -> None:
    """Show the application's own log lines too, unless it has set up logging itself."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(level.upper())
