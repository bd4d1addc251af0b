"""The shop's jobs. Imported by the web process, which enqueues them, and by the workers, which run them.

fencepost worker jobs:app --queues billing,stock,mail,upkeep
"""

import json
from pathlib import Path

from sqlalchemy import select, update

import books
from fencepost import Fencepost, RetryPolicy, Run

app = Fencepost.from_environment(namespace="shop")


@app.job(queue="billing", resource="invoice:order:{order_id}", dedup="{order_id}", timeout="90s")
def generate_invoice(run: Run, order_id: int) -> int:
    """Write the invoice of an order, once, and return its number."""

    def write(effect):
        # Under the fence: whoever else has a job for this order cannot be writing now, and has no newer token.
        known = select(books.invoices.c.number).where(books.invoices.c.order_id == order_id)
        if (number := effect.session.execute(known).scalar()) is not None:
            return number
        cents = effect.session.execute(select(books.orders.c.cents).where(books.orders.c.id == order_id)).scalar_one()
        row = {"order_id": order_id, "cents": cents, "token": run.token}
        return effect.session.execute(books.invoices.insert().returning(books.invoices.c.number), row).scalar_one()

    return run.guarded(books.engine, "invoice").call_sync(write)


@app.job(queue="stock", resource="stock:{sku}", dedup="{sku}", retry=RetryPolicy(attempts=5))
def sync_stock(run: Run, sku: str) -> int:
    """Set what we believe to have of an article to what the warehouse says."""
    pieces = ask_warehouse(sku)

    def write(effect):
        effect.session.execute(update(books.stock).where(books.stock.c.sku == sku).values(pieces=pieces))
        return pieces

    return run.guarded(books.engine, "pieces").call_sync(write)


@app.job(queue="mail", retry=RetryPolicy(attempts=8))
def send_mail(run: Run, user_id: int, template: str) -> str:
    """Send a mail. It cannot be fenced, so it has a key by which the mail provider tells a repetition."""
    with run.outside("mail") as mail:
        if mail.known != "done":
            mail.result = hand_to_provider(user_id, template, mail.key)
    return mail.result


@app.job(queue="upkeep", resource="cache:{tenant}:{part}", dedup="{tenant}:{part}", timeout="10m")
def rebuild_cache(run: Run, tenant: str, part: str) -> int:
    """Rebuild a part of a tenant's cache. Asked for ten times while it waits, it is done once."""
    pages = 20
    for page in range(pages):
        run.check()  # stop at once where this run has lost its lease
        Path(f"cache-{tenant}-{part}.json").write_text(json.dumps({"pages": page + 1}), encoding="utf-8")
    return pages


# -- stand-ins for systems of others ------------------------------------------------------------------------


def ask_warehouse(sku: str) -> int:
    return 10 * len(sku)


def hand_to_provider(user_id: int, template: str, key: str) -> str:
    """A provider that knows idempotency keys: a mail is a file named by its key, so a second one changes nothing."""
    sent = Path("sent")
    sent.mkdir(exist_ok=True)
    (sent / f"{key.replace('/', '-').replace(':', '-')}.txt").write_text(f"{template} for {user_id}", encoding="utf-8")
    return f"sent {template} to customer {user_id}"
