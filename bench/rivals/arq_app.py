"""FastAPI and arq, as arq's documentation has it: one pool for the process, one enqueue_job a request."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool  # type: ignore[import-not-found, unused-ignore]
from arq.connections import RedisSettings  # type: ignore[import-not-found, unused-ignore]
from fastapi import FastAPI
from pydantic import BaseModel

pool: Any = None


class Order(BaseModel):
    """The body."""

    order_id: int
    copies: int = 1


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    global pool
    pool = await create_pool(RedisSettings(unix_socket_path=os.environ["BENCH_SOCKET"]))
    yield
    await pool.aclose()


async def invoice(order: Order) -> dict[str, str]:
    job = await pool.enqueue_job("invoice", order_id=order.order_id, copies=order.copies)
    return {"id": job.job_id}


app = FastAPI(lifespan=lifespan)
app.post("/jobs/invoice", status_code=202)(invoice)
