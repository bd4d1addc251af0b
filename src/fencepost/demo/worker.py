"""One worker process of the demo: python -m fencepost.demo.worker NAME

It ends on SIGTERM, and when the process that started it is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from fencepost.demo.stage import QUEUES, Stage, end_with_parent

__all__ = ["SLOTS", "WORKERS", "main"]

WORKERS = ("worker1", "worker2", "worker3")
SLOTS = 6


async def work(name: str, stage: Stage) -> None:
    """Run a Fencepost worker until SIGTERM."""
    from fencepost import Worker
    from fencepost.demo.handlers import app

    # Two slots at most for each queue: so every worker has some of each kind in hand when it is hit.
    worker = Worker(app, [(queue, 2) for queue in QUEUES], concurrency=SLOTS, grace_s=5.0)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    stage.ready(name).touch()
    await worker.run()
    await app.close()


def main(name: str) -> None:
    """Work under this name."""
    os.environ["FENCEPOST_DEMO_NAME"] = name
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    stage = Stage.here()
    end_with_parent()
    if stage.naive:
        from fencepost.demo import naive

        naive.work(name, stage)
    else:
        asyncio.run(work(name, stage))


if __name__ == "__main__":
    main(sys.argv[1])
