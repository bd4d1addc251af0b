"""A token that is raised above what SQL has seen, and notes about what SQL has accepted: what each of them leaves."""

from __future__ import annotations

import pytest

from fencepost.errors import ScriptError
from fencepost.store import RunKey
from tests.support.partition import Partition

FAR = 50_000_000_000_000  # of µs, a year and a half: as after a rewind of a server that had been ahead


def bumped(p: Partition, run: RunKey, by: int = FAR) -> RunKey:
    word, token = p.bump(run, int(run.token) + by)
    assert word == "OK"
    return run._replace(token=token)


# -- bump -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["install", "verify"])
def test_a_holder_gets_a_token_above_the_one_that_sql_has_seen_and_so_does_whoever_comes_next(partition, where):
    run = partition.put("processing", resource="thing")
    floor, known = int(run.token) + FAR, len(partition.told())
    word, token = partition.bump(run, floor, where)
    assert (word, int(token)) == ("OK", floor + 1)
    assert partition.record(run.job_id).token == floor + 1
    assert partition.stats()[f"bumped:{where}"] == 1
    [told] = partition.told(after=known)
    assert told == ("bumped", *run[:1], "mail", token, run.nonce, "", f"{where} from {run.token}", "thing")
    partition.job()
    [later] = partition.claim()
    assert int(later.token) > floor + 1


def test_a_bump_for_a_floor_that_is_passed_already_mints_nothing(partition):
    run = partition.put("processing")
    new = bumped(partition, run)
    before = partition.dump()
    for floor in (0, int(run.token), int(new.token) - 1):
        for key in (run, new):
            assert partition.bump(key, floor) == ("OK", new.token)
    assert partition.dump() == before


def test_a_bump_whose_answer_was_lost_is_asked_for_again_with_a_higher_floor(partition):
    run = partition.put("processing")
    lost = bumped(partition, run)
    word, token = partition.bump(run, int(lost.token) + 7, "verify")
    assert (word, int(token)) == ("OK", int(lost.token) + 8)
    assert partition.told()[-1].reason == f"verify from {lost.token}"


@pytest.mark.parametrize("write", ["renew", "checkpoint", "bump", "finish"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_run_is_known_by_each_token_it_had_as_long_as_it_is_the_owner(partition, write, number):
    """The answer of a bump may be on its way while a heartbeat with the token from before it comes in."""
    tokens = [partition.put("processing", resource="thing")]
    for _ in range(2):
        tokens.append(bumped(partition, tokens[-1]))
    run = tokens[number]
    if write == "renew":
        assert partition.renew(run) == [("OK", "")]
    elif write == "checkpoint":
        assert partition.checkpoint(run, b"1", "step:a", "step", "a").word == "OK"
        assert partition.told()[-1].token == tokens[2].token
    elif write == "bump":
        assert partition.bump(run, 0) == ("OK", tokens[2].token)
    else:
        assert partition.finish(run, "DONE") == ("OK", "")
        assert (partition.told()[-1].name, partition.told()[-1].token) == ("done", tokens[2].token)
        assert partition.finish(run, "DONE") == ("REPLAY", "")


@pytest.mark.parametrize("write", ["renew", "checkpoint", "bump", "finish"])
def test_a_token_from_before_a_bump_helps_nobody_else(partition, write):
    run = partition.put("processing", resource="thing")
    queue = partition.record(run.job_id).queue
    new = bumped(partition, run)
    forged = [run._replace(nonce="other.1"), run._replace(nonce=""), run._replace(nonce=run.nonce[:-1])]
    forged += [run._replace(token=token) for token in ("", run.token[:-1], f"{run.token} ", f"{run.token} {run.token}")]

    def answer(key):
        if write == "renew":
            return partition.renew(key)[0]
        if write == "checkpoint":
            return partition.checkpoint(key)
        return partition.bump(key, FAR * 40) if write == "bump" else partition.finish(key, "DONE")

    for key in forged:
        assert answer(key) == ("STALE", new.token)
    partition.take_back(new)
    for key in (run, new):
        assert answer(key) == ("EXPIRED", "")
    [next_one] = partition.claim(queues=(queue,))
    for token in (run.token, new.token):
        assert answer(next_one.key._replace(token=token)) == ("STALE", next_one.token)
    second = bumped(partition, next_one.key)
    for key in (run, new):
        assert answer(key) == ("STALE", second.token)
    assert answer(next_one.key).word == "OK"


def test_a_stand_alone_lease_that_was_bumped_is_renewed_and_given_back_under_either_token(partition):
    for number in (0, 1):
        _, token, _ = partition.acquire("thing", f"me{number}")
        me = RunKey(f"@me{number}", token, f"me{number}")
        new = bumped(partition, me)
        key = (me, new)[number]
        assert partition.acquire("thing", f"me{number}")[:2] == ("HELD", new.token)
        assert partition.renew(key) == [("OK", "")]
        assert partition.renew(key._replace(nonce="other")) == [("STALE", new.token)]
        assert partition.release(f"me{number}", str(int(token) - 1)) == ("STALE", new.token)
        assert partition.release(f"me{number}", key.token) == ("OK", "")


@pytest.mark.parametrize("floor", [2**52 + 1, "nan", "many", ""])
@pytest.mark.parametrize("where", ["install", "elsewhere"])
def test_a_floor_that_is_no_token_and_a_place_that_is_none_are_refused_and_nothing_is_changed(partition, floor, where):
    """Else a damaged row in SQL would use up the numbers that are exact."""
    run = partition.put("processing")
    before = partition.dump()
    with pytest.raises(ScriptError, match=r"bump: (floor is no token|no place elsewhere)"):
        partition.bump(run, floor, where)
    assert partition.dump() == before


def test_the_largest_floor_leaves_exact_numbers_for_all_that_come_after(partition):
    run = partition.put("processing")
    assert partition.bump(run, 2**52) == ("OK", str(2**52 + 1))
    partition.job()
    assert partition.claim()[0].token == str(2**52 + 2)


# -- notes ------------------------------------------------------------------------------------------------

NOTES = (("effect", "k:mail"), ("effect_found", "k:charge"))


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("DONE", "done"),
        ("RETRY", "retry_scheduled"),
        ("BURY", "failed"),
        ("RELEASE", "released"),
        ("CANCEL", "cancelled"),
    ],
)
def test_effects_are_told_in_the_same_step_as_the_outcome_and_once(partition, word, name):
    run = partition.put("processing", resource="thing")
    known, call = len(partition.told()), partition.finishing(run, word, notes=NOTES)
    assert partition.run(call).replies == [("OK", "")]
    told = partition.told(after=known)
    assert [(t.name, t.reason) for t in told[:2]] == list(NOTES)
    assert {t[1:5] + t[7:] for t in told[:2]} == {(run.job_id, "mail", run.token, run.nonce, "thing")}
    assert [t.name for t in told[2:]] == [name]
    assert len(partition.redis.xrevrange(partition.keys.events, count=1)[0][1][b"e"].split(b"\n")) == 3
    for _ in range(2):
        assert partition.run(call).replies == [("REPLAY", "")]
    assert partition.told(after=known) == told
    assert "late_effect:mail" not in partition.stats()


def test_an_effect_of_a_bumped_run_is_told_with_the_newest_token(partition):
    run = partition.put("processing")
    new = bumped(partition, run)
    partition.run(partition.finishing(run, "DONE", notes=NOTES[:1]))
    assert [(t.name, t.token) for t in partition.told()[-2:]] == [("effect", new.token), ("done", new.token)]


@pytest.mark.parametrize("how", ["lapsed", "taken back", "replaced", "cancelled hard", "concluded", "gone"])
def test_an_effect_of_a_run_that_is_not_ours_any_more_is_told_as_late(partition, how):
    """SQL has accepted it: the books say so, and that Redis had given the job to another."""
    run = partition.put("processing")
    queue = partition.record(run.job_id).queue
    if how == "cancelled hard":
        partition.cancel(run.job_id, hard=True)
    elif how == "concluded":
        partition.conclude(run.job_id)
    elif how == "lapsed":
        partition.lapse(run)
    else:
        partition.take_back(run)
    if how == "replaced":
        assert partition.claim(queues=(queue,))
    if how == "gone":
        partition.redis.delete(partition.keys.job(run.job_id))
        partition.redis.delete(partition.keys.ready(queue))
    before, known = partition.matter(), len(partition.told())
    assert partition.finish(run, "NOTE") == ("OK", "")
    first = partition.told(after=known)[0]
    kind = "" if how == "gone" else "mail"
    assert first == ("late_effect", run.job_id, kind, run.token, run.nonce, "", "mail:sent", "")
    assert partition.stats()["late_effect:" + (kind or "?")] == 1
    assert not any(name.startswith("refused") for name in partition.stats())
    if how != "lapsed":  # that one was swept in the same call
        assert partition.matter() == before


def test_a_late_note_beside_a_refused_outcome_is_told_and_the_outcome_is_not_written(partition):
    run = partition.put("processing")
    partition.take_back(run)
    known = len(partition.told())
    assert partition.run(partition.finishing(run, "DONE", notes=NOTES[:1])).replies == [("EXPIRED", "")]
    assert [t.name for t in partition.told(after=known)] == ["late_effect", "refused_stale"]


def test_thousands_of_notes_fit_into_one_call(partition):
    """A run may import a file with an effect for each line."""
    run, other = partition.put("processing"), partition.put("processing")
    notes = tuple(("effect", f"k:{n}") for n in range(20_000))
    outcomes = [partition.outcome(run, "DONE", notes=notes), partition.outcome(other, "RETRY")]
    served = partition.run(partition.store.finish(outcomes, partition.request()))
    assert served.replies == [("OK", ""), ("OK", "")]
    assert partition.state(other.job_id) == "queued"
    assert sum(t.name == "effect" for t in partition.told()) == 20_000
