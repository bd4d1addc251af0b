"""A Python session for the blocks of one page: reads one request a line, runs it, answers what it printed.

Run as a script by pages.py. A block may use `await`; the names it makes are there for the next one. Errors name the
line of the page.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
import traceback
from typing import Any


def run(runner: asyncio.Runner, code: str, page: str, line: int, names: dict[str, Any]) -> str:
    """Run a block and return what it printed. One without `await` runs where no event loop does, as a script would."""
    text = "\n" * (line - 1) + code
    compiled = compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value = eval(compiled, names)
        if inspect.iscoroutine(value):
            runner.run(value)
    return printed.getvalue()


def main() -> None:
    names: dict[str, Any] = {"__name__": "__page__"}
    answers = sys.stdout
    with asyncio.Runner() as runner:
        for request in sys.stdin:
            try:
                answer = {"printed": run(runner, **json.loads(request), names=names)}
            except BaseException:  # noqa: BLE001  whatever it is, the page is wrong and the test says so
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
