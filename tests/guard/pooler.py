"""A pooler of PostgreSQL connections in transaction mode, as many put before their database.

Each transaction of a client runs on another session of the server, in turn, so whatever a client leaves in a session
(a lock, a setting, a prepared statement) is not there in its next transaction.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Final

from sqlalchemy import make_url

__all__ = ["TransactionPooler", "pooler_for"]

_PROTOCOL: Final = 196608  # 3.0


class TransactionPooler:
    """url: where it listens."""

    def __init__(self, url: str, sessions: int) -> None:
        target = make_url(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = target.set(port=self._listener.getsockname()[1]).render_as_string(hide_password=False)
        self._transactions: dict[int, list[int]] = {}
        self._sessions: list[socket.socket] = []
        for _ in range(sessions):
            session = socket.create_connection((target.host, target.port))
            text = f"user\0{target.username}\0database\0{target.database}\0\0".encode()
            session.sendall(struct.pack("!ii", 8 + len(text), _PROTOCOL) + text)
            self._greeting = _until_ready(session)[0]
            self._sessions.append(session)
        self._locks = [threading.Lock() for _ in self._sessions]
        self._turn = itertools.count()
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def sessions_of_clients(self) -> list[list[int]]:
        """For each client, which session each of its transactions ran on."""
        return list(self._transactions.values())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in (*self._clients, *self._sessions):
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            for number in itertools.count():
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client, number), daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError, EOFError):
            while (hello := struct.unpack("!ii", _exactly(client, 8)))[1] != _PROTOCOL:
                client.sendall(b"N")  # no TLS, no GSSAPI
            _exactly(client, hello[0] - 8)
            client.sendall(self._greeting)  # trust; the settings of a session
            while True:
                request = _request(client)
                self._one_transaction(client, number, request)

    def _one_transaction(self, client: socket.socket, number: int, request: bytes) -> None:
        chosen = next(turn for turn in self._turns() if self._locks[turn].acquire(blocking=False))
        try:
            self._transactions.setdefault(number, []).append(chosen)
            while True:
                self._sessions[chosen].sendall(request)
                answer, state = _until_ready(self._sessions[chosen])
                client.sendall(answer)
                if state == b"I":
                    return
                request = _request(client)
        finally:
            self._locks[chosen].release()

    def _turns(self) -> Iterator[int]:
        for turn in self._turn:
            yield turn % len(self._sessions)


def _exactly(source: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        if not (part := source.recv(count - len(parts))):
            raise EOFError
        parts += part
    return parts


def _message(source: socket.socket) -> bytes:
    head = _exactly(source, 5)
    return head + _exactly(source, struct.unpack("!i", head[1:])[0] - 4)


def _request(client: socket.socket) -> bytes:
    """What a client sends until it waits for an answer: up to a Sync or a simple Query. EOFError when it leaves."""
    request = b""
    while True:
        message = _message(client)
        if message[:1] == b"X":
            raise EOFError
        request += message
        if message[:1] in b"SQ":
            return request


def _until_ready(session: socket.socket) -> tuple[bytes, bytes]:
    """An answer up to ReadyForQuery, and the state of the transaction: I none, T open, E failed."""
    answer = b""
    while True:
        message = _message(session)
        answer += message
        if message[:1] == b"Z":
            return answer, message[5:]


@contextlib.contextmanager
def pooler_for(url: str, sessions: int = 3) -> Iterator[TransactionPooler]:
    """Put a pooler before a database for a while."""
    pooler = TransactionPooler(url, sessions)
    try:
        yield pooler
    finally:
        pooler.close()
