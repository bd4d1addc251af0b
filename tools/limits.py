"""Size limits, without exemptions: a module has at most 400 lines, a function 60, a script 200.

python tools/limits.py [FOLDER ...]     exits 1 and names each file or function that is too long
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES = 400
FUNCTION_LINES = 60
SCRIPT_LINES = 200
FOLDERS = ("src", "tests", "tools", "bench")
ROOT = Path(__file__).resolve().parents[1]


def long_functions(source: str, name: str) -> Iterator[str]:
    """Yield a sentence for each function, nested ones too, that is longer than the limit; decorators do not count."""
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines, the limit is {FUNCTION_LINES}"


def too_long(folder: Path) -> Iterator[str]:
    """Yield a sentence for each module, function and script below the folder that is longer than its limit."""
    for path in sorted(folder.rglob("*")):
        limit = {".py": MODULE_LINES, ".lua": SCRIPT_LINES, ".c": SCRIPT_LINES}.get(path.suffix)
        if limit is None or not path.is_file():
            continue
        source = path.read_text(encoding="utf-8")
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
        lines = len(source.splitlines())
        if lines > limit:
            yield f"{name}: {lines} lines, the limit is {limit}; split it by duty"
        if path.suffix == ".py":
            yield from long_functions(source, name)


def main(arguments: list[str]) -> int:
    folders = [Path(name).resolve() for name in arguments] or [ROOT / name for name in FOLDERS]
    problems = [problem for folder in folders for problem in too_long(folder)]
    print("\n".join(problems) or f"sizes: all within {MODULE_LINES} / {FUNCTION_LINES} / {SCRIPT_LINES} lines")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
