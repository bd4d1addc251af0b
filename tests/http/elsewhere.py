"""What the tests of workers in other languages share: kinds whose work is done elsewhere, and the calls of a worker."""

from __future__ import annotations

from typing import Any

import httpx2

from fencepost import Fencepost
from fencepost.handle import Job
from fencepost.retry import RetryPolicy

MORE: dict[str, dict[str, Any]] = {
    "finish": {"result": 3},
    "retry": {"error": {"class": "Oops", "message": "it broke"}},
    "checkpoint": {"value": {"page": 3}},
    "release": {"reason": "going home"},
}
"""What each call about a run has beside the run."""


class NoBridge(Exception):
    """For good."""


class Flood(NoBridge):
    """It passes."""


def declare(app: Fencepost) -> Fencepost:
    """Add the kinds ferry, swim and row, on the queue `far`."""
    once = RetryPolicy(attempts=2, base=8.0, jitter="none", permanent=(NoBridge,))

    @app.job(queue="far", remote=True, retry=once)
    def ferry(goods: str = "", password: str = "") -> None:
        """Carry goods across."""

    @app.job(queue="far", remote=True, retry=RetryPolicy(base=0.0, permanent=(NoBridge, Exception), transient=(Flood,)))
    def swim() -> None:
        """Without goods."""

    @app.job(queue="far", remote=True, resource="boat:{name}")
    def row(name: str) -> None:
        """One boat is rowed by one."""

    return app


async def post(client: httpx2.AsyncClient, verb: str, body: dict[str, Any], **options: Any) -> httpx2.Response:
    return await client.post(f"/v1/{verb}", json=body, **options)


async def claim(client: httpx2.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    answer = await post(client, "claims", {"worker": "w", "queues": ["far"], **body})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def key(run: dict[str, Any]) -> dict[str, str]:
    return {name: run[name] for name in ("job_id", "token", "nonce")}


async def enqueue(app: Fencepost, kind: str = "ferry", **args: Any) -> Job[Any]:
    return await app.handler(kind).enqueue(**args)
