"""The command line: `fencepost` and `python -m fencepost`.

Exit codes, the same for every command:
  0  done
  1  refused or failed
  2  wrong usage or configuration
  3  there is no such job
  4  Redis or the SQL database is away
  5  done in part: some of the jobs that were meant were not there or were refused

This module imports next to nothing: the signals of worker and api are looked after from their first moments on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. argv: without the program's name, by default this process's."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["worker"], ["api"]):
        from fencepost.cli import start

        start.guard()
    try:
        import click  # noqa: F401
    except ImportError:
        print("fencepost: the command line needs `pip install 'fencepost[cli]'`. Nothing was done.", file=sys.stderr)
        return 2
    from fencepost.cli.root import run

    return run(arguments)
