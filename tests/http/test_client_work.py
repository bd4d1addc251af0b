"""A worker made of the client: it claims, keeps its leases and reports ends, and a late one is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fencepost import Fencepost
from fencepost.client import AsyncClient
from fencepost.errors import JobNotFound, LeaseExpired, ResultRefused, StaleToken
from tests.http.conftest import Live
from tests.support.clock import MovedClock
from tests.support.waiting import eventually


@pytest.fixture
async def api(live: Live) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(live.url, give_up=3) as one:
        yield one


async def taken_back(api: AsyncClient, clock: MovedClock, job_id: str) -> None:
    """Let time go by until the lease of the job's run has run out and another worker's call has noticed it."""

    async def noticed() -> bool:
        clock.advance(2)
        await api.claim("other", ["elsewhere"])
        return (await api.job(job_id)).state == "queued"

    await eventually(noticed)


async def test_a_run_is_claimed_kept_and_finished_and_each_may_be_said_twice(api: AsyncClient):
    job = await api.enqueue("add", {"a": 1, "b": 2})
    claims = await api.claim("adder", ["sums"], wait_s=5, claim_id="claim-0001")
    [run] = claims.jobs
    assert (run.job_id, run.kind, run.args, run.attempt, run.worker) == (job.id, "add", {"a": 1, "b": 2}, 1, "adder")
    assert run.token > 0
    assert (await api.claim("adder", ["sums"], claim_id="claim-0001")).jobs == [run]
    assert [one.outcome for one in await api.renew([run], lease_s=30)] == ["ok"]
    await api.checkpoint(run, {"page": 3})
    await api.progress(run, 0.4, "page 3")
    info = await api.job(job.id)
    assert (info.state, info.checkpoint, info.token) == ("processing", {"page": 3}, run.token)
    assert info.lease is not None
    assert info.lease.state == "held"
    assert 25 < (info.lease.left_s or 0) <= 30
    first, again = await api.finish(run, {"sum": 3}), await api.finish(run, {"sum": 3})
    assert (first.state, first.replayed, again.replayed) == ("done", False, True)
    assert await api.result(job.id) == {"sum": 3}


async def test_a_run_that_goes_wrong_is_tried_again_with_what_it_had_kept(api: AsyncClient):
    job = await api.enqueue("add", {"a": 1})
    [run] = (await api.claim("adder", ["sums"])).jobs
    await api.checkpoint(run, "half")
    assert (await api.retry(run, "IOError", "no paper", after_s=0)).state in ("queued", "scheduled")
    [second] = (await api.claim("adder", ["sums"], wait_s=5)).jobs
    assert (second.attempt, second.checkpoint) == (2, "half")
    assert second.token > run.token
    assert (await api.release(second, reason="going home")).state == "queued"
    [third] = (await api.claim("adder", ["sums"], wait_s=5)).jobs
    assert (await api.retry(third, "ValueError", "never", permanent=True)).state == "failed"
    info = await api.job(job.id)
    assert (info.error, info.error_class, info.attempts) == ("never", "ValueError", 2)


async def test_a_late_end_is_refused_and_names_the_newer_token(api: AsyncClient, clock: MovedClock, app: Fencepost):
    job = await api.enqueue("add", {"a": 1})
    [frozen] = (await api.claim("frozen", ["sums"], lease_s=5)).jobs
    await taken_back(api, clock, job.id)
    [other] = (await api.claim("other", ["sums"], wait_s=5)).jobs
    assert (other.job_id, other.crashes) == (job.id, 1)
    assert [(one.outcome, one.newest) for one in await api.renew([frozen])] == [("stale", other.token)]
    with pytest.raises(StaleToken) as refused:
        await api.finish(frozen, "late")
    assert (refused.value.token, refused.value.newest) == (frozen.token, other.token)
    await api.finish(other, "in time")
    assert await api.result(job.id) == "in time"


async def test_an_end_is_refused_once_the_job_was_taken_back_or_is_gone(api: AsyncClient, clock: MovedClock):
    job = await api.enqueue("add", {"a": 1})
    [run] = (await api.claim("adder", ["sums"], lease_s=5)).jobs
    await taken_back(api, clock, job.id)
    with pytest.raises(LeaseExpired) as refused:
        await api.finish(run)
    assert (refused.value.job_id, refused.value.token) == (job.id, run.token)
    await api.cancel(job.id, reason="for the test")
    await api.purge(job.id, reason="for the test")
    with pytest.raises(JobNotFound):
        await api.finish(run)


async def test_a_cancel_is_told_with_the_next_renewal(api: AsyncClient):
    job = await api.enqueue("add", {"a": 1})
    [run] = (await api.claim("adder", ["sums"])).jobs
    assert (await api.cancel(job.id, reason="too late anyway")).outcome == "asked"
    [renewal] = await api.renew([run])
    assert renewal.outcome == "cancel"
    assert "too late anyway" in renewal.reason
    await api.release(run)
    assert (await api.job(job.id)).state == "cancelled"


async def test_kinds_that_a_worker_does_not_know_are_not_for_it(api: AsyncClient):
    job = await api.enqueue("add", {"a": 1})
    assert (await api.claim("adder", ["sums"], kinds=["subtract"])).jobs == []
    assert (await api.job(job.id)).state in ("queued", "scheduled")


async def test_a_result_that_json_cannot_hold_is_refused_before_it_is_sent(api: AsyncClient):
    await api.enqueue("add", {"a": 1})
    [run] = (await api.claim("adder", ["sums"])).jobs
    with pytest.raises(ResultRefused, match="cannot be stored"):
        await api.finish(run, {"sum": float("nan")})
    await api.finish(run)
