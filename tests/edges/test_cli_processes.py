"""Several worker processes under one parent, and the embedded server that they share."""

from __future__ import annotations

import json
import os
import signal

import pytest

from fencepost.embedded import EmbeddedServer
from fencepost.job import JobSpec
from tests.edges.processes import Workers, after
from tests.support import raw_client, wait_until
from tests.support.processes import gone

pytestmark = [pytest.mark.timeout(60), pytest.mark.slow]


def put(partition, kind, name):
    return partition.job(kind=kind, payload=json.dumps({"name": name}).encode())


def test_the_processes_share_the_work_and_end_together(partition, workers):
    jobs = [put(partition, "patient", f"n{number}") for number in range(2)]
    parent = workers.start("--processes", "2", "-c", "1", "--grace", "30s")
    wait_until(lambda: len(workers.notes("begin")) == 2, 20)
    pids = {int(line.split()[-1]) for line in workers.notes("begin")}
    assert len(pids) == 2, "each process runs one of them"
    assert parent.pid not in pids
    parent.send()
    parent.until("stopping", 3)
    workers.open("n0"), workers.open("n1")
    assert parent.code() == 0
    assert {partition.state(job_id) for job_id in jobs} == {"done"}
    assert all(map(gone, pids))


def test_a_signal_to_the_whole_group_and_from_the_parent_is_one(partition, workers):
    """report: taskiq-python/taskiq#593"""
    job_id = put(partition, "patient", "one")
    parent = workers.start("--processes", "2", "--grace", "30s")
    wait_until(lambda: workers.notes("begin one"), 20)
    parent.until("serving", 2)
    parent.send_group(signal.SIGINT)
    parent.until("stopping", 3)
    workers.open("one")
    assert parent.code() == 0
    assert partition.state(job_id) == "done"
    assert not any(one.get("now") for one in parent.events("stopping"))


def test_a_second_signal_later_hands_everything_back_at_once(partition, workers):
    job_id = put(partition, "patient", "one")
    parent = workers.start("--processes", "2", "--grace", "60s")
    wait_until(lambda: workers.notes("begin one"), 20)
    parent.until("serving", 2)
    first = parent.send()
    parent.until("stopping", 3)
    after(first, 1.2)
    parent.send()
    assert parent.code(10) == 0
    record = partition.record(job_id)
    assert (record.state, record.attempts, record.releases) == ("queued", 0, 1)


def test_a_child_that_dies_is_replaced_and_its_job_comes_back(partition, workers):
    parent = workers.start("--processes", "2", "-c", "1", "--lease", "1s", "--grace", "0s")
    parent.until("serving", 2)
    job_id = put(partition, "die", "one")
    died = parent.until("child_died")
    assert died["code"] == 7
    parent.until("child_started", 3)
    wait_until(lambda: partition.state(job_id) == "done", 15)
    assert partition.record(job_id).crashes == 1
    parent.send()
    assert parent.code() == 0


def test_a_burst_of_several_processes_ends_by_itself(partition, workers):
    workers.open("one")
    jobs = [put(partition, "patient", "one") for _ in range(20)]
    assert workers.start("--processes", "2", "--burst", "-c", "3").code(30) == 0
    assert {partition.state(job_id) for job_id in jobs} == {"done"}


def test_children_whose_parent_was_killed_end_by_themselves(partition, workers):
    job_id = put(partition, "patient", "one")
    parent = workers.start("--processes", "2", "--grace", "0.2s")
    parent.until("serving", 2)
    children = [one["child"] for one in parent.events("child_started")]
    wait_until(lambda: workers.notes("begin one"), 10)
    parent.send(signal.SIGKILL)
    wait_until(lambda: all(map(gone, children)), 10)
    assert partition.state(job_id) == "queued"


def test_a_wrong_application_is_told_once_and_nothing_is_started(workers):
    parent = workers.start("--processes", "2", target="jobs:nothing")
    assert parent.code() == 2
    assert parent.text().startswith("fencepost: app: jobs has no application 'nothing'")
    assert parent.text().count("\n") == 1


def test_a_url_with_a_password_is_not_shown_in_the_list_of_processes(partition, workers, redis, url, namespace):
    redis.execute_command("ACL", "SETUSER", partition.user, "on", ">secret", "+info", "+@all")
    with_password = f"unix://{partition.user}:secret@{url.removeprefix('unix://')}"
    parent = workers.start(
        "--processes", "1", "--url", with_password, "--namespace", namespace, env={"JOBS_URL": "redis://nobody:1"}
    )
    parent.until("serving")
    parent.send()
    assert parent.code() == 0
    parent = workers.start(
        "--processes", "2", "--url", with_password, "--namespace", namespace, env={"JOBS_URL": "redis://nobody:1"}
    )
    parent.until("serving", 2)
    for one in parent.events("child_started"):
        with open(f"/proc/{one['child']}/cmdline", "rb") as file:
            assert b"secret" not in file.read()
    parent.send()
    assert parent.code() == 0


# -- the embedded server --------------------------------------------------------------------------------------


@pytest.fixture
def embedded(tmp_path, namespace):
    """Workers on an embedded server of their own, which they start themselves."""
    one = Workers(tmp_path, "embedded", namespace)
    yield one
    one.end()


def enqueue(server, namespace, name):
    from fencepost import Fencepost

    app = Fencepost(server.url, namespace=namespace)
    try:
        [job] = app.enqueue_many_sync([prepared(name)])
        return job
    finally:
        app.close_sync()


def prepared(name):
    from fencepost.clock import uuid7
    from fencepost.handler import Prepared

    return Prepared(JobSpec(id=uuid7(), kind="patient", payload=json.dumps({"name": name}).encode()))


def test_the_parent_owns_the_embedded_server_and_stops_it_last(embedded, namespace):
    parent = embedded.start("--processes", "2", "--grace", "0s")
    parent.until("serving", 2)
    attached = EmbeddedServer.start(embedded.folder / "data")
    assert attached.attached
    enqueue(attached, namespace, "one")
    wait_until(lambda: embedded.notes("begin one"), 10)
    parent.send()
    assert parent.code() == 0
    assert not attached.alive()


def test_a_worker_takes_over_the_server_of_an_owner_that_ended(embedded, namespace):
    owner = EmbeddedServer.start(embedded.folder / "data")
    worker = embedded.serving()
    owner.stop()
    told = worker.until("server_restarted")
    assert told["owner"] is True
    again = EmbeddedServer.start(embedded.folder / "data")
    assert again.attached
    enqueue(again, namespace, "one")
    wait_until(lambda: embedded.notes("begin one"), 10)
    worker.send()
    embedded.open("one")
    assert worker.code() == 0


def test_the_parent_restarts_a_server_that_crashed(embedded, namespace):
    parent = embedded.start("--processes", "2", "--grace", "0s")
    parent.until("serving", 2)
    attached = EmbeddedServer.start(embedded.folder / "data")
    os.kill(attached.pid, signal.SIGKILL)
    parent.until("server_restarted")
    job = enqueue(attached, namespace, "one")
    wait_until(lambda: embedded.notes("begin one"), 10)
    with raw_client(attached.url) as client:
        assert client.hget(f"{{{namespace}:0}}:job:{job.id}", "state") == b"processing"
    parent.send()
    assert parent.code() == 0
