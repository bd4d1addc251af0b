"""Keeps an embedded server running while workers need it.

The server of a data folder belongs to the process that started it. When that process ends, whoever still works starts
it again, on the same address, and becomes its owner.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from fencepost.embedded import EmbeddedServer
from fencepost.errors import ConfigurationError
from fencepost.log import emit

__all__ = ["keep"]

_log = logging.getLogger("fencepost.cli")
_LOOK_S = 1.0


async def keep(server: EmbeddedServer) -> None:
    """Look once a second whether the server's socket answers; start it again where not. Runs until cancelled."""
    while True:
        await asyncio.sleep(_LOOK_S)
        if await _listens(server.socket):
            continue
        try:
            gone = await asyncio.to_thread(server.ensure)
        except (ConfigurationError, OSError) as error:
            emit(_log, logging.ERROR, "server_not_restarted", path=str(server.path), cause=str(error)[:300])
        else:
            if gone:
                emit(_log, logging.WARNING, "server_restarted", path=str(server.path), owner=not server.attached)


async def _listens(path: str) -> bool:
    """Whether somebody accepts connections there; costs one, and no command."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), 5.0)
    except TimeoutError:
        return True  # it is there, only slow
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
