"""What a ledger holds, in a form that can be compared with what a partition told."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import select

from fencepost.ledger import Ledger
from fencepost.sql.tables import cursors, events, marks
from tests.support.partition import Partition, Told
from tests.support.state import keys_of
from tests.support.waiting import wait_until

Line = tuple[int, int, Told]


def copied_lines(ledger: Ledger) -> Counter[Line]:
    """Every event of the ledger: number, instant, and what was told."""
    with ledger.reading("test") as connection:
        rows = connection.execute(select(events).where(events.c.namespace == ledger.namespace)).all()
    return Counter((row.seq, row.at_ms, _told(row)) for row in rows)


def _told(row: Any) -> Told:
    token, attempt = ("" if value is None else str(value) for value in (row.token, row.attempt))
    return Told(row.name, row.job_id, row.kind, token, row.nonce, attempt, row.reason, row.resource)


def told_lines(partition: Partition) -> Counter[Line]:
    """Every event that stands in the stream now, as copied_lines."""
    out: Counter[Line] = Counter()
    for entry_id, fields in partition.redis.xrange(partition.keys.events):
        lines = fields[b"e"].decode().split("\n")
        first = int(entry_id.split(b"-")[0]) - len(lines) + 1
        for at, line in enumerate(lines):
            out[(first + at, int(fields[b"t"]), Told(*line.split("\t")))] += 1
    return out


def cursor_of(ledger: Ledger) -> Any:
    """The ledger's place in the stream."""
    with ledger.reading("test") as connection:
        return connection.execute(select(cursors).where(cursors.c.namespace == ledger.namespace)).one()


def marks_of(ledger: Ledger) -> list[tuple[int, str, int, int]]:
    """(epoch, why, first, last) of each mark, in order."""
    c = marks.c
    with ledger.reading("test") as connection:
        rows = connection.execute(
            select(c.epoch, c.why, c.first_seq, c.last_seq)
            .where(c.namespace == ledger.namespace)
            .order_by(c.epoch, c.first_seq, c.why)
        )
        return [tuple(row) for row in rows]


def tick(partition: Partition) -> None:
    """Wait until the server's clock shows another millisecond: a rewound server gives numbers out again, later."""

    def now() -> int:
        seconds, us = partition.redis.time()
        return int(seconds) * 1000 + int(us) // 1000

    began = now()
    wait_until(lambda: now() > began)


class Past:
    """A copy of the whole partition, which can be put back: what an older copy of Redis is."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        redis = partition.redis
        self._keys = {key: (redis.dump(key), redis.pttl(key)) for key in keys_of(redis, partition.namespace)}

    def restore(self) -> None:
        """Redis is as it was then. At least a millisecond has passed."""
        redis = self._partition.redis
        tick(self._partition)
        for key in keys_of(redis, self._partition.namespace):
            redis.delete(key)
        for key, (value, left) in self._keys.items():
            redis.restore(key, max(left, 0), value)
