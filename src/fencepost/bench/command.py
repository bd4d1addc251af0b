"""``fencepost bench``: run the measurements and print them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import click

from fencepost.bench import floors, measure
from fencepost.bench.jobs import run_loop
from fencepost.bench.server import Meter
from fencepost.embedded import EmbeddedServer

__all__ = ["command", "run"]

# name of a figure: (target, whether more is better). From the project's own goals.
TARGETS: dict[str, tuple[float, bool]] = {
    "enqueue_sync_per_s": (5_000, True),
    "enqueue_100_callers_per_s": (20_000, True),
    "enqueue_bulk_per_s": (50_000, True),
    "process_c1_per_s": (4_000, True),
    "process_c10_per_s": (15_000, True),
    "process_c100_per_s": (30_000, True),
    "process_c100_worker_cpu_us": (20, False),
    "process_c100_redis_cpu_us": (20, False),
    "process_c1_round_trips_per_job": (1.2, False),
    "process_c100_round_trips_per_job": (0.1, False),
    "latency_p50_ms": (1.5, False),
    "latency_p99_ms": (4.0, False),
    "waiting_job_bytes": (1_000, False),
    "idle_requests_per_s": (2.2, False),
}


def run(url: str, scale: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Run everything against a server that may be emptied, and return the figures by name.

    scale: 1 for the usual number of jobs. Between the measurements the database is flushed.
    """
    meter = Meter(url)
    figures: dict[str, Any] = dict(measure.environment())
    figures["server"] = str(
        meter.redis.info("server").get("valkey_version") or meter.redis.info("server")["redis_version"]
    )

    def count(jobs: int) -> int:
        return max(500, int(jobs * scale) // 100 * 100)

    say("floors")
    figures["floor_python_loop_ns"] = floors.python_loop_ns()
    rate, cpu_us = floors.evalsha_pipelined(meter.redis, count(50_000))
    figures["floor_evalsha_pipelined_per_s"], figures["floor_evalsha_redis_cpu_us"] = rate, cpu_us
    figures["floor_round_trips_sync_per_s"] = floors.round_trips_sync(url, count(5_000))
    figures["floor_round_trips_async_per_s"] = run_loop(floors.round_trips_async(url, count(5_000)))
    say("enqueue")
    figures |= measure.one_by_one(url, meter, count(5_000))
    figures |= run_loop(measure.callers(url, meter, count(20_000)))
    figures |= run_loop(measure.bulk(url, meter, count(50_000)))
    figures |= measure.memory(url, meter, count(10_000))
    for concurrency, jobs in ((1, 4_000), (10, 20_000), (100, 50_000)):
        say(f"process, {concurrency} at a time")
        figures |= run_loop(measure.process(url, meter, count(jobs), concurrency))
    say("process, a resource for each job")
    figures |= run_loop(measure.process(url, meter, count(30_000), 100, "one_resource"))
    say("process, two workers")
    figures |= measure.two_workers(url, meter, count(50_000))
    say("latency at 50 jobs/s, and an idle worker")
    figures |= run_loop(measure.latency(url, meter, 10 * min(1.0, scale)))
    figures |= run_loop(measure.idle(url, meter))
    figures["resource_share_of_throughput"] = figures["process_c100_resource_per_s"] / figures["process_c100_per_s"]
    return figures


@click.command("bench")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--scale", default=1.0, show_default=True, help="More or fewer jobs in each measurement.")
def command(as_json: bool, scale: float) -> None:
    """Measure throughput, latency and cost per job on a private server, beside the floors of this machine."""
    logging.getLogger("fencepost").setLevel(logging.ERROR)
    if not 0.001 <= scale <= 100:
        raise click.BadParameter("must be 0.001 to 100", param_hint="--scale")
    with EmbeddedServer.start(ephemeral=True) as server:
        figures = run(server.url, scale, lambda text: click.echo(f"… {text}", err=True))
    if as_json:
        click.echo(json.dumps({name: _rounded(value) for name, value in figures.items()}))
        return
    click.echo(f"{'figure':44} {'measured':>12} {'target':>10}")
    for name, value in figures.items():
        target, more = TARGETS.get(name, (None, True))
        goal = "" if target is None else f"{'≥' if more else '≤'} {target:,g}"
        met = "" if target is None else ("  met" if (value >= target) == more or value == target else "  missed")
        click.echo(f"{name:44} {_shown(value):>12} {goal:>10}{met}")
    click.echo("Machines differ and are noisy: compare a figure with the floors of the same run, not with another run.")


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
    return str(value)


if __name__ == "__main__":
    command()
