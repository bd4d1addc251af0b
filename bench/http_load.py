"""Sends one request after another on each of some connections, and prints how many were accepted and how fast.

Started by bench/http.py with its orders as JSON. It parses no more of an answer than it must, so that it costs little.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import Any

import uvloop


class Connection(asyncio.Protocol):
    """One connection with one request under way."""

    def __init__(self, load: Load) -> None:
        self._load, self._rest, self._sent_at = load, b"", 0.0
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._load.request())

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found or len(body) < _length(head):
            return
        self._rest = b""
        if self._load.ended(head.startswith(b"HTTP/1.1 202"), time.perf_counter() - self._sent_at):
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._load.closed(bool(self._rest) or error is not None)


def _length(head: bytes) -> int:
    at = head.lower().index(b"content-length:") + 15
    return int(head[at:].split(b"\r", 1)[0])


class Load:
    """What is sent, and what came of it."""

    def __init__(self, orders: dict[str, Any]) -> None:
        body: bytes = orders["body"].encode()
        lines = [f"POST {orders['path']} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(body)}"]
        lines += [f"Authorization: Bearer {orders['token']}"] if orders["token"] else []
        self._head: bytes = "\r\n".join(lines).encode()
        self._tail: bytes = b"\r\n\r\n" + body
        self._idempotent, self._numbers, self._run = orders["idempotent"], itertools.count(), time.time_ns()
        self._until = time.perf_counter() + orders["seconds"]
        self._open = orders["connections"]
        self.all_closed = asyncio.Event()
        self.times: list[float] = []
        self.refused = 0

    def request(self) -> bytes:
        """The next request."""
        if not self._idempotent:
            return self._head + self._tail
        return self._head + b'\r\nIdempotency-Key: "%d-%d"' % (self._run, next(self._numbers)) + self._tail

    def ended(self, accepted: bool, took_s: float) -> bool:
        """Count an answer; whether another request is wanted."""
        if accepted:
            self.times.append(took_s)
        else:
            self.refused += 1
        return time.perf_counter() < self._until and self.refused < 10

    def closed(self, broken: bool) -> None:
        """Count a connection that has ended."""
        self.refused += broken
        self._open -= 1
        if not self._open:
            self.all_closed.set()


async def main(orders: dict[str, Any]) -> None:
    """Run and print."""
    loop, load, began = asyncio.get_running_loop(), Load(orders), time.perf_counter()
    for _ in range(orders["connections"]):
        await loop.create_unix_connection(lambda: Connection(load), orders["socket"])
    await load.all_closed.wait()
    times = sorted(load.times) or [0.0]
    told = {"accepted": len(load.times), "refused": load.refused, "seconds": time.perf_counter() - began}
    told |= {f"p{one}_ms": times[min(len(times) - 1, len(times) * one // 100)] * 1000 for one in (50, 99)}
    print(json.dumps(told))


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
