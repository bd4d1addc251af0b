"""What the doctor says, and what it has to know about the worker that is to start."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Finding", "WorkerSettings", "bad", "doubtful", "fine"]


class Finding(msgspec.Struct, frozen=True):
    """One finding. check: its short name. text: what is so, and why it matters. hint: what to do; empty if well."""

    level: Literal["error", "warning", "ok"]
    check: str
    text: str
    hint: str = ""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker was told. queues: names it serves; () where no worker is meant."""

    lease_s: float = 30.0
    grace_s: float = 25.0
    concurrency: int = 100
    queues: tuple[str, ...] = ()


def bad(check: str, text: str, hint: str) -> Finding:
    return Finding("error", check, text, hint)


def doubtful(check: str, text: str, hint: str) -> Finding:
    return Finding("warning", check, text, hint)


def fine(check: str, text: str) -> Finding:
    return Finding("ok", check, text)
