"""POST /v1/claims, /renew, /finish, /retry, /checkpoint, /release: work from any language, under the same fence.

Each call goes through the script of the same name, which checks token, nonce and lease; each may be sent twice.
"""

from __future__ import annotations

import asyncio
import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final, cast

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from fencepost.api.admission import Caller
from fencepost.api.openapi import problems
from fencepost.api.problems import Problem
from fencepost.api.service import Service
from fencepost.api.work_bodies import (
    CheckpointBody,
    ClaimBody,
    ClaimsAnswer,
    FinishBody,
    ReleaseBody,
    RenewalAnswer,
    RenewAnswer,
    RenewBody,
    RetryAnswer,
    RetryBody,
    RunAnswer,
    RunBody,
    SettledAnswer,
    described,
    document,
)
from fencepost.clock import boottime_s, new_nonce
from fencepost.codec import encode_result, harmless_text
from fencepost.errors import FencepostError, JobNotFound, LeaseExpired, StaleToken
from fencepost.keys import check_queue
from fencepost.redact import redact_text
from fencepost.retry import Permanent, Retry, RetryPolicy, decide
from fencepost.store import Answer, Claimed, Outcome, RunKey
from fencepost.store import Request as Asked

__all__ = ["add_routes"]

_SMALL: Final = 64 * 1024
_LONGEST_SILENCE_S: Final = 1.0
_LANES: Final = 16
_UNKNOWN_KIND_MS: Final = 5_000


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes of this part."""
    working = _Working(service)
    routes: tuple[tuple[str, Any, type[msgspec.Struct], type[msgspec.Struct], str], ...] = (
        ("claims", working.claim, ClaimBody, ClaimsAnswer, "Claim jobs under a lease; wait for them if there are none"),
        ("renew", working.renew, RenewBody, RenewAnswer, "Prolong the leases of runs"),
        ("finish", working.finish, FinishBody, SettledAnswer, "End a run: its job is done"),
        (
            "retry",
            working.retry,
            RetryBody,
            RetryAnswer,
            "End a run that went wrong: try again, or a dead letter",
        ),
        (
            "checkpoint",
            working.checkpoint,
            CheckpointBody,
            SettledAnswer,
            "Keep a value, or tell how far the run is",
        ),
        ("release", working.release, ReleaseBody, SettledAnswer, "Hand a run back; no attempt is charged"),
    )
    for name, route, body, answered, summary in routes:
        statuses = (400, 401, 403, 413, 415, 422, 429, 503)
        more = () if name in ("claims", "renew") else (404, 409)
        router.add_api_route(
            f"/v1/{name}", route, methods=["POST"], response_model=None, tags=["work"], summary=summary,
            operation_id=name, responses={**described(answered), **problems(*statuses, *more)},
            openapi_extra=document(body),
        )  # fmt: skip


class _Working:
    """The routes of one service. waiting: long polls at this moment."""

    def __init__(self, service: Service) -> None:
        self._service, self._link, self._store = service, service.app.link, service.app.link.store
        self._lease_ms = round(service.app.lease_s * 1000)
        self._waiting = 0

    # -- claims -------------------------------------------------------------------------------------------

    async def claim(self, request: Request) -> Response:
        caller = await self._service.admit(request, "work")
        body = await self._service.body(request, ClaimBody)
        until_s = boottime_s() + min(body.wait_s, self._service.settings.max_wait_s)
        worker = _worker_of(caller, body.worker)
        lease_ms = self._lease_ms if body.lease_s is None else round(body.lease_s * 1000)
        claim_id = body.claim_id or new_nonce()
        asked = self._asked(request, body, worker, claim_id, lease_ms)
        if body.wait_s and self._waiting >= self._service.settings.max_streams:
            text = "As many calls wait as this service allows. Nothing was claimed. Ask again later, or without wait_s."
            raise Problem(503, "too-many-waiting", "Too many calls wait", text, headers={"Retry-After": "1"})
        gone = asyncio.create_task(_disconnected(request))
        self._waiting += 1
        try:
            jobs = await self._claimed(request, asked, until_s, gone)
            if gone.done() and jobs:  # nobody is there to take them
                await self._hand_back(jobs, worker, "client_gone", 0)
                jobs = []
        finally:
            self._waiting -= 1
            gone.cancel()
        if body.kinds is not None and (strange := [job for job in jobs if job.kind not in body.kinds]):
            await self._hand_back(strange, worker, "unknown_kind", _UNKNOWN_KIND_MS)
            jobs = [job for job in jobs if job.kind in body.kinds]
        shown = [_shown(job, lease_ms) for job in jobs]
        return self._service.json(ClaimsAnswer(jobs=shown, claim_id=claim_id, worker=worker, lease_s=lease_ms / 1000))

    async def _claimed(self, request: Request, asked: Asked, until_s: float, gone: asyncio.Task[None]) -> list[Claimed]:
        """Claim; where nothing is ready, wait at the bells and claim again."""
        bells = [self._store.keys.bell(queue) for queue, _ in asked.queues]
        stopping = asyncio.create_task(self._service.ending().wait())
        try:
            while True:
                served = await self._link.asynchronous.run(self._store.claim(await self._noted(asked)))
                left_s = until_s - boottime_s()
                if served.jobs or served.spent or left_s <= 0 or gone.done() or stopping.done():
                    return served.jobs
                due_s = _LONGEST_SILENCE_S if served.due_in_s is None else max(0.01, served.due_in_s)
                pause_s = min(_LONGEST_SILENCE_S, due_s, left_s)
                bell = asyncio.create_task(self._link.asynchronous.wait(bells, max(0.01, pause_s)))
                await asyncio.wait({bell, gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not bell.done():
                    bell.cancel()
                await asyncio.gather(bell, return_exceptions=True)
                if gone.done():
                    return []
                await self._service.recheck(request, "work")
        finally:
            stopping.cancel()

    async def _noted(self, asked: Asked) -> Asked:
        """Return the claim to send; where its lease is not the application's, the worker is noted in a call before.

        With the note goes the lease by which the partition measures the grace after an outage. One caller with a lease
        of a second must not take that grace from all others, nor one with an hour prolong it.
        """
        if asked.lease_ms == self._lease_ms:
            return asked
        await self._link.asynchronous.run(self._store.claim(replace(asked, wanted=0, lease_ms=self._lease_ms)))
        return replace(asked, upkeep="")

    def _asked(self, request: Request, body: ClaimBody, worker: str, claim_id: str, lease_ms: int) -> Asked:
        queues = tuple((check_queue(queue), body.wanted) for queue in dict.fromkeys(body.queues))
        client = request.scope.get("client")
        about = {"host": client[0] if client else "", "pid": 0, "queues": [name for name, _ in queues], "over": "http"}
        # A lane remembers its newest claim. Threads of one worker claim side by side: each claim has its lane.
        lane = f"http{zlib.crc32(claim_id.encode()) % _LANES}"
        # Two workers may have the same id for a claim. What tells their runs apart must not be theirs to choose.
        nonce = blake2b(f"{worker} {claim_id}".encode(), digest_size=12).hexdigest()
        return Asked(worker, lane, nonce, body.wanted, lease_ms, msgspec.json.encode(about).decode(), queues)

    async def _hand_back(self, jobs: Sequence[Claimed], worker: str, why: str, delay_ms: int) -> None:
        outcomes = [Outcome(job.job_id, job.token, job.nonce, "RELEASE", (delay_ms, why)) for job in jobs]
        await self._link.asynchronous.run(self._store.finish(outcomes, self._only(worker)))

    def _only(self, worker: str) -> Asked:
        """The claiming half of finish where nothing is claimed."""
        return Asked(worker, "http", new_nonce(), 0, self._lease_ms, "", ())

    # -- leases -------------------------------------------------------------------------------------------

    async def renew(self, request: Request) -> Response:
        caller = await self._service.admit(request, "work")
        body = await self._service.body(request, RenewBody)
        lease_ms = self._lease_ms if body.lease_s is None else round(body.lease_s * 1000)
        runs = [RunKey(run.job_id, run.token, run.nonce) for run in body.runs]
        if not runs:
            return self._service.json(RenewAnswer([]))
        call = self._store.renew(lease_ms, _worker_of(caller, body.worker), runs)
        answers: list[Answer] = await self._link.asynchronous.run(call)
        return self._service.json(RenewAnswer([_renewed(*pair) for pair in zip(runs, answers, strict=True)]))

    # -- ends ---------------------------------------------------------------------------------------------

    async def finish(self, request: Request) -> Response:
        caller = await self._service.admit(request, "work")
        body = await self._service.body(request, FinishBody)
        raw = encode_result(body.result)
        replayed = await self._settle(caller, body, "DONE", (raw or "",))
        return self._service.json(SettledAnswer(state="done", replayed=replayed))

    async def retry(self, request: Request) -> Response:
        caller = await self._service.admit(request, "work")
        body = await self._service.body(request, RetryBody)
        record = await self._link.asynchronous.run(self._store.job(body.job_id))
        if record is None:
            raise JobNotFound(body.job_id)
        said = redact_text(body.error.message, record.payload, self._service.app.redact)  # before it is stored
        name, text = _class_of(body), harmless_text(said)
        handler = self._service.app.handlers.get(record.kind)
        policy = RetryPolicy() if handler is None else handler.settings.retry
        verdict = decide(_judged(body, policy), record.attempts, policy, random.random)
        known = record.settled == f"{body.nonce} RETRY"  # told before: attempts since then do not change what it was
        if verdict.word == "retry" or known:
            replayed = await self._settle(caller, body, "RETRY", (verdict.delay_ms, name, text))
        else:
            replayed = await self._settle(caller, body, "BURY", (verdict.reason, name, text))
        state = await self._state(body.job_id)
        delay_s = verdict.delay_ms / 1000 if state in ("scheduled", "queued") and not replayed else None
        reason = verdict.reason if state == "failed" else ""
        return self._service.json(RetryAnswer(state=state, replayed=replayed, delay_s=delay_s, reason=reason))

    async def release(self, request: Request) -> Response:
        caller = await self._service.admit(request, "work")
        body = await self._service.body(request, ReleaseBody)
        why = harmless_text(body.reason, 200) or "released"
        delay_ms = round(body.delay_s * 1000) or (_UNKNOWN_KIND_MS if why == "unknown_kind" else 0)
        replayed = await self._settle(caller, body, "RELEASE", (delay_ms, why))
        return self._service.json(SettledAnswer(state=await self._state(body.job_id), replayed=replayed))

    async def checkpoint(self, request: Request) -> Response:
        caller = await self._service.admit(request, "work")
        body = await self._service.body(request, CheckpointBody)
        if (body.value is msgspec.UNSET) == (body.progress is None):
            raise Problem(
                422, "body-refused", "The body does not fit", "Give either value or progress. Nothing was changed."
            )
        if body.progress is not None:
            field, raw = "progress", msgspec.json.encode({"fraction": body.progress, "text": body.text})
        else:
            field, raw = "checkpoint", msgspec.json.encode(body.value)
        if len(raw) > _SMALL:
            text = (
                f"The value has {len(raw)} bytes, {_SMALL} are allowed. Nothing was written. Keep the data elsewhere."
            )
            raise Problem(422, "value-too-large", "The value is too large", text)
        run, worker = RunKey(body.job_id, body.token, body.nonce), _worker_of(caller, body.worker)
        answer = await self._link.asynchronous.run(self._store.checkpoint(run, worker, field, raw))
        _check(run, answer.word, answer.detail)
        return self._service.json(SettledAnswer(state="processing", replayed=False))

    async def _settle(self, caller: Caller, body: RunBody, word: str, values: tuple[Any, ...]) -> bool:
        """Write how a run ended; whether this was written before. Raises StaleToken, LeaseExpired, JobNotFound."""
        outcome = Outcome(body.job_id, body.token, body.nonce, word, values)
        call = self._store.finish([outcome], self._only(_worker_of(caller, body.worker)))
        [(answer, newest)] = (await self._link.asynchronous.run(call)).replies
        _check(RunKey(body.job_id, body.token, body.nonce), answer, newest)
        return answer == "REPLAY"

    async def _state(self, job_id: str) -> str:
        """The state that a job has come to; the write itself is done, whatever this read says."""
        try:
            record = await self._link.asynchronous.run(self._store.job(job_id))
        except FencepostError:
            return "unknown"
        return "gone" if record is None else record.state


def _check(run: RunKey, word: str, newest: str) -> None:
    if word == "STALE" and int(newest or 0) == int(run.token):
        raise Problem(
            409, "stale-token", "The run has ended",
            f"job {run.job_id}: the run of token {run.token} has reported its end before, in another way. Nothing was "
            f"written. Drop the run; GET /v1/jobs/{run.job_id} tells what became of the job.",
            job_id=run.job_id, token=run.token, newest=newest,
        )  # fmt: skip
    if word == "STALE":
        raise StaleToken(run.job_id, int(run.token), int(newest or 0))
    if word == "EXPIRED":
        raise LeaseExpired(run.job_id, int(run.token))
    if word == "GONE":
        raise JobNotFound(run.job_id)


def _worker_of(caller: Caller, name: str) -> str:
    """The worker's id in Redis: no credential can speak for a worker of another."""
    return f"http-{caller.id or 'local'}-{name}"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _shown(job: Claimed, lease_ms: int) -> RunAnswer:
    return RunAnswer(
        job_id=job.job_id, token=job.token, nonce=job.nonce, kind=job.kind, queue=job.queue, args=_json(job.payload),
        attempt=job.attempt, crashes=job.crashes, version=job.version, resource=job.resource or None,
        checkpoint=_json(job.checkpoint), lease_s=lease_ms / 1000,
    )  # fmt: skip


def _json(raw: bytes) -> msgspec.Raw | None:
    return msgspec.Raw(raw) if raw else None


def _renewed(run: RunKey, said: Answer) -> RenewalAnswer:
    outcome = cast(Any, said.word.lower())  # the script's closed set of words
    return RenewalAnswer(
        job_id=run.job_id,
        outcome=outcome,
        reason=said.detail if outcome == "cancel" else None,
        newest=said.detail if outcome == "stale" else None,
    )


def _class_of(body: RetryBody) -> str:
    """The error's class as the other language calls it, on one line: a report is not refused for its wording."""
    return harmless_text("".join(one if one.isprintable() else " " for one in body.error.kind), 200)


class _Foreign(Exception):
    """An error of a worker in another language."""


def _judged(body: RetryBody, policy: RetryPolicy) -> BaseException:
    """The error as the policy of the kind sees it: its classes are found by name."""
    if body.permanent:
        return Permanent(body.error.message)
    if body.after_s is not None:
        return Retry(after=body.after_s)
    last = re.split(r"[.:$]+", body.error.kind)[-1]
    if last in {one.__name__ for one in policy.transient}:
        return Retry()
    if last in {one.__name__ for one in policy.permanent}:
        return Permanent(body.error.message)
    return _Foreign(body.error.message)
