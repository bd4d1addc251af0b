"""`run: Run` is what a handler sees of its own run. It is handed in only where the handler asks for it."""

from __future__ import annotations

import pytest

from fencepost import ArgumentsRefused, ConfigurationError, Retry, RetryPolicy, Run
from tests.life.working import reached, work_off, working

QUICK = RetryPolicy(attempts=3, base=0.01, jitter="none")


async def test_a_handler_that_asks_for_its_run_is_given_it(app):
    @app.job(queue="billing", resource="order:{order}")
    async def invoice(run: Run, order: int) -> dict:
        return {
            "job_id": run.job_id,
            "kind": run.kind,
            "queue": run.queue,
            "resource": run.resource,
            "attempt": run.attempt,
            "crashes": run.crashes,
            "token": run.token,
        }

    job = await invoice.enqueue(order=7)
    await work_off(app, "billing")
    record = await job.status()
    assert await job.result() == {
        "job_id": job.id,
        "kind": "invoice",
        "queue": "billing",
        "resource": "order:7",
        "attempt": 1,
        "crashes": 0,
        "token": record.token,
    }


async def test_a_handler_that_does_not_ask_is_called_with_its_arguments_only(app):
    @app.job()
    async def plain(order: int) -> int:
        return order

    @app.job()
    def plain_too(order: int) -> int:
        return order

    jobs = [await plain.enqueue(1), await plain_too.enqueue(order=2)]
    await work_off(app)
    assert [await job.result() for job in jobs] == [1, 2]


async def test_a_caller_cannot_pass_a_run(app):
    @app.job()
    async def invoice(run: Run, order: int) -> None: ...

    with pytest.raises(ArgumentsRefused):
        await invoice.enqueue(run=1, order=7)


async def any_number(*orders: int) -> None: ...


async def stream():
    yield 1


async def invoice_of(order: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (any_number, {}),
        (stream, {}),
        (invoice_of, {"resource": "order:{ordre}"}),
        (invoice_of, {"dedup": "order:{ordre}"}),
        (invoice_of, {"kind": "taken"}),
        (invoice_of, {"timeout": "soon"}),
        (invoice_of, {"priority": 10}),
        (invoice_of, {"on_busy": "shrug", "resource": "order:{order}"}),
    ],
)
async def test_a_declaration_that_cannot_work_is_refused_where_it_stands(app, function, settings):
    app.job(kind="taken")(invoice_of)
    with pytest.raises(ConfigurationError):
        app.job(**settings)(function)


async def test_each_attempt_has_a_higher_token(app):
    tokens = []

    @app.job(retry=QUICK)
    async def fetch(run: Run) -> None:
        tokens.append(run.token)
        if run.attempt < 3:
            raise Retry(after=0.0)

    await fetch.enqueue()
    await work_off(app)
    assert len(tokens) == 3
    assert tokens == sorted(set(tokens))


async def test_an_effect_key_is_the_same_in_every_attempt(app):
    keys = []

    @app.job(retry=QUICK)
    async def charge(run: Run) -> None:
        keys.append(run.effect_key("charge"))
        if run.attempt == 1:
            raise Retry(after=0.0)

    job = await charge.enqueue()
    other = await charge.enqueue()
    await work_off(app)
    assert sorted(set(keys)) == sorted([f"{job.id}:charge", f"{other.id}:charge"])
    assert len(keys) == 4


async def test_a_checkpoint_is_handed_to_the_next_attempt(app):
    seen = []

    @app.job(retry=QUICK)
    async def import_pages(run: Run) -> list[int]:
        done = run.last_checkpoint or []
        seen.append(list(done))
        for page in range(len(done), 4):
            done.append(page)
            await run.checkpoint(done)
            if run.attempt == 1 and page == 1:
                raise OSError("connection reset")
        return done

    job = await import_pages.enqueue()
    await work_off(app)
    assert seen == [[], [0, 1]]
    assert await job.result() == [0, 1, 2, 3]


async def test_a_thread_stores_checkpoints_and_progress_without_a_loop(app):
    @app.job(retry=QUICK)
    def import_pages(run: Run) -> int:
        if run.attempt == 1:
            run.progress_sync(0.5, "half")
            run.checkpoint_sync({"page": 3})
            raise OSError("connection reset")
        return int(run.last_checkpoint["page"])

    job = await import_pages.enqueue()
    await work_off(app)
    assert await job.result() == 3
    assert b"half" in (await job.status()).progress


async def test_progress_can_be_watched_while_the_job_runs(app):
    @app.job()
    async def import_pages(run: Run) -> None:
        await run.progress(0.25, "page 1 of 4")
        raise Retry(after=60)

    job = await import_pages.enqueue()
    async with working(app):
        await reached(job, "scheduled")
    assert (await job.status()).to_json()["progress"] == {"fraction": 0.25, "text": "page 1 of 4"}


@pytest.mark.parametrize("value", ["x" * 70_000, float("nan"), object()])
async def test_a_checkpoint_that_is_too_large_or_no_json_is_refused(app, value):
    refused = []

    @app.job()
    async def import_pages(run: Run) -> None:
        with pytest.raises(ArgumentsRefused) as error:
            await run.checkpoint(value)
        refused.append(error.value)

    await import_pages.enqueue()
    await work_off(app)
    assert len(refused) == 1


async def test_check_lets_a_good_run_pass(app):
    @app.job()
    async def invoice(run: Run) -> str:
        run.check()
        return run.why or "good"

    job = await invoice.enqueue()
    await work_off(app)
    assert await job.result() == "good"


async def test_two_jobs_never_share_an_effect_key_whatever_stands_in_their_ids(app):
    keys = []

    @app.job()
    async def charge(run: Run, name: str) -> None:
        keys.append(run.effect_key(name))

    await charge.options(job_id="order").enqueue(name="1:x")
    await charge.options(job_id="order:1").enqueue(name="x")
    await work_off(app)
    assert len(set(keys)) == 2, keys
