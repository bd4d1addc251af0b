"""The doctor looks at the server before a worker starts, fails closed, and says what to do."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis as redis_py

from fencepost import Fencepost
from fencepost.doctor import WorkerSettings, check_or_refuse, examine
from fencepost.doctor.server import server as server_checks
from fencepost.errors import RedisUnavailable, UnsafeSetup
from fencepost.operate.plan import run_sync


def levels(findings):
    """The checks that are not well: {(check, level)}."""
    return {(one.check, one.level) for one in findings if one.level != "ok"}


async def examined(app, **options):
    try:
        return await examine(app, **options)
    finally:
        await app.close()


async def test_a_good_server_has_only_good_findings(app):
    found = await examined(app, thorough=True)
    assert levels(found) == set()
    assert {one.check for one in found} >= {"eviction", "version", "role", "persistence", "clock", "scripts"}


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl"])
async def test_a_server_that_evicts_keys_is_refused(app, redis, policy):
    """report: taskforcesh/bullmq#1046"""
    redis.config_set("maxmemory-policy", policy)
    try:
        with pytest.raises(UnsafeSetup, match=rf"maxmemory-policy is {policy}.*Nothing was started"):
            await check_or_refuse(app)
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
        await app.close()
    assert redis.keys("*") == []


async def test_the_eviction_policy_is_seen_where_config_is_forbidden(app, partition, namespace, redis):
    """report: taskforcesh/bullmq#1046"""
    redis.config_set("maxmemory-policy", "allkeys-lru")
    redis.execute_command("ACL", "SETUSER", partition.user, "+info")  # not config: it is an admin command
    app = Fencepost(client_of(partition), namespace=namespace)
    try:
        found = await examined(app)
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert ("eviction", "error") in levels(found)


async def test_a_user_that_may_read_neither_info_nor_config_is_warned_not_refused(partition, namespace):
    app = Fencepost(client_of(partition), namespace=namespace)
    assert levels(await examined(app)) == {("info", "warning"), ("eviction", "warning")}


def client_of(partition):
    return redis_py.Redis.from_url(partition.url, username=partition.user, password="any")


async def test_force_starts_all_the_same_and_the_log_says_what_was_overruled(app, redis, caplog):
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = await check_or_refuse(app, force=True)
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
        await app.close()
    assert ("eviction", "error") in levels(found)
    [record] = [one for one in caplog.records if getattr(one, "event", "") == "doctor_overruled"]
    assert record.levelno == logging.WARNING
    assert record.fields["checks"] == "eviction"


INFO = {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "role": "master", "aof_enabled": "1"}


@pytest.mark.parametrize(
    ("info", "config", "expected"),
    [
        ({}, {}, set()),
        ({"redis_version": "6.2.14"}, {}, {("version", "error")}),
        ({"redis_version": "7.0.0"}, {}, set()),
        ({"redis_version": "8.2.1"}, {}, set()),
        ({"redis_version": "6.0.0", "server_name": "valkey", "valkey_version": "9.1.0"}, {}, set()),
        ({"redis_version": ""}, {}, {("version", "error")}),
        ({"role": "slave", "master_host": "10.0.0.1", "master_port": "6379"}, {}, {("role", "error")}),
        ({"cluster_enabled": "1"}, {}, {("cluster", "error")}),
        ({"aof_enabled": "0"}, {}, {("persistence", "warning")}),
        ({"aof_enabled": "0"}, {"save": ""}, {("persistence", "warning")}),
        ({"aof_enabled": "0"}, {"save": "3600 1"}, {("persistence", "warning")}),
        ({}, {"appendfsync": "no"}, {("persistence", "warning")}),
        ({"aof_last_write_status": "err"}, {}, {("disk", "error")}),
        ({"used_memory": "95", "maxmemory": "100"}, {}, {("memory", "warning")}),
        ({"used_memory": "80", "maxmemory": "100"}, {}, set()),
        ({"maxmemory_policy": "allkeys-random"}, {}, {("eviction", "error")}),
    ],
)
def test_what_info_and_config_tell_is_judged(app, info, config, expected):
    class Told:
        def run(self, call, give_up_s):
            name = call.args[-1]
            return {**INFO, **info} if name == "INFO" else [name, config[name]] if name in config else []

    driver: Any = Told()
    assert levels(run_sync(driver, server_checks(app.link.store))) == expected


async def test_a_replica_is_refused(new_server, namespace, url):
    replica = new_server()
    with redis_py.Redis.from_url(replica.url) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        found = await examined(Fencepost(replica.url, namespace=namespace))
    assert ("role", "error") in levels(found)


async def test_a_server_in_cluster_mode_is_refused(new_server, namespace):
    server = new_server(config={"cluster-enabled": "yes"})
    found = await examined(Fencepost(server.url, namespace=namespace))
    assert levels(found) == {("cluster", "error")}


@pytest.mark.parametrize(
    ("ahead_s", "expected"),
    [(0, set()), (30, {("clock", "warning")}), (2 * 86_400, {("clock", "error")})],
)
async def test_a_server_whose_clock_is_off_is_told(app, clock, ahead_s, expected):
    """report: resque/resque#1480"""
    clock.advance(ahead_s)
    found = await examined(app)
    assert levels(found) == expected
    if expected:
        [told] = [one for one in found if one.check == "clock"]
        assert "ahead of this host's" in told.text


async def test_the_examination_runs_a_script_and_survives_that_the_server_forgot_it(app, redis):
    """report: Openpanel-dev/groupmq#16"""
    await examine(app)
    redis.script_flush()
    assert levels(await examined(app)) == set()


@pytest.mark.leaks_keys("a key of a wrong type is the point")
async def test_a_namespace_that_something_else_wrote_to_is_refused(app, redis):
    redis.set(app.link.store.keys.events, "mine")
    found = await examined(app)
    assert ("scripts", "error") in levels(found)


async def test_a_user_that_may_not_run_scripts_is_refused(partition, redis, namespace):
    redis.execute_command("ACL", "SETUSER", partition.user, "+info", "-evalsha", "-eval")
    found = await examined(Fencepost(client_of(partition), namespace=namespace))
    assert ("scripts", "error") in levels(found)


async def test_another_number_of_partitions_is_refused(app, redis):
    await check_or_refuse(app)
    assert redis.hget(app.link.store.keys.meta, "partitions") == b"1"
    await check_or_refuse(app)
    redis.hset(app.link.store.keys.meta, "partitions", 4)
    with pytest.raises(UnsafeSetup, match="set up with 4 partitions"):
        await check_or_refuse(app)
    await app.close()


async def test_full_memory_does_not_keep_a_worker_from_starting(app, redis):
    """report: taskforcesh/bullmq#1046"""
    redis.config_set("maxmemory", redis.info("memory")["used_memory"] // 2)
    try:
        found = await check_or_refuse(app, give_up_s=0.2)
    finally:
        redis.config_set("maxmemory", 0)
        await app.close()
    assert levels(found) == {("memory", "warning")}


async def test_examining_changes_nothing(app, redis):
    await examined(app, thorough=True)
    assert redis.keys("*") == []


async def test_a_server_that_is_away_is_no_finding_but_an_error(namespace, tmp_path):
    app = Fencepost(f"unix://{tmp_path}/nobody.sock", namespace=namespace)
    with pytest.raises(RedisUnavailable):
        await examined(app, give_up_s=0.05)


async def test_half_states_are_named(app, partition):
    """report: hibiken/asynq#1144"""
    run = partition.put("processing")
    partition.redis.zrem(partition.keys.leases, run.job_id)
    found = await examined(app, thorough=True)
    [told] = [one for one in found if one.check == "half-states"]
    assert told.level == "warning"
    assert f"{run.job_id} (run without a lease)" in told.text
    assert "fencepost heal" in told.hint


async def test_a_queue_that_no_living_worker_serves_is_named(partition, url, namespace, clock):
    app = Fencepost(url, namespace=namespace)

    @app.job(queue="billing")
    async def bill() -> None: ...

    assert levels(await examine(app)) == {("queues", "warning")}
    assert levels(await examine(app, WorkerSettings(queues=("billing",)))) == set()
    partition.serve(0, upkeep='{"queues": ["billing"]}')
    assert levels(await examine(app)) == set()
    clock.advance(20)
    assert ("queues", "warning") in levels(await examined(app))


async def test_a_partition_whose_time_stands_still_is_named(app, redis):
    """The clock of the server went back by an hour, or another server took over."""
    now_ms = int(redis.time()[0]) * 1000
    redis.hset(app.link.store.keys.meta, "last_us", (now_ms + 3_600_000) * 1000)
    found = {one.check: one for one in await examined(app)}
    assert found["standstill"].level == "warning"
    assert "stands still for 3" in found["standstill"].text
