"""Every SQL table of Fencepost, once: the code, the migrations and `fencepost sql ddl` all read this.

Instants are milliseconds since 1970 (`…_at_ms`), in the ledger by the clock of Redis. Tokens are BIGINT. Texts that are
compared as keys compare byte by byte on every database: MariaDB and MySQL would otherwise take "A" and "a" for one.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

__all__ = ["METADATA", "PARTS", "cursors", "effects", "events", "fences", "jobs", "marks", "outbox"]

METADATA: Final = MetaData()

_LONG_TEXT: Final = Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")


def _key(length: int) -> Any:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


# -- the guard, in the user's database ------------------------------------------------------------------------

fences: Final = Table(
    "fencepost_fences",
    METADATA,
    Column("namespace", _key(64), primary_key=True),
    Column("resource", _key(255), primary_key=True, comment="the resource, or =job id; hashed where it is longer"),
    Column("token", BigInteger, nullable=False),
    Column("nonce", _key(64), nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
)

effects: Final = Table(
    "fencepost_effects",
    METADATA,
    Column("namespace", _key(64), primary_key=True),
    Column("effect_key", _key(255), primary_key=True),
    Column("job_id", _key(200), nullable=False, comment="empty for an effect of a stand-alone lease"),
    Column("token", BigInteger, nullable=False),
    Column("nonce", _key(64), nullable=False),
    Column("result", _LONG_TEXT, comment="JSON"),
    Column("created_at_ms", BigInteger, nullable=False),
    Index("fencepost_effects_age", "created_at_ms"),
)

# -- the outbox, in the user's database -----------------------------------------------------------------------

outbox: Final = Table(
    "fencepost_outbox",
    METADATA,
    Column("job_id", _key(200), primary_key=True),
    Column("namespace", _key(64), nullable=False),
    Column("spec", _LONG_TEXT, nullable=False, comment="JSON: what enqueue sends"),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("published_at_ms", BigInteger, comment="when Redis had it; empty until then"),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("answer", _key(255), comment="what enqueue said, and of which job: QUEUED, DUPLICATE 0198…"),
    Column("problem", Text, comment="why the last try failed"),
    Index("fencepost_outbox_open", "namespace", "published_at_ms", "created_at_ms"),
)

# -- the ledger -----------------------------------------------------------------------------------------------

events: Final = Table(
    "fencepost_events",
    METADATA,
    Column("namespace", _key(64), nullable=False),
    Column("part", Integer, nullable=False, comment="partition"),
    Column("epoch", Integer, nullable=False, comment="1, and one more after each rewind of Redis"),
    Column("seq", BigInteger, nullable=False, comment="sequence number within the partition"),
    Column("at_ms", BigInteger, nullable=False),
    Column("name", _key(40), nullable=False),
    Column("job_id", _key(200), nullable=False),
    Column("kind", _key(512), nullable=False),
    Column("resource", _key(512), nullable=False),
    Column("worker", _key(200), nullable=False),
    Column("attempt", Integer),
    Column("token", BigInteger),
    Column("nonce", _key(64), nullable=False),
    Column("reason", Text, nullable=False),
    # Copied twice, an event is the same row: a number that a rewound Redis gives out again comes at another instant.
    PrimaryKeyConstraint("namespace", "part", "seq", "at_ms", "job_id", "nonce"),
    Index("fencepost_events_job", "namespace", "job_id"),
    Index("fencepost_events_age", "at_ms"),
)

jobs: Final = Table(
    "fencepost_jobs",
    METADATA,
    Column("namespace", _key(64), primary_key=True),
    Column("job_id", _key(200), primary_key=True),
    Column("part", Integer, nullable=False, server_default="0"),
    Column("kind", _key(512), nullable=False),
    Column("queue", _key(100), nullable=False, server_default=""),
    Column("resource", _key(512), nullable=False, server_default=""),
    Column("state", _key(20), nullable=False, comment="as in Redis; 'accepted' until Redis told of it"),
    Column("reason", Text, nullable=False),
    Column("generation", Integer, nullable=False, server_default="1"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("token", BigInteger, nullable=False, server_default="0"),
    Column("nonce", _key(64), nullable=False, server_default=""),
    Column("worker", _key(200), nullable=False, server_default=""),
    Column("durable", Boolean, nullable=False),
    Column("spec", _LONG_TEXT, comment="JSON: what enqueue sends; of durable jobs only"),
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("seq", BigInteger, nullable=False, server_default="0", comment="of the last event that moved it"),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),
    Column("finished_at_ms", BigInteger),
    # The namespace stands behind, so that no planner takes this index where a job is looked up by its id.
    Index("fencepost_jobs_open", "state", "durable", "namespace", "created_at_ms"),
)

cursors: Final = Table(
    "fencepost_cursors",
    METADATA,
    Column("namespace", _key(64), primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("incarnation", _key(64), nullable=False, comment="of the partition, as Redis has it in meta"),
    Column("seq", BigInteger, nullable=False, comment="of the last entry that was copied in this epoch"),
    Column("high", BigInteger, nullable=False, server_default="0", comment="the highest number of any epoch"),
    Column("fingerprint", _key(64), nullable=False, comment="of that entry: another one there means a rewind"),
    Column("epoch", Integer, nullable=False),
    Column("copied", BigInteger, nullable=False, server_default="0", comment="events, since the start"),
    Column(
        "lost", BigInteger, nullable=False, server_default="0", comment="events that were gone before they were copied"
    ),
    Column("pruned", BigInteger, nullable=False, server_default="0", comment="events that were deleted for their age"),
    Column("rewinds", Integer, nullable=False, server_default="0"),
    Column("updated_at_ms", BigInteger, nullable=False),
)

marks: Final = Table(
    "fencepost_marks",
    METADATA,
    Column("namespace", _key(64), primary_key=True),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("why", _key(20), primary_key=True, comment="before, lost, rewind or pruned: why numbers do not go on"),
    Column("first_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False, comment="of a rewind: the last number shared with older epochs"),
    Column("parent", Integer, comment="of a rewind: the epoch in which that last number was told"),
    Column("at_ms", BigInteger, nullable=False, comment="when it was found, by the clock of the host"),
)

PARTS: Final[dict[str, tuple[Table, ...]]] = {
    "guard": (fences, effects),
    "outbox": (outbox,),
    "ledger": (events, jobs, cursors, marks),
}
"""The tables of each part, for those who want only some of them in a database."""
