"""The model-based machine: any sequence of calls leaves the partition exactly as the model says, invariants included.

FENCEPOST_HYPOTHESIS=long runs ten minutes' worth. With CI set the sequences are the same in every run; otherwise they
are new ones and a failure prints the blob that repeats it.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from fencepost.job import JobSpec
from tests.guarantees.machine import Both
from tests.guarantees.model_verbs import Ask, End
from tests.support import StoppedClock, raw_client, start_server
from tests.support.clock import OffsetFile

CI = bool(os.environ.get("CI"))
LONG = os.environ.get("FENCEPOST_HYPOTHESIS") == "long"
LIMITS = {"till": 1, "gate": 2}
WORKERS = ("w1", "w2", "w3")
RARE = (
    *("enqueue QUEUED", "enqueue DUPLICATE", "enqueue REPLAYED", "enqueue CONFLICT"),
    *("DONE OK", "DONE STALE", "DONE EXPIRED", "RETRY OK", "RETRY STALE", "RELEASE OK", "BURY OK"),
    *("CANCEL OK", "renew OK", "renew CANCEL", "renew STALE", "checkpoint OK", "checkpoint STALE"),
    *("cancel ASKED", "cancel of waiting", "cancel of scheduled", "cancel of queued", "requeue REQUEUED"),
    *("acquire HELD", "acquire WAIT", "acquire BUSY", "acquire LEFT"),
    *("bump OK", "bump STALE", "bump EXPIRED", "a token from before a bump", "NOTE OK", "NOTE REPLAY"),
    *("late_effect:k1", "conclude CONCLUDED", "conclude ILLEGAL", "conclude NEWER"),
    *("pause PAUSED", "pause RESUMED", "revoke REVOKED", "revoke STALE", "revoked:k1", "revoked:@lease"),
    *("release OK", "release STALE", "parked:k1", "put_off:k1", "parked:@lease", "crashed:@lease", "crashed:k1"),
)
"""What a run must have reached to prove something."""
pick = st.integers(0, 30)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """A job to enqueue; its id is filled in by the rule."""
    resource = draw(st.sampled_from([None, None, "till", "till", "gate"]))
    idem = draw(st.sampled_from([None] * 6 + ["i1", "i2"]))
    return JobSpec(
        id="",
        kind=draw(st.sampled_from(["k1", "k2"])),
        queue=draw(st.sampled_from(["a", "b"])),
        priority=draw(st.sampled_from([0, 0, 5])),
        delay_ms=draw(st.sampled_from([0, 0, 0, 700, 4_000])),
        resource=resource,
        limit=LIMITS[resource] if resource else 1,
        on_busy=draw(st.sampled_from(["wait", "wait", "wait", "skip", "fail", "later:1500"])) if resource else "wait",
        ordered=draw(st.booleans()) if resource else False,
        dedup=draw(st.sampled_from([None, None, "d1", "d2"])),
        idem=idem,
        fingerprint=draw(st.sampled_from(["f1", "f1", "f2"])) if idem else None,
        idem_ttl_ms=draw(st.sampled_from([2_500, 86_400_000])),
        max_crashes=draw(st.sampled_from([3, 1, 0])),
        retention_ms=draw(st.sampled_from([86_400_000, 3_000])),
        failed_retention_ms=draw(st.sampled_from([604_800_000, 6_000])),
        generation=draw(st.sampled_from([1, 1, 1, 3])),
    )


def asks(wanted: st.SearchStrategy[int]) -> st.SearchStrategy[Ask]:
    most = st.sampled_from([9, 9, 9, 1, 0])
    queues = st.tuples(st.permutations(["a", "b"]), most, most).map(lambda q: ((q[0][0], q[1]), (q[0][1], q[2])))
    return st.builds(
        Ask, st.sampled_from(WORKERS), st.just(""), wanted, st.sampled_from([2_000, 6_000]), st.booleans(), queues
    )


ends = st.builds(
    End,
    *[st.just("")] * 3,
    word=st.sampled_from(["DONE", "RETRY", "RETRY", "BURY", "BURY", "RELEASE", "CANCEL", "NOTE"]),
    value=st.sampled_from(["", "x"]),
    delay_ms=st.sampled_from([0, 0, 900, 5_000]),
    notes=st.sampled_from([(), (), (), (("effect", "e1"),), (("effect", "e1"), ("effect_found", "e2"))]),
)
whose = st.sampled_from(["holder's"] * 5 + ["any", "any", "other token", "other nonce", "both other"])


class Machine(RuleBasedStateMachine):
    """Draws calls. Keys of runs are kept for ever, so that stale, lapsed and foreign ones come up all the time."""

    def __init__(self, client: Any, url: str, clock: StoppedClock, seen: Counter[str]) -> None:
        super().__init__()
        self.both = Both(client, url, clock, seen)
        self.ids: list[str] = []
        self.runs: list[tuple[str, str, str]] = []
        self.alone: list[tuple[str, str, str]] = []
        self.claims: dict[str, Ask] = {}
        self.serial = 0

    def teardown(self) -> None:
        self.both.seen.update(self.both.model.stats)
        self.both.close()

    def fresh(self, letter: str) -> str:
        self.serial += 1
        return f"{letter}{self.serial}"

    def an_id(self, at: int) -> str:
        return self.ids[-1 - at % len(self.ids)]

    def a_run(self, at: int, whose: str, alone: bool = False) -> tuple[str, str, str]:
        """The key of a run that holds its job now, of any run there ever was, or a forged one; or of a lease."""
        model = self.both.model
        among = self.runs + [(f"@{nonce}", token, nonce) for _, token, nonce in self.alone if alone]
        if whose == "holder's":
            asked_last = sorted(model.in_state("processing"), key=lambda job: job.cancel is not None)
            held = [(job.id, job.token, job.nonce or "") for job in asked_last]
            held[:0] = [(f"@{one.nonce}", one.token, one.nonce) for one in model.alone.values() if alone and one.token]
            among = held or among
        job_id, token, nonce = among[-1 - at % len(among)]
        if whose in ("other token", "both other"):
            token = str(int(token) + at - 15)
        return job_id, token, nonce + "x" if whose in ("other nonce", "both other") else nonce

    def note(self, ask: Ask, served: Any) -> None:
        self.claims[ask.worker] = ask
        self.runs += [(job[0], job[3], job[4]) for job in served["jobs"]]

    # -- jobs ---------------------------------------------------------------------------------------------

    @rule(
        batch=st.lists(st.tuples(specs(), st.booleans(), pick), min_size=1, max_size=4),
        limit=st.sampled_from([0, 0, 3]),
    )
    def enqueue(self, batch: list[tuple[JobSpec, bool, int]], limit: int) -> None:
        for spec, known, at in batch:
            spec.id = self.an_id(at) if known and at < 4 and self.ids else self.fresh("j")
            self.ids.append(spec.id)
        self.both.do("enqueue", [spec for spec, _, _ in batch], limit)

    @rule(
        resource=st.sampled_from(list(LIMITS)),
        rivals=st.lists(specs(), min_size=2, max_size=4),
        policies=st.lists(
            st.sampled_from(["wait", "wait", "wait", "skip", "fail", "later:1500"]), min_size=4, max_size=4
        ),
        ask=asks(st.just(4)),
    )
    def rivals(self, resource: str, rivals: list[JobSpec], policies: list[str], ask: Ask) -> None:
        """Jobs that want one resource, and a worker that takes what it can get."""
        for spec, on_busy in zip(rivals, policies, strict=False):
            spec.id, spec.resource, spec.limit, spec.on_busy = self.fresh("j"), resource, LIMITS[resource], on_busy
            self.ids.append(spec.id)
        self.both.do("enqueue", rivals, 0)
        self.claim(ask)

    @rule(ask=asks(st.sampled_from([4, 4, 2, 1, 0])))
    def claim(self, ask: Ask) -> None:
        ask = _named(ask, self.fresh("n"))
        self.note(ask, self.both.do("claim", ask))

    @precondition(lambda self: self.claims)
    @rule(at=pick)
    def claim_sent_again(self, at: int) -> None:
        """The reply was lost; meanwhile other things happened."""
        ask = list(self.claims.values())[at % len(self.claims)]
        self.note(ask, self.both.do("claim", ask))

    @precondition(lambda self: self.runs)
    @rule(batch=st.lists(st.tuples(ends, pick, whose), min_size=1, max_size=4), ask=asks(st.sampled_from([0, 0, 2, 4])))
    def finish(self, batch: list[tuple[End, int, str]], ask: Ask) -> None:
        outcomes = [
            End(*self.a_run(at, whose), end.word, end.value, end.delay_ms, end.notes) for end, at, whose in batch
        ]
        ask = _named(ask, self.fresh("n"))
        self.both.apart()
        self.note(ask, self.both.do("finish", outcomes, ask))

    @precondition(lambda self: self.runs)
    @rule(at=pick, how=st.sampled_from(["with an outcome", "alone", "twice"]))
    def an_effect_comes_late(self, at: int, how: str) -> None:
        """A worker was silent, lost its run, and SQL had accepted an effect of it. Or it is told once more."""
        run = self.a_run(at, "holder's")
        notes = (("effect", "e3"),)
        if how == "twice":
            self.finishing(End(*run, "RETRY", "x", 900, notes))
        else:
            self.time_goes_by_under_sweeps(3)
        self.finishing(End(*run, "DONE", "x", notes=notes) if how == "with an outcome" else End(*run, "NOTE", "e3"))

    def finishing(self, end: End) -> None:
        self.both.do("finish", [end], Ask("w1", self.fresh("n"), 0, 2_000, False, ()))

    @precondition(lambda self: self.runs or self.alone)
    @rule(batch=st.lists(st.tuples(pick, whose), min_size=1, max_size=3), lease_ms=st.sampled_from([1_000, 6_000]))
    def renew(self, batch: list[tuple[int, str]], lease_ms: int) -> None:
        self.both.do("renew", lease_ms, [self.a_run(at, whose, alone=True) for at, whose in batch])

    # A rule is drawn as often as it is there.
    more_finishing = still_more_finishing = finish
    more_renewing = renew
    more_claiming = claim

    @precondition(lambda self: self.runs)
    @rule(
        at=pick,
        whose=whose,
        what=st.sampled_from(
            [("checkpoint", ""), ("step:a", "step"), ("outside:b", "intent"), ("outside:b", "outcome")]
        ),
        value=st.sampled_from(["", "", "the same"]),
    )
    def checkpoint(self, at: int, whose: str, what: tuple[str, str], value: str) -> None:
        self.both.do("checkpoint", *self.a_run(at, whose), what[0], value or self.fresh("c"), what[1])

    @precondition(lambda self: self.runs or self.alone)
    @rule(
        at=pick,
        whose=whose,
        above=st.sampled_from([-1, 0, 0, 5, 10**7, 10**9]),
        where=st.sampled_from(["install", "verify"]),
        learned=st.booleans(),
    )
    def bump(self, at: int, whose: str, above: int, where: str, learned: bool) -> None:
        """SQL has seen a higher token; the answer may be lost, then the run goes on under the one it had."""
        member, token, nonce = self.a_run(at, whose, alone=True)
        known = max([self.both.newest_token, int(token)]) if above > 5 else int(token)
        reply = self.both.do("bump", member, token, nonce, known + above, where)
        if reply[0] == "OK":
            self.both.do("renew", 2_000, [(member, token, nonce)])
            self.both.seen["a token from before a bump"] += reply[1] != token
            if learned and member[0] != "@":
                self.runs.append((member, reply[1], nonce))

    @precondition(lambda self: self.ids)
    @rule(
        places=st.lists(st.tuples(pick, st.sampled_from([1, 1, 2, 9])), min_size=1, max_size=3),
        state=st.sampled_from(["done", "failed", "cancelled"]),
        result=st.sampled_from(["", "x"]),
    )
    def conclude(self, places: list[tuple[int, int]], state: str, result: str) -> None:
        """The ledger knows how some jobs ended; a job may have ended here too, or been requeued since."""
        self.both.do("conclude", [(self.an_id(at), known, state, "", result) for at, known in places])

    @precondition(lambda self: self.ids)
    @rule(
        at=pick,
        state=st.sampled_from(["processing", "waiting", "waiting", "scheduled", "any"]),
        hard=st.booleans(),
        request=st.sampled_from(["", "", "again"]),
        then=st.sampled_from(["", "it hears of it", "it hears of it", "it dies"]),
        seen=st.sampled_from([None, None, None, 0, 0, 1]),
    )
    def cancel(self, at: int, state: str, hard: bool, request: str, then: str, seen: int | None) -> None:
        """Cancel a job; a worker that was asked to stop may hear of it at once, or die before it does."""
        jobs = self.both.model.in_state(state)
        job_id = jobs[-1 - at % len(jobs)].id if jobs else self.an_id(at)
        known = self.both.model.jobs.get(job_id)
        token = str(int(known.token) + seen) if known and known.token and seen is not None else ""
        reply = self.both.do("cancel", job_id, hard, "wish", request or self.fresh("r"), token)
        if reply[0] == "ASKED" and then == "it dies":
            self.time_goes_by_under_sweeps(3)
        elif reply[0] == "ASKED" and then:
            job = self.both.model.jobs[job_id]
            self.both.do("renew", 2_000, [(job_id, job.token, job.nonce)])

    more_cancelling = cancel

    @rule(queue=st.sampled_from(["a", "b"]), then=st.sampled_from(["it stays", *["it goes on"] * 3]))
    def pause(self, queue: str, then: str) -> None:
        """Pause a queue; it may be resumed at once, or by a later draw."""
        self.both.do("pause", "pause", queue)
        if then == "it goes on":
            self.both.do("pause", "resume", queue)

    @rule(queue=st.sampled_from(["a", "b"]))
    def resume(self, queue: str) -> None:
        self.both.do("pause", "resume", queue)

    more_resuming = resume

    @precondition(lambda self: self.runs or self.alone)
    @rule(at=pick, whose=whose, request=st.sampled_from(["", "", "again"]))
    def revoke(self, at: int, whose: str, request: str) -> None:
        """Take a run or a lease from its holder, as somebody saw it a while ago or sees it now."""
        holder, token, _ = self.a_run(at, whose, alone=True)
        self.both.do("revoke", holder, token, request or self.fresh("r"))

    @precondition(lambda self: self.ids)
    @rule(
        places=st.lists(pick, min_size=1, max_size=3),
        request=st.sampled_from(["", "", "again"]),
        least=st.sampled_from([0, 0, 3]),
    )
    def requeue(self, places: list[int], request: str, least: int) -> None:
        ended = [job.id for job in self.both.model.in_state("failed", "cancelled")] or self.ids
        self.both.do("requeue", [ended[at % len(ended)] for at in places], request or self.fresh("r"), least)

    @precondition(lambda self: self.ids)
    @rule(places=st.lists(pick, min_size=1, max_size=3), what=st.sampled_from(["purge", "heal", "flush"]))
    def upkeep(self, places: list[int], what: str) -> None:
        """Forget ended jobs; find that nothing needs healing; lose the script cache."""
        if what == "flush":
            self.both.client.script_flush()
        else:
            self.both.do(what, [self.an_id(at) for at in places])

    # -- stand-alone leases -------------------------------------------------------------------------------

    @rule(
        resource=st.sampled_from(list(LIMITS)),
        at=st.none() | pick,
        ttl=st.sampled_from([1_500, 4_000]),
        wait=st.sampled_from([0, 9_000, 9_000, -1]),
    )
    def acquire(self, resource: str, at: int | None, ttl: int, wait: int) -> None:
        """A new one, or a waiter that asks again, leaves, or sends its call a second time."""
        if at is None or not self.alone:
            nonce = self.fresh("s")
        else:
            resource, _, nonce = self.alone[-1 - at % len(self.alone)]
        reply = self.both.do("acquire", resource, nonce, "w1", ttl, LIMITS[resource], wait)
        self.alone = [one for one in self.alone if one[2] != nonce]
        self.alone.append((resource, reply[1] if reply[0] == "HELD" else "0", nonce))

    @precondition(lambda self: self.alone)
    @rule(at=pick, forged=st.booleans())
    def release(self, at: int, forged: bool) -> None:
        _, token, nonce = self.alone[-1 - at % len(self.alone)]
        held = self.both.model.alone.get(nonce)
        token = held.token if held is not None and held.token else token
        self.both.do("release", nonce, str(int(token) + forged))

    # -- the world around ---------------------------------------------------------------------------------

    @precondition(lambda self: self.both.last)
    @rule()
    def the_last_call_again(self) -> None:
        self.both.again()

    @rule(ms=st.sampled_from([1, 250, 999, 999, 1_500, 2_001, 2_900, 5_001, 31_000]))
    def time_goes_by(self, ms: int) -> None:
        self.both.advance(ms)

    @rule(steps=st.sampled_from([1, 1, 2, 2, 3, 13]))
    def time_goes_by_under_sweeps(self, steps: int) -> None:
        """No gap in the sweeps: what has lapsed is taken back, not spared."""
        for _ in range(steps):
            self.both.advance(2_600)
            self.both.do("claim", Ask("janitor", self.fresh("n"), 0, 2_000, True, ()))

    @rule(ms=st.sampled_from([1, 400, 6_000]))
    def the_clock_is_set_back(self, ms: int) -> None:
        self.both.advance(-ms)


def _named(ask: Ask, nonce: str) -> Ask:
    return Ask(ask.worker, nonce, ask.wanted, ask.lease_ms, ask.upkeep, ask.queues)


@pytest.fixture(scope="module")
def still(
    server_binary: dict[str, str], clock_shim: Path | str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, str, StoppedClock]]:
    """A server whose clock stands still."""
    if isinstance(clock_shim, str):
        pytest.skip(clock_shim)
    offset = OffsetFile(tmp_path_factory.mktemp("still") / "offset")
    with start_server(server_binary, shim=clock_shim, offset=offset.path) as server:
        client = raw_client(server.url)
        yield client, server.url, StoppedClock(client, offset)
        client.close()
    offset.close()


@pytest.mark.slow
@pytest.mark.timeout(900 if LONG else 240)
def test_any_sequence_of_calls_leaves_the_partition_as_the_model_says(still: tuple[Any, str, StoppedClock]) -> None:
    """Replies, every field of every job, all lists, counters, and invariant I13 after each step."""
    seen: Counter[str] = Counter()
    run_state_machine_as_test(
        functools.partial(Machine, *still, seen),  # type: ignore[arg-type]
        settings=settings(
            max_examples=1_500 if LONG else 200,
            stateful_step_count=80 if LONG else 50,
            derandomize=CI,
            print_blob=True,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
    missed = [word for word in RARE if not seen[word]]
    assert not missed or not CI, f"void: {missed} never came up"
