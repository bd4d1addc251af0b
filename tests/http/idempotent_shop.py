"""An application with idempotent endpoints, for tests in this process."""

import asyncio
from typing import Any

import httpx2
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel

from fencepost import Fencepost
from fencepost.api import Idempotent, IdempotentRoute, Once

KEY = {"Idempotency-Key": '"k-1"'}


class Order(BaseModel):
    sku: str
    pieces: int = 1


class Shop:
    """A FastAPI application with one protected router. calls: what its handlers were called with. gate: they wait
    there. held: the guards of the requests that wait."""

    def __init__(self, queue: Fencepost) -> None:
        self.queue, self.calls, self.gate = queue, list[Any](), asyncio.Event()
        self.held = list[Once]()
        self.gate.set()
        self.served = FastAPI()
        self.idempotent = Idempotent(queue, scope=lambda request: request.headers.get("x-tenant", "t"), lease="2s")
        self.router = APIRouter(route_class=IdempotentRoute)

    def include(self, **options: Any) -> FastAPI:
        self.served.include_router(self.router, **options)
        return self.served

    async def pass_gate(self, once: Once, what: Any) -> None:
        self.calls.append(what)
        self.held.append(once)
        await self.gate.wait()
        self.held.remove(once)


def slug(answer: httpx2.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["type"]).rpartition("/")[2]
