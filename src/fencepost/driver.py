"""Sends calls to Redis. A call is a value; the asynchronous and the synchronous driver run the same ones.

The client library's own retries are off: it would repeat a command whose reply was lost without knowing whether that
is harmless. Here every call is safe to send twice, so we repeat it ourselves, by class of error.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError

from fencepost.errors import ConfigurationError, RedisUnavailable, ScriptError
from fencepost.scripts import Script

_pack_in_c: Callable[[Any], Any] | None
try:  # the packer in C: the client library uses it for synchronous connections only
    from hiredis import pack_command as _pack_in_c
except ImportError:
    _pack_in_c = None

T = TypeVar("T")

# The server said no before it did anything; the same call may succeed a moment later.
NOT_EXECUTED: Final = (
    "LOADING", "READONLY", "MASTERDOWN", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "MISCONF",
)  # fmt: skip
_AWAY: Final = (OSError, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, asyncio.IncompleteReadError)
# What is taken over from a URL or a client: where to connect and as whom. All else is set here.
_KEPT: Final = frozenset(
    {"host", "port", "path", "db", "username", "password", "client_name", "credential_provider"}
    | {"socket_keepalive", "socket_keepalive_options"}
)
_FIRST_WAIT_S: Final = 0.02
_LONGEST_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request: a script with its keys and arguments, or (script None) the plain command in args.

    parse turns the server's reply into a value or raises a FencepostError.
    """

    verb: str
    script: Script | None
    keys: tuple[str, ...]
    args: list[Any]
    parse: Callable[[Any], T]


class _NotSent(Exception):
    """The connection could not be made: the server cannot have seen the call. final: another try would end alike."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.final = isinstance(error, redis.exceptions.AuthenticationError)


class _Pause(float):
    """Seconds to wait before the next try."""

    __slots__ = ()


def _converse(call: Call[T], give_up_s: float) -> Generator[tuple[Any, ...] | _Pause, Any, T]:
    """The life of one call, without I/O: yields commands to send and pauses to make, returns the parsed reply."""
    script, started, wait_s, executed = call.script, time.monotonic(), _FIRST_WAIT_S, False
    head: tuple[Any, ...] = () if script is None else ("EVALSHA", script.sha, len(call.keys), *call.keys)
    command = (*head, *call.args)
    while True:
        try:
            return call.parse((yield command))
        except NoScriptError:  # surely not executed: the same call with its text
            assert script is not None
            command = ("EVAL", script.text, len(call.keys), *call.keys, *call.args)
            continue
        except _NotSent as error:
            cause = str(error)
            if error.final:
                raise RedisUnavailable(call.verb, cause, None if executed else False) from error
        except _AWAY as error:
            # The client library counts LOADING, by which the server says no, among the lost connections.
            executed = executed or not isinstance(error, redis.exceptions.BusyLoadingError)
            cause = str(error) or type(error).__name__
        except ResponseError as error:
            cause = str(error)
            code = _code(error)
            if code == "OOM":  # it will not pass in a moment: say so at once
                raise RedisUnavailable(call.verb, cause, None if executed else False) from error
            if code not in NOT_EXECUTED:
                if script is None:
                    raise
                where, _, line = script.where(cause).partition(":")
                raise ScriptError(where.removesuffix(".lua"), int(line or 0), cause) from error
        if time.monotonic() - started + wait_s > give_up_s:
            raise RedisUnavailable(call.verb, cause, None if executed else False)
        yield _Pause(wait_s * (0.5 + random.random() / 2))
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def _code(error: ResponseError) -> str:
    """The error code of a reply. The client library cuts it off where it has a class of its own for it."""
    name = type(error).__name__
    for known, code in (
        ("ReadOnlyError", "READONLY"), ("OutOfMemoryError", "OOM"),
        ("MasterDownError", "MASTERDOWN"), ("ClusterDownError", "CLUSTERDOWN"), ("TryAgainError", "TRYAGAIN"),
        ("MovedError", "MOVED"), ("AskError", "ASK"),
    ):  # fmt: skip
        if name == known:
            return code
    text = str(error)
    word = text.split(" ", 1)[0].rstrip(":")
    # An error inside a script keeps its code: "OOM command not allowed ... script: <sha>, on @user_script:1".
    return "OOM" if "OOM command not allowed" in text else word


class Connections:
    """Makes connections with settings of our own: driver retries off, RESP2, bytes in and out, explicit timeouts."""

    def __init__(self, source: str | redis.Redis | redis.asyncio.Redis, timeout_s: float = 5.0) -> None:
        if isinstance(source, str):
            self._from_url(source)
        elif isinstance(source, redis.Redis | redis.asyncio.Redis):
            pool = source.connection_pool
            self._class_name, self._options = pool.connection_class.__name__, dict(pool.connection_kwargs)
        else:
            raise ConfigurationError(
                "redis", f"cannot connect by a {type(source).__name__}", "Give a URL or a redis.Redis client."
            )
        self._options = {
            name: value for name, value in self._options.items() if name in _KEPT or name.startswith("ssl_")
        }
        self.timeout_s = timeout_s
        self.revive: Callable[[], object] | None = None
        """Called, in a thread that may block, after a connection could not be made; an embedded server starts again."""

    def _from_url(self, url: str) -> None:
        try:
            pool = redis.ConnectionPool.from_url(url)
        except ValueError as error:
            hint = "Write redis://host:6379/0, rediss://… for TLS or unix:///path/to/redis.sock."
            raise ConfigurationError("redis", f"the URL cannot be used: {error}", hint) from error
        self._class_name, self._options = pool.connection_class.__name__, dict(pool.connection_kwargs)

    @property
    def where(self) -> str:
        """The server's address without credentials."""
        options = self._options
        if "path" in options:
            return f"unix://{options['path']}"
        return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"

    def _made(self, module: Any, retry: Any, timeout_s: float | None) -> Any:
        cls = getattr(module, self._class_name)
        return cls(
            **self._options,
            protocol=2,
            decode_responses=False,
            socket_timeout=timeout_s,
            socket_connect_timeout=self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s),
            retry_on_timeout=False,
            retry=retry(NoBackoff(), 0),
            health_check_interval=0,
        )

    def make_async(self) -> Any:
        # No timeout of the library's own: it sends under asyncio.wait_for, which makes a task a command and, before
        # Python 3.12, loses a cancellation that comes as the command has just been sent.
        return self._made(redis.asyncio.connection, redis.asyncio.retry.Retry, None)

    def make_sync(self, timeout_s: float | None = None) -> Any:
        timeout = self.timeout_s if timeout_s is None else timeout_s
        return self._made(redis.connection, redis.retry.Retry, timeout)


class _Home:
    """The idle connections of one event loop in one process: those for calls, and those that wait at a bell."""

    __slots__ = ("free", "loop", "pid", "waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.pid = loop, os.getpid()
        self.free: list[Any] = []
        self.waiters: list[Any] = []


class AsyncDriver:
    """Runs calls on the event loop of the caller; each loop has connections of its own. A connection whose call was
    cancelled or failed is dropped, never reused: its late reply would answer the next call."""

    def __init__(self, connections: Connections, *, give_up_s: float = 15.0) -> None:
        self._connections, self.give_up_s = connections, give_up_s
        self._local = threading.local()  # a thread runs one loop at a time
        self.round_trips = 0

    async def run(self, call: Call[T], give_up_s: float | None = None) -> T:
        """Return the parsed reply. Raises RedisUnavailable when the server stayed away for give_up_s seconds,
        ScriptError for a fault in a script, and what the call's parse raises."""
        talk = _converse(call, self.give_up_s if give_up_s is None else give_up_s)
        step = next(talk)
        try:
            while True:
                if isinstance(step, _Pause):
                    await asyncio.sleep(step)
                    step = talk.send(None)
                    continue
                try:
                    reply = await self._send(step)
                except (*_AWAY, _NotSent, ResponseError) as error:
                    step = talk.throw(error)
                else:
                    step = talk.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _here(self) -> _Home:
        loop = asyncio.get_running_loop()
        home: _Home | None = getattr(self._local, "home", None)
        if home is None or home.loop is not loop or home.pid != os.getpid():
            home = self._local.home = _Home(loop)  # the sockets of another loop, or of the parent process, are not ours
        return home

    async def _send(self, command: tuple[Any, ...]) -> Any:
        free, timeout_s = self._here().free, self._connections.timeout_s
        connection = free.pop() if free else self._connections.make_async()
        try:
            if not connection.is_connected:
                try:
                    async with asyncio.timeout(timeout_s):
                        await connection.connect()
                except _AWAY as error:
                    if self._connections.revive is not None:
                        await asyncio.to_thread(self._connections.revive)
                    raise _NotSent(error) from error
            self.round_trips += 1
            packed = connection.pack_command(*command) if _pack_in_c is None else _pack_in_c(command)
            async with asyncio.timeout(timeout_s):
                await connection.send_packed_command(packed, check_health=False)
                reply = await connection.read_response()
        except ResponseError:
            free.append(connection)
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        free.append(connection)
        return reply

    async def wait(self, keys: list[str], timeout_s: float) -> bool:
        """Block until something is pushed to one of the lists, at most timeout_s. Only a hint: True may be stale,
        and False also stands for a server that is away (after a pause)."""
        return await self._block(("BLPOP", *keys, f"{timeout_s:.3f}"), timeout_s)

    async def follow(self, stream: str, last: str, timeout_s: float) -> bool:
        """Block until a stream has an entry behind the id `last`, at most timeout_s. Only a hint, as wait."""
        blocking = ("BLOCK", round(timeout_s * 1000), "STREAMS", stream, last)
        return await self._block(("XREAD", "COUNT", 1, *blocking), timeout_s)

    async def _block(self, command: tuple[Any, ...], timeout_s: float) -> bool:
        waiters = self._here().waiters
        connection = waiters.pop() if waiters else self._connections.make_async()
        try:
            async with asyncio.timeout(timeout_s + self._connections.timeout_s):
                if not connection.is_connected:
                    await connection.connect()
                await connection.send_command(*command, check_health=False)
                reply = await connection.read_response()
        except (*_AWAY, ResponseError):
            await connection.disconnect(nowait=True)
            await asyncio.sleep(min(0.2, timeout_s))
            return False
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        waiters.append(connection)
        return reply is not None

    async def close(self) -> None:
        """Close every idle connection of this loop."""
        home = self._here()
        idle = home.free + home.waiters
        home.free.clear()
        home.waiters.clear()
        for connection in idle:
            await connection.disconnect()


class SyncDriver:
    """Runs calls on the calling thread; each thread has a connection of its own."""

    def __init__(self, connections: Connections, *, give_up_s: float = 15.0, timeout_s: float | None = None) -> None:
        self.connections, self.give_up_s, self._timeout_s = connections, give_up_s, timeout_s
        self._local = threading.local()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()  # a thread that ends takes its connection with it
        self._pid = os.getpid()

    def run(self, call: Call[T], give_up_s: float | None = None) -> T:
        """As AsyncDriver.run."""
        talk = _converse(call, self.give_up_s if give_up_s is None else give_up_s)
        step = next(talk)
        try:
            while True:
                if isinstance(step, _Pause):
                    time.sleep(step)
                    step = talk.send(None)
                    continue
                try:
                    reply = self._send(step)
                except (*_AWAY, _NotSent, ResponseError) as error:
                    step = talk.throw(error)
                else:
                    step = talk.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def wait(self, keys: list[str], timeout_s: float) -> bool:
        """Block until something is pushed to one of the lists, at most timeout_s (up to 5 s); a hint, as
        AsyncDriver.wait."""
        connection = self._mine("waiter", 10.0)
        try:
            if connection._sock is None:
                connection.connect()
            connection.send_command("BLPOP", *keys, f"{timeout_s:.3f}", check_health=False)
            return connection.read_response() is not None
        except (*_AWAY, ResponseError):
            connection.disconnect()
            time.sleep(min(0.2, timeout_s))
            return False
        except BaseException:
            connection.disconnect()
            raise

    def _mine(self, name: str, timeout_s: float | None) -> Any:
        """This thread's connection for calls, or the one for waiting."""
        if self._pid != os.getpid():  # a forked child: the parent's sockets are not ours
            self._local, self._open, self._pid = threading.local(), weakref.WeakSet(), os.getpid()
        connection: Any = getattr(self._local, name, None)
        if connection is None:
            connection = self.connections.make_sync(timeout_s)
            setattr(self._local, name, connection)
            self._open.add(connection)
        return connection

    def _send(self, command: tuple[Any, ...]) -> Any:
        connection = self._mine("connection", self._timeout_s)
        try:
            if connection._sock is None:
                try:
                    connection.connect()
                except _AWAY as error:
                    if self.connections.revive is not None:
                        self.connections.revive()
                    raise _NotSent(error) from error
            connection.send_packed_command(connection.pack_command(*command), check_health=False)
            return connection.read_response()
        except ResponseError:
            raise
        except BaseException:
            connection.disconnect()
            raise

    def close(self) -> None:
        """Close the connections of all threads; a later call opens a new one."""
        for connection in tuple(self._open):
            connection.disconnect()
        self._open, self._local = weakref.WeakSet(), threading.local()
