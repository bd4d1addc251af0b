"""The public surface of the package: the names of `fencepost.__all__`, with their signatures.

python tools/surface.py          prints it, one name a line, sorted; compare it before and after a change
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator


def signature(value: object) -> str:
    """Return how a public thing is called, or what it is if it cannot be called."""
    if not callable(value):
        return f": {type(value).__name__}"
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def members(owner: type) -> Iterator[str]:
    """Yield the public attributes that a class of ours defines itself."""
    for name, value in sorted(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        yield f"{name}{signature(value) if inspect.isroutine(value) else ''}"


def surface(package: str = "fencepost") -> list[str]:
    """Return the surface as lines. Raises AttributeError for a name in `__all__` that does not exist."""
    module = importlib.import_module(package)
    lines = []
    for name in sorted(getattr(module, "__all__", ())):
        value = getattr(module, name)
        lines.append(f"{name}{signature(value)}")
        if isinstance(value, type):
            lines.extend(f"{name}.{member}" for member in members(value))
    return lines


if __name__ == "__main__":
    print("\n".join(surface(*sys.argv[1:2])))
