"""Reads server-sent events as a browser does: one message after another, over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx2


class Message(NamedTuple):
    """One message. event: "" for a comment."""

    event: str
    id: str
    data: Any
    comment: str = ""


class Events:
    """An open stream. `await events()` gives the next message; comments only where they are asked for."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def __call__(self, timeout: float = 5.0, *, comments: bool = False) -> Message:
        async with asyncio.timeout(timeout):
            while True:
                fields: dict[str, str] = {}
                async for line in self._lines:
                    if not line:
                        break
                    name, _, value = line.partition(":")
                    fields[name] = value.removeprefix(" ")
                else:
                    raise EOFError("the stream has ended")
                if "event" in fields:
                    return Message(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
                if comments and "" in fields:
                    return Message("", "", None, fields[""])

    async def rest(self, timeout: float = 5.0) -> list[Message]:
        """All messages up to the end of the stream."""
        found = []
        with contextlib.suppress(EOFError):
            while True:
                found.append(await self(timeout))
        return found


@contextlib.asynccontextmanager
async def following(client: httpx2.AsyncClient, job_id: str, last_id: str = "") -> AsyncIterator[Events]:
    """Follow a job, from behind `last_id` if that is said."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        yield Events(response)
