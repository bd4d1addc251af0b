"""What a worker does with results, payloads and kinds nobody expected: nothing is lost, nothing runs twice for it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from fencepost import Fencepost, JobFailed
from fencepost.errors import PayloadUndecodable
from tests.life.working import reached, state_of, work_off, working


class Unprintable:
    def __repr__(self) -> str:
        raise UnicodeError("no repr for you")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("发票已生成 🧾", "发票已生成 🧾"),
        (b"\xff\x00", "/wA="),
        (None, None),
        ({"n": [1, 2.5, True]}, {"n": [1, 2.5, True]}),
    ],
)
async def test_odd_results_come_back_and_the_job_is_done_once(app, value, stored):
    """report: rq/rq#682"""

    @app.job()
    async def produce() -> Any:
        return value

    job = await produce.enqueue()
    await work_off(app)
    assert await job.result() == stored
    assert (await job.status()).attempts == 1


@pytest.mark.parametrize("value", [Unprintable(), float("nan"), "\ud800", {1: object()}, "x" * 100_000])
async def test_a_result_that_cannot_be_stored_does_not_fail_the_finished_job(app, events, value):
    """report: rq/rq#682"""

    @app.job()
    async def produce() -> Any:
        return value

    job = await produce.enqueue()
    worker = await work_off(app)
    assert set(await job.result()) == {"repr"}
    assert ((await job.status()).attempts, worker.ended) == (1, 1)
    assert [event["kind"] for event in events("result_replaced")] == ["produce"]


@pytest.mark.slow
def test_an_ascii_only_output_breaks_no_log_line_and_no_job(url, namespace, tmp_path):
    """report: rq/rq#682"""
    program = tmp_path / "shop.py"
    text = textwrap.dedent(
        """
        import asyncio, logging, sys
        from fencepost import Fencepost, Worker
        logging.basicConfig(stream=sys.stdout, level=logging.DEBUG)
        app = Fencepost(sys.argv[1], namespace=sys.argv[2])
        @app.job(kind="发票")
        async def produce(name: str) -> bytes:
            logging.getLogger("shop").info("%s", ascii(name))
            return "完成".encode("utf-16")
        async def main():
            job = await produce.enqueue(name="客户🧾")
            await Worker(app, burst=True, poll_s=0.05).run()
            print((await job.status()).state)
            await app.close()
        asyncio.run(main())
        """
    )
    program.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program, url, namespace],
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "LC_ALL": "C"},
        capture_output=True,
        timeout=15,
    )
    assert done.stdout.splitlines()[-1:] == [b"done"], done.stderr.decode()
    assert b"Traceback" not in done.stderr


async def test_a_payload_the_handler_cannot_read_is_kept_with_its_bytes(app, redis):
    """It is not tried again: trying again cannot help. A repaired handler can take it up later."""

    @app.job()
    async def invoice(order: int) -> None: ...

    job = await invoice.enqueue(1)
    redis.hset(app.link.store.keys.job(job.id), "payload", b'{"order": \xff}')
    await work_off(app)
    record = await job.status()
    assert (record.state, record.reason, record.payload) == ("failed", "decode_error", b'{"order": \xff}')
    assert "does not fit the handler" in record.error
    assert redis.zscore(app.link.store.keys.dead, job.id)


@pytest.fixture
async def next_release(url, namespace):
    """The next release of the same application: other handlers on the same namespace."""
    application = Fencepost(url, namespace=namespace)
    yield application
    await application.close()


async def test_arguments_travel_by_name_so_a_parameter_in_the_middle_shifts_nothing(app, next_release):
    """report: openedx/openedx-platform#14033"""

    @app.job(kind="publish")
    async def first(a: str, b: str, flag: bool) -> None: ...

    @next_release.job(kind="publish", version=2)
    async def second(a: str, b: str, site: str = "main", flag: bool = False) -> list:
        return [a, b, site, flag]

    job = await first.enqueue("a", "b", True)
    await work_off(next_release)
    assert await job.result() == ["a", "b", "main", True]


async def test_a_default_changed_by_a_release_applies_to_waiting_jobs_too(app, next_release):
    """Only what the caller passed is stored. report: openedx/openedx-platform#14033"""

    @app.job(kind="publish")
    async def first(a: str, copies: int = 1) -> None: ...

    @next_release.job(kind="publish")
    async def second(a: str, copies: int = 2) -> int:
        return copies

    job, explicit = await first.enqueue("a"), await first.enqueue("a", copies=1)
    await work_off(next_release)
    assert [await job.result(), await explicit.result()] == [2, 1]


async def test_a_renamed_parameter_parks_the_job_and_never_guesses(app, next_release):
    """report: openedx/openedx-platform#14033"""

    @app.job(kind="publish")
    async def first(order: int) -> None: ...

    @next_release.job(kind="publish")
    async def second(order_id: int) -> None: ...

    job = await first.enqueue(5)
    await work_off(next_release)
    with pytest.raises(JobFailed) as failed:
        await job.result()
    assert failed.value.reason == "decode_error"
    assert (await job.status()).payload == b'{"order":5}'


async def test_a_kind_this_worker_does_not_know_waits_for_one_that_does(app, next_release, clock, events):
    """A rolling deploy: the old workers see the new kind first. report: sidekiq/sidekiq#4419"""

    @next_release.job()
    async def brand_new() -> str:
        return "done by the new release"

    job = await brand_new.enqueue()
    async with working(app):
        await reached(job, "scheduled")
    record = await job.status()
    assert (record.attempts, record.releases) == (0, 1)
    assert events("unknown_kind")[0]["kind"] == "brand_new"
    clock.advance_to(record.due_at)
    await work_off(next_release)
    assert await job.result() == "done by the new release"


async def test_a_kind_nobody_knew_for_a_day_becomes_a_dead_letter(app, next_release, clock):
    """report: sidekiq/sidekiq#4419"""

    @next_release.job()
    async def typo() -> None: ...

    job = await typo.options(delay="3d").enqueue()  # its age does not count, only how long nobody knows it
    clock.advance(3 * 86_400 + 60)
    await work_off(app, doctor=False)  # which would refuse a clock that is off by a day
    assert await state_of(job) == "scheduled"
    clock.advance(86_400 - 120)
    await work_off(app, doctor=False)
    assert await state_of(job) == "scheduled"
    clock.advance(300)
    await work_off(app, doctor=False)
    assert await state_of(job) == "failed"
    assert (await job.status()).reason == "unknown_kind"


async def test_a_handler_that_returns_what_nobody_awaits_has_not_done_its_work(app):
    """A plain function around an async one: not a line of the inner one has run, so "done" would lose the job."""
    ran: list[int] = []

    async def inner(number: int) -> None:
        ran.append(number)

    @app.job()
    def outer(number: int) -> Any:
        return inner(number)

    job = await outer.enqueue(1)
    await work_off(app)
    record = await job.status()
    assert (ran, record.state, record.reason) == ([], "failed", "permanent")
    assert "coroutine" in (record.error or "")


async def test_the_text_of_a_refused_payload_cannot_take_the_worker_with_it(app, monkeypatch):
    """What a validator says may be long, and is not always text that can be sent: cut and escaped like all errors."""

    @app.job()
    async def mail() -> None: ...

    def refuse(raw: bytes) -> Any:
        raise PayloadUndecodable("mail", "\ud800" * 20_000, raw)

    monkeypatch.setattr(mail.codec, "decode", refuse)
    job = await mail.enqueue()
    await work_off(app)
    record = await job.status()
    assert (record.state, record.reason, len(record.error or "") <= 8 * 1024) == ("failed", "decode_error", True)
