"""Where the HTTP service listens: a TCP address or a Unix socket, bound before anything else starts."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from fencepost.errors import ConfigurationError

__all__ = ["Listener", "bound"]

_OWNER_AND_GROUP: Final = 0o117
_OWNER: Final = 0o177


class Listener(NamedTuple):
    """A bound socket. where: as a person would write it; local: whether only this machine can reach it."""

    socket: socket.socket
    where: str
    local: bool


@contextmanager
def bound(host: str, port: int, uds: str | None, *, private: bool) -> Iterator[Listener]:
    """Bind, and close at the end; a Unix socket is removed then. private: only this machine may be able to call, a Unix
    socket only this user; else its group may, too. Raises ConfigurationError."""
    one = _unix(uds, private) if uds else _tcp(host, port, private)
    try:
        yield one
    finally:
        one.socket.close()
        if uds:
            with contextlib.suppress(OSError):
                os.unlink(uds)


def _tcp(host: str, port: int, private: bool) -> Listener:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError("host", f"{host!r} is no address of this machine: {error}") from error
    family, kind, protocol, _, address = found[0]
    local = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if private and not local:
        hint = "Listen on 127.0.0.1, or do without --no-auth and give callers tokens: `fencepost token make`."
        raise ConfigurationError("no_auth", f"anybody who reaches {address[0]} could do anything here", hint)
    one = socket.socket(family, kind, protocol)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(address)
    except OSError as error:
        one.close()
        hint = "Choose another with --port; 0 takes one that is free."
        raise ConfigurationError("port", f"cannot listen on {host}:{port}: {error.strerror}", hint) from error
    name = one.getsockname()
    shown = f"[{name[0]}]" if family == socket.AF_INET6 else name[0]
    return Listener(one, f"http://{shown}:{name[1]}", local)


def _unix(path: str, private: bool) -> Listener:
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigurationError("uds", "this system has no Unix sockets", "Use --host and --port.")
    _make_way(path)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_OWNER if private else _OWNER_AND_GROUP)
    try:
        one.bind(path)
    except OSError as error:
        one.close()
        raise ConfigurationError("uds", f"cannot listen on {path!r}: {error}") from error
    finally:
        os.umask(before)
    return Listener(one, f"unix:{path}", True)


def _make_way(path: str) -> None:
    """Remove a socket that a killed process left behind; anything else stays and is refused."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ConfigurationError("uds", f"{path!r} is there and no socket", "Choose another path.")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            pass  # somebody is there, or may be
    raise ConfigurationError("uds", f"another process listens on {path!r}", "Stop it, or choose another path.")
