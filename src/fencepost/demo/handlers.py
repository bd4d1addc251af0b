"""The shop's jobs, on Fencepost. Run by `python -m fencepost.demo.worker`, enqueued by producers.py.

Three kinds of effects, three ways to have each of them once:

* an invoice is only added: `run.guarded` does all of it;
* the stock is read, changed and written back: `fence.install_sync` before it is read, `fence.effect` where it is
  written, in a transaction of the shop's own. Between the two a run may take its time without holding a lock;
* a mail is in nobody's transaction: `run.outside` notes it before and after, and gives it a key.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

from fencepost import Fencepost, RetryPolicy, Run, fence
from fencepost.demo.jam import Jam
from fencepost.demo.late import insist
from fencepost.demo.mail import send
from fencepost.demo.records import Note, Recorder
from fencepost.demo.shop import TEMPLATE, Booking, Shop
from fencepost.demo.stage import NAMESPACE, Stage
from fencepost.errors import FenceError, LeaseExpired, StaleToken

stage = Stage.here()
shop = Shop(stage.database)
app = Fencepost(stage.redis_url, namespace=NAMESPACE, lease=stage.lease_s, ledger=stage.ledger)
NAME = os.environ.get("FENCEPOST_DEMO_NAME", "nobody")
SOON = RetryPolicy(attempts=10, base=0.1, cap=2.0)

jam = Jam(stage, NAME)


@cache
def recorder() -> Recorder:
    """The records of this process; the file is made at the first use."""
    return Recorder(stage.records, NAME)


def recorded(run: Run) -> AbstractContextManager[Note]:
    """Write down that this run begins and how it ends."""
    late = (FenceError, asyncio.CancelledError)
    return recorder().run(run.nonce, run.job_id, run.kind, run.resource, run.token, late)


@contextmanager
def refusals(note: Note, what: str) -> Iterator[None]:
    """Write down that the shop's database refused something, as it knew a newer owner."""
    try:
        yield
    except (StaleToken, LeaseExpired):
        note.refused(what)
        raise


@app.job(
    queue="invoices",
    resource="invoice:order:{order_id}",
    dedup="order:{order_id}",
    durability="ledger",  # in SQL before Redis is asked: it outlives a Redis that loses its data
    retry=SOON,
)
def generate_invoice(run: Run, order_id: int) -> str:
    """Write the invoice of an order and have it mailed."""
    with recorded(run) as note:
        user_id, _, cents = shop.order(order_id)  # an order does not change, so it may be read before
        time.sleep(stage.invoice_s)
        if jam.here(note, run.job_id, "invoice"):
            run = insist(app, run, note)
        with refusals(note, "write"), run.guarded(shop.sessions, "invoice") as effect:
            if effect.first:
                effect.result = shop.write_invoice(effect.session, order_id, cents, run.nonce)
        invoice = str(effect.result)
        jam.here(note, run.job_id, "invoice written")
        # Should this run die here, the next one is handed the invoice and comes by here: the same key, one mail.
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
        with refusals(note, "install"), shop.sessions() as db:
            fence.install_sync(db, run)  # 1. from here on nobody older can write
        before = shop.on_hand(sku)  # 2. read and work: what a late run would overwrite with, if it could
        time.sleep(stage.stock_s)
        if jam.here(note, run.job_id, "stock"):
            run = insist(app, run, note)
        with refusals(note, "write"), shop.sessions.begin() as db, fence.effect(db, run, "booking") as effect:  # 3.
            if effect.first:
                effect.result = shop.book(db, Booking(order_id, sku, seq, quantity), before, run.nonce)
    return int(effect.result)


@app.job(queue="mail", resource="email:user:{user_id}:template:{template}", retry=SOON)
def send_email(run: Run, user_id: int, template: str, order_id: int, invoice: str) -> None:
    """Mail an invoice. No fence reaches a mail server, so a key goes with the mail, the same in every attempt."""
    with recorded(run) as note, run.outside("mail") as mail:
        if mail.known == "done":
            return
        _, email, _ = shop.order(order_id)
        jam.here(note, run.job_id, "before mail")
        run.check()  # woken late? Then stop here
        # Where mail.known is "unknown", an earlier run may have sent it. This server is asked by sending it again.
        send(stage.smtp_port, email, invoice, f"{user_id}:{template}:{order_id}", run.nonce, mail.key)
        jam.here(note, run.job_id, "after mail")


@app.job(queue="upkeep", dedup=True, retry=SOON)
async def rebuild_cache(run: Run, what: str) -> str:
    """Build the shop window's text anew. Asked for after each invoice; one live job is enough."""
    with recorded(run):
        await asyncio.sleep(0.05)
        await asyncio.to_thread(shop.dress_window)
    return what
