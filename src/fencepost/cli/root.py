"""The group of all commands. Each is imported when it is called, so that a short command starts fast."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

from fencepost.errors import (
    ConfigurationError,
    FencepostError,
    JobNotFound,
    LedgerUnavailable,
    RedisUnavailable,
    UnknownKind,
)
from fencepost.redact import redact_text

__all__ = ["run"]

EXTRA_HINT: Final = {"demo": "demo", "bench": "all", "ledger": "sql", "relay": "sql", "sql": "sql", "api": "server"}


class _Entry(NamedTuple):
    module: str
    attribute: str
    help: str


COMMANDS: Final[dict[str, _Entry]] = {
    "worker": _Entry("fencepost.cli.worker", "worker", "Run the jobs of an application."),
    "enqueue": _Entry("fencepost.cli.enqueue", "enqueue", "Enqueue a job."),
    "job": _Entry("fencepost.cli.jobs", "job", "Show a job, and its history."),
    "jobs": _Entry("fencepost.cli.jobs", "jobs", "List the jobs in a state."),
    "cancel": _Entry("fencepost.cli.jobs", "cancel", "Cancel jobs."),
    "pause": _Entry("fencepost.cli.acts", "pause", "Hand out nothing more from a queue."),
    "resume": _Entry("fencepost.cli.acts", "resume", "Let a paused queue go on."),
    "revoke": _Entry("fencepost.cli.acts", "revoke", "Take a run or a lease from its holder."),
    "dead": _Entry("fencepost.cli.dead", "dead", "List, show, requeue or purge dead letters."),
    "locks": _Entry("fencepost.cli.overview", "locks", "Show who holds which resource and who waits."),
    "workers": _Entry("fencepost.cli.overview", "workers", "List the workers of the last hour."),
    "stats": _Entry("fencepost.cli.overview", "stats", "Show queues, sizes and counters."),
    "heal": _Entry("fencepost.cli.upkeep", "heal", "Find and mend half states."),
    "api": _Entry("fencepost.cli.api", "api", "Serve the application over HTTP."),
    "token": _Entry("fencepost.cli.token", "token", "Make, list or revoke credentials of the HTTP service."),
    "ledger": _Entry("fencepost.cli.ledger", "ledger", "Keep, verify, export, prune or reconcile the ledger."),
    "relay": _Entry("fencepost.cli.relay", "relay", "Publish the jobs of an outbox in SQL."),
    "sql": _Entry("fencepost.cli.sql", "sql", "Make or print the SQL tables; delete old rows of the guard."),
    "doctor": _Entry("fencepost.cli.upkeep", "doctor", "Check the server and the settings."),
    "demo": _Entry("fencepost.demo.command", "command", "See orders through while workers are killed and frozen."),
    "bench": _Entry("fencepost.bench.command", "command", "Measure throughput, latency and cost per job."),
}


class _Lazy(click.Group):
    """A group that knows the names and one-line helps of its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            found: Any = getattr(importlib.import_module(entry.module), entry.attribute)
        except ImportError as error:
            if cmd_name not in EXTRA_HINT:
                raise
            raise click.ClickException(
                f"`{cmd_name}` cannot be loaded: {error}. Nothing was done. It needs "
                f"`pip install 'fencepost[{EXTRA_HINT[cmd_name]}]'`."
            ) from error
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        import fencepost

        click.echo(f"fencepost {fencepost.__version__}")
        ctx.exit()


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no such job, 4 Redis or SQL away, 5 in part.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def root() -> None:
    """Background jobs that run under a lease, a heartbeat and a fencing token.

    Every command but demo, bench, sql upgrade and sql ddl takes, after its name, --url, --namespace, --app and --json.
    Without a URL (or FENCEPOST_REDIS_URL) a private server in ./.fencepost (or FENCEPOST_DATA) is started, or the one
    that runs there is used.
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command. Errors are one line on stderr, and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a result in Chinese on an ASCII terminal is no error
    try:
        result = root.main(args=list(arguments), prog_name="fencepost", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _told("stopped.", 130)
    except BrokenPipeError:  # the reader has gone, `| head` for instance
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FencepostError as error:
        return _told(str(error), code_of(error))
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "redis":
            raise
        return _told(f"Redis refused: {error}. Run `fencepost doctor`.", 1)


def code_of(error: FencepostError) -> int:
    """The exit code of an error."""
    if isinstance(error, RedisUnavailable | LedgerUnavailable):
        return 4
    if isinstance(error, JobNotFound):
        return 3
    return 2 if isinstance(error, ConfigurationError | UnknownKind) else 1


def _told(text: str, code: int) -> int:
    lines = [line.strip() for line in redact_text(text).splitlines() if line.strip()]
    click.echo(f"fencepost: {' | '.join(lines)}", err=True)
    return code
