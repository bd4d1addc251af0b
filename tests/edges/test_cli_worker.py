"""A worker process and its signals, on both event loops: nothing is lost, nothing is charged, it ends with code 0."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.edges.processes import after
from tests.support import wait_until

pytestmark = [pytest.mark.timeout(60), pytest.mark.slow]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request):
    return request.param


@pytest.fixture
def running(partition, workers):
    """Start a worker that holds a run of a kind: `running("patient", "--grace", "30s")` -> (worker, job id)."""

    def start(kind, *options):
        job_id = partition.job(kind=kind, payload=json.dumps({"name": "one"}).encode())
        worker = workers.serving(*options)
        wait_until(lambda: workers.notes("begin one"), 10)
        return worker, job_id

    return start


def assert_handed_back(partition, job_id):
    """Queued at once, nothing charged: the next worker starts it."""
    record = partition.record(job_id)
    assert (record.state, record.attempts, record.crashes, record.releases) == ("queued", 0, 0, 1)
    assert [one.job_id for one in partition.claim()] == [job_id]


def test_a_job_runs_and_its_result_is_there(partition, workers, running, loop):
    worker, job_id = running("patient", "--loop", loop)
    workers.open("one")
    wait_until(lambda: partition.state(job_id) == "done")
    assert partition.record(job_id).result == b'"ended"'
    worker.send()
    assert worker.code() == 0
    assert worker.events("worker_stopped")


def test_a_run_that_ends_within_the_grace_is_done(partition, workers, running, loop):
    worker, job_id = running("patient", "--loop", loop, "--grace", "30s")
    worker.send()
    worker.until("stopping")
    late = partition.job(kind="patient", payload=b'{"name": "late"}')
    workers.open("one")
    assert worker.code() == 0
    assert partition.state(job_id) == "done"
    assert partition.state(late) == "queued", "nothing is claimed any more"


def test_a_run_that_outlasts_the_grace_is_handed_back_uncharged(partition, workers, running, loop):
    """report: python-arq/arq#190: a handler that catches all ordinary exceptions does not see the cancellation."""
    worker, job_id = running("patient", "--loop", loop, "--grace", "0.2s")
    worker.send()
    assert worker.code() == 0
    assert_handed_back(partition, job_id)
    assert workers.notes("swallowed") == []


def test_a_handler_that_swallows_its_cancellation_cannot_keep_the_process(partition, workers, running, loop):
    """report: python-arq/arq#190"""
    worker, job_id = running("stubborn", "--loop", loop, "--grace", "0.2s")
    worker.send()
    assert worker.code() == 0
    assert workers.notes("cancelled one")
    assert_handed_back(partition, job_id)
    assert worker.events("left_behind")


@pytest.mark.parametrize("kind", ["threaded", "handed_to_a_thread"])
def test_a_stuck_thread_cannot_keep_the_process(partition, running, loop, kind):
    """report: python-arq/arq#190"""
    worker, job_id = running(kind, "--loop", loop, "--grace", "0.2s")
    worker.send()
    assert worker.code() == 0
    assert_handed_back(partition, job_id)
    [told] = worker.events("left_behind")
    assert told["threads"].startswith(("fencepost-run", "fencepost-to-thread"))


def test_a_thread_that_asks_learns_of_the_shutdown(partition, workers, running):
    worker, job_id = running("polite", "--grace", "0.2s")
    worker.send()
    assert worker.code() == 0
    assert workers.notes("told one shutdown")
    assert_handed_back(partition, job_id)
    assert worker.events("left_behind") == []


def test_the_same_signal_twice_at_once_is_one(partition, workers, running, loop):
    """report: taskiq-python/taskiq#593"""
    worker, job_id = running("patient", "--loop", loop, "--grace", "30s")
    for _ in range(3):
        worker.send(signal.SIGINT)
    worker.send(signal.SIGTERM)
    worker.until("stopping")
    assert not worker.events("stopping")[0]["now"]
    workers.open("one")
    assert worker.code() == 0
    assert partition.state(job_id) == "done"
    assert len(worker.events("stopping")) == 1


def test_a_second_signal_later_means_now(partition, running, loop):
    worker, job_id = running("patient", "--loop", loop, "--grace", "60s")
    first = worker.send()
    worker.until("stopping")
    after(first, 1.1)
    assert worker.process.poll() is None
    worker.send()
    assert worker.code(5) == 0
    assert [one["now"] for one in worker.events("stopping")] == [False, True]
    assert_handed_back(partition, job_id)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
def test_a_signal_during_the_start_ends_the_process(workers, number, delay_s):
    """report: taskiq-python/taskiq#63. For the first moments of the interpreter itself nobody can answer: it may even
    print the KeyboardInterrupt as ignored and go on, where that hits a callback of its import locks. Once more, then.
    """
    started = time.monotonic()
    worker = workers.start()
    after(started, delay_s)
    worker.send(number)

    def swallowed():
        return "Exception ignored in" in worker.text() and "KeyboardInterrupt" in worker.text()

    wait_until(lambda: worker.process.poll() is not None or swallowed())
    if swallowed():
        assert number == signal.SIGINT
        worker.send(number)
    code = worker.code(5, quiet=False)
    if "Traceback" in worker.text():  # the interpreter's own, before it ran a line that could prevent it
        assert number == signal.SIGINT
        assert "fencepost/cli/root" not in worker.text()
    else:
        assert code in (0, -number)


def test_once_our_code_runs_an_early_signal_is_a_good_end(workers):
    worker = workers.start(env={"PYTHONPATH": str(workers.folder)}, target="slow_start:app")
    wait_until(lambda: workers.notes("importing"), 10)
    worker.send()
    assert worker.code(5) == 0
    assert worker.events("serving") == []


@pytest.fixture(autouse=True)
def slow_start(workers):
    """A module whose import takes for ever and swallows what is raised into it."""
    (workers.folder / "slow_start.py").write_text(
        "import time\nfrom jobs import app, note\nnote('importing')\n"
        "try:\n    time.sleep(30)\nexcept BaseException:\n    pass\n"
    )


def test_a_loop_without_signal_hooks_does_as_well(partition, workers, running, monkeypatch):
    """report: taskiq-python/taskiq#593"""
    (workers.folder / "sitecustomize.py").write_text(
        "import asyncio.unix_events as events\n"
        "def refuse(self, *rest): raise NotImplementedError\n"
        "events._UnixSelectorEventLoop.add_signal_handler = refuse\n"
        "events._UnixSelectorEventLoop.remove_signal_handler = refuse\n"
    )
    monkeypatch.setitem(workers.env, "PYTHONPATH", str(workers.folder))
    worker, job_id = running("patient", "--loop", "asyncio", "--grace", "30s")
    worker.send()
    worker.until("stopping")
    workers.open("one")
    assert worker.code() == 0
    assert partition.state(job_id) == "done"


def test_a_burst_ends_when_nothing_is_left(partition, workers, loop):
    jobs = [partition.job(kind="patient", payload=b'{"name": "one"}') for _ in range(30)]
    workers.open("one")
    assert workers.start("--loop", loop, "--burst", "-c", "10").code() == 0
    assert {partition.state(job_id) for job_id in jobs} == {"done"}


def test_an_unsafe_server_is_refused_and_force_is_logged(partition, workers, redis):
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        refused = workers.start()
        assert refused.code() == 1
        assert "maxmemory-policy is allkeys-lru" in refused.text().splitlines()[-1]
        forced = workers.start("--force", "--burst")
        assert forced.code() == 0
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert refused.events("serving") == []
    assert forced.events("doctor_overruled")[0]["checks"] == "eviction"


def test_a_worker_without_a_server_says_so_and_ends_with_4(workers):
    worker = workers.start(env={"JOBS_URL": f"unix://{workers.folder}/nobody.sock", "JOBS_GIVE_UP": "0.1"})
    assert worker.code(30) == 4
    assert "Redis gave no answer" in worker.text().splitlines()[-1]


def test_a_url_on_the_command_line_is_stronger_than_the_modules_own(partition, workers, url, namespace):
    job_id = partition.job(kind="patient", payload=b'{"name": "one"}')
    workers.open("one")
    wrong = {"JOBS_URL": "redis://nobody.invalid:1/0", "JOBS_NAMESPACE": "other"}
    worker = workers.start("--burst", "--url", url, "--namespace", namespace, env=wrong)
    assert worker.code() == 0
    assert partition.state(job_id) == "done"
