"""`fencepost token`: made and shown once, listed without secrets, revoked with a reason; each leaves its event."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.credentials import opened
from tests.edges.conftest import Cli


@pytest.fixture
def cli(url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any):
    """The command line on the namespace of the test, in an empty folder."""
    monkeypatch.setenv("FENCEPOST_REDIS_URL", url)
    monkeypatch.setenv("FENCEPOST_NAMESPACE", namespace)
    monkeypatch.delenv("FENCEPOST_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


def test_a_token_is_shown_alone_on_stdout_so_that_a_script_can_take_it(cli, partition):
    out = cli("token", "make", "the shop", "--scope", "read", "--scope", "enqueue:mail", "--reason", "orders")
    held = opened(out.rstrip("\n"))
    assert held is not None
    assert out.count("\n") == 1
    assert f"credential {held.id}: the shop, read enqueue:mail, expires never" in cli.err
    assert "shown this once" in cli.err
    [event] = partition.told()
    assert (event.name, event.job_id) == ("credential_made", f"%{held.id}")
    assert event.reason == "the shop: read enqueue:mail: orders"
    [(_, fields)] = partition.redis.xrange(partition.keys.events)
    assert fields[b"w"].startswith(b"cli:")


def test_as_json_the_token_is_a_field_beside_what_it_may(cli):
    made = cli.json("token", "make", "ann", "--scope", "work", "--expires", "30d")
    assert made["token"].startswith(f"fp_{made['id']}_")
    assert (made["name"], made["scopes"]) == ("ann", ["work"])
    assert made["expires_at"] - made["created_at"] == 30 * 86_400_000
    assert "hash" not in made


def test_the_list_shows_neither_tokens_nor_hashes(cli, partition, clock):
    first = cli.json("token", "make", "first", "--scope", "read", "--expires", "60s")
    clock.advance(61)
    second = cli.json("token", "make", "second", "--scope", "operate")
    found = cli.json("token", "list")["items"]
    assert [(one["id"], one["expired"]) for one in found] == [(second["id"], False), (first["id"], True)]
    shown = cli("token", "list")
    assert shown.splitlines()[0].split() == ["id", "name", "scopes", "made", "expires"]
    assert "(over)" in shown
    assert "never" in shown
    stored = partition.dump()["credentials"].value[first["id"]]
    for text in (shown, str(found)):
        assert first["token"].split("_", 2)[2] not in text
        assert stored.partition('"hash":"')[2][:64] not in text


def test_a_revoked_one_is_gone_and_the_second_time_there_is_nothing_to_do(cli, partition):
    made = cli.json("token", "make", "ann", "--scope", "read")
    out = cli("token", "revoke", made["id"], "--reason", "she left")
    assert out == f"revoked {made['id']} (ann); it counts within two seconds\n"
    assert cli.json("token", "list")["items"] == []
    assert "there is no credential" in cli("token", "revoke", made["id"], "--reason", "again", code=1)
    assert cli.json("token", "revoke", made["id"], "--reason", "again", code=1)["revoked"] is False
    assert [one.reason for one in partition.told() if one.name == "credential_revoked"] == ["she left"]


def test_an_empty_list_says_so(cli):
    assert cli("token", "list") == "no credentials\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("make", "ann"), "--scope"), (("make", "ann", "--scope", "admin"), "scope: 'admin' grants nothing"),
        (("make", "", "--scope", "read"), "name: "), (("make", "ann", "--scope", "read", "--expires", "x"), "expires"),
        (("revoke", "abc"), "--reason"), (("revoke", "abc", "--reason", "x"), "id: "),
        (("revoke", "aaaaaaaaaaaa", "--reason", ""), "reason: "),
    ],
)  # fmt: skip
def test_what_is_not_said_well_is_refused_and_nothing_is_made(cli, partition, arguments, words):
    cli("token", *arguments, code=2)
    assert words in cli.err
    assert partition.dump() == {}
