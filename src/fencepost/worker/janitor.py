"""The janitor: walks over the jobs in small steps and mends half states, as a partial restore leaves them."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from fencepost.errors import FencepostError
from fencepost.log import emit
from fencepost.operate.heal import heal_some
from fencepost.operate.plan import run

if TYPE_CHECKING:
    from fencepost.worker.worker import Worker

__all__ = ["tend"]

_log = logging.getLogger("fencepost.worker")
EVERY_S: Final = 5.0


async def tend(worker: Worker, every_s: float = EVERY_S) -> None:
    """One step, of about 200 keys, every few seconds. Any worker's steps help all; each walks by itself.

    A job without a place in any list is found within (keys of the partition / 200) steps.
    """
    cursor = 0
    while True:
        await asyncio.sleep(every_s * (0.5 + random.random()))  # workers that started together do not walk in step
        try:
            cursor = await run(worker.driver, heal_some(worker.store, cursor), every_s)
        except FencepostError as error:
            cursor = 0
            emit(_log, logging.WARNING, "heal_failed", worker_id=worker.id, cause=str(error)[:200])
