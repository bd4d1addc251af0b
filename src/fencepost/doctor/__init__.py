"""The doctor: looks at the server and at the settings before anything is promised on top of them, and fails closed.

`examine` says what it found; `check_or_refuse` is what a worker calls when it starts.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from fencepost.doctor.books import books
from fencepost.doctor.finding import Finding, WorkerSettings
from fencepost.doctor.kinds import kinds, served, settings_of
from fencepost.doctor.server import PARTITIONS, clock, halves, partitions, scripts, server, standstill
from fencepost.errors import RedisUnavailable, UnsafeSetup
from fencepost.log import emit
from fencepost.operate.overview import workers
from fencepost.operate.plan import Plan, run

if TYPE_CHECKING:
    from fencepost.app import Fencepost
    from fencepost.driver import AsyncDriver

__all__ = ["Finding", "WorkerSettings", "books", "check_or_refuse", "examination", "examine"]

_log = logging.getLogger("fencepost.doctor")


def examination(
    app: Fencepost, settings: WorkerSettings | None = None, *, thorough: bool = False
) -> Plan[list[Finding]]:
    """The examination of Redis and the kinds as a plan, for either driver.

    thorough: also look for half states, 20,000 keys far.
    """
    about = settings or settings_of(app)
    store = app.link.store
    found, agreed = (yield from server(store)), kinds(app.handlers, about, app.redact)
    if any(one.level == "error" and one.check in ("role", "cluster") for one in found):
        return found + agreed  # the wrong server: what it says of the rest means nothing
    found += yield from scripts(store)
    if found[-1].level == "error":  # nothing else could be asked
        return found + agreed
    found += yield from clock(store.keys)
    found += yield from standstill(store)
    found += yield from partitions(store)
    found += agreed
    seen = yield from workers(store.keys)
    found += served(app.handlers, about, {queue for one in seen if one.alive for queue in one.queues})
    if thorough:
        found += yield from halves(store)
    return found


async def examine(
    app: Fencepost, settings: WorkerSettings | None = None, *, thorough: bool = False, give_up_s: float | None = None
) -> list[Finding]:
    """Return what was found, good and bad. Changes nothing. Raises RedisUnavailable where the server is away."""
    found = await run(app.link.asynchronous, examination(app, settings, thorough=thorough), give_up_s)
    return found + await asyncio.to_thread(books, app)


async def check_or_refuse(
    app: Fencepost,
    settings: WorkerSettings | None = None,
    *,
    force: bool = False,
    give_up_s: float | None = None,
    driver: AsyncDriver | None = None,
) -> list[Finding]:
    """Examine, log what is not well, and raise UnsafeSetup for errors; with force, log that they were overruled.

    driver: whose connections to use, by default the application's. On the way out it notes the number of partitions,
    so that a later process with another number is refused.
    """
    driver = driver or app.link.asynchronous
    found = await run(driver, examination(app, settings), give_up_s)
    found += await asyncio.to_thread(books, app)
    for one in found:
        if one.level != "ok":
            level = logging.ERROR if one.level == "error" else logging.WARNING
            emit(_log, level, f"doctor_{one.level}", check=one.check, text=one.text, hint=one.hint)
    errors = tuple(f"{one.text} ({one.hint})" if one.hint else one.text for one in found if one.level == "error")
    if errors and not force:
        raise UnsafeSetup(errors)
    if errors:
        checks = ",".join(one.check for one in found if one.level == "error")
        emit(_log, logging.WARNING, "doctor_overruled", checks=checks, errors=len(errors))
    store = app.link.store
    try:
        await driver.run(store.read(["HSETNX", store.keys.meta, "partitions", str(PARTITIONS)], int), give_up_s)
    except (ResponseError, RedisUnavailable) as error:  # full memory, for instance: the workers are to drain it
        emit(_log, logging.WARNING, "partitions_not_noted", cause=str(error)[:200])
    return found
