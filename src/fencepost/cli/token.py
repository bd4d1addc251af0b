"""`token make | list | revoke`: who may call the HTTP service."""

from __future__ import annotations

from typing import Any

import click

from fencepost import credentials
from fencepost.cli import output
from fencepost.cli.session import Session, connected
from fencepost.clock import parse_duration_s
from fencepost.credentials import Credential
from fencepost.operate.acts import local_actor

__all__ = ["token"]


@click.group
def token() -> None:
    """Credentials of the HTTP service. A token is shown once, when it is made; only its hash is kept."""


@token.command
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    metavar="SCOPE",
    multiple=True,
    required=True,
    help="enqueue:KIND, enqueue:*, read, operate or work; repeatable.",
)
@click.option("--expires", metavar="TIME", help="How long it is good, such as 12h, 30d. [for ever]")
@click.option("--reason", metavar="TEXT", default="", help="What for; kept with the event.")
@connected
def make(session: Session, name: str, scopes: tuple[str, ...], expires: str | None, reason: str) -> int:
    """Make a credential and print its token, this once.

    NAME stands as the actor of what is done with it.
    """
    expires_s = None if expires is None else parse_duration_s(expires, "expires")
    plan = credentials.make(
        session.app.link.store, name, scopes, actor=local_actor("cli"), expires_s=expires_s, reason=reason
    )
    made = session.run(plan)
    if session.as_json:
        output.show_json({**_told(made.credential), "token": made.token})
        return 0
    click.echo(
        f"credential {made.credential.id}: {made.credential.name}, {' '.join(made.credential.scopes)}, "
        f"expires {output.clock(made.credential.expires_at) or 'never'}, for the namespace {session.app.namespace}. "
        "The token is shown this once:", err=True,
    )  # fmt: skip
    output.say(made.token)
    return 0


@token.command("list")
@connected
def list_(session: Session) -> int:
    """List the credentials, newest first. Their tokens cannot be shown."""
    now_ms, found = session.run(credentials.listed(session.app.link.store))
    if session.as_json:
        items = [{**_told(one), "expired": one.expired(now_ms)} for one in found]
        output.show_json({"items": items, "cursor": None})
        return 0
    rows = [
        (one.id, one.name, " ".join(one.scopes), output.clock(one.created_at), _until(one, now_ms)) for one in found
    ]
    output.table(("id", "name", "scopes", "made", "expires"), rows, "no credentials")
    return 0


@token.command
@click.argument("credential_id", metavar="ID")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept with the event.")
@connected
def revoke(session: Session, credential_id: str, reason: str) -> int:
    """Revoke a credential. Who shows its token is refused within two seconds.

    ID is the part of the token between its underscores.
    """
    plan = credentials.revoke(session.app.link.store, credential_id, reason=reason, actor=local_actor("cli"))
    found = session.run(plan)
    if session.as_json:
        output.show_json({"id": credential_id, "revoked": found is not None, "name": found.name if found else None})
    elif found is None:
        output.say(f"there is no credential {credential_id} (any more); nothing was changed")
    else:
        output.say(f"revoked {credential_id} ({found.name}); it counts within two seconds")
    return 0 if found is not None else 1


def _told(one: Credential) -> dict[str, Any]:
    """What may be shown: all but the hash."""
    about = {"id": one.id, "name": one.name, "scopes": list(one.scopes)}
    return {**about, "created_at": one.created_at, "expires_at": one.expires_at}


def _until(one: Credential, now_ms: int) -> str:
    if one.expires_at is None:
        return "never"
    return f"{output.clock(one.expires_at)}{' (over)' if one.expired(now_ms) else ''}"
