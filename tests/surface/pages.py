"""The pages of the documentation as something that can be run.

What a fenced block says behind its language decides what happens to it:

    python file=shop.py     is written to that file
    python                  runs in the Python session of its page, where `await` may be used
    console                 its lines "$ command" run in the shell of its page; the lines between are what they print
    text output             is what the Python block above it prints

`…` in expected output stands for any text, on a line of its own for any lines. All else (text, lua, sql, …) is only
shown. Each page runs in an empty folder of its own, with the private server of that folder.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")
_END = "--page-command-ended--"
_NOTICE = re.compile(r"bash: (line \d+: +)?\d+ (Killed|Terminated) ")  # the shell's own word on a background job


class Block(NamedTuple):
    """A fenced block. line: of its first line of text, from 1."""

    page: str
    line: int
    language: str
    info: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every Markdown page that belongs to the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    inside: list[str] | None = None
    language = info = indent = ""
    start = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None:
            if fence and not fence["info"]:
                yield Block(str(page.relative_to(ROOT)), start, language, info, "\n".join(inside) + "\n")
                inside = None
            else:
                inside.append(line.removeprefix(indent))
        elif fence:
            language, _, info = fence["info"].partition(" ")
            inside, start, indent = [], number + 1, fence["indent"]
    assert inside is None, f"{page}: the block that starts at line {start} has no end"


def matches(expected: str, printed: str) -> bool:
    """Whether output is what the page shows; see the module docstring for `…`."""
    pattern = ""
    for line in expected.rstrip().splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(map(re.escape, line.rstrip().split("…"))) + r"[ \t]*\n"
    return re.fullmatch(pattern, printed.rstrip() + "\n" if printed.strip() else "") is not None


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Yield (command, output it shows) of a console block. A line that ends with a backslash goes on."""
    command, open_end = "", False
    output: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ ") or open_end:
            if command and not open_end:
                yield command, "\n".join(output)
            command = f"{command}\n{line}" if open_end else line[2:]
            output, open_end = [], line.endswith("\\")
        else:
            assert command, f"{block.where}: output before the first command"
            output.append(line)
    if command:
        yield command, "\n".join(output)


class Reading:
    """Runs the blocks of a page one after another, as a reader would. Ends every process it started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        self._environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment["COLUMNS"] = "100"
        self._python: subprocess.Popen[str] | None = None
        self._shell: subprocess.Popen[str] | None = None
        self.ran = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._python, self._shell):
            if process is not None:
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()
                try:
                    process.wait(5)
                finally:  # the shell's own group: what it left in the background
                    for how in (signal.SIGCONT, signal.SIGKILL):
                        _signal_group(process.pid, how)
                    process.wait()

    def read(self, page: Path) -> None:
        """Run a page. Raises AssertionError naming the line that did not do what it shows."""
        printed: str | None = None
        for block in blocks(page):
            if block.language == "python" and (name := block.info.removeprefix("file=")) != block.info:
                (self._folder / name).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                assert not block.info, f"{block.where}: `{block.info}` is unknown"
                printed = self._run_python(block)
            elif block.language == "text" and block.info == "output":
                assert printed is not None, f"{block.where}: the output of what?"
                assert matches(block.text, printed), f"{block.where} shows\n{block.text}\nbut this came:\n{printed}"
                printed = None
            elif block.language == "console":
                for command, output in commands(block):
                    self._run_command(block, command, output)
            else:
                continue
            self.ran += 1

    def _run_python(self, block: Block) -> str:
        if self._python is None:
            self._python = self._start([sys.executable, str(Path(__file__).with_name("python_session.py"))])
        _write(self._python.stdin, json.dumps({"code": block.text, "page": block.page, "line": block.line}))
        assert self._python.stdout is not None
        answer: dict[str, Any] = json.loads(self._python.stdout.readline() or '{"error": "the session ended"}')
        assert "error" not in answer, f"{block.where}: {answer['error']}"
        return str(answer["printed"])

    def _run_command(self, block: Block, command: str, output: str) -> None:
        if self._shell is None:
            self._shell = self._start(["bash"])
        _write(self._shell.stdin, f"{{ {command}\n}} 2>&1 </dev/null; ended=$?; echo; echo {_END} $ended")
        assert self._shell.stdout is not None
        printed, code = "", ""
        for line in self._shell.stdout:
            if line.startswith(_END):
                code = line.removeprefix(_END).strip()
                break
            if not _NOTICE.match(line):
                printed += line
        where = f"{block.where}: $ {command}"
        wanted = "0"
        if output and (match := re.match(r".*\n?\[exit code (\d+)\]$", output, re.DOTALL)):
            wanted, output = match[1], output.rpartition("[exit code")[0]
        assert code == wanted, f"{where}\nended with {code}, not {wanted}:\n{printed}"
        assert matches(output, printed), f"{where}\nis shown to print\n{output}\nbut this came:\n{printed}"

    def _start(self, arguments: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        )


def _write(pipe: IO[str] | None, line: str) -> None:
    assert pipe is not None
    pipe.write(line + "\n")
    pipe.flush()


def _signal_group(group: int, how: signal.Signals) -> None:
    try:
        os.killpg(group, how)
    except ProcessLookupError:
        return
