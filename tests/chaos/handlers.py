"""The application the chaos tests run in worker processes. Where it works is told by the environment.

A handler that is given a gate waits for a file of that name: the test opens it, and so decides what happens in which
order. Every run writes its begin and end to the file of truth.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fencepost import Fencepost, LeaseExpired, LeaseLost, Permanent, RetryPolicy, Run, StaleToken
from tests.chaos import guard
from tests.chaos.truth import note

folder = Path(os.environ["CHAOS_FOLDER"])
truth, shop = folder / "truth", folder / "shop.db"
app = Fencepost(os.environ["CHAOS_URL"], namespace=os.environ["CHAOS_NAMESPACE"], give_up=20.0)

NEVER = RetryPolicy(attempts=1)
QUICK = RetryPolicy(attempts=4, base=0.2, cap=0.6, jitter="full")


@contextmanager
def seen(run: Run, key: str) -> Iterator[None]:
    """Write begin and end of a run; the end says how it ended."""
    note(truth, "begin", job=run.job_id, key=key, token=run.token, attempt=run.attempt)
    try:
        yield
    except BaseException as error:
        note(truth, "end", token=run.token, how=run.why or type(error).__name__)
        raise
    note(truth, "end", token=run.token, how="returned")


def is_open(gate: str) -> bool:
    return not gate or (folder / gate).exists()


async def opened(gate: str) -> None:
    """Wait on the event loop for a file that another process makes."""
    while not is_open(gate):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@app.job(retry=NEVER)
async def work(run: Run, key: str, gate: str = "", ms: int = 0) -> str:
    """Wait on the event loop."""
    with seen(run, key):
        await asyncio.sleep(ms / 1000)
        await opened(gate)
    return f"token {run.token}"


@app.job(retry=NEVER)
def work_in_thread(run: Run, key: str, gate: str = "", ms: int = 0) -> str:
    """Wait in a thread, without ever asking whether the run is still good."""
    with seen(run, key):
        time.sleep(ms / 1000)
        while not is_open(gate):
            time.sleep(0.01)
    return f"token {run.token}"


@app.job(retry=RetryPolicy(attempts=3, base=0.05))
async def block(run: Run, key: str, gate: str = "", ms: int = 0, fail: str = "") -> str:
    """Block the event loop, so that nothing can be told to this run before it has returned.

    fail: the first attempt that began with an open gate of that name raises.
    """
    first = not (folder / f"{key}.first").exists()
    (folder / f"{key}.first").touch()
    with seen(run, key):
        time.sleep(ms / 1000)  # noqa: ASYNC251
        while first and not is_open(gate):
            time.sleep(0.01)  # noqa: ASYNC251
        if first and fail:
            raise OSError("the woken run fails")
    return f"token {run.token}"


@app.job(retry=NEVER)
def charge(run: Run, key: str, gate: str) -> str:
    """A guarded effect, and then a pause before the outcome is written."""
    with seen(run, key):
        mine = guard.install(shop, key, run)
        answer = guard.once(shop, key, run, f"charge:{key}", f"token {run.token}") if mine else "refused"
        note(truth, "effect", key=key, token=run.token, answer=answer)
        while answer == "done" and not is_open(gate):
            time.sleep(0.01)
    return answer


@app.job(retry=NEVER)
def late_writer(run: Run, key: str, gate: str) -> str:
    """After its pause the first run tries every write there is, and tells what became of each."""
    first = not (folder / f"{key}.first").exists()
    (folder / f"{key}.first").touch()
    with seen(run, key):
        guard.install(shop, key, run)
        note(truth, "installed", key=key, token=run.token)
        if not first:
            run.checkpoint_sync("the owner's")
            note(truth, "effect", key=key, token=run.token, answer=guard.once(shop, key, run, key, "the owner's"))
            while not is_open("owner"):
                time.sleep(0.01)
            return "the owner's"
        while not is_open(gate):
            time.sleep(0.01)
        for name, write in (
            ("checkpoint", lambda: run.checkpoint_sync("late")),
            ("progress", lambda: run.progress_sync(0.9, "late")),
            ("check", run.check),
        ):
            try:
                write()
                note(truth, "write", name=name, answer="accepted")
            except (StaleToken, LeaseExpired, LeaseLost) as error:
                note(truth, "write", name=name, answer=type(error).__name__)
        note(truth, "write", name="effect", answer=guard.once(shop, key, run, key, "late"))
    return "late"


@app.job(retry=NEVER, resource="stock:{sku}")
async def book(run: Run, sku: str, n: int, ms: int = 0, gate: str = "") -> int:
    """One at a time for each sku, in the order of n."""
    with seen(run, f"stock:{sku}"):
        note(truth, "booked", sku=sku, n=n, token=run.token)
        await asyncio.sleep(ms / 1000)
        await opened(gate)
    return n


@app.job(dedup="{key}")
async def unique(run: Run, key: str, gate: str = "") -> str:
    with seen(run, key):
        await opened(gate)
    return key


@app.job(retry=NEVER)
async def kill_my_worker(run: Run, key: str) -> None:
    with seen(run, key):
        os.kill(os.getpid(), signal.SIGKILL)


@app.job(retry=QUICK)
async def always_fails(run: Run, key: str, permanent: bool) -> None:
    with seen(run, key):
        if permanent:
            raise Permanent("it never will")
        raise OSError("not now")
