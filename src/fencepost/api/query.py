"""Parameters of the query: declared once, read by that declaration, and told to the OpenAPI document by it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from starlette.requests import Request

from fencepost.api.problems import Problem

__all__ = ["CURSOR", "LIMIT", "Parameter", "described", "read"]

_LONGEST: Final = 512
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False}


class Parameter(NamedTuple):
    """One parameter. low, high: of numbers. words: the only ones there are. longest: characters of a text."""

    name: str
    kind: Literal["text", "integer", "number", "flag"]
    description: str
    default: Any = None
    low: float = 0
    high: float = 1_000_000_000
    words: tuple[str, ...] = ()
    longest: int = _LONGEST
    pattern: str = ""

    def schema(self) -> dict[str, Any]:
        """What OpenAPI says of it."""
        if self.kind == "flag":
            found: dict[str, Any] = {"type": "string", "enum": list(_FLAGS)}
        elif self.kind == "text" and self.words:
            found = {"type": "string", "enum": list(self.words)}
        elif self.kind == "text":
            found = {"type": "string", "minLength": 1, "maxLength": self.longest}
            found |= {"pattern": self.pattern} if self.pattern else {}
        else:
            found = {"type": self.kind, "minimum": self.low} | ({} if math.isinf(self.high) else {"maximum": self.high})
        shown = self.default not in (None, False)
        return found | ({"default": self.default} if shown else {})

    def value(self, said: str) -> Any:
        """Open what the caller wrote. Raises Problem 422."""
        if self.kind == "flag":
            if said in _FLAGS:
                return _FLAGS[said]
            raise _refused(self.name, said, "is not 1 or 0")
        if self.kind == "text":
            if self.words and said not in self.words:
                raise _refused(self.name, said, f"is none of {', '.join(self.words)}")
            if not 0 < len(said) <= self.longest:
                raise _refused(self.name, said, f"has not 1 to {self.longest} characters")
            if self.pattern and not re.search(self.pattern, said):
                raise _refused(self.name, said, "is not such a name")
            return said
        number = float(said) if _NUMBER.fullmatch(said) and said.isascii() else math.nan
        if not self.low <= number <= self.high or (self.kind == "integer" and not number.is_integer()):
            what = "a whole number" if self.kind == "integer" else "a number"
            high = "" if math.isinf(self.high) else f" to {self.high:g}"
            raise _refused(self.name, said, f"is not {what} from {self.low:g}{high}")
        return int(number) if self.kind == "integer" else number


LIMIT: Final = Parameter("limit", "integer", "The most entries of this page.", default=50, low=1, high=1_000)
CURSOR: Final = Parameter(
    "cursor", "text", "Go on where the last page ended: its `cursor`, with the same other parameters.", longest=4_000
)


def read(request: Request, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the value of each parameter. Raises Problem 422 for one that is unknown, said twice or out of bounds:
    a filter that was misspelt must not answer with everything."""
    known = {one.name: one for one in parameters}
    found = {one.name: one.default for one in parameters}
    seen: set[str] = set()
    for name, said in request.query_params.multi_items():
        if name not in known:
            there = ", ".join(known) or "none"
            raise _refused(name, said, f"is not known here; there are: {there}")
        if name in seen:
            raise _refused(name, said, "is there twice")
        seen.add(name)
        found[name] = known[name].value(said)
    return found


def described(parameters: Sequence[Parameter]) -> list[dict[str, Any]]:
    """The parameters as the OpenAPI document lists them."""
    return [
        {"name": one.name, "in": "query", "required": False, "description": one.description, "schema": one.schema()}
        for one in parameters
    ]


def _refused(name: str, said: str, why: str) -> Problem:
    text = f"The parameter {name[:60]!a} with {said[:60]!a} {why}. Nothing was changed."
    return Problem(422, "value-refused", "A value cannot be used", text, problem=why)
