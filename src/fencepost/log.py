"""One log event a line: a name and fields, no prose. Handlers and formats belong to the application."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["emit"]


def emit(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
    """Log an event. The text is ``event key=value ...``; the record carries event and fields as attributes."""
    if not logger.isEnabledFor(level):
        return
    shown = " ".join(f"{name}={_one_line(value)}" for name, value in fields.items() if value not in (None, ""))
    logger.log(level, "%s %s", event, shown, extra={"event": event, "fields": fields})


def _one_line(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    if text.isprintable() and " " not in text:
        return text
    return ascii(text)
