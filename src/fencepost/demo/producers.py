"""Three producers that race: each enqueues every order, as a shop, its impatient customer and an importer would.

    python -m fencepost.demo.producers NAME

All three send the orders in the same order, with one idempotency key for each job. So whoever comes first is accepted,
the others are told the job that is there, and the bookings of a SKU arrive in their order.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fencepost.demo.orders import Order, read_orders
from fencepost.demo.records import Recorder
from fencepost.demo.shop import Booking, expected_bookings
from fencepost.demo.stage import Stage, end_with_parent
from fencepost.handle import Job
from fencepost.handler import Prepared

__all__ = ["PRODUCERS", "main"]

PRODUCERS = ("webshop", "retry", "importer")
_TOGETHER: Final = 5


def prepared(order: Order, bookings: list[Booking]) -> list[Prepared]:
    """The jobs of one order."""
    from fencepost.demo.handlers import generate_invoice, sync_stock

    key = f"order:{order.order_id}"
    jobs = [generate_invoice.options(idempotency_key=key, client="orders").prepare(order.order_id)]
    for one in bookings:
        stock = sync_stock.options(idempotency_key=f"{key}:{one.sku}", client="orders")
        jobs.append(stock.prepare(one.order_id, one.sku, one.seq, one.quantity))
    return jobs


def enqueue_all(orders: list[Order], recorder: Recorder, wait_for_gate: Callable[[], None]) -> None:
    """Prepare the jobs of all orders, wait, then enqueue them, one call for five orders."""
    from fencepost.demo.handlers import app

    bookings = expected_bookings(orders)
    parts = [orders[at : at + _TOGETHER] for at in range(0, len(orders), _TOGETHER)]
    batches = [[job for order in part for job in prepared(order, bookings[order.order_id])] for part in parts]
    wait_for_gate()
    for jobs in batches:
        for job, answer in zip(jobs, app.enqueue_many_sync(jobs), strict=True):
            if not isinstance(answer, Job):
                raise answer
            recorder.enqueued(answer.id, job.spec.kind, new=not (answer.duplicate or answer.replayed))
    app.close_sync()


def main(name: str) -> None:
    """Enqueue the orders of this stage under this name."""
    os.environ["FENCEPOST_DEMO_NAME"] = name
    stage = Stage.here()
    end_with_parent()

    def wait_for_gate() -> None:
        stage.ready(name).touch()
        while not stage.gate.exists():
            time.sleep(0.005)

    orders = read_orders(Path(stage.orders_csv) if stage.orders_csv else None, stage.count)
    recorder = Recorder(stage.records, name)
    if stage.naive:
        from fencepost.demo import naive

        naive.enqueue_all(orders, recorder, wait_for_gate)
    else:
        enqueue_all(orders, recorder, wait_for_gate)


if __name__ == "__main__":
    main(sys.argv[1])
