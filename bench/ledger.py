"""How fast the archiver copies events into a ledger. The goal on PostgreSQL: 10,000 events a second.

python bench/ledger.py                      on a private PostgreSQL (fsync as shipped: on) and on SQLite
python bench/ledger.py URL                  on a database of one's own; its tables are made, rows are added
      --jobs 30000  --json

The events are real: jobs enqueued, claimed and finished by the scripts on a private server, three events a job, in
entries of the sizes a busy application makes.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fencepost.clock import uuid7
from fencepost.driver import Connections, SyncDriver
from fencepost.embedded import EmbeddedServer
from fencepost.job import JobSpec
from fencepost.keys import Keys
from fencepost.ledger import Archiver, Ledger
from fencepost.sql.upgrade import upgrade
from fencepost.store import Outcome, Request, Store

GOAL = 10_000
BATCHES = (2_000, 5_000)


def produce(driver: SyncDriver, store: Store, jobs: int, claims: int) -> None:
    """Enqueue, claim and finish jobs; `claims` at a time, as so many slots of a worker do."""
    for _ in range(jobs // 500):
        driver.run(store.enqueue([JobSpec(id=uuid7(), kind="invoice.send") for _ in range(500)]))
    outcomes: list[Outcome] = []
    for number in range(jobs // claims + 1):
        request = Request("bench-1-abcdef", "0", f"{number:016x}", claims, 30_000, "", (("default", 10_000),))
        served = driver.run(store.finish(outcomes, request))
        outcomes = [Outcome(*one.key, "DONE", (b"",)) for one in served.jobs]
    driver.run(store.finish(outcomes, Request("bench-1-abcdef", "0", "end", 0, 30_000, "", (("default", 1),))))


def measure(url: str, redis_url: str, jobs: int, claims: int, limit: int) -> dict[str, float | str]:
    """Copy the events of `jobs` jobs from beginning to end, and return the figures."""
    namespace = f"b{secrets.token_hex(4)}"
    driver, store = SyncDriver(Connections(redis_url)), Store(Keys(namespace))
    produce(driver, store, jobs, claims)
    ledger = Ledger(url, namespace)
    archiver = Archiver(ledger, store, driver)
    archiver.copy_some(1)
    started, cpu, events, steps = time.perf_counter(), time.process_time(), 0, 0
    more = True
    while more:
        step = archiver.copy_some(limit)
        events, steps, more = events + step.events, steps + 1, step.more
    took, used = time.perf_counter() - started, time.process_time() - cpu
    ledger.close()
    driver.close()
    return {
        "database": ledger.engine.dialect.name,
        "claims": claims,
        "limit": limit,
        "events": events,
        "steps": steps,
        "events_per_s": round(events / took),
        "cpu_us_per_event": round(used / events * 1e6, 1),
    }


@contextmanager
def databases(url: str | None) -> Iterator[list[str]]:
    """The database that was named; else a private PostgreSQL, if it can be had, and a SQLite file."""
    if url:
        yield [url]
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.support.databases import start_postgres, why_no_postgres

    with tempfile.TemporaryDirectory() as folder:
        sqlite = f"sqlite:///{folder}/ledger.sqlite"
        if reason := why_no_postgres():
            print(reason, file=sys.stderr)
            yield [sqlite]
            return
        server = start_postgres({"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"})
        try:
            yield [server.new_database(), sqlite]
        finally:
            server.close()


def main() -> int:
    """Measure and print; exits 1 where PostgreSQL reaches the goal with no size of batch."""
    parser = argparse.ArgumentParser(description="Archiving into the ledger, in events a second.")
    parser.add_argument("url", nargs="?", help="a SQLAlchemy URL of SQLite or PostgreSQL")
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    out = []
    with EmbeddedServer.start(ephemeral=True) as server, databases(options.url) as urls:
        for url in urls:
            upgrade(url)
            for claims, limit in ((100, BATCHES[0]), (100, BATCHES[1]), (10, BATCHES[1])):
                out.append(measure(url, server.url, options.jobs, claims, limit))
                if not options.json:
                    print("  ".join(f"{name} {value}" for name, value in out[-1].items()), flush=True)
    if options.json:
        print(json.dumps(out))
    reached = [float(one["events_per_s"]) for one in out if one["database"] == "postgresql"]
    return 1 if reached and max(reached) < GOAL else 0


if __name__ == "__main__":
    sys.exit(main())
