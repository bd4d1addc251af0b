"""The floor: a route of FastAPI with a body, which enqueues nothing."""

from __future__ import annotations

import uuid

from fastapi import FastAPI
from pydantic import BaseModel


class Order(BaseModel):
    """The body."""

    order_id: int
    copies: int = 1


async def invoice(order: Order) -> dict[str, str]:
    return {"id": uuid.uuid4().hex}


app = FastAPI()
app.post("/jobs/invoice", status_code=202)(invoice)
