"""Errors: they survive pickling, and their text says what, why, what was not changed, what to do."""

import copy
import inspect
import pickle

import pytest

from fencepost import errors
from fencepost.errors import FencepostError

EXAMPLES: list[FencepostError] = [
    errors.StaleToken("j1", 4, 7),
    errors.LeaseExpired("j1", 4),
    *[errors.LeaseLost("j1", why) for why in ("deadline", "stale", "expired", "cancelled", "timeout", "shutdown")],
    errors.SectionRepeat("j1", "j1:invoice", "deadlock detected"),
    errors.TransactionEnded("j1:invoice"),
    errors.SectionRepeat("j1", "j1:invoice", "40001: could not serialize access"),
    errors.ArgumentsRefused("invoice", "order.lines[2].price", "Expected `int`, got `str`"),
    errors.ResultRefused("invoice", "result.total", "nan is not a JSON number"),
    errors.PayloadUndecodable("invoice", "JSON is malformed", b"\x9c\xff"),
    errors.UnknownKind("invoise", ("invoice", "mail")),
    errors.JobNotFound("j1"),
    errors.IdempotencyConflict("key-1", "j1"),
    errors.QueueFull("mail", 1000),
    errors.ResourceBusy("order:1", "worker-1"),
    *[errors.RedisUnavailable("enqueue", "ConnectionError: reset", executed) for executed in (True, False, None)],
    *[errors.LedgerUnavailable("accept", "connection refused", executed) for executed in (False, None)],
    errors.ScriptError("claim", 15, "attempt to index a nil value"),
    errors.JobFailed("j1", "exhausted", "ValueError: no such order\n  at line 3"),
    errors.JobCancelled("j1", "cancelled"),
    errors.ResultTimeout("j1", 10.0, "queued"),
    errors.ResultExpired("j1"),
    errors.UnsafeSetup(("maxmemory-policy is allkeys-lru", "Redis is older than 7.0")),
    errors.ConfigurationError("RetryPolicy.attempts", "0 is too small", "Write 1 or more."),
    errors.IllegalTransition("j1", "done", "cancel"),
]


def name_of(error: FencepostError) -> str:
    return f"{type(error).__name__}-{'-'.join(map(str, error.args))[:20]}"


@pytest.mark.parametrize("error", EXAMPLES, ids=name_of)
def test_an_error_survives_pickling_and_copying_with_its_data_and_text(error):
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert vars(twin) == vars(error)
        assert str(twin) == str(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=name_of)
def test_the_text_of_an_error_holds_its_data_and_ends_as_a_sentence(error):
    text = str(error)
    assert text.endswith(".")
    assert "  " not in text
    assert ".." not in text
    for name, value in vars(error).items():
        if name not in {"raw", "error", "executed", "why", "known", "findings"}:
            assert str(value) in text or f"{value:g}" in text, name


@pytest.mark.parametrize("error", EXAMPLES, ids=name_of)
def test_the_text_of_an_error_says_what_became_of_the_data(error):
    said = (
        "Nothing",
        "nothing",
        "was not",
        "not touched",
        "did not run",
        "is unknown",
        "was made",
        "stays",
        "by itself",
    )
    assert any(words in str(error) for words in said)


def test_every_error_of_the_module_is_tried_and_exported():
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, FencepostError)}
    assert {c.__name__ for c in classes} == set(errors.__all__)
    assert classes - {type(e) for e in EXAMPLES} == {FencepostError, errors.FenceError}


def test_a_stale_token_says_who_owns_the_job_and_that_nothing_was_written():
    assert str(errors.StaleToken("j1", 4, 7)) == (
        "job j1: token 4 is stale, the newest is 7; another worker owns this job now. Nothing was written. "
        "Stop; read `fencepost job j1` for what happened to it."
    )


def test_bad_arguments_and_settings_are_value_errors_too():
    assert issubclass(errors.ArgumentsRefused, ValueError)
    assert issubclass(errors.ConfigurationError, ValueError)


def test_the_fence_errors_share_a_branch():
    assert all(issubclass(c, errors.FenceError) for c in (errors.StaleToken, errors.LeaseExpired, errors.LeaseLost))


def test_an_unknown_outcome_is_never_called_unchanged():
    assert "is unknown" in str(errors.RedisUnavailable("finish", "timeout", None))
    assert "Nothing was changed" not in str(errors.RedisUnavailable("finish", "timeout", None))
    assert "Nothing was changed" in str(errors.RedisUnavailable("finish", "refused", False))
