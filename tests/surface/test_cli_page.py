"""The page of commands lists every command, every option and its default; no more."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from fencepost import cli
from fencepost.cli.root import root
from tests.surface.test_reference import REFERENCE, first_column, rows, section

COMMON = {"--url", "--namespace", "--app", "--json"}
ON_THEIR_OWN = {"fencepost demo", "fencepost bench"} | {f"fencepost sql {name}" for name in ("upgrade", "ddl")}


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command below a group with its full name."""
    context = click.Context(group)
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {part}")
        else:
            yield f"{name} {part}", command


COMMANDS = dict(commands(root, "fencepost"))


def options(command: click.Command) -> dict[str, click.Option]:
    """The visible options of a command by their long name."""
    found = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return {next(name for name in one.opts if name.startswith("--")): one for one in found}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_listed_with_its_default(name: str):
    listed = {row[0].strip("`"): row[1].strip("`") for row in rows(section("cli.md", f"`{name}`"))}
    wanted = {}
    for option, one in options(COMMANDS[name]).items():
        if option in COMMON and name not in ON_THEIR_OWN:
            continue
        shown = "required" if one.required else one.default
        wanted[option] = "" if one.is_flag or shown is None or "UNSET" in repr(shown).upper() else str(shown)
    assert listed == wanted


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - ON_THEIR_OWN))
def test_each_command_takes_the_common_options(name: str):
    assert options(COMMANDS[name]).keys() >= COMMON
    assert first_column("cli.md", "Common options") == COMMON


def test_no_command_is_listed_that_does_not_exist():
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    assert sorted(line[4:-1] for line in page.splitlines() if line.startswith("## `")) == sorted(COMMANDS)


def test_the_exit_codes_are_those_of_the_program():
    listed = {row[0]: row[1].split(":")[0] for row in rows(section("cli.md", "Exit codes"))}
    told = [line.strip().partition("  ") for line in (cli.__doc__ or "").splitlines() if line.startswith("  ")]
    assert listed == {code: text.split(":")[0] for code, _, text in told}
