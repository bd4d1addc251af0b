"""The same shop without Fencepost: a list, a lock with a TTL, and redelivery after a timeout.

Nothing here is made up; each line is advice that is given every day:

* take a job with BLMOVE and keep it in a second list until it is done; put back what was taken too long ago;
* "one at a time" by SET NX PX, released by DEL;
* "no duplicates" by SET NX of a key before adding;
* "no second mail" by marking it as sent before it is sent.

There is no token, so nobody can tell a late write from a good one, and no effect row, so a second run works again.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import redis

from fencepost.demo import mail
from fencepost.demo.jam import Jam
from fencepost.demo.orders import Order
from fencepost.demo.records import Note, Recorder
from fencepost.demo.shop import TEMPLATE, Booking, Shop, expected_bookings
from fencepost.demo.stage import Stage

__all__ = ["LISTS", "enqueue_all", "work"]

KINDS: Final = ("generate_invoice", "sync_stock", "send_email", "rebuild_cache")
LISTS: Final = tuple(f"naive:{kind}{part}" for kind in KINDS for part in ("", ":taken"))
"""Everything that still has to be done is in one of these lists."""
_STARTED: Final = "naive:started"
_PUT_BACK_AFTER_S: Final = 2.0
_LOCK_MS: Final = 1_000
_THREADS: Final = ("generate_invoice", "generate_invoice", "sync_stock", "sync_stock", "send_email", "rebuild_cache")


class Queue:
    """A list for each kind."""

    def __init__(self, url: str, recorder: Recorder) -> None:
        self.client: redis.Redis = redis.Redis.from_url(url, decode_responses=True)
        self._recorder = recorder

    def push(self, kind: str, arguments: dict[str, Any], key: str = "") -> None:
        """Add a job, unless one with this key was added before."""
        job = str(uuid.uuid4())
        ttl_ms = 1_000 if kind == "rebuild_cache" else 600_000
        if key and not self.client.set(f"naive:key:{key}", job, nx=True, px=ttl_ms):
            self._recorder.enqueued(str(self.client.get(f"naive:key:{key}") or job), kind, new=False)
            return
        self.client.lpush(f"naive:{kind}", json.dumps({"id": job, "kind": kind, "arguments": arguments}))
        self._recorder.enqueued(job, kind, new=True)

    def take(self, kind: str) -> str | None:
        """Take the oldest job of a kind, or None after a moment."""
        payload: Any = self.client.blmove(f"naive:{kind}", f"naive:{kind}:taken", 1, "RIGHT", "LEFT")
        if payload is not None:
            self.client.zadd(_STARTED, {payload: time.time()})
        return payload if payload is None else str(payload)

    def forget(self, kind: str, payload: str) -> None:
        """The job is done, or back in its list."""
        self.client.lrem(f"naive:{kind}:taken", 1, payload)
        self.client.zrem(_STARTED, payload)

    def put_back_old_ones(self) -> None:
        """Whoever took a job long ago must be dead."""
        old: Any = self.client.zrangebyscore(_STARTED, "-inf", time.time() - _PUT_BACK_AFTER_S)
        for payload in old:
            if self.client.zrem(_STARTED, payload):
                kind = json.loads(payload)["kind"]
                self.client.lrem(f"naive:{kind}:taken", 1, payload)
                self.client.rpush(f"naive:{kind}", payload)


class Handlers:
    """The shop's jobs, without a fence."""

    def __init__(self, stage: Stage, queue: Queue, jam: Jam) -> None:
        self._stage, self._queue, self._jam = stage, queue, jam
        self._shop = Shop(stage.database)

    def resource(self, kind: str, arguments: dict[str, Any]) -> str:
        """What the lock of a job is called; the names are those of handlers.py."""
        if kind == "generate_invoice":
            return f"invoice:order:{arguments['order_id']}"
        if kind == "sync_stock":
            return f"stock-sync:sku:{arguments['sku']}"
        return f"email:user:{arguments['user_id']}:template:{TEMPLATE}" if kind == "send_email" else ""

    def generate_invoice(self, note: Note, job: str, order_id: int) -> None:
        user_id, _, cents = self._shop.order(order_id)
        time.sleep(self._stage.invoice_s)
        self._jam.here(note, job, "invoice")
        with self._shop.sessions.begin() as db:
            invoice = self._shop.write_invoice(db, order_id, cents, note.run)
        self._queue.push("send_email", {"user_id": user_id, "order_id": order_id, "invoice": invoice})
        self._queue.push("rebuild_cache", {}, key="window")

    def sync_stock(self, note: Note, job: str, order_id: int, sku: str, seq: int, quantity: int) -> None:
        before = self._shop.on_hand(sku)
        time.sleep(self._stage.stock_s)
        self._jam.here(note, job, "stock")
        with self._shop.sessions.begin() as db:
            self._shop.book(db, Booking(order_id, sku, seq, quantity), before, note.run)

    def send_email(self, note: Note, job: str, user_id: int, order_id: int, invoice: str) -> None:
        if not self._queue.client.set(f"naive:sent:{job}", "1", nx=True):
            note.how = "skipped"
            return
        _, email, _ = self._shop.order(order_id)
        self._jam.here(note, job, "before mail")
        mail.send(self._stage.smtp_port, email, invoice, f"{user_id}:{TEMPLATE}:{order_id}", note.run, None)

    def rebuild_cache(self, note: Note, job: str) -> None:
        self._shop.dress_window()


def work(name: str, stage: Stage) -> None:
    """Work in some threads until the process is ended."""
    recorder = Recorder(stage.records, name)
    queue = Queue(stage.redis_url, recorder)
    handlers = Handlers(stage, queue, Jam(stage, name))
    for kind in _THREADS:
        threading.Thread(target=_serve, args=(kind, queue, handlers, recorder), daemon=True).start()
    stage.ready(name).touch()
    while True:
        queue.put_back_old_ones()
        time.sleep(0.25)


def _serve(kind: str, queue: Queue, handlers: Handlers, recorder: Recorder) -> None:
    while True:
        payload = queue.take(kind)
        if payload is not None:
            _run(kind, payload, queue, handlers, recorder)


def _run(kind: str, payload: str, queue: Queue, handlers: Handlers, recorder: Recorder) -> None:
    job = json.loads(payload)
    resource = handlers.resource(kind, job["arguments"])
    lock = f"naive:lock:{resource}"
    if resource and not queue.client.set(lock, "1", nx=True, px=_LOCK_MS):
        queue.client.lpush(f"naive:{kind}", payload)  # later, behind the others
        queue.forget(kind, payload)
        time.sleep(0.005)
        return
    handler: Callable[..., None] = partial(getattr(handlers, kind), **job["arguments"])
    with recorder.run(str(uuid.uuid4()), job["id"], kind, resource, 0, ()) as note:
        handler(note, job["id"])
    queue.forget(kind, payload)
    queue.client.delete(lock)


def enqueue_all(orders: list[Order], recorder: Recorder, wait_for_gate: Callable[[], None]) -> None:
    """Enqueue the jobs of all orders, as producers.enqueue_all."""
    queue = Queue(Stage.here().redis_url, recorder)
    bookings = expected_bookings(orders)
    wait_for_gate()
    for order in orders:
        key = f"order:{order.order_id}"
        queue.push("generate_invoice", {"order_id": order.order_id}, key)
        for _, sku, seq, quantity in bookings[order.order_id]:
            arguments = {"order_id": order.order_id, "sku": sku, "seq": seq, "quantity": quantity}
            queue.push("sync_stock", arguments, f"{key}:{sku}")
