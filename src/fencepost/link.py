"""One application's way to Redis: the calls of its partition and the two drivers that run them."""

from __future__ import annotations

from collections.abc import Callable

from fencepost.driver import AsyncDriver, Connections, SyncDriver
from fencepost.job import JobRecord
from fencepost.store import Store

__all__ = ["Link"]


class Link:
    """Store and drivers of one partition, shared by all that belongs to one application object.

    recall: what SQL knows of a job that Redis has not; blocks. None for an application without a ledger or an outbox.
    hidden: names of arguments whose values are secret, beside those that fencepost.redact knows.
    """

    __slots__ = ("asynchronous", "connections", "hidden", "recall", "store", "synchronous")

    def __init__(self, connections: Connections, store: Store, give_up_s: float, hidden: tuple[str, ...] = ()) -> None:
        self.connections, self.store, self.hidden = connections, store, hidden
        self.recall: Callable[[str], JobRecord | None] | None = None
        self.asynchronous = AsyncDriver(connections, give_up_s=give_up_s)
        self.synchronous = SyncDriver(connections, give_up_s=give_up_s)
