"""The Lua scripts, one file a verb, and their loader.

A script is sent by the hash of its own text (EVALSHA, then EVAL), never replaced in place: during a rolling
deploy old and new workers each run the text they shipped with.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_INCLUDE = re.compile(r"--- @include (\w+)\s*")
_ERROR_LINE = re.compile(r"(?:user_script|script|@[\w.]*):(\d+)")


@dataclass(frozen=True, slots=True)
class Script:
    """A script as it is sent: includes expanded, hash of the text, and where each line came from."""

    name: str
    text: str
    sha: str
    origin: tuple[tuple[str, int], ...]

    def where(self, message: str) -> str:
        """Return ``claim.lua:15`` for a server's error message, or the file name where it names no line."""
        match = _ERROR_LINE.search(message)
        if match is None or not 1 <= int(match.group(1)) <= len(self.origin):
            return f"{self.name}.lua"
        name, line = self.origin[int(match.group(1)) - 1]
        return f"{name}.lua:{line}"


def source(name: str) -> str:
    """Return the text of one file of this folder, without its includes."""
    return resources.files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def names() -> tuple[str, ...]:
    """Return the names of all verbs: the files of this folder that are no includes."""
    found = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(name[:-4] for name in found if name.endswith(".lua") and not name.startswith("_")))


@cache
def load(name: str) -> Script:
    """Return the script of a verb, ready to send. Raises FileNotFoundError for a name that is no script."""
    lines: list[str] = []
    origin: list[tuple[str, int]] = []
    for number, line in enumerate(source(name).splitlines(), 1):
        include = _INCLUDE.fullmatch(line)
        if include is None:
            lines.append(line)
            origin.append((name, number))
            continue
        for inner_number, inner in enumerate(source(include.group(1)).splitlines(), 1):
            lines.append(inner)
            origin.append((include.group(1), inner_number))
    text = "\n".join(lines) + "\n"
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), tuple(origin))
