"""What does not end with the worker: threads and tasks of handlers that cannot be stopped."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

__all__ = ["Leftovers", "leftovers"]

_PATIENCE_S: Final = 1.0
_POLL_S: Final = 0.02


class Leftovers(NamedTuple):
    """Names of what still runs. True if there is any."""

    threads: list[str]
    tasks: list[str]

    def __bool__(self) -> bool:
        return bool(self.threads or self.tasks)


async def leftovers(executor: ThreadPoolExecutor) -> Leftovers:
    """Cancel and wait a second for what the handlers left; name what is still there.

    Python would wait for such threads for ever when it exits, and so would the loop for such tasks.
    executor: the loop's default one, for asyncio.to_thread; made by us, for the loop would wait for its threads.
    """
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    tasks = {task for task in asyncio.all_tasks() if task is not me}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_PATIENCE_S)
    executor.shutdown(wait=False, cancel_futures=True)
    end = loop.time() + _PATIENCE_S
    while _busy_threads() and loop.time() < end:  # noqa: ASYNC110 - threads set no event when they end
        await asyncio.sleep(_POLL_S)
    return Leftovers(_busy_threads(), sorted(task.get_name() for task in tasks if not task.done()))


def _busy_threads() -> list[str]:
    """Threads that the interpreter would wait for, without those of a pool that have nothing to do."""
    frames = sys._current_frames()
    found = []
    for one in threading.enumerate():
        frame = frames.get(one.ident or 0)
        idle = frame is not None and frame.f_code.co_name == "_worker" and "concurrent" in frame.f_code.co_filename
        if one is not threading.main_thread() and not one.daemon and not idle:
            found.append(one.name)
    return sorted(found)
