"""Writing many rows at once, in the way each database does it best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ARRAY, Connection, CursorResult, Table, bindparam, func, select, true
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from fencepost.sql.tables import jobs

__all__ = ["copy_rows", "insert_ignoring", "insert_rows", "rows_by_id", "upsert_rows"]


def insert_ignoring(connection: Connection, table: Table) -> Any:
    """An INSERT that leaves rows alone whose key is there."""
    made = postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
    return made.on_conflict_do_nothing()


def copy_rows(connection: Connection, table: Table, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows that are known to be new. On PostgreSQL by COPY, which costs a third of an INSERT; a row whose key
    is there raises IntegrityError then. Elsewhere as insert_rows."""
    if not rows:
        return
    if connection.dialect.driver != "psycopg":
        return insert_rows(connection, table, names, rows)
    driver: Any = connection.connection
    try:
        with (
            driver.cursor() as cursor,
            cursor.copy(f"COPY {table.name} ({', '.join(names)}) FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)
    except connection.dialect.loaded_dbapi.Error as error:  # as SQLAlchemy would have raised it
        kind = IntegrityError if isinstance(error, connection.dialect.loaded_dbapi.IntegrityError) else DBAPIError
        raise kind(f"COPY {table.name}", None, error) from error


def insert_rows(connection: Connection, table: Table, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, given as tuples in the order of names; a row whose key is there is left alone."""
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        source, values = _arrays(table, names, rows)
        connection.execute(postgresql.insert(table).from_select(names, source).on_conflict_do_nothing(), values)
    else:
        statement = sqlite.insert(table).values({name: bindparam(name) for name in names}).on_conflict_do_nothing()
        connection.execute(statement, [dict(zip(names, row, strict=True)) for row in rows])


def upsert_rows(
    connection: Connection, table: Table, names: Sequence[str], rows: Sequence[tuple[Any, ...]], changed: Sequence[str]
) -> None:
    """Insert rows, or set the columns `changed` of those whose primary key is there."""
    if not rows:
        return
    keys = [column.name for column in table.primary_key]
    if connection.dialect.name == "postgresql":
        source, values = _arrays(table, names, rows)
        made: Any = postgresql.insert(table).from_select(names, source)
        newer = {name: made.excluded[name] for name in changed}
        statement = made.on_conflict_do_update(index_elements=keys, set_=newer)
        connection.execute(statement, values)
    else:
        plain = sqlite.insert(table).values({name: bindparam(name) for name in names})
        statement = plain.on_conflict_do_update(
            index_elements=keys, set_={name: plain.excluded[name] for name in changed}
        )
        connection.execute(statement, [dict(zip(names, row, strict=True)) for row in rows])


def rows_by_id(
    connection: Connection, namespace: str, job_ids: Sequence[str], columns: Sequence[Any], *, lock: bool = False
) -> CursorResult[Any]:
    """Columns of some jobs. PostgreSQL looks each one up by its key: with `IN` and no statistics yet, as in a young
    table, its planner reads the whole namespace."""
    mine = select(*columns).where(jobs.c.namespace == namespace)
    if connection.dialect.name != "postgresql":
        return connection.execute(mine.where(jobs.c.job_id.in_(job_ids)))
    wanted = func.unnest(bindparam("ids", list(job_ids), type_=ARRAY(jobs.c.job_id.type)))
    given = wanted.table_valued("id", name="given").render_derived()
    one = mine.where(jobs.c.job_id == given.c.id)
    one = one.with_for_update() if lock else one.offset(0)  # either keeps the planner from turning it into a join
    found = one.lateral("found")
    return connection.execute(select(*found.c).select_from(given.join(found, true())))


_PREFIX: Final = "a_"


def _arrays(table: Table, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> tuple[Any, dict[str, Any]]:
    """SELECT … FROM unnest(one array a column): one statement, one parse, however many rows there are."""
    columns = list(zip(*rows, strict=True))
    values = {_PREFIX + name: list(column) for name, column in zip(names, columns, strict=True)}
    arrays = [bindparam(_PREFIX + name, type_=ARRAY(table.c[name].type)) for name in names]
    source = func.unnest(*arrays).table_valued(*names, name="given").render_derived()
    return select(*(source.c[name] for name in names)), values
