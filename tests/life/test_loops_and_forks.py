"""One application object serves several event loops, threads and forked children: no socket is shared by two."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from fencepost import Job
from tests.life.working import work_off
from tests.support import wait_until


def test_one_loop_after_another_enqueues_with_one_application(app):
    @app.job()
    async def note(n: int) -> int:
        return n

    async def main(n: int) -> str:
        job: Job[int] = await note.enqueue(n)
        await app.close()  # the connections of this loop, not those of another
        return job.state

    assert [asyncio.run(main(n)) for n in range(3)] == ["queued"] * 3
    asyncio.run(work_off(app))


def test_two_loops_at_the_same_time_get_their_own_answers(app, redis):
    """Two threads, each with an event loop, and one application; nobody waits for ever and nothing is mixed up."""

    @app.job()
    async def note(who: str, n: int) -> None: ...

    start = threading.Barrier(2)
    wrong: list[object] = []

    async def enqueue_many(who: str) -> None:
        for n in range(50):
            jobs = await asyncio.gather(*(note.options(job_id=f"{who}-{n}-{k}").enqueue(who, n) for k in range(3)))
            if [job.id for job in jobs] != [f"{who}-{n}-{k}" for k in range(3)]:
                wrong.append((who, n, jobs))
        await app.close()

    def life(who: str) -> None:
        start.wait()
        try:
            asyncio.run(asyncio.wait_for(enqueue_many(who), 10))
        except BaseException as error:  # noqa: BLE001
            wrong.append((who, repr(error)))

    threads = [threading.Thread(target=life, args=(who,)) for who in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert wrong == []
    assert redis.zcard(app.link.store.keys.ready("default")) == 300


def test_many_threads_without_a_loop_use_one_application(app, redis):
    @app.job()
    async def note(n: int) -> None: ...

    def life(n: int) -> None:
        for _ in range(10):
            note.enqueue_sync(n)

    before = redis.info("clients")["connected_clients"]
    for _ in range(3):
        threads = [threading.Thread(target=life, args=(n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert redis.zcard(app.link.store.keys.ready("default")) == 150
    # A thread that has ended leaves no connection behind.
    wait_until(lambda: redis.info("clients")["connected_clients"] <= before + 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_parent_and_forked_child_enqueue_side_by_side(app, redis):
    """The child has its own sockets and draws its own ids."""

    @app.job()
    async def note(who: str) -> None: ...

    note.enqueue_sync("parent")  # a connection is open when the child is made
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in range(50):
                note.enqueue_sync("child")
            asyncio.run(some(note, "child"))
            code = 0
        finally:
            os._exit(code)
    for _ in range(50):
        assert note.enqueue_sync("parent").state == "queued"
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    ids = redis.zrange(app.link.store.keys.ready("default"), 0, -1)
    assert len(set(ids)) == 1 + 50 + 50 + 10


async def some(note, who: str) -> None:
    await asyncio.gather(*(note.enqueue(who) for _ in range(10)))
