"""The shop's e-mail: a real SMTP server on this machine that keeps what arrives, and how the handlers send to it.

A mail that was sent cannot be taken back, and no fence reaches a mail server. What helps is a key that stays the same
in every attempt: providers that know the idea drop a second mail with the same key. This server does, and counts both:
what arrived, and what went on to the customer.
"""

from __future__ import annotations

import asyncio
import smtplib
import threading
from email import message_from_bytes
from email.message import EmailMessage
from email.utils import make_msgid
from typing import Any, NamedTuple, Self

from aiosmtpd.smtp import SMTP

from fencepost.clock import boottime_s

__all__ = ["Arrival", "MailServer", "send"]

_HOST = "127.0.0.1"


class Arrival(NamedTuple):
    """A mail that arrived. what: (user, template, order). delivered: False where its key was there before."""

    what: str
    run: str
    at_s: float
    delivered: bool


class MailServer:
    """The server, in a thread of its own, on a free port of the loopback interface. A context manager."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.port = 0
        self._keys: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fencepost-demo-mail", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10.0)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(lambda: SMTP(self, hostname="shop", loop=self._loop), _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        mine = asyncio.current_task()
        open_sessions = [task for task in asyncio.all_tasks() if task is not mine]
        for task in open_sessions:
            task.cancel()
        await asyncio.gather(*open_sessions, return_exceptions=True)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        """Take in a mail; aiosmtpd calls this by its name. The answer is for the sender."""
        mail = message_from_bytes(envelope.content)
        key = mail["X-Effect-Key"]
        first = key is None or key not in self._keys
        if key is not None:
            self._keys.add(key)
        self.arrivals.append(Arrival(str(mail["X-About"]), str(mail["X-Run"]), boottime_s(), first))
        return "250 OK" if first else "250 OK, this key was there before"


def send(port: int, email: str, invoice: str, about: str, run: str, effect_key: str | None) -> None:
    """Send the mail about an invoice.

    about, run: for the count at the end. effect_key: what makes a second mail known as such; None sends without one.
    """
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.com", email, f"Your invoice {invoice}"
    mail["X-About"], mail["X-Run"] = about, run
    if effect_key is None:
        mail["Message-ID"] = make_msgid(domain="shop.example.com")
    else:
        mail["Message-ID"] = f"<{effect_key.replace(':', '.')}@shop.example.com>"
        mail["X-Effect-Key"] = effect_key
    mail.set_content(f"Thank you for your order. This is your invoice {invoice}.\n")
    with smtplib.SMTP(_HOST, port, local_hostname="shop.example.com", timeout=10) as server:
        server.send_message(mail)
