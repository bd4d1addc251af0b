"""A worker process: python -m tests.chaos.process '{"queues": [...], "lease_s": 2, ...}'

SIGTERM ends it as `fencepost worker` would. It also ends when its standard input does: when the test is gone.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys

from fencepost import Worker
from tests.chaos.truth import note

handlers = importlib.import_module(f"tests.chaos.{os.environ['CHAOS_HANDLERS']}")
app, truth = handlers.app, handlers.truth


async def main() -> None:
    settings = json.loads(sys.argv[1])
    worker = Worker(app, settings.pop("queues", ["default"]), **settings)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    loop.add_reader(sys.stdin.fileno(), os._exit, 1)
    note(truth, "up")
    await worker.run()
    note(truth, "down")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(main())
