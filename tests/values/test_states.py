"""The one table of legal transitions."""

import itertools

import pytest

from fencepost import states
from fencepost.errors import IllegalTransition
from fencepost.states import LIVE, TERMINAL, TRANSITIONS, State, Verb, check, legal

STATES = [*State, None]


def test_every_state_is_live_or_terminal_and_never_both():
    assert set(State) == LIVE | TERMINAL
    assert not LIVE & TERMINAL


def test_a_final_state_is_left_only_by_requeue_and_purge():
    assert {verb for (state, verb) in TRANSITIONS if state in TERMINAL} == {Verb.REQUEUE, Verb.PURGE}


def test_only_enqueue_makes_a_job_and_only_purge_takes_it_away():
    assert [key for key in TRANSITIONS if key[0] is None] == [(None, Verb.ENQUEUE)]
    assert {key[1] for key, to in TRANSITIONS.items() if None in to} == {Verb.PURGE}


def test_only_a_claim_or_a_cancel_request_leaves_a_job_processing():
    assert {key for key, to in TRANSITIONS.items() if State.PROCESSING in to} == {
        (State.QUEUED, Verb.CLAIM),
        (State.PROCESSING, Verb.CANCEL),
    }


def test_success_is_reached_only_by_finishing_a_run_or_by_what_the_ledger_knows():
    reached = {key for key, to in TRANSITIONS.items() if State.DONE in to}
    assert reached - {(state, Verb.CONCLUDE) for state in LIVE} == {(State.PROCESSING, Verb.FINISH)}


def test_the_ledger_ends_any_live_job_and_no_other():
    ends = {state: to for (state, verb), to in TRANSITIONS.items() if verb is Verb.CONCLUDE}
    assert ends == dict.fromkeys(LIVE, TERMINAL)


def test_every_state_can_be_reached_and_every_job_can_come_to_an_end():
    def reachable(start):
        seen: set[State | None] = set()
        rest = [start]
        while rest:
            state = rest.pop()
            for (source, _), targets in TRANSITIONS.items():
                if source == state:
                    rest += [t for t in targets if t not in seen]
                    seen |= targets
        return seen

    assert reachable(None) >= set(State)
    for state in LIVE:
        assert reachable(state) | {state} >= TERMINAL


def test_every_live_state_can_be_cancelled():
    assert all(legal(state, "cancel", "cancelled") for state in LIVE)


def test_plain_text_from_redis_reads_like_the_members():
    assert legal("queued", "claim", "processing")
    assert not legal("done", "finish", "done")
    assert not legal("no such state", "claim", "processing")


@pytest.mark.parametrize("state", STATES)
def test_check_raises_exactly_where_the_table_says_no(state):
    for verb, to in itertools.product(Verb, STATES):
        if legal(state, verb, to):
            check("j1", state, verb, to)
        else:
            with pytest.raises(IllegalTransition) as caught:
                check("j1", state, verb, to)
            assert caught.value.args == ("j1", state or "", verb)
            assert type(caught.value.state) is str


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        TRANSITIONS[(None, Verb.CLAIM)] = frozenset()  # type: ignore[index]


def test_the_picture_names_every_state_and_verb():
    assert states.__doc__
    for word in [*State, *Verb]:
        assert word in states.__doc__


def test_busy_is_a_reason_both_to_fail_and_to_be_cancelled():
    assert {"busy"} == states.FAILED_REASONS & states.CANCELLED_REASONS
    assert set(states.Reason) == states.FAILED_REASONS | states.CANCELLED_REASONS
