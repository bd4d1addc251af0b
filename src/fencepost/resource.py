"""Names made from a job's arguments: what a job must have for itself, and what makes two jobs the same.

`ResourceTemplate("invoice:order:{order_id}")` is parsed once, checked against the handler's parameters when the handler
is registered, and rendered at each enqueue. `ResourceRule` adds what happens when somebody else has the resource.
"""

from __future__ import annotations

import enum
import string
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from .clock import parse_duration_s
from .errors import ArgumentsRefused, ConfigurationError

__all__ = ["NAME_LIMIT", "VALUE_LIMIT", "ResourceRule", "ResourceTemplate"]

VALUE_LIMIT: Final = 200
"""The most characters one argument may put into a name."""
NAME_LIMIT: Final = 512
"""The most characters a whole name may have: it becomes part of a Redis key."""

_Step = tuple[bool, str | int]  # (is an attribute, name or index)


class ResourceTemplate:
    """A name with fields: `{order_id}`, `{order.id}`, `{lines[0]}`; no conversions or formats.

    A dot reads an attribute, or the entry of a dict; so a name is the same whether the argument is a dict or a model.
    Values are written as str() of them, enums as their value, text in Unicode form NFC: 1 and "1" give the same name.
    With more than one field, `%` and the first character of the text between fields are written as %XX in values, so
    that two different sets of values never give one name.
    Raises ConfigurationError if the text cannot be used. setting: what to call it in errors.
    """

    __slots__ = ("_escaped", "_fields", "_literals", "_setting", "text")

    def __init__(self, text: str, setting: str = "resource") -> None:
        self.text, self._setting = text, setting
        self._literals: list[str] = []
        self._fields: list[tuple[str, str, tuple[_Step, ...]]] = []
        self._parse()
        inner = self._literals[1:-1] if len(self._fields) > 1 else []
        self._escaped = frozenset(literal[0] for literal in inner) | {"%"} if inner else frozenset()

    def __repr__(self) -> str:
        return f"ResourceTemplate({self.text!r})"

    @property
    def field_names(self) -> tuple[str, ...]:
        """The parameters the name is made of, each once, in order."""
        return tuple(dict.fromkeys(name for _, name, _ in self._fields))

    @property
    def paths(self) -> tuple[str, ...]:
        """The fields as they are written, each once, in order: `order.id`."""
        return tuple(dict.fromkeys(path for path, _, _ in self._fields))

    def check_names(self, parameters: Iterable[str], kind: str) -> None:
        """Raise ConfigurationError if a field names no parameter of the handler of `kind`."""
        known = tuple(parameters)
        for name in self.field_names:
            if name not in known:
                raise self._wrong(
                    f"{{{name}}} in {self.text!r} is no parameter of {kind}",
                    f"Its parameters are: {', '.join(known) or 'none'}.",
                )

    def render(self, arguments: Mapping[str, Any], kind: str = "") -> str:
        """Return the name for these arguments, at most NAME_LIMIT characters.

        Raises ArgumentsRefused, naming the field, if a value is missing, None, empty, longer than VALUE_LIMIT, or has
        whitespace, braces or characters that do not print.
        """
        parts = [self._literals[0]]
        for (path, name, steps), literal in zip(self._fields, self._literals[1:], strict=True):
            try:
                value = arguments[name]
                for step in steps:
                    value = _follow(value, step)
            except (LookupError, AttributeError, TypeError) as error:
                problem = f"the {self._setting} {self.text!r} needs it and it is missing ({type(error).__name__})"
                raise ArgumentsRefused(kind or self._setting, path, problem) from error
            parts += (self._value_text(value, path, kind), literal)
        rendered = "".join(parts)
        if len(rendered) > NAME_LIMIT:
            problem = f"the {self._setting} {self.text!r} becomes {len(rendered)} characters, {NAME_LIMIT} are allowed"
            raise ArgumentsRefused(kind or self._setting, ", ".join(self.field_names), problem)
        return rendered

    def _value_text(self, value: Any, path: str, kind: str) -> str:
        if type(value) is int:
            value_text = str(value) if -(10**40) < value < 10**40 else "x" * (VALUE_LIMIT + 1)
        elif value is None or isinstance(value, bytes | bytearray | memoryview | list | tuple | dict | set | frozenset):
            raise self._refused(kind, path, f"a {type(value).__name__} cannot be part of a name")
        else:
            plain = value.value if isinstance(value, enum.Enum) else value
            value_text = unicodedata.normalize("NFC", plain if type(plain) is str else str(plain))
        if not value_text:
            raise self._refused(kind, path, "an empty value would give every such job one and the same name")
        if len(value_text) > VALUE_LIMIT:
            raise self._refused(kind, path, f"the value is longer than {VALUE_LIMIT} characters")
        if bad := _first_bad(value_text):
            raise self._refused(kind, path, f"the character {bad!a} cannot be part of a name")
        if self._escaped and not self._escaped.isdisjoint(value_text):
            value_text = "".join(_percent(char) if char in self._escaped else char for char in value_text)
        return value_text

    def _refused(self, kind: str, path: str, problem: str) -> ArgumentsRefused:
        return ArgumentsRefused(kind or self._setting, path, f"{problem} (used in the {self._setting} {self.text!r})")

    def _wrong(self, problem: str, hint: str) -> ConfigurationError:
        return ConfigurationError(self._setting, problem, hint)

    def _parse(self) -> None:
        hint = 'Write text with fields of the handler, such as "invoice:order:{order_id}".'
        if not _is_text(self.text):
            raise self._wrong(f"a non-empty text is needed, got {self.text!r}", hint)
        try:
            pieces = list(string.Formatter().parse(self.text))
        except ValueError as error:
            raise self._wrong(f"{self.text!r} cannot be read: {error}", hint) from error
        self._literals.append("")
        for literal, path, spec, conversion in pieces:
            self._literals[-1] += literal
            if path is None:
                continue
            if spec or conversion:
                raise self._wrong(f"{{{path}}} in {self.text!r} has a conversion or a format", "Write {name} only.")
            if self._fields and not self._literals[-1]:
                raise self._wrong(
                    f"two fields of {self.text!r} touch", "Put a text between them: 1 and 23 would read as 12 and 3."
                )
            self._fields.append((path, *self._split(path, hint)))
            self._literals.append("")
        for literal in self._literals:
            if bad := _first_bad(literal):
                raise self._wrong(f"the character {bad!a} in {self.text!r} cannot be part of a name", hint)
        if len("".join(self._literals)) > NAME_LIMIT:
            raise self._wrong(f"it is longer than {NAME_LIMIT} characters", hint)

    def _split(self, path: str, hint: str) -> tuple[str, tuple[_Step, ...]]:
        """Return the parameter and the steps below it. Private names stay private: no `{order.__class__}`."""
        if not path or path[0] in ".[" or path[0].isdigit():
            raise self._wrong(f"a field of {self.text!r} has no name", hint)
        steps: list[_Step] = []
        rest = path
        name = rest[: min((i for i in (rest.find("."), rest.find("[")) if i >= 0), default=len(rest))]
        rest = rest[len(name) :]
        while rest:
            if rest[0] == ".":
                end = min((i for i in (rest.find(".", 1), rest.find("[", 1)) if i >= 0), default=len(rest))
                step: str = rest[1:end]
                if not step.isidentifier() or step.startswith("_"):
                    raise self._wrong(f"{{{path}}} in {self.text!r}: {step!r} cannot be read", hint)
                steps.append((True, step))
            else:
                end = rest.find("]") + 1
                step = rest[1 : end - 1]
                if rest[0] != "[" or not end or not step:
                    raise self._wrong(f"{{{path}}} in {self.text!r} has a bracket too few or too many", hint)
                steps.append((False, int(step) if step.isdecimal() else step))
            rest = rest[end:]
        if not name.isidentifier():
            raise self._wrong(f"{name!r} in {self.text!r} is no parameter name", hint)
        return name, tuple(steps)


@dataclass(frozen=True, slots=True)
class ResourceRule:
    """What a kind of job must have for itself while it runs.

    limit: how many runs may hold the resource together, 1 to 10 000. on_busy: "wait" (park in its line) | "skip" (end
    as cancelled) | "later:<length of time>" (come back, no attempt charged) | "fail". ordered: a job that is
    retried or handed back keeps its place before those that wait; only with "wait". when_redis_away: "fail_closed"
    (a run whose lease cannot be renewed in time is stopped) | "fail_open" (it goes on while Redis cannot be asked; what
    it then writes is checked against its token all the same).
    Raises ConfigurationError.
    """

    template: ResourceTemplate | str
    limit: int = 1
    on_busy: str = "wait"
    ordered: bool = False
    when_redis_away: Literal["fail_closed", "fail_open"] = "fail_closed"
    later_ms: int = field(default=0, init=False)
    """Milliseconds until the next try; 0 unless on_busy is "later"."""

    def __post_init__(self) -> None:
        if isinstance(self.template, str):
            object.__setattr__(self, "template", ResourceTemplate(self.template))
        elif not isinstance(self.template, ResourceTemplate):
            raise ConfigurationError("resource", f"{self.template!r} is no template", 'Write resource="order:{id}".')
        if type(self.limit) is not int or not 1 <= self.limit <= 10_000:
            raise ConfigurationError("limit", f"{self.limit!r} is not a whole number from 1 to 10000", "1 = exclusive.")
        self._check_on_busy()
        if self.ordered and self.on_busy != "wait":
            raise ConfigurationError(
                "ordered", f"a job with on_busy={self.on_busy!r} has no place to keep", 'Use it with on_busy="wait".'
            )
        if self.when_redis_away not in ("fail_closed", "fail_open"):
            raise ConfigurationError(
                "when_redis_away", f"{self.when_redis_away!r} is unknown", 'Write "fail_closed" or "fail_open".'
            )

    def _check_on_busy(self) -> None:
        hint = 'Write "wait", "skip", "fail", or "later:" with a length of time, such as "later:30s".'
        if not _is_text(self.on_busy):
            raise ConfigurationError("on_busy", f"{self.on_busy!r} is unknown", hint)
        word, colon, length = self.on_busy.partition(":")
        if word == "later" and colon:
            later_s = parse_duration_s(length, "on_busy")
            if later_s < 0.001:
                raise ConfigurationError("on_busy", f"{self.on_busy!r} would try again without a pause", hint)
            # One spelling on the wire: seconds, as the scripts read them.
            object.__setattr__(self, "on_busy", f"later:{later_s:.3f}".rstrip("0").rstrip("."))
            object.__setattr__(self, "later_ms", round(later_s * 1_000))
        elif self.on_busy not in ("wait", "skip", "fail"):
            raise ConfigurationError("on_busy", f"{self.on_busy!r} is unknown", hint)

    def render(self, arguments: Mapping[str, Any], kind: str = "") -> str:
        """Return the resource's name for these arguments; see ResourceTemplate.render."""
        assert isinstance(self.template, ResourceTemplate)
        return self.template.render(arguments, kind)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _first_bad(text: str) -> str:
    if text.isascii() and text.isprintable() and not _UNSAFE.intersection(text):
        return ""
    return next((char for char in text if char in _UNSAFE or not char.isprintable()), "")


_UNSAFE: Final = frozenset("{} ")


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def _follow(value: Any, step: _Step) -> Any:
    is_attribute, key = step
    if is_attribute and not isinstance(value, Mapping):
        return getattr(value, str(key))
    return value[key]
