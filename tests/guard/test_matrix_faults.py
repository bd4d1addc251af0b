"""The guard when a holder is frozen inside its transaction, when the database restarts, and behind a pooler."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from fencepost.errors import SectionRepeat, StaleToken
from fencepost.fence import Guarded
from tests.guard import wrong_ways
from tests.guard.holders import Lease, PaperHolder
from tests.guard.pooler import pooler_for
from tests.guard.scene import START, Claim, add_one, scene_on


def the_newer(job="job2", **settings):
    return PaperHolder(Lease(owner="b", newest=34), job, 34, "b", **settings)


def add_guarded(engine, holder):
    with Guarded(holder, engine, "add") as effect:
        if effect.first:
            add_one(effect.session, holder.claim)
            effect.result = holder.nonce
    return effect


# -- frozen holders -------------------------------------------------------------------------------------------


@contextmanager
def frozen_holder(url, job, where):
    """A process that SIGSTOP has stopped inside its transaction; yields a function that wakes it and tells its end."""
    command = [sys.executable, "-m", "tests.guard.holder_process", url, job, where]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        to_it, from_it = process.stdin, process.stdout
        assert to_it is not None
        assert from_it is not None

        def wake():
            to_it.write("\n")
            to_it.flush()
            process.send_signal(signal.SIGCONT)
            return from_it.readline()

        try:
            assert from_it.readline() == "standing\n"
            process.send_signal(signal.SIGSTOP)
            yield wake
        finally:
            process.kill()


@pytest.mark.chaos
@pytest.mark.parametrize("where", ["work", "commit"])
def test_a_frozen_holder_is_thrown_out_within_its_lease_and_cannot_commit_when_it_wakes(where, postgres_url):
    """work: it holds the row that it changed; commit: the fence row too, so the newer one cannot even begin.

    PostgreSQL ends its session by idle_in_transaction_session_timeout, which is its lease of 1 s.
    """
    with scene_on(postgres_url, "READ COMMITTED") as scene, frozen_holder(postgres_url, "job1", where) as wake:
        began = time.monotonic()
        effect = add_guarded(scene.engines["B"], the_newer(lease_s=1.0))
        assert 0.3 < time.monotonic() - began < 8
        assert effect.first
        ended = wake()
        assert "Error" in ended
        assert "idle-in-transaction timeout" in ended or "closed the connection" in ended
        scene.look()
        assert [entry.nonce for entry in scene.entries()] == ["b"]
        assert (scene.value(), scene.damage) == (START + 1, [])


@pytest.mark.chaos
def test_a_frozen_holder_that_wakes_before_its_commit_finds_that_the_next_attempt_has_done_its_job(postgres_url):
    """The outcome of its COMMIT is unknown to it; it asks, and the effect that is there is not its own."""
    with scene_on(postgres_url, "READ COMMITTED") as scene, frozen_holder(postgres_url, "job1", "commit") as wake:
        assert add_guarded(scene.engines["B"], the_newer("job1", lease_s=1.0)).first
        assert wake() == "found b\n"
        scene.look()
        assert [entry.nonce for entry in scene.entries()] == ["b"]
        assert (scene.value(), scene.damage) == (START + 1, [])


# -- locks that are held for long -----------------------------------------------------------------------------


def impatient(url):
    return create_engine(url, poolclass=NullPool, connect_args={"options": "-c lock_timeout=200ms"})


def test_the_fence_taken_in_a_long_transaction_shuts_the_newer_holder_out_and_lets_the_stale_one_commit(postgres_url):
    """Why install has a transaction of its own: here the old token stays the newest until its holder chooses to end."""
    with scene_on(postgres_url, "READ COMMITTED") as scene:
        a = scene.actor("A", lambda engine: wrong_ways.one_transaction(engine, Claim("job1", 33, "a")))
        scene.interleaving.run("A", before="UPDATE account")
        assert wrong_ways.one_transaction(impatient(postgres_url), Claim("job2", 34, "b")) == "55P03"
        scene.interleaving.run("A")
        assert a.outcome() == "done"
        assert [entry.token for entry in scene.entries()] == [33]


def test_behind_the_guard_only_a_commit_on_its_way_can_meet_a_lock_timeout_and_asks_for_a_repetition(postgres_url):
    """While the old holder works, the newer one takes the fence at once. Only between its verification and the end of
    its COMMIT does it hold the fence row; after a lock_timeout of the user's shorter than that the section is asked
    again for about three leases, and then nothing was written."""
    with scene_on(postgres_url, "READ COMMITTED") as scene:
        a = scene.actor("A", lambda engine: add_guarded(engine, PaperHolder(Lease(owner="a"), "job1", 33, "a")))
        scene.interleaving.run("A", before="FOR UPDATE")
        scene.interleaving.step("A")  # it verifies; what follows is its COMMIT
        with pytest.raises(SectionRepeat, match="lock timeout"):
            add_guarded(impatient(postgres_url), the_newer(lease_s=0.1))
        scene.interleaving.run("A")
        assert a.outcome().first
        assert add_guarded(impatient(postgres_url), the_newer()).first
        scene.look()
        assert [entry.token for entry in scene.entries()] == [33, 34]
        assert (scene.value(), scene.damage) == (START + 2, [])


# -- the database restarts, a pooler stands before it -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("end", "job"), [("stop", "job2"), ("kill", "job1")], ids=["in-order", "by-a-crash"])
def test_a_restart_of_the_database_ends_no_fence_and_the_stale_commit_is_refused(end, job, new_postgres):
    """report: bensheldon/good_job#90: the guard is rows, and the token is compared in the user's own transaction."""
    server = new_postgres(fsync="on", full_page_writes="on")
    url = server.new_database()
    with scene_on(url, "READ COMMITTED") as scene:
        stale = Guarded(PaperHolder(Lease(owner="b", newest=34), "job1", 33, "a"), scene.engines["A"], "add")
        effect = stale.__enter__()
        add_one(effect.session, Claim("job1", 33, "a"))
        getattr(server, end)()
        server.start()
        newer = create_engine(url, poolclass=NullPool)
        assert add_guarded(newer, the_newer(job)).first
        with pytest.raises(OperationalError):
            stale.__exit__(None, None, None)
        again = Guarded(PaperHolder(Lease(owner="b", newest=34), "job1", 33, "a"), newer, "add")
        with pytest.raises(StaleToken), again:
            pass
        with newer.connect() as witness:
            assert witness.execute(text("SELECT value FROM account")).scalar_one() == START + 1
            assert witness.execute(text("SELECT token, nonce FROM entries")).all() == [(34, "b")]


@pytest.mark.slow
def test_a_restart_of_the_database_gives_a_session_lock_to_a_second_holder_while_the_first_goes_on(new_postgres):
    """report: bensheldon/good_job#90: a way that is not ours. Both hold the lock, and the work is done twice."""
    server = new_postgres(fsync="on", full_page_writes="on")
    url = server.new_database()
    engine = create_engine(url, poolclass=NullPool)
    take = text("SELECT pg_try_advisory_lock(1)")
    with scene_on(url, "READ COMMITTED"), engine.connect() as lock_of_a:
        assert lock_of_a.execute(take).scalar_one()
        server.kill()
        server.start()
        with engine.connect() as lock_of_b:
            assert lock_of_b.execute(take).scalar_one()
        for nonce in "ba":
            with engine.begin() as connection:
                add_one(connection, Claim("job1", 33, nonce))
        with engine.connect() as witness:
            assert witness.execute(text("SELECT value FROM account")).scalar_one() == START + 2
        lock_of_a.invalidate()


def pooled(url):
    """An engine as it has to be behind a pooler in transaction mode: no prepared statements."""
    return create_engine(url, poolclass=NullPool, connect_args={"prepare_threshold": None})


def test_the_guard_works_through_a_pooler_that_changes_the_session_at_every_transaction(postgres_url):
    """report: bensheldon/good_job#52: the fence is taken in one session, the effect is written in another."""
    lease = Lease(owner="b", newest=34)
    older, newer = PaperHolder(lease, "job1", 33, "a"), PaperHolder(lease, "job2", 34, "b")
    with scene_on(postgres_url, "READ COMMITTED") as scene, pooler_for(postgres_url) as pooler:
        engine = pooled(pooler.url)
        section = Guarded(older, engine, "add")
        effect = section.__enter__()
        before = effect.session.execute(text("SELECT value FROM account")).scalar_one()
        assert add_guarded(engine, newer).first
        add_one(effect.session, older.claim, before)
        with pytest.raises(StaleToken):
            section.__exit__(None, None, None)
        assert not add_guarded(engine, newer).first
        scene.look()
        assert [(entry.nonce, entry.after) for entry in scene.entries()] == [("b", START + 1)]
        assert (scene.value(), scene.damage) == (START + 1, [])
        assert all(len(set(used)) > 1 for used in pooler.sessions_of_clients())


def test_the_guard_leaves_nothing_behind_in_a_session(postgres_url):
    """report: bensheldon/good_job#52: no lock, no setting, no prepared statement that the next client would inherit."""
    left = text(
        "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout'),"
        " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), (SELECT count(*) FROM pg_prepared_statements)"
    )
    with scene_on(postgres_url, "READ COMMITTED"), pooler_for(postgres_url, sessions=1) as pooler:
        engine = pooled(pooler.url)
        with engine.connect() as connection:
            before = connection.execute(left).one()
        assert add_guarded(engine, the_newer()).first
        with engine.connect() as connection:
            assert connection.execute(left).one() == before


def test_behind_such_a_pooler_a_session_lock_is_taken_in_one_session_and_not_found_in_the_next(postgres_url):
    """report: bensheldon/good_job#52: a way that is not ours. The lock stays, and its holder cannot give it back."""
    with pooler_for(postgres_url) as pooler, pooled(pooler.url).connect() as connection:
        assert connection.execute(text("SELECT pg_try_advisory_lock(1)")).scalar_one()
        connection.commit()
        assert not connection.execute(text("SELECT pg_advisory_unlock(1)")).scalar_one()
        connection.commit()
        assert not connection.execute(text("SELECT pg_try_advisory_lock(1)")).scalar_one()
