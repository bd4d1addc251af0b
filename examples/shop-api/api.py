"""The shop over HTTP: routes of its own that enqueue, and the service of Fencepost under /queue.

uvicorn api:web
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import Table
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

import books
from fencepost import IdempotencyConflict, Job, JobNotFound, QueueFull, RedisUnavailable
from fencepost.api import ApiSettings, fencepost_router
from jobs import app, generate_invoice, rebuild_cache, send_mail, sync_stock


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield
    await app.close()


web = FastAPI(title="Shop", lifespan=lifespan)
# Operators, dashboards and workers in other languages come in here, each with a token of its own.
web.include_router(fencepost_router(app, ApiSettings()), prefix="/queue")


# The gateway in front of the shop has checked who this is.
User = Annotated[str, Header(alias="X-User", min_length=1, max_length=60)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=255)]


class Accepted(BaseModel):
    """job: ask for it under /jobs/{job}. known: the same work had been asked for before; nothing was added."""

    job: str
    state: str
    known: bool


class Mail(BaseModel):
    template: Annotated[str, Field(pattern="^[a-z-]{1,40}$")]


class Cache(BaseModel):
    tenant: Annotated[str, Field(pattern="^[a-z0-9-]{1,40}$")]
    part: Annotated[str, Field(pattern="^[a-z0-9-]{1,40}$")]


def accepted(job: Job[Any], response: Response) -> Accepted:
    response.headers["Location"] = f"/jobs/{job.id}"
    return Accepted(job=job.id, state=job.state, known=job.duplicate or job.replayed)


async def must_have(table: Table, key: object) -> None:
    if not await run_in_threadpool(books.has, table, key):
        raise HTTPException(404, f"{table.name}: there is no {key}")


async def known_order(order_id: int) -> int:
    await must_have(books.orders, order_id)
    return order_id


async def known_article(sku: str) -> str:
    await must_have(books.stock, sku)
    return sku


async def known_customer(user_id: int) -> int:
    await must_have(books.customers, user_id)
    return user_id


Order = Annotated[int, Depends(known_order)]
Article = Annotated[str, Depends(known_article)]
Customer = Annotated[int, Depends(known_customer)]


@web.post("/orders/{order_id}/invoice", status_code=202)
async def invoice(order_id: Order, response: Response, user: User, key: Key = None) -> Accepted:
    """Ask for the invoice of an order. A form that is sent twice, with the same key, is one request."""
    job = await generate_invoice.options(idempotency_key=key, client=user).enqueue(order_id=order_id)
    return accepted(job, response)


@web.get("/orders/{order_id}/invoice")
async def invoice_of(order_id: Order, user: User) -> dict[str, Any]:
    return {"order": order_id, "invoices": await run_in_threadpool(books.invoices_of, order_id)}


@web.post("/stock/{sku}/sync", status_code=202)
async def sync(sku: Article, response: Response) -> Accepted:
    return accepted(await sync_stock.enqueue(sku=sku), response)


@web.post("/users/{user_id}/mail", status_code=202)
async def mail(user_id: Customer, body: Mail, response: Response, user: User, key: Key = None) -> Accepted:
    options = send_mail.options(idempotency_key=key, client=user)
    return accepted(await options.enqueue(user_id=user_id, template=body.template), response)


@web.post("/jobs/rebuild-cache", status_code=202)
async def rebuild(body: Cache, response: Response) -> Accepted:
    return accepted(await rebuild_cache.enqueue(tenant=body.tenant, part=body.part), response)


@web.get("/jobs/{job_id}")
async def status(job_id: str) -> dict[str, Any]:
    """What a page shows while it waits. Operators see more of it: /queue/v1/jobs/{id}."""
    record = await app.get(job_id).status()
    return {"job": record.id, "kind": record.kind, "state": record.state, "attempts": record.attempts}


def refused(status_code: int, headers: dict[str, str]) -> Callable[[Request, Exception], JSONResponse]:
    def handler(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code, headers)

    return handler


for error, code, wait in (
    (IdempotencyConflict, 422, {}),
    (JobNotFound, 404, {}),
    (QueueFull, 503, {"Retry-After": "5"}),
    (RedisUnavailable, 503, {"Retry-After": "1"}),
):
    web.add_exception_handler(error, refused(code, wait))
