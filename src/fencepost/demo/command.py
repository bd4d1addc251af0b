"""`fencepost demo`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import click

from fencepost.errors import FencepostError

__all__ = ["command"]


@click.command("demo")
@click.option("--orders", "csv", type=click.Path(path_type=Path), metavar="FILE.csv", help="Orders of your own.")
@click.option("--jobs", type=click.IntRange(min=20), metavar="N", help="Take only the first N orders (20 or more).")
@click.option("--naive", is_flag=True, help="The same without lease, fence and guard, to see the damage.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object, as the last line.")
def command(csv: Path | None, jobs: int | None, naive: bool, as_json: bool) -> None:
    """Turn a shop's orders into invoices, stock bookings and e-mails while workers are killed and frozen.

    Needs nothing else: it starts its own Redis, mail server and three workers in a temporary folder. One worker is
    killed, one is frozen past its lease and woken. The figures are counted from what the handlers wrote down, and the
    ledger has to agree: all events are copied into SQL and checked, as by `fencepost ledger verify`.

    The CSV has a line for each order, with the columns order_id, email, items and total, such as
    1001,ada@example.com,GREEN-TEA:2:6.90 MUG:1:12.50,26.30 (an item is SKU:quantity:price).

    Exit code 0: nothing lost, overlapped or doubled, the ledger agrees, and both faults hit. 1: otherwise; with
    --naive, if there is damage. 2: the command or its CSV file is wrong.
    """
    try:
        from fencepost.demo.orders import read_orders
        from fencepost.demo.play import play
        from fencepost.demo.report import report
        from fencepost.demo.screen import Screen
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fencepost"):
            raise
        click.echo(f"The demo needs {error.name}: run `pip install 'fencepost[demo]'`. Nothing was started.", err=True)
        sys.exit(1)
    try:
        orders = read_orders(csv, jobs)
    except FencepostError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    screen = Screen(json=as_json)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave by the front door: others have to be ended
    try:
        measured = play(orders, csv, off=naive, screen=screen)
    except FencepostError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("Interrupted; all processes of the demo were ended.", err=True)
        sys.exit(130)
    report(screen.console, measured)
    if as_json:
        click.echo(json.dumps(measured.as_json()))
    sys.exit((1 if measured.harm else 0) if naive else (0 if measured.as_it_must_be else 1))
