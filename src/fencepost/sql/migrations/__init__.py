"""The Alembic scripts that ship with the package. `fencepost.sql.upgrade` runs them; nobody needs an alembic.ini."""
