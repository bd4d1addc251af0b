"""Refuse a change that makes a job cost more: round trips, commands, CPU per job. Never jobs per second.

python bench/gate.py        measures a little, compares with limits.json, exits 1 and names each figure that is over

CPU is counted in units of the same run, so that a slow or busy machine does not decide: the server's in trivial
EVALSHAs, the worker's in turns of a Python loop.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from fencepost.bench import floors, measure
from fencepost.bench.jobs import run_loop
from fencepost.bench.server import Meter
from fencepost.embedded import EmbeddedServer

LIMITS = Path(__file__).with_name("limits.json")


def figures(url: str) -> dict[str, float]:
    """Measure what limits.json names, on a server that may be emptied."""
    meter = Meter(url)
    out: dict[str, float] = {}
    loop_ns = floors.python_loop_ns()
    _, evalsha_us = floors.evalsha_pipelined(meter.redis, 20_000)
    for concurrency, jobs in ((1, 1_000), (10, 3_000), (100, 10_000)):
        out |= run_loop(measure.process(url, meter, jobs, concurrency))
    out |= run_loop(measure.process(url, meter, 5_000, 100, "one_resource"))
    out |= run_loop(measure.callers(url, meter, 5_000))
    out |= run_loop(measure.bulk(url, meter, 5_000))
    out |= measure.memory(url, meter, 10_000)
    out |= run_loop(measure.idle(url, meter, 3.0))
    out["process_c100_redis_cpu_in_trivial_evalsha"] = out["process_c100_redis_cpu_us"] / evalsha_us
    out["process_c100_worker_cpu_in_python_loops"] = out["process_c100_worker_cpu_us"] * 1000 / loop_ns
    return out


def main() -> int:
    """Compare and report."""
    logging.getLogger("fencepost").setLevel(logging.ERROR)
    limits: dict[str, float] = json.loads(LIMITS.read_text(encoding="utf-8"))
    with EmbeddedServer.start(ephemeral=True) as server:
        measured = figures(server.url)
    over = 0
    for name, limit in limits.items():
        good = measured[name] <= limit
        over += not good
        print(f"{'ok  ' if good else 'OVER'} {name:46} {measured[name]:10.3f}   limit {limit:g}")
    if over:
        print(
            f"{over} figures are over their limit. Find what costs more; raise one only with the reason written down."
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
