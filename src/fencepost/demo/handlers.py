"""The shop's jobs, on Fencepost. Run by `python -m fencepost.demo.worker`, enqueued by producers.py."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AbstractContextManager
from functools import cache

from fencepost import Fencepost, RetryPolicy, Run
from fencepost.demo.guard import Fence, StaleWrite, effect, install
from fencepost.demo.jam import Jam
from fencepost.demo.late import insist
from fencepost.demo.mail import send
from fencepost.demo.records import Note, Recorder
from fencepost.demo.shop import TEMPLATE, Booking, Shop
from fencepost.demo.stage import NAMESPACE, Stage
from fencepost.errors import FenceError

stage = Stage.here()
shop = Shop(stage.database)
app = Fencepost(stage.redis_url, namespace=NAMESPACE, lease=stage.lease_s)
NAME = os.environ.get("FENCEPOST_DEMO_NAME", "nobody")
SOON = RetryPolicy(attempts=10, base=0.1, cap=2.0)

jam = Jam(stage, NAME)


@cache
def recorder() -> Recorder:
    """The records of this process; the file is made at the first use."""
    return Recorder(stage.records, NAME)


def recorded(run: Run) -> AbstractContextManager[Note]:
    """Write down that this run begins and how it ends."""
    late = (FenceError, StaleWrite, asyncio.CancelledError)
    return recorder().run(run.nonce, run.job_id, run.kind, run.resource, run.token, late)


def fenced(run: Run, note: Note) -> Fence:
    """Install the run's token at its resource: the first step of each handler that writes to the shop."""
    fence = Fence(run.resource, run.token, run.nonce)
    try:
        install(shop.db, fence)
    except StaleWrite:
        note.refused("install")
        raise
    return fence


@app.job(queue="invoices", resource="invoice:order:{order_id}", dedup="order:{order_id}", retry=SOON)
def generate_invoice(run: Run, order_id: int) -> str:
    """Write the invoice of an order and have it mailed."""
    with recorded(run) as note:
        fence = fenced(run, note)  # 1. install
        user_id, _, cents = shop.order(order_id)  # 2. read and work
        time.sleep(stage.invoice_s)
        if jam.here(note, run.job_id, "invoice"):
            insist(app, run, note)
        try:
            with effect(shop.db, fence, f"invoice:order:{order_id}") as done:  # 3. verify and write
                if done.first:
                    done.result = shop.write_invoice(order_id, cents, run.nonce)
        except StaleWrite:
            note.refused("write")
            raise
        invoice = str(done.result)
        # Should this run die here, the next one finds the invoice and comes by here again: the same key, one mail.
        mail = send_email.options(idempotency_key=run.effect_key("mail"), client="shop")
        job = mail.enqueue_sync(user_id, TEMPLATE, order_id, invoice)
        recorder().enqueued(job.id, "send_email", new=not (job.duplicate or job.replayed))
        window = rebuild_cache.enqueue_sync("window")
        recorder().enqueued(window.id, "rebuild_cache", new=not window.duplicate)
    return invoice


@app.job(queue="stock", resource="stock-sync:sku:{sku}", ordered=True, retry=SOON)
def sync_stock(run: Run, order_id: int, sku: str, seq: int, quantity: int) -> int:
    """Book an order's pieces out of the stock. seq: the place of this booking among those of its SKU."""
    with recorded(run) as note:
        fence = fenced(run, note)
        before = shop.on_hand(sku)  # what a late run would overwrite with, if it could
        time.sleep(stage.stock_s)
        if jam.here(note, run.job_id, "stock"):
            insist(app, run, note)
        try:
            with effect(shop.db, fence, f"stock:order:{order_id}:sku:{sku}") as done:
                if done.first:
                    done.result = shop.book(Booking(order_id, sku, seq, quantity), before, run.nonce)
        except StaleWrite:
            note.refused("write")
            raise
    return int(done.result or 0)


@app.job(queue="mail", resource="email:user:{user_id}:template:{template}", retry=SOON)
def send_email(run: Run, user_id: int, template: str, order_id: int, invoice: str) -> None:
    """Mail an invoice. No fence reaches a mail server, so the key goes with the mail."""
    about = f"{user_id}:{template}:{order_id}"
    with recorded(run) as note:
        _, email, _ = shop.order(order_id)
        if order_id % 2:
            jam.here(note, run.job_id, "before mail")
        run.check()  # woken late? Then stop here
        send(stage.smtp_port, email, invoice, about, run.nonce, f"email:{about}")
        if not order_id % 2:
            jam.here(note, run.job_id, "after mail")


@app.job(queue="upkeep", dedup=True, retry=SOON)
async def rebuild_cache(run: Run, what: str) -> str:
    """Build the shop window's text anew. Asked for after each invoice; one live job is enough."""
    with recorded(run):
        await asyncio.sleep(0.05)
        await asyncio.to_thread(shop.dress_window)
    return what
