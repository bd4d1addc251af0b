"""How Alembic runs the scripts: on the connection and inside the transaction of `fencepost.sql.upgrade`."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="fencepost_version",
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
