"""The first tables: guard, outbox and ledger. What is there already, made from `fencepost sql ddl`, is left alone."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")


def upgrade() -> None:
    there = set(sa.inspect(op.get_bind()).get_table_names())
    for table, make in (
        ("fences", _fences),
        ("effects", _effects),
        ("outbox", _outbox),
        ("events", _events),
        ("jobs", _jobs),
        ("cursors", _cursors),
        ("marks", _marks),
    ):
        if f"fencepost_{table}" not in there:
            make()


def _key(length: int) -> Any:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def _fences() -> None:
    op.create_table(
        "fencepost_fences",
        sa.Column("namespace", _key(64), nullable=False),
        sa.Column("resource", _key(255), nullable=False, comment="the resource, or =job id; hashed where it is longer"),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("nonce", _key(64), nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "resource"),
    )


def _effects() -> None:
    op.create_table(
        "fencepost_effects",
        sa.Column("namespace", _key(64), nullable=False),
        sa.Column("effect_key", _key(255), nullable=False),
        sa.Column("job_id", _key(200), nullable=False, comment="empty for an effect of a stand-alone lease"),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("nonce", _key(64), nullable=False),
        sa.Column("result", _LONG_TEXT, nullable=True, comment="JSON"),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "effect_key"),
    )
    op.create_index("fencepost_effects_age", "fencepost_effects", ["created_at_ms"], unique=False)


def _outbox() -> None:
    op.create_table(
        "fencepost_outbox",
        sa.Column("job_id", _key(200), nullable=False),
        sa.Column("namespace", _key(64), nullable=False),
        sa.Column("spec", _LONG_TEXT, nullable=False, comment="JSON: what enqueue sends"),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("published_at_ms", sa.BigInteger(), nullable=True, comment="when Redis had it; empty until then"),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "answer", _key(255), nullable=True, comment="what enqueue said, and of which job: QUEUED, DUPLICATE 0198…"
        ),
        sa.Column("problem", sa.Text(), nullable=True, comment="why the last try failed"),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_index(
        "fencepost_outbox_open", "fencepost_outbox", ["namespace", "published_at_ms", "created_at_ms"], unique=False
    )


def _events() -> None:
    op.create_table(
        "fencepost_events",
        sa.Column("namespace", _key(64), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False, comment="partition"),
        sa.Column("epoch", sa.Integer(), nullable=False, comment="1, and one more after each rewind of Redis"),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="sequence number within the partition"),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("name", _key(40), nullable=False),
        sa.Column("job_id", _key(200), nullable=False),
        sa.Column("kind", _key(512), nullable=False),
        sa.Column("resource", _key(512), nullable=False),
        sa.Column("worker", _key(200), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("token", sa.BigInteger(), nullable=True),
        sa.Column("nonce", _key(64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "part", "seq", "at_ms", "job_id", "nonce"),
    )
    op.create_index("fencepost_events_age", "fencepost_events", ["at_ms"], unique=False)
    op.create_index("fencepost_events_job", "fencepost_events", ["namespace", "job_id"], unique=False)


def _jobs() -> None:
    op.create_table(
        "fencepost_jobs",
        sa.Column("namespace", _key(64), nullable=False),
        sa.Column("job_id", _key(200), nullable=False),
        sa.Column("part", sa.Integer(), server_default="0", nullable=False),
        sa.Column("kind", _key(512), nullable=False),
        sa.Column("queue", _key(100), server_default="", nullable=False),
        sa.Column("resource", _key(512), server_default="", nullable=False),
        sa.Column("state", _key(20), nullable=False, comment="as in Redis; 'accepted' until Redis told of it"),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), server_default="1", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("token", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("nonce", _key(64), server_default="", nullable=False),
        sa.Column("worker", _key(200), server_default="", nullable=False),
        sa.Column("durable", sa.Boolean(), nullable=False),
        sa.Column("spec", _LONG_TEXT, nullable=True, comment="JSON: what enqueue sends; of durable jobs only"),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "seq", sa.BigInteger(), server_default="0", nullable=False, comment="of the last event that moved it"
        ),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("finished_at_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("namespace", "job_id"),
    )
    op.create_index(
        "fencepost_jobs_open", "fencepost_jobs", ["state", "durable", "namespace", "created_at_ms"], unique=False
    )


def _cursors() -> None:
    op.create_table(
        "fencepost_cursors",
        sa.Column("namespace", _key(64), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("incarnation", _key(64), nullable=False, comment="of the partition, as Redis has it in meta"),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="of the last entry that was copied in this epoch"),
        sa.Column(
            "high", sa.BigInteger(), server_default="0", nullable=False, comment="the highest number of any epoch"
        ),
        sa.Column("fingerprint", _key(64), nullable=False, comment="of that entry: another one there means a rewind"),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("copied", sa.BigInteger(), server_default="0", nullable=False, comment="events, since the start"),
        sa.Column(
            "lost",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="events that were gone before they were copied",
        ),
        sa.Column(
            "pruned",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="events that were deleted for their age",
        ),
        sa.Column("rewinds", sa.Integer(), server_default="0", nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "part"),
    )


def _marks() -> None:
    op.create_table(
        "fencepost_marks",
        sa.Column("namespace", _key(64), nullable=False),
        sa.Column("part", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("why", _key(20), nullable=False, comment="before, lost, rewind or pruned: why numbers do not go on"),
        sa.Column("first_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(
            "last_seq", sa.BigInteger(), nullable=False, comment="of a rewind: the last number shared with older epochs"
        ),
        sa.Column(
            "parent", sa.Integer(), nullable=True, comment="of a rewind: the epoch in which that last number was told"
        ),
        sa.Column("at_ms", sa.BigInteger(), nullable=False, comment="when it was found, by the clock of the host"),
        sa.PrimaryKeyConstraint("namespace", "part", "epoch", "why", "first_seq"),
    )
