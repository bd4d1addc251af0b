"""One application's way to Redis: the calls of its partition and the two drivers that run them."""

from __future__ import annotations

from fencepost.driver import AsyncDriver, Connections, SyncDriver
from fencepost.store import Store

__all__ = ["Link"]


class Link:
    """Store and drivers of one partition, shared by all that belongs to one application object."""

    __slots__ = ("asynchronous", "connections", "store", "synchronous")

    def __init__(self, connections: Connections, store: Store, give_up_s: float) -> None:
        self.connections, self.store = connections, store
        self.asynchronous = AsyncDriver(connections, give_up_s=give_up_s)
        self.synchronous = SyncDriver(connections, give_up_s=give_up_s)
