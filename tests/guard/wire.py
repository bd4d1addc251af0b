"""A network between a client and a SQL server that breaks at the very COMMIT a test names."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

from sqlalchemy import make_url

__all__ = ["CommitProxy"]

Fault = Literal["", "before", "after", "held", "away"]


class CommitProxy:
    """Carries bytes to the server of a URL until a client sends COMMIT while a fault is set; used up by that.

    before: the server sees no COMMIT; `meanwhile` is called when it has lost the connection; then it is reset.
    after: the server commits, then the connection is reset in place of its answer. held: the connection is reset, and
    the server gets its COMMIT when `release()` is called. away: as after, and nobody can connect any more. url: where
    clients connect; of the given one otherwise.
    """

    def __init__(self, url: str) -> None:
        given = make_url(url)
        assert given.host is not None
        assert given.port is not None
        self._server = (given.host, given.port)
        self.fault: Fault = ""
        self.hits: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self._released = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        port = self._listener.getsockname()[1]
        self.url = given.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)

    def release(self) -> None:
        """Let the held COMMIT go."""
        self._released.set()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += [client, server]
            link = _Link(client, server)
            self._start(self._upwards, link)
            self._start(link.downwards)

    def _upwards(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.client.recv(65536):
                if self.fault and b"COMMIT" in data:
                    self._break(link, data)
                    return
                link.server.sendall(data)
        with contextlib.suppress(OSError):
            link.server.shutdown(socket.SHUT_RDWR)

    def _break(self, link: _Link, data: bytes) -> None:
        fault, self.fault = self.fault, ""
        self.hits.append(fault)
        link.cut.set()
        if fault == "away":
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if fault == "before":
            link.hang_up()
            self.meanwhile()
        if fault in ("before", "held"):
            link.reset()
        if fault == "held":
            self._released.wait(10)
        if fault != "before":
            link.server.sendall(data)
            link.answered.wait(10)
        link.reset()
        link.hang_up()


class _Link:
    """One connection. cut: no answer reaches the client any more. answered: the server has answered since."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.cut, self.answered = threading.Event(), threading.Event()

    def downwards(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.server.recv(65536):
                if self.cut.is_set():
                    self.answered.set()
                else:
                    self.client.sendall(data)
        if not self.cut.is_set():
            with contextlib.suppress(OSError):
                self.client.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)  # close() alone does nothing while the other thread reads

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.client.close()
