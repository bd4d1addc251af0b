"""The fixtures that every other test leans on."""

from __future__ import annotations

import pytest

from fencepost.keys import Keys
from tests.support import digest, dump, leaks


def test_the_moved_clock_moves_the_servers_time_and_its_expiry(clock, redis, namespace):
    redis.set(Keys(namespace).idem("k"), "v", ex=3600)
    before = clock.now_ms()
    after = clock.advance(7200)
    assert 7_200_000 <= after - before < 7_210_000
    assert dump(redis, namespace) == {}


def test_the_moved_clock_is_seen_inside_a_script(clock, redis, namespace):
    ask = "return redis.call('TIME')[1]"
    before = int(redis.eval(ask, 0))
    clock.advance(86_400)
    assert 86_400 <= int(redis.eval(ask, 0)) - before < 86_410


def test_the_clock_of_the_last_test_does_not_reach_this_one(clock):
    assert clock.ahead_s == 0


def test_a_dump_shows_types_values_and_ttls(redis, namespace):
    keys = Keys(namespace)
    redis.hset(keys.job("1"), mapping={"state": "queued", "payload": b"\xff"})
    redis.zadd(keys.leases, {"1": 5})
    redis.set(keys.idem("k"), "1 f", ex=60)
    assert dump(redis, namespace) == {
        "idem:k": ("string", "1 f", True),
        "job:1": ("hash", {"payload": b"\xff", "state": "queued"}, False),
        "leases": ("zset", [("1", 5.0)], False),
    }


def test_a_digest_changes_with_the_value(redis, namespace):
    key = Keys(namespace).meta
    absent = digest(redis, [key])
    redis.hset(key, "seq", 1)
    one = digest(redis, [key])
    redis.hset(key, "seq", 2)
    assert len({*absent.values(), *one.values(), *digest(redis, [key]).values()}) == 3


@pytest.mark.leaks_keys("the leak check is what is tested")
def test_the_leak_check_names_each_key_left_behind(redis, namespace):
    keys = Keys(namespace)
    redis.set("stray", 1)
    redis.set(keys.prefix + "surprise", 1)
    redis.set(keys.idem("forever"), 1)
    redis.set(keys.meta, 1)
    redis.hset(keys.job("over"), "state", "done")
    redis.hset(keys.job("live"), "state", "queued")
    assert leaks(redis, namespace) == [
        "stray: outside the test's namespace " + namespace,
        f"{keys.idem('forever')}: has no TTL, listed with TTL 'always'",
        f"{keys.job('over')}: has no TTL, listed with TTL 'final'",
        f"{keys.meta}: a string, listed as hash",
        f"{keys.prefix}surprise: not listed in fencepost.keys",
    ]
