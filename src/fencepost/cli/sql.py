"""`sql upgrade | ddl | prune`: the tables of Fencepost in SQL databases."""

from __future__ import annotations

import os

import click

from fencepost.cli import output
from fencepost.cli.session import Session, connected
from fencepost.clock import parse_duration_s
from fencepost.sql.prune import prune as prune_guard
from fencepost.sql.tables import PARTS
from fencepost.sql.upgrade import DIALECTS, ddl
from fencepost.sql.upgrade import upgrade as upgrade_tables

__all__ = ["sql"]

_json = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON value.")


@click.group
def sql() -> None:
    """The tables of Fencepost in SQL databases: guard, outbox and ledger. URL is one of SQLAlchemy's, such as
    postgresql+psycopg://user@host/shop or sqlite:///shop.sqlite."""


@sql.command
@click.argument("url", metavar="URL")
@_json
def upgrade(url: str, as_json: bool) -> int:
    """Make the tables, or bring them up to date. Says so and changes nothing where they are."""
    done = upgrade_tables(url)
    if as_json:
        output.show_json({"before": done.before, "after": done.after, "made": done.made})
    elif done.before == done.after:
        output.say(f"at revision {done.after}: nothing to do")
    else:
        made = f"made {', '.join(done.made)}" if done.made else "all tables were there"
        output.say(f"{f'from revision {done.before} ' if done.before else ''}to revision {done.after}: {made}")
    return 0


@sql.command("ddl")
@click.option("--dialect", type=click.Choice(DIALECTS), default="postgresql", show_default=True, help="Of SQL.")
@click.option("--part", type=click.Choice(list(PARTS)), multiple=True, help="Only this part; may be repeated.")
@_json
def ddl_(dialect: str, part: tuple[str, ...], as_json: bool) -> int:
    """Print the statements that make the tables, for migrations of one's own."""
    text = ddl(dialect, part or tuple(PARTS))
    if as_json:
        output.show_json({"dialect": dialect, "parts": list(part or PARTS), "sql": text})
    else:
        output.say(text.rstrip("\n"))
    return 0


@sql.command
@click.argument("sql_url", metavar="URL")
@click.option("--older-than", metavar="TIME", required=True, help="What nobody has written for so long, such as 30d.")
@click.option("--retention", metavar="TIME", help="The longest of any kind's jobs, if more than 7d or --app says.")
@connected
def prune(session: Session, sql_url: str, older_than: str, retention: str | None) -> int:
    """Delete old effects of jobs that Redis has no more, and old fences. What a job could still ask for stays.

    Asks the Redis and looks at the namespace that --url, --app and --namespace mean; while Redis is away nothing goes.
    """
    older_ms = round(parse_duration_s(older_than, "older_than") * 1000)
    said_s = parse_duration_s(retention, "retention") if retention else 0.0
    app = session.app
    books = (app.ledger_url, app.outbox_url, *(os.environ.get(f"FENCEPOST_{n}_URL") for n in ("LEDGER", "OUTBOX")))
    gone = prune_guard(
        sql_url,
        older_ms,
        namespace=app.link.store.keys.namespace,
        kept=session.present,
        retention_ms=round(max(said_s, session.longest_retention_s) * 1000),
        others=[url for url in books if url],
    )
    if session.as_json:
        output.show_json(gone._asdict())
    else:
        kept = f"; {gone.kept} old effects stay, their jobs may run again" if gone.kept else ""
        output.say(f"{gone.effects} effects and {gone.fences} fences deleted{kept}")
    return 0
