"""Every way that a job can go, told by the real scripts."""

from __future__ import annotations

from fencepost.job import JobSpec
from fencepost.store import Outcome, RunKey
from tests.support.partition import Partition


def everything(partition: Partition) -> dict[str, str]:
    """Let each event happen at least once. Returns the ids of the jobs by what became of them."""
    jobs: dict[str, str] = {}
    for state in ("done", "failed", "cancelled", "scheduled", "waiting"):
        jobs[state] = partition.put(state).job_id
    jobs["retried"] = _run_again(partition)
    jobs["guarded"] = _guarded(partition)
    jobs |= _on_one_resource(partition)
    jobs["requeued"] = _requeued(partition)
    jobs["poison"] = _poisoned(partition)
    _asked_to_cancel(partition)
    _cancelled_hard(partition)
    _busy(partition)
    _stand_alone(partition)
    jobs["revoked"] = _revoked(partition)
    _paused(partition)
    for op in ("make", "revoke"):
        partition.credential(op, "k3j4aaaaaaaa")
    jobs["bumped"] = _bumped(partition)
    jobs["concluded"] = _concluded(partition)
    _committed_late(partition)
    _torn_and_healed(partition)
    jobs["purged"] = partition.put("done").job_id
    partition.purge(jobs["purged"])
    jobs["delayed"] = partition.job(delay_ms=60_000)
    jobs["running"] = partition.put("processing").job_id
    return jobs


def _claim_one(partition: Partition, **options: object) -> RunKey:
    queue = partition.name("q")
    partition.job(queue=queue, **options)
    [claimed] = partition.claim(queues=(queue,))
    return claimed.key


def _run_again(partition: Partition) -> str:
    queue = partition.name("q")
    job_id = partition.job(queue=queue)
    for word in ("RETRY", "RELEASE", "DONE"):
        [claimed] = partition.claim(queues=(queue,))
        assert partition.finish(claimed.key, word).word == "OK"
        assert partition.finish(claimed.key._replace(nonce="late.1"), "RETRY").word in ("STALE", "EXPIRED")
    return job_id


def _guarded(partition: Partition) -> str:
    run = _claim_one(partition)
    partition.run(partition.store.checkpoint(run, "w1", "step:a", b"1", "step", "a"))
    partition.run(partition.store.checkpoint(run, "w1", "outside:b", b"1", "intent", "b"))
    partition.run(partition.store.checkpoint(run, "w1", "outside:b", b"2", "outcome", "b ok"))
    notes = (("effect", f"{run.job_id}:charge"), ("effect_found", f"{run.job_id}:mail"))
    outcome = Outcome(*run, "DONE", (b"1",), notes)
    served = partition.run(partition.store.finish([outcome], partition.request()))
    assert [word for word, _ in served.replies] == ["OK"]
    return run.job_id


def _on_one_resource(partition: Partition) -> dict[str, str]:
    """Three jobs of one resource: the second and third park and are handed the place."""
    queue, resource = partition.name("q"), partition.name("thing-")
    ids = [partition.job(queue=queue, resource=resource) for _ in range(3)]
    for _ in ids:
        [claimed] = partition.claim(3, queues=(queue,))
        assert partition.finish(claimed.key, "DONE").word == "OK"
    return dict(zip(("first on the resource", "second on the resource", "waited"), ids, strict=True))


def _requeued(partition: Partition) -> str:
    queue = partition.name("q")
    job_id = partition.job(queue=queue)
    for word in ("BURY", "CANCEL", "DONE"):
        [claimed] = partition.claim(queues=(queue,))
        assert partition.finish(claimed.key, word).word == "OK"
        partition.requeue(job_id)
    return job_id


def _poisoned(partition: Partition) -> str:
    queue = partition.name("q")
    job_id = partition.job(queue=queue, max_crashes=1)
    for _ in range(2):
        [claimed] = partition.claim(queues=(queue,))
        partition.take_back(claimed.key)
    assert partition.state(job_id) == "failed"
    return job_id


def _asked_to_cancel(partition: Partition) -> None:
    for settle in ("RETRY", "DONE", "CANCEL"):
        run = _claim_one(partition)
        assert partition.cancel(run.job_id).word == "ASKED"
        assert partition.finish(run, settle).word == "OK"
    run = _claim_one(partition)
    partition.cancel(run.job_id)
    partition.take_back(run)
    assert partition.state(run.job_id) == "cancelled"


def _cancelled_hard(partition: Partition) -> None:
    run = _claim_one(partition)
    assert partition.cancel(run.job_id, hard=True).word == "CANCELLED"
    assert partition.finish(run, "DONE").word == "STALE"
    for state in ("scheduled", "queued", "waiting"):
        assert partition.cancel(partition.put(state).job_id).word == "CANCELLED"


def _busy(partition: Partition) -> None:
    queue, resource = partition.name("q"), partition.name("thing-")
    partition.acquire(resource, partition.name("holder-"))
    for on_busy in ("skip", "fail", "later:60000"):
        partition.job(queue=queue, resource=resource, on_busy=on_busy)
    assert partition.claim(3, queues=(queue,)) == []
    dedup = partition.name("key-")
    partition.job(queue=queue, dedup=dedup, delay_ms=60_000)
    assert partition.enqueue(JobSpec(id=partition.name("job-"), kind="mail", dedup=dedup))[0][0] == "DUPLICATE"


def _stand_alone(partition: Partition) -> None:
    resource, first, second = partition.name("thing-"), partition.name("n"), partition.name("n")
    _, token, _ = partition.acquire(resource, first)
    assert partition.acquire(resource, second, wait_ms=1_000)[0] == "WAIT"
    assert partition.release(first, token).word == "OK"
    _, token, _ = partition.acquire(resource, second, wait_ms=1_000)
    assert partition.release(second, token).word == "OK"


def _revoked(partition: Partition) -> str:
    """Taken from its worker by hand, then done; another one was to be cancelled, a third was a stand-alone lease."""
    queue, resource, nonce = partition.name("q"), partition.name("thing-"), partition.name("n")
    job_id = partition.job(queue=queue)
    [claimed] = partition.claim(queues=(queue,))
    assert partition.revoke(job_id, claimed.token) == ("REVOKED", "queued")
    [claimed] = partition.claim(queues=(queue,))
    assert partition.finish(claimed.key, "DONE").word == "OK"
    run = _claim_one(partition)
    partition.cancel(run.job_id)
    assert partition.revoke(run.job_id, run.token) == ("REVOKED", "cancelled")
    _, token, _ = partition.acquire(resource, nonce)
    assert partition.revoke(f"@{nonce}", token) == ("REVOKED", "ended")
    return job_id


def _paused(partition: Partition) -> None:
    """A queue is paused while jobs of it wait for a resource, and resumed."""
    queue, resource, nonce = partition.name("q"), partition.name("thing-"), partition.name("n")
    _, token, _ = partition.acquire(resource, nonce)
    partition.job(queue=queue, resource=resource)
    assert partition.claim(queues=(queue,)) == []
    assert partition.pause(queue).word == "PAUSED"
    assert partition.release(nonce, token).word == "OK"
    assert partition.claim(queues=(queue,)) == []
    assert partition.resume(queue).word == "RESUMED"
    [claimed] = partition.claim(queues=(queue,))
    assert partition.finish(claimed.key, "DONE").word == "OK"


def _bumped(partition: Partition) -> str:
    run = _claim_one(partition)
    floor = int(run.token) + 1_000_000_000
    answer = partition.run(partition.store.bump(run, "w1", floor, "install"))
    assert int(answer.detail) > floor
    assert partition.finish(run._replace(token=answer.detail), "DONE").word == "OK"
    return run.job_id


def _concluded(partition: Partition) -> str:
    run = _claim_one(partition)
    [answer] = partition.run(partition.store.conclude([(run.job_id, 1, "done", "ledger", b"")]))
    assert answer.word == "CONCLUDED"
    return run.job_id


def _committed_late(partition: Partition) -> None:
    """SQL accepted an effect of a run that Redis had taken back by then."""
    run = _claim_one(partition)
    partition.take_back(run)
    outcome = Outcome(*run, "DONE", (b"1",), (("effect", f"{run.job_id}:late"),))
    served = partition.run(partition.store.finish([outcome], partition.request()))
    assert [word for word, _ in served.replies] == ["EXPIRED"]


def _torn_and_healed(partition: Partition) -> None:
    for state, index in (("queued", None), ("processing", partition.keys.leases)):
        job_id = partition.put(state).job_id
        queue = partition.record(job_id).queue
        partition.redis.zrem(index or partition.keys.ready(queue), job_id)
        [answer] = partition.heal(job_id)
        assert answer.word == "HEALED"
