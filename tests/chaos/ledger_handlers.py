"""Handlers that write to PostgreSQL under the guard, with a ledger. Run in worker processes; see handlers.py.

The shop's tables forbid nothing: an invoice that is written twice, and a balance that loses a booking, can be seen.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from fencepost import Fencepost, RetryPolicy, Run, fence
from tests.chaos.truth import note

folder = Path(os.environ["CHAOS_FOLDER"])
truth = folder / "truth"
engine = create_engine(os.environ["CHAOS_SQL"], pool_size=4, pool_pre_ping=True)
app = Fencepost(
    os.environ["CHAOS_URL"],
    namespace=os.environ["CHAOS_NAMESPACE"],
    ledger=os.environ["CHAOS_LEDGER"],
    lease=float(os.environ.get("CHAOS_LEASE", "1.5")),
    give_up=20.0,
)
AGAIN = RetryPolicy(attempts=50, base=0.05, cap=0.5)


@contextmanager
def seen(run: Run, key: str) -> Iterator[None]:
    """Write begin and end of a run; the end says how it ended."""
    note(truth, "begin", job=run.job_id, key=key, token=run.token, attempt=run.attempt)
    token = run.token
    try:
        yield
    except BaseException as error:
        note(truth, "end", token=token, how=run.why or type(error).__name__)
        raise
    note(truth, "end", token=token, how="returned")


def is_open(gate: str) -> bool:
    return not gate or (folder / gate).exists()


# A rewind that takes back an outcome leaves a lease that nobody renews, and that counts as a crash: here are many.
@app.job(resource="account:{account}", retry=AGAIN, durability="ledger", timeout=30, max_crashes=1000)
def invoice(run: Run, order_id: int, account: int, ms: int = 0, gate: str = "", after: str = "") -> int:
    """Read the balance, work, write invoice and balance. gate: inside the transaction; after: behind its commit."""
    with seen(run, f"order{order_id}"):
        with run.guarded(engine, "invoice") as effect:
            if effect.first:
                [cents, bookings] = effect.session.execute(
                    text("SELECT cents, bookings FROM balances WHERE account = :account"), {"account": account}
                ).one()
                time.sleep(ms / 1000)
                wait_for(gate)
                effect.session.execute(
                    text("UPDATE balances SET cents = :cents, bookings = :bookings WHERE account = :account"),
                    {"cents": cents + order_id, "bookings": bookings + 1, "account": account},
                )
                effect.result = effect.session.execute(
                    text("INSERT INTO invoices (order_id, token) VALUES (:order_id, :token) RETURNING number"),
                    {"order_id": order_id, "token": run.token},
                ).scalar_one()
        note(truth, "committed", key=f"order{order_id}", token=run.token, first=effect.first)
        wait_for(after)
    return int(effect.result)


@app.job(resource="account:{account}", retry=AGAIN, durability="ledger", timeout=30)
def stubborn(run: Run, order_id: int, account: int, gate: str) -> int:
    """A run that does not hear that it was lost: neither its own clock nor its heartbeat stops it."""
    with seen(run, f"order{order_id}"), Session(engine) as session:
        fence.install_sync(session, run)
        note(truth, "installed", token=run.token)
        wait_for(
            gate if run.crashes == 0 else "owner"
        )  # between install and effect, in no transaction that the database could end
        run.why, run.deadline_s = "", math.inf
        with session.begin(), fence.effect(session, run, "invoice") as effect:
            if effect.first:
                insert = text("INSERT INTO invoices (order_id, token) VALUES (:order_id, :token) RETURNING number")
                values = {"order_id": order_id, "token": run.token}
                effect.result = session.execute(insert, values).scalar_one()
    return int(effect.result)


def wait_for(gate: str) -> None:
    """Wait for a file that the test makes."""
    while not is_open(gate):
        time.sleep(0.01)


@app.job(retry=AGAIN, durability="ledger")
async def plain(run: Run, order_id: int, ms: int = 0) -> int:
    """No effect at all: what counts is that it ends."""
    with seen(run, f"plain{order_id}"):
        await asyncio.sleep(ms / 1000)
    return order_id


@app.job(retry=AGAIN)
async def light(run: Run, order_id: int) -> int:
    """A job that only Redis has."""
    return order_id
