"""Credentials: made, found, listed and revoked; of the secret only a hash is kept; the ledger keeps who did it."""

from __future__ import annotations

import hashlib

import pytest

from fencepost import credentials
from fencepost.credentials import Credential, checked_scopes, find, listed, make, matches, opened, revoke
from fencepost.errors import ConfigurationError
from fencepost.ledger import Archiver, Ledger
from fencepost.ledger.verify import verify
from fencepost.operate.plan import run_sync
from fencepost.sql.upgrade import upgrade
from tests.support.partition import Partition


def made(p: Partition, name: str = "ann", scopes: tuple[str, ...] = ("read",), **options) -> credentials.Made:
    return run_sync(p.driver, make(p.store, name, scopes, actor="cli:me@here", **options))


def test_a_token_is_found_again_and_its_secret_is_nowhere_in_redis(partition):
    one = made(partition, scopes=("read", "enqueue:mail", "read"), reason="the shop")
    held = opened(one.token)
    assert held is not None
    assert held.id == one.credential.id
    now_ms, found = partition.run(find(partition.keys, held.id))
    assert found == one.credential
    assert found.scopes == ("read", "enqueue:mail")
    assert abs(now_ms - found.created_at) < 10_000
    assert matches(found, held.secret)
    assert held.secret not in repr(partition.dump())
    assert found.hash == hashlib.sha256(held.secret.encode()).hexdigest()


def test_another_secret_or_no_credential_matches_nothing(partition):
    one, other = made(partition), made(partition)
    held, theirs = opened(one.token), opened(other.token)
    assert held is not None
    assert theirs is not None
    assert not matches(one.credential, theirs.secret)
    assert not matches(None, held.secret)
    assert not matches(None, "")


@pytest.mark.parametrize(
    "text",
    ["", "fp_", "fp_abcdefghijkl_", "fp_abcdefghijkl_" + "x" * 42, "fp_abcdefghijk1_" + "x" * 43,
     "xx_abcdefghijkl_" + "x" * 43, "fp_abcdefghijkl_" + "x" * 43 + "\n", "fp_abcdefghijkl_" + "é" * 43],
)  # fmt: skip
def test_a_text_that_cannot_be_a_token_is_not_taken_apart(text):
    assert opened(text) is None


@pytest.mark.parametrize(
    "scopes",
    [(), ("",), ("admin",), ("enqueue",), ("enqueue:",), ("enqueue:a b",), ("enqueue:m*",), ("Read",), ("read,work",),
     ("read", "rea")],
)  # fmt: skip
def test_scopes_that_grant_nothing_are_refused(scopes):
    with pytest.raises(ConfigurationError, match=r"^scope: .* Nothing was changed\. Write"):
        checked_scopes(scopes)


@pytest.mark.parametrize("name", ["", " ann", "a\nb", "x" * 101])
def test_a_name_that_could_not_stand_in_a_ledger_is_refused(partition, name):
    with pytest.raises(ConfigurationError, match=r"^name: "):
        made(partition, name)
    assert partition.dump() == {}


@pytest.mark.parametrize("expires_s", [0, 0.5, -1, 1e12, float("nan")])
def test_a_lifetime_that_is_none_is_refused(partition, expires_s):
    with pytest.raises(ConfigurationError, match=r"^expires: "):
        made(partition, expires_s=expires_s)


def test_it_runs_out_by_the_clock_of_redis(partition, clock):
    one = made(partition, expires_s=60).credential
    assert one.expires_at == one.created_at + 60_000
    clock.advance(59)
    assert not one.expired(partition.run(find(partition.keys, one.id))[0])
    clock.advance(2)
    assert one.expired(partition.run(find(partition.keys, one.id))[0])


def test_the_list_has_the_newest_first_and_a_revoked_one_is_gone(partition, clock):
    first = made(partition, "first").credential
    clock.advance(1)
    second = made(partition, "second").credential
    assert run_sync(partition.driver, listed(partition.store))[1] == [second, first]
    assert run_sync(partition.driver, revoke(partition.store, first.id, reason="left", actor="me")) == first
    assert run_sync(partition.driver, revoke(partition.store, first.id, reason="left", actor="me")) is None
    assert run_sync(partition.driver, listed(partition.store))[1] == [second]
    assert partition.run(find(partition.keys, first.id))[1] is None


def test_a_whole_token_is_no_id_and_is_not_repeated_in_the_error(partition):
    one = made(partition)
    with pytest.raises(ConfigurationError, match=r"^id: ") as caught:
        run_sync(partition.driver, revoke(partition.store, one.token, reason="left", actor="me"))
    assert one.token not in str(caught.value)


@pytest.mark.parametrize("raw", ["", "null", "{}", "[", '{"id":"another"}', b"\xff"])
def test_a_record_that_a_hand_has_spoilt_admits_nobody(partition, raw):
    one = made(partition).credential
    partition.redis.hset(partition.keys.credentials, one.id, raw)
    assert partition.run(find(partition.keys, one.id))[1] is None
    assert run_sync(partition.driver, listed(partition.store))[1] == []


def test_a_record_under_another_id_admits_nobody(partition):
    """Whoever may copy a field must not get a second credential that a revocation does not reach."""
    one = made(partition).credential
    raw = partition.redis.hget(partition.keys.credentials, one.id)
    partition.redis.hset(partition.keys.credentials, "aaaaaaaaaaaa", raw)
    assert partition.run(find(partition.keys, "aaaaaaaaaaaa"))[1] is None


def test_the_thousandth_and_first_is_refused_and_nothing_is_told(partition):
    for number in range(1_000):
        partition.redis.hset(partition.keys.credentials, str(number), "{}")
    with pytest.raises(ConfigurationError, match=r"there are 1000 credentials already.*Revoke"):
        made(partition)
    assert partition.told() == []


def test_the_ledger_keeps_who_made_and_revoked_it_and_why_and_agrees(partition, sqlite_url):
    one = made(partition, reason="for the shop").credential
    run_sync(partition.driver, revoke(partition.store, one.id, reason="it leaked", actor="cli:eve@there"))
    upgrade(sqlite_url)
    ledger = Ledger(sqlite_url, partition.namespace)
    try:
        Archiver(ledger, partition.store, partition.driver).copy_all()
        rows = ledger.history(f"%{one.id}")
        verdict = verify(ledger)
    finally:
        ledger.close()
    assert [(row.name, row.worker, row.reason) for row in rows] == [
        ("credential_made", "cli:me@here", "ann: read: for the shop"),
        ("credential_revoked", "cli:eve@there", "it leaked"),
    ]
    assert (verdict.ok, verdict.findings, verdict.notes) == (True, [], [])


def test_a_credential_is_not_changed_once_it_was_read():
    with pytest.raises(AttributeError):
        Credential("a", "b", "c", ("read",), 1).scopes = ("work",)  # type: ignore[misc]
