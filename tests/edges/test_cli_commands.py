"""The operator's commands: what they print, as JSON and for people, and their exit codes."""

from __future__ import annotations

import pytest

from tests.support.partition import STATES


def test_a_job_is_shown_as_json_with_its_history(cli, partition):
    run = partition.put("failed", resource="stock:1")
    shown = cli.json("job", run.job_id, "--history")
    assert (shown["id"], shown["state"], shown["reason"]) == (run.job_id, "failed", "permanent")
    assert shown["payload"] == {"to": "a"}
    assert shown["token"] == run.token
    assert [one["name"] for one in shown["history"]] == ["enqueued", "acquired", "failed"]
    assert shown["history_whole"] is True


@pytest.mark.parametrize("state", STATES)
def test_a_job_in_any_state_is_shown_to_people(cli, partition, state):
    run = partition.put(state, resource="stock:1")
    out = cli("job", run.job_id, "--history")
    assert run.job_id in out
    assert f"  {state}\n" in out
    assert "base64" not in out
    assert "enqueued" in out


def test_a_job_that_is_not_there_is_exit_code_3(cli):
    cli("job", "no-such-job", code=3)
    assert cli.err.startswith("fencepost: job no-such-job was not found")


@pytest.mark.parametrize("state", STATES)
def test_jobs_of_a_state_are_listed_with_items_and_cursor(cli, partition, state):
    run = partition.put(state)
    listed = cli.json("jobs", "--state", state)
    assert listed["cursor"] is None
    assert [one["id"] for one in listed["items"]] == [run.job_id]
    assert "payload" not in listed["items"][0]
    assert run.job_id in cli("jobs", "--state", state)


def test_a_list_goes_on_with_the_cursor_it_printed(cli, partition):
    jobs = [partition.job() for _ in range(5)]
    first = cli.json("jobs", "--state", "queued", "--limit", "3")
    rest = cli.json("jobs", "--state", "queued", "--cursor", first["cursor"])
    assert [one["id"] for one in first["items"] + rest["items"]] == jobs
    assert "more: --cursor " in cli("jobs", "--state", "queued", "--limit", "3")
    assert cli("jobs", "--state", "done") == "no such jobs\n"


def test_filters_narrow_a_list(cli, partition):
    partition.job(kind="sms", queue="a")
    wanted = partition.job(kind="mail", queue="b")
    for options in (["--kind", "mail"], ["--queue", "b"]):
        assert [one["id"] for one in cli.json("jobs", "--state", "queued", *options)["items"]] == [wanted]


def test_cancelling_tells_by_exit_code_whether_all_were_cancelled(cli, partition):
    queued, running, done = (partition.put(state).job_id for state in ("queued", "processing", "done"))
    report = cli.json("cancel", queued, running)
    assert [one["word"] for one in report["outcomes"]] == ["cancelled", "asked"]
    assert cli.json("cancel", running, done, "--hard", code=5)["verdict"] == "partial"
    cli("cancel", done, code=1)
    cli("cancel", "no-such-job", code=3)
    assert partition.state(running) == "cancelled"


# -- dead letters ---------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_shown_requeued_and_purged(cli, partition):
    first, second = partition.put("failed").job_id, partition.put("failed").job_id
    assert [one["id"] for one in cli.json("dead", "list")["items"]] == [second, first]
    shown = cli.json("dead", "show", first)
    assert (shown["error_class"], shown["error"]) == ("Oops", "it broke")
    assert cli.json("dead", "requeue", first)["outcomes"] == [{"id": first, "word": "requeued", "detail": "2"}]
    assert cli.json("dead", "purge", second)["verdict"] == "ok"
    assert cli("dead", "list") == "no dead letters\n"


def test_showing_a_job_that_is_no_dead_letter_is_refused(cli, partition):
    cli("dead", "show", partition.put("done").job_id, code=1)
    assert "is `done`; `dead show` does not apply" in cli.err


def test_replay_of_all_tells_partial_success_by_its_exit_code(cli, partition):
    """report: rq/rq#1963"""
    jobs = [partition.put("failed").job_id for _ in range(5)]
    partition.redis.delete(partition.keys.job(jobs[2]))
    listed = cli.json("dead", "list")
    assert len(listed["items"]) == 4
    assert listed["missing"] == [jobs[2]]
    assert cli.json("dead", "requeue", "--all", "--dry-run")["matched"] == 4
    report = cli.json("dead", "requeue", "--all", code=5)
    assert (report["done"], report["missing"]) == (4, [jobs[2]])
    assert cli.json("dead", "requeue", "--all")["matched"] == 0


def test_a_replay_that_somebody_did_before_is_refused(cli, partition):
    """report: laravel/horizon#310"""
    job_id = partition.put("failed").job_id
    cli("dead", "requeue", job_id)
    assert f"{job_id}  illegal (queued)" in cli("dead", "requeue", job_id, code=1)


def test_dead_letters_are_chosen_by_filter(cli, partition):
    mail = partition.put("failed", kind="mail").job_id
    partition.put("failed", kind="sms")
    for options in (["--kind", "mail"], ["--kind", "mail", "--reason", "permanent", "--error", "Oops"]):
        assert [one["id"] for one in cli.json("dead", "list", *options)["items"]] == [mail]
    assert cli.json("dead", "list", "--older-than", "1h")["items"] == []
    assert cli.json("dead", "purge", "--kind", "sms", "--yes")["done"] == 1


@pytest.mark.parametrize(
    "arguments",
    [["requeue"], ["purge"], ["requeue", "id1", "--all"], ["requeue", "id1", "--dry-run"], ["purge", "--all"]],
)
def test_a_bulk_command_that_does_not_say_clearly_what_is_meant_is_refused(cli, partition, arguments):
    partition.put("failed")
    before = partition.dump()
    cli("dead", *arguments, code=2)
    assert partition.dump() == before


# -- locks, workers, sizes ------------------------------------------------------------------------------------


def test_locks_show_holder_and_waiters(cli, partition):
    holder, waiter = (partition.job(resource="stock:42") for _ in range(2))
    partition.claim(2)
    [lock] = cli.json("locks")["items"]
    assert lock["resource"] == "stock:42"
    assert lock["holders"][0]["job_id"] == holder
    assert lock["holders"][0]["ttl_left_ms"] > 0
    assert [one["job_id"] for one in lock["waiters"]] == [waiter]
    out = cli("locks", "stock:42")
    assert holder in out
    assert f"1: {waiter}" in out
    assert cli("locks", "nobody") == "nothing is held\n"


def test_workers_and_stats_are_shown(cli, partition):
    partition.job(queue="billing")
    partition.serve(0, worker="w1", upkeep='{"host": "h", "pid": 1, "queues": ["billing"]}')
    assert cli.json("workers")["items"][0]["id"] == "w1"
    assert "w1" in cli("workers")
    seen = cli.json("stats")
    assert [(one["name"], one["ready"], one["workers"]) for one in seen["queues"]] == [("billing", 1, 1)]
    assert "billing" in cli("stats")


def test_healing_changes_nothing_unless_it_is_told_to(cli, partition):
    run = partition.put("processing")
    partition.redis.zrem(partition.keys.leases, run.job_id)
    assert "nothing was changed; `fencepost heal --apply` mends them" in cli("heal")
    assert cli.json("heal")["stranded"] == [{"id": run.job_id, "what": "run without a lease"}]
    assert f"healed: {run.job_id}" in cli("heal", "--apply")
    assert cli.json("heal")["stranded"] == []


def test_the_doctor_is_content_with_a_good_server(cli):
    shown = cli.json("doctor")
    assert (shown["ok"], shown["errors"], shown["warnings"]) == (True, 0, 0)
    assert "0 errors" in cli("doctor")
    assert "ok: scripts: the scripts run." in cli("doctor", "--verbose")


def test_the_doctor_tells_errors_by_its_exit_code(cli, redis):
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert cli.json("doctor", code=1)["ok"] is False
        assert "error: eviction: maxmemory-policy is allkeys-lru" in cli("doctor", code=1)
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
