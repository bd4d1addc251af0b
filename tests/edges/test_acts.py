"""An operator pauses queues and revokes what is held: by the command line, in Python, and as a worker meets it."""

from __future__ import annotations

import asyncio

import pytest

from fencepost import Fencepost, Worker
from fencepost.errors import ConfigurationError, IllegalTransition, JobNotFound, StaleToken
from fencepost.operate import Operator
from fencepost.operate.acts import Paused, local_actor, pauses
from tests.support.waiting import eventually


def who(partition):
    """Who made the last entry of the stream."""
    return partition.redis.xrevrange(partition.keys.events, count=1)[0][1][b"w"].decode()


# -- the command line -----------------------------------------------------------------------------------------


def test_a_queue_is_paused_shown_and_resumed(cli, partition):
    partition.job(queue="mails")
    assert cli("pause", "mails", "--reason", "the provider is down").startswith("mails paused since 2")
    assert who(partition) == local_actor("cli")
    [mails] = [one for one in cli.json("stats")["queues"] if one["name"] == "mails"]
    assert mails["paused"]["reason"] == "the provider is down"
    assert mails["paused"]["by"] == local_actor("cli")
    assert abs(mails["paused"]["paused_at"] - partition.redis.time()[0] * 1000) < 60_000
    assert f"ago by {local_actor('cli')}: the provider is down" in cli("stats")
    assert cli.json("resume", "mails", "--reason", "it is back")["word"] == "resumed"
    assert cli("resume", "mails", "--reason", "once more") == "mails running (it was not paused)\n"
    assert [one["paused"] for one in cli.json("stats")["queues"] if one["name"] == "mails"] == [None]


def test_a_paused_queue_is_shown_although_nobody_serves_it_and_nothing_is_in_it(cli, partition):
    cli("pause", "empty", "--reason", "not yet")
    [only] = cli.json("stats")["queues"]
    assert (only["name"], only["ready"], only["paused"]["reason"]) == ("empty", 0, "not yet")


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize("arguments", [["mails"], ["a b", "--reason", "x"], ["mails", "--reason", "two\nlines"]])
def test_a_pause_without_a_queue_name_or_a_reason_of_one_line_is_wrong_usage(cli, partition, command, arguments):
    cli(command, *arguments, code=2)
    assert partition.dump() == {}


def test_a_run_is_revoked_by_the_token_that_the_job_shows(cli, partition):
    run = partition.put("processing")
    cli("revoke", run.job_id, "--token", str(int(run.token) - 1), "--reason", "it hangs", code=1)
    assert f"the newest is {run.token}" in cli.err
    token = cli.json("job", run.job_id)["token"]
    assert cli("revoke", run.job_id, "--token", token, "--reason", "it hangs") == f"{run.job_id} revoked (queued)\n"
    assert who(partition) == local_actor("cli")
    assert partition.state(run.job_id) == "queued"
    cli("revoke", run.job_id, "--token", token, "--reason", "once more", code=1)
    cli("revoke", "nobody", "--token", "5", "--reason", "x", code=3)
    cli("revoke", run.job_id, "--token", "five", "--reason", "x", code=2)


def test_a_stand_alone_lease_is_revoked_as_locks_show_it(cli, partition):
    partition.acquire("stock:42", "me")
    [holder] = cli.json("locks")["items"][0]["holders"]
    done = cli.json("revoke", holder["member"], "--token", holder["token"], "--reason", "it hangs")
    assert done == {"id": "@me", "token": holder["token"], "word": "revoked", "detail": "ended"}
    assert cli.json("locks")["items"] == []


def test_requeue_and_purge_keep_why_and_who(cli, partition):
    first, second = partition.put("failed").job_id, partition.put("failed").job_id
    cli("dead", "requeue", first, "--because", "it is back")
    assert (partition.told()[-1].reason, who(partition)) == ("generation 2: it is back", local_actor("cli"))
    cli("dead", "purge", "--all", "--yes", "--because", "too old")
    assert (partition.told()[-1].job_id, partition.told()[-1].reason) == (second, "too old")
    assert who(partition) == local_actor("cli")


def test_a_cancel_that_names_an_older_token_is_refused(cli, partition):
    run = partition.put("processing")
    report = cli.json("cancel", run.job_id, "--hard", "--token", str(int(run.token) - 1), code=1)
    assert [(one["word"], one["detail"]) for one in report["outcomes"]] == [("stale", run.token)]
    assert cli.json("cancel", run.job_id, "--hard", "--token", run.token)["verdict"] == "ok"
    cli("cancel", "a", "b", "--token", "5", code=2)


# -- Python ---------------------------------------------------------------------------------------------------


def test_an_operator_acts_under_the_name_it_is_given(app, partition):
    operator = Operator(app, actor="nightly-cleanup")
    operator.run_sync(operator.cancel([partition.job()], reason="not wanted"))
    assert who(partition) == "nightly-cleanup"
    unnamed = Operator(app)
    unnamed.run_sync(unnamed.cancel([partition.job()]))
    assert who(partition) == local_actor("python")


@pytest.mark.parametrize("actor", ["", " ", "two\nlines", "x" * 201])
def test_a_name_that_no_log_could_show_is_refused(app, actor):
    with pytest.raises(ConfigurationError, match="actor"):
        Operator(app, actor=actor)


def test_a_revoke_says_by_its_error_why_it_was_not_done(app, partition):
    operator, run = Operator(app), partition.put("processing")
    for holder, token, error in (
        ("nobody", "5", JobNotFound),
        (run.job_id, "5", StaleToken),
        (partition.job(), "5", IllegalTransition),
        (run.job_id, "0x5", ConfigurationError),
        ("", "5", ConfigurationError),
    ):
        with pytest.raises(error):
            operator.run_sync(operator.revoke(holder, token, reason="why"))
    assert partition.state(run.job_id) == "processing"


def test_too_many_paused_queues_are_refused_with_what_to_do(app, partition):
    operator = Operator(app)
    for number in range(200):
        partition.pause(f"q{number}")
    with pytest.raises(ConfigurationError, match="200 queues are paused already"):
        operator.run_sync(operator.pause("one-more", reason="why"))
    seen = operator.run_sync(operator.overview())
    assert sum(one.paused is not None for one in seen.queues) == 200
    assert "pauses" not in seen.meta


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("", {}),
        ("a\t5\tann\twhy\tnot", {"a": Paused("why\tnot", "ann", 5)}),
        ("a\t5\nb\tx\tann\twhy\n\t5\tann\twhy\nc", {"a": Paused("", "", 5)}),
    ],
)
def test_what_the_partition_keeps_of_its_pauses_is_read_as_far_as_it_can_be(lines, found):
    assert pauses(lines) == found


def test_who_leaves_a_lease_that_was_revoked_learns_of_it_even_before_the_next_heartbeat(app, partition):
    with app.lease("stock", ttl=60) as lease:
        partition.revoke(f"@{lease.nonce}", str(lease.token))
        assert partition.acquire("stock", "next")[0] == "HELD"
    assert lease.lost == "stale"
    assert partition.redis.zcard(partition.keys.slots("stock")) == 1


# -- a worker -------------------------------------------------------------------------------------------------


async def test_a_worker_serves_a_resumed_queue_at_once_and_stops_a_run_that_was_revoked(url, namespace, partition):
    """The bell rings for a resumed queue; a revoked run learns of it by its next heartbeat, and the job runs again."""
    app = Fencepost(url, namespace=namespace, lease=2.0, give_up=5.0)
    began, stopped = asyncio.Event(), asyncio.Event()

    @app.job(queue="sums")
    async def add(a: int) -> int:
        if began.is_set():
            return a + 1
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise
        return -1

    operator = Operator(app, actor="ann")
    worker = Worker(app, ["sums"])
    running = asyncio.create_task(worker.run())
    await operator.run(operator.pause("sums", reason="wait"))
    job = await add.enqueue(1)
    since = partition.record(job.id).created_at
    await eventually(lambda: int(partition.redis.hget(partition.keys.worker(worker.id), "seen_at") or 0) > since)
    assert not began.is_set()
    await operator.run(operator.resume("sums", reason="go on"))
    await asyncio.wait_for(began.wait(), 5)
    record = (await operator.run(operator.job(job.id))).record
    assert await operator.run(operator.revoke(job.id, str(record.token), reason="it hangs")) == "queued"
    await asyncio.wait_for(stopped.wait(), 10)
    assert await job.result(timeout=10) == 2
    record = (await operator.run(operator.job(job.id))).record
    assert (record.attempts, record.crashes, record.releases) == (1, 0, 1)
    await eventually(lambda: not worker.runs)
    worker.stop()
    await running
    await app.close()
