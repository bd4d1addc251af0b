"""FastAPI and Celery: `delay` blocks, so the route is a plain function, which FastAPI runs in a thread."""

from __future__ import annotations

import os

from celery import Celery  # type: ignore[import-not-found, import-untyped, unused-ignore]
from fastapi import FastAPI
from pydantic import BaseModel


def write(order_id: int, copies: int) -> None:
    """The task."""


celery = Celery("bench", broker=f"redis+socket://{os.environ['BENCH_SOCKET']}")
task = celery.task(name="invoice", ignore_result=True)(write)


class Order(BaseModel):
    """The body."""

    order_id: int
    copies: int = 1


def invoice(order: Order) -> dict[str, str]:
    return {"id": task.delay(order_id=order.order_id, copies=order.copies).id}


app = FastAPI()
app.post("/jobs/invoice", status_code=202)(invoice)
