"""`sql upgrade | ddl | prune`: the tables of Fencepost in SQL databases."""

from __future__ import annotations

import click
import msgspec

from fencepost.cli import output
from fencepost.clock import parse_duration_s
from fencepost.keys import check_namespace
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
@click.argument("url", metavar="URL")
@click.option("--older-than", metavar="TIME", required=True, help="What nobody has written for so long, such as 30d.")
@click.option("--retention", metavar="TIME", default="7d", show_default=True, help="The longest of any kind's jobs.")
@click.option("--namespace", metavar="NAME", help="Only of this namespace. [all]")
@_json
def prune(url: str, older_than: str, retention: str, namespace: str | None, as_json: bool) -> int:
    """Delete old effects and fences of the guard. Refuses what a job that comes again could still ask for."""
    older_ms = round(parse_duration_s(older_than, "older_than") * 1000)
    kept_ms = round(parse_duration_s(retention, "retention") * 1000)
    if namespace is not None:
        check_namespace(namespace)
    gone = prune_guard(url, older_ms, retention_ms=kept_ms, namespace=namespace)
    if as_json:
        output.show_json(msgspec.to_builtins(gone._asdict()))
    else:
        output.say(f"{gone.effects} effects and {gone.fences} fences deleted")
    return 0
