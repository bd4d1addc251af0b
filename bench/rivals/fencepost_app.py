"""Fencepost's own service, with the arguments checked by the signature. BENCH_AUTH: "off" or "bearer"."""

from __future__ import annotations

import os
from typing import Any

from fencepost import Fencepost
from fencepost.api import ApiSettings


def invoice(order_id: int, copies: int = 1) -> None:
    """The handler."""


queue = Fencepost(f"unix://{os.environ['BENCH_SOCKET']}")
register: Any = queue.job()
register(invoice)
auth: Any = os.environ.get("BENCH_AUTH", "off")
app = queue.asgi(ApiSettings(auth=auth, rate_per_s=0))
