"""What the tests share: servers, the moved clock, the state of a namespace, waiting."""

from tests.support.clock import MovedClock, StoppedClock
from tests.support.servers import raw_client, start_server
from tests.support.state import Stored, digest, dump, keys_of, leaks
from tests.support.waiting import eventually, wait_until

__all__ = [
    "MovedClock",
    "StoppedClock",
    "Stored",
    "digest",
    "dump",
    "eventually",
    "keys_of",
    "leaks",
    "raw_client",
    "start_server",
    "wait_until",
]
