"""A faulty network between a client and the test server: it loses requests and replies exactly where a test says."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

SCRIPTS = frozenset({b"EVAL", b"EVALSHA"})


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    pass | drop_request (the connection ends before the server sees it) | drop_reply (the server does it, the answer is
    lost) | reset (as drop_reply, with a TCP reset) | cut_reply (the first bytes arrive, then the connection ends) |
    hold (the reply waits until `release`) | answer (the server sees nothing, `text` is the reply)
    """

    name: str
    text: bytes = b""


PASS = Fault("pass")
DROP_REQUEST = Fault("drop_request")
DROP_REPLY = Fault("drop_reply")
RESET = Fault("reset")
CUT_REPLY = Fault("cut_reply")
HOLD = Fault("hold")


def answer(error: str) -> Fault:
    """The proxy itself replies with an error, such as "LOADING Redis is loading"."""
    return Fault("answer", f"-{error}\r\n".encode())


def frame_end(data: bytes | bytearray, at: int = 0) -> int | None:
    """Where the RESP value that starts at `at` ends, or None while it is incomplete."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    kind, at = data[at : at + 1], at + 1
    if kind in (b"+", b"-", b":"):
        return end + 2
    number, at = int(data[at:end]), end + 2
    if kind == b"$":
        at += number + 2 if number >= 0 else 0
        return at if at <= len(data) else None
    for _ in range(number):
        inner = frame_end(data, at)
        if inner is None:
            return None
        at = inner
    return at


class Stream:
    """One side of a connection, read value by value."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self._rest = sock, bytearray()

    def read(self) -> bytes:
        """The next whole value. Raises ConnectionError at the end of the stream."""
        while (end := frame_end(self._rest)) is None:
            more = self.sock.recv(65536)
            if not more:
                raise ConnectionError("end of stream")
            self._rest += more
        value = bytes(self._rest[:end])
        del self._rest[:end]
        return value


class FaultProxy:
    """Listens on a loopback port. Each script call takes the next fault of `plan`; the rest passes.

    url: where clients connect. seen: (command, fault) for each script call, so a test can see that its fault hit.
    """

    def __init__(self, server_socket: str) -> None:
        self.plan: deque[Fault] = deque()
        self.seen: list[tuple[bytes, str]] = []
        self.connections = 0
        self._server_socket, self._released, self._open = server_socket, threading.Event(), set[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def release(self) -> None:
        """Let held replies go, and hold none from now on."""
        self._released.set()

    def close(self) -> None:
        self.release()
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        self._open |= {client, server}
        with contextlib.suppress(OSError), client, server:
            server.connect(self._server_socket)
            requests, replies = Stream(client), Stream(server)
            while True:
                request = requests.read()
                if not self._carry(request, client, server, replies):
                    return

    def _carry(self, request: bytes, client: socket.socket, server: socket.socket, replies: Stream) -> bool:
        """Do to one request what the plan says. Returns whether the connection lives on."""
        command, fault = request.split(b"\r\n", 3)[2].upper(), PASS
        if command in SCRIPTS:
            fault = self.plan.popleft() if self.plan else PASS
            self.seen.append((command, fault.name))
        if fault.name == "answer":
            client.sendall(fault.text)
            return True
        if fault is DROP_REQUEST:
            return False
        server.sendall(request)
        reply = replies.read()
        if fault is RESET:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if fault in (DROP_REPLY, RESET):
            return False
        if fault is CUT_REPLY:
            client.sendall(reply[: max(1, len(reply) // 2)])
            return False
        if fault is HOLD:
            self._released.wait(10)
        client.sendall(reply)
        return True
