"""An archiver that dies anywhere, two at once, and a Redis that comes back older: the ledger is the multiset of what
was told, each event once."""

from __future__ import annotations

import gc
import multiprocessing
import random
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import NoResultFound

from fencepost.driver import Connections, SyncDriver
from fencepost.job import JobSpec
from fencepost.keys import Keys
from fencepost.ledger import Archiver, Ledger
from fencepost.ledger.verify import verify
from fencepost.store import Store
from tests.ledger.copies import Past, copied_lines, cursor_of, told_lines
from tests.support.partition import VALUES, Partition
from tests.support.waiting import wait_until


class Killed(BaseException):
    """As SIGKILL would: nothing of ours catches it."""


class Assassin:
    """Kills whoever uses the ledger's engine, or this driver, at the n-th thing it does from now on."""

    def __init__(self, ledger: Ledger, driver: SyncDriver) -> None:
        self._driver, self._left, self.kills = driver, -1, 0
        for name in ("before_cursor_execute", "after_cursor_execute", "begin", "commit"):
            event.listen(ledger.engine, name, self._strike)

    def at(self, number: int, work: Callable[[], object]) -> None:
        """Let somebody work until the blow."""
        self._left = number
        killed = False
        try:
            work()
        except Killed:
            killed = True
        self._left = -1
        if killed:
            self.kills += 1
            gc.collect()  # of a process that is gone no cursor keeps its transaction open

    def run(self, call: Any, give_up_s: float | None = None) -> Any:
        """The driver's run, which may be the last thing done, before it was sent or after."""
        self._strike()
        answer = self._driver.run(call, give_up_s)
        self._strike()
        return answer

    def _strike(self, *_: Any) -> None:
        self._left -= 1
        if self._left == 0:
            raise Killed


def live(partition: Partition, rng: random.Random) -> None:
    """A few things that happen to jobs."""
    for _ in range(rng.randint(1, 4)):
        chosen = rng.randrange(5)
        if chosen < 2:
            specs = [JobSpec(id=partition.name("j"), kind="mail") for _ in range(rng.randint(1, 5))]
            specs[0].resource = "thing" if chosen else None
            partition.enqueue(*specs)
        elif chosen < 4:
            for one in partition.claim(rng.randint(1, 4)):
                word = rng.choice(("DONE", "DONE", "RETRY", "BURY", "RELEASE", "CANCEL"))
                partition.finish(one.key, word, *VALUES[word])
                if rng.random() < 0.2:
                    partition.finish(one.key._replace(nonce="late.1"), word, *VALUES[word])
        else:
            dead = [one.decode() for one in partition.redis.zrange(partition.keys.dead, 0, 2)]
            if dead:
                partition.requeue(*dead)


# Who is killed does not close its connection, as psycopg then remarks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(10, 26))
def test_wherever_it_is_killed_and_however_redis_is_rewound_each_event_is_there_once(
    partition, ledger, ledger_url, seed
):
    rng = random.Random(seed)
    second = Ledger(ledger_url, partition.namespace)
    killers = [Assassin(one, partition.driver) for one in (ledger, second)]
    archivers = [
        Archiver(book, partition.store, killer) for book, killer in zip((ledger, second), killers, strict=True)
    ]
    ever: Counter[Any] = Counter()
    certain: Counter[Any] = Counter()
    pasts = [Past(partition)]
    rewinds = 0
    for _ in range(70):
        live(partition, rng)
        ever |= told_lines(partition)
        for _ in range(rng.randint(0, 3)):
            which = rng.randrange(2)
            limit = rng.choice((1, 3, 10, 4_000))
            killers[which].at(rng.randint(1, 30), partial(archivers[which].copy_some, limit))
        there = copied_lines(ledger)
        assert certain <= there <= ever
        certain = there
        if rng.random() < 0.1:
            pasts.append(Past(partition))
        if rng.random() < 0.08:
            rng.choice(pasts[-3:]).restore()
            rewinds += 1
    last = Archiver(ledger, partition.store, partition.driver)
    last.copy_all()
    assert copied_lines(ledger) == certain | told_lines(partition)
    assert max(copied_lines(ledger).values()) == 1
    assert cursor_of(ledger).lost == 0
    assert verify(ledger).findings == []
    assert sum(killer.kills for killer in killers) > 20, "void: nobody was killed"
    assert rewinds, "void: Redis was never rewound"
    second.close()


def test_two_at_once_take_turns(partition, ledger, ledger_url):
    """The second reads the stream while the first has copied the same events already: nothing is written twice."""
    partition.job()
    second = Ledger(ledger_url, partition.namespace)
    other = Archiver(second, partition.store, partition.driver)

    class Slow:
        """A driver whose user is overtaken between its look at Redis and its transaction."""

        def run(self, call: Any, give_up_s: float | None = None) -> Any:
            seen = partition.driver.run(call, give_up_s)
            if call.verb == "look":
                assert other.copy_some().events == 1
            return seen

    assert Archiver(ledger, partition.store, Slow()).copy_some().busy
    assert copied_lines(ledger) == told_lines(partition)
    assert cursor_of(ledger).copied == 1
    second.close()


def archive_until_killed(ledger_url: str, redis_url: str, namespace: str) -> None:
    """What the killed processes do."""
    driver = SyncDriver(Connections(redis_url))
    archiver = Archiver(Ledger(ledger_url, namespace), Store(Keys(namespace)), driver)
    while True:
        archiver.copy_some(20)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_fifty_processes_killed_in_the_middle_of_their_work_leave_every_event_once(partition, ledger, ledger_url, url):
    rng = random.Random(1)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.ledger.test_archiver_killed"])
    killed, moved = 0, 0
    for number in range(50):
        partition.enqueue(*(JobSpec(id=f"j{number}.{index}", kind="mail") for index in range(200)))
        for one in partition.claim(60):
            partition.finish(one.key, "DONE")
        before = _copied(ledger)
        process = context.Process(target=archive_until_killed, args=(ledger_url, url, partition.namespace), daemon=True)
        process.start()
        goal = before + rng.randint(1, 150)
        wait_until(partial(_has_copied, ledger, goal), timeout=20)
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        moved += _copied(ledger) > before
    assert (killed, moved) == (50, 50)
    Archiver(ledger, partition.store, partition.driver).copy_all()
    assert copied_lines(ledger) == told_lines(partition)
    assert verify(ledger).ok


def _has_copied(ledger: Ledger, goal: int) -> bool:
    return _copied(ledger) >= goal


def _copied(ledger: Ledger) -> int:
    try:
        return int(cursor_of(ledger).copied)
    except NoResultFound:  # the first archiver has not made its row yet
        return 0
