"""When a failed run comes back, and after how long. report: redis/redis-py#4320"""

import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.errors import ConfigurationError, FencepostError, TransactionEnded
from fencepost.retry import Permanent, Retry, RetryPolicy, Snooze, Verdict, backoff_s, decide, horizon_s

seconds = st.floats(0, 1e8, allow_nan=False)
draws = st.floats(0, 1, exclude_max=True)


def half() -> float:
    return 0.5


@settings(max_examples=60)
@given(st.integers(-1, 5_000), seconds, seconds, draws, st.sampled_from(["full", "none"]))
def test_a_wait_is_finite_and_within_the_cap_for_any_attempt(attempt, base, cap, drawn, jitter):
    wait = backoff_s(attempt, RetryPolicy(base=base, cap=cap, jitter=jitter), lambda: drawn)
    assert math.isfinite(wait)
    assert 0 <= wait <= cap


@pytest.mark.parametrize("base", [0.0, 0.001, 2.0, 1e8])
def test_without_jitter_waits_never_shrink_and_reach_the_cap(base):
    policy = RetryPolicy(base=base, cap=300.0, jitter="none")
    waits = [backoff_s(n, policy, half) for n in range(-1, 5_001)]
    assert waits == sorted(waits)
    assert waits[-1] == (300.0 if base else 0.0)


def test_waits_double_from_the_base():
    policy = RetryPolicy(base=2.0, cap=300.0, jitter="none")
    assert [backoff_s(n, policy, half) for n in (-1, 0, 1, 2, 3, 8, 9)] == [2, 2, 2, 4, 8, 256, 300]


def test_full_jitter_draws_from_the_whole_wait():
    policy = RetryPolicy(base=2.0, cap=300.0)
    assert backoff_s(3, policy, lambda: 0.0) == 0.0
    assert backoff_s(3, policy, half) == 4.0
    assert backoff_s(10**30, policy, half) == 150.0


@settings(max_examples=60)
@given(st.integers(1, 200), seconds, seconds)
def test_the_horizon_is_the_sum_of_all_longest_waits(attempts, base, cap):
    policy = RetryPolicy(attempts=attempts, base=base, cap=cap, jitter="none")
    assert horizon_s(policy) == pytest.approx(math.fsum(backoff_s(n, policy, half) for n in range(1, attempts)))


def test_the_horizon_of_a_single_attempt_is_zero():
    assert horizon_s(RetryPolicy(attempts=1)) == 0.0
    assert horizon_s(RetryPolicy(attempts=100_000)) == pytest.approx(99_991 * 300 + 510, abs=300)


class Gone(LookupError):
    pass


class GoneForNow(Gone):
    pass


POLICY = RetryPolicy(attempts=3, base=2.0, jitter="none", permanent=(Gone, OSError), transient=(GoneForNow,))


@pytest.mark.parametrize(
    ("exc", "used", "verdict"),
    [
        (ValueError(), 1, Verdict("retry", 2_000)),
        (ValueError(), 2, Verdict("retry", 4_000)),
        (ValueError(), 3, Verdict("bury", 0, "exhausted")),
        (ValueError(), 99, Verdict("bury", 0, "exhausted")),
        (Gone(), 1, Verdict("bury", 0, "permanent")),
        (Gone(), 3, Verdict("bury", 0, "permanent")),
        (ConnectionResetError(), 1, Verdict("bury", 0, "permanent")),
        (GoneForNow(), 1, Verdict("retry", 2_000)),
        (Permanent("no such order"), 1, Verdict("bury", 0, "permanent")),
        (Retry(), 1, Verdict("retry", 2_000)),
        (Retry(after=0), 1, Verdict("retry", 0)),
        (Retry(after=1_000.5), 1, Verdict("retry", 1_000_500)),
        (Retry(after=1), 3, Verdict("bury", 0, "exhausted")),
        (KeyboardInterrupt(), 1, Verdict("retry", 2_000)),
    ],
)
def test_the_verdict_on_a_failed_run(exc, used, verdict):
    assert decide(exc, used, POLICY, half) == verdict


@pytest.mark.parametrize(("answer", "word"), [(True, "retry"), (False, "bury"), (None, "bury")])
def test_the_policys_own_judge_is_asked_before_the_classes(answer, word):
    policy = RetryPolicy(permanent=(Gone,), when=lambda _: answer)
    assert decide(Gone(), 1, policy, half).word == word


def test_a_judge_that_fails_leaves_the_word_to_the_classes():
    policy = RetryPolicy(permanent=(Gone,), when=lambda exc: exc.code == 503)  # type: ignore[attr-defined]
    assert decide(Gone(), 1, policy, half) == Verdict("bury", 0, "permanent")
    assert decide(ValueError(), 1, policy, half).word == "retry"


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("attempts", {"attempts": 0}),
        ("attempts", {"attempts": True}),
        ("attempts", {"attempts": 2.0}),
        ("base", {"base": -1}),
        ("base", {"base": float("nan")}),
        ("cap", {"cap": float("inf")}),
        ("cap", {"cap": "300"}),
        ("jitter", {"jitter": "some"}),
        ("permanent", {"permanent": ValueError}),
        ("permanent", {"permanent": (ValueError,), "transient": (ValueError,)}),
        ("transient", {"transient": (1,)}),
        ("when", {"when": 1}),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_the_name_of_the_setting(setting, wrong):
    with pytest.raises(ConfigurationError, match=f"RetryPolicy.{setting}: "):
        RetryPolicy(**wrong)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "5"])
def test_a_wait_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="Retry"):
        Retry(after=wrong)
    with pytest.raises(ConfigurationError, match="Snooze"):
        Snooze(wrong)


def test_the_handlers_own_words_survive_pickling_and_are_no_errors_of_fencepost():
    for exc in (Retry(5, "api is down"), Permanent("gone"), Retry()):
        twin = pickle.loads(pickle.dumps(exc))
        assert (vars(twin), str(twin)) == (vars(exc), str(exc))
        assert not isinstance(exc, FencepostError)
    assert str(Retry(5, "api is down")) == "retry in 5 s: api is down"


def test_a_block_that_ends_the_guards_transaction_is_not_tried_again_unless_the_policy_asks_for_it():
    """What such a block commits by itself would be there once for each attempt."""
    error = TransactionEnded("job-1:invoice")
    assert decide(error, 1, RetryPolicy(attempts=5), half) == Verdict("bury", reason="permanent")
    assert decide(error, 1, RetryPolicy(attempts=5, transient=(TransactionEnded,)), half).word == "retry"
