"""A handler's keyword arguments as JSON, by name, checked by the very decoder the worker uses.

By name, never by position: a parameter added in the middle cannot shift the values of jobs that are waiting. Only what
the caller passed is stored, so a changed default applies to waiting jobs too; a removed or renamed parameter, or a new
one without default, makes a waiting payload undecodable, which parks the job with its bytes instead of guessing.
"""

from __future__ import annotations

import datetime
import difflib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from fencepost.errors import ArgumentsRefused, ConfigurationError, PayloadUndecodable
from fencepost.redact import redact_text

from .checks import INT_MAX, INT_MIN, Problem, enc_hook, find_change, find_unsafe, is_model

__all__ = ["PAYLOAD_LIMIT", "ArgumentsCodec"]

PAYLOAD_LIMIT: Final = 64 * 1024
"""The most bytes the arguments of one job may take. Larger data belongs into a store, its key into the job."""

_UNSET: Final = msgspec.UNSET
_PLAIN: Final = frozenset({int, str, bool, float, type(None)})
_PATH: Final = re.compile(r" - at `(?:(?P<part>key|tag)` in `)?\$(?P<path>[^`]*)`$")
_FIELD: Final = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>[^`]*)`")


class ArgumentsCodec:
    """Encode and decode the arguments of one handler.

    A first parameter named `run`, or annotated `Run`, is the worker's and not part of the arguments (`takes_run`).
    Annotations: whatever msgspec reads, and pydantic models; an unannotated parameter takes any JSON value.
    Raises ConfigurationError if the signature or an annotation cannot be used.
    """

    def __init__(self, handler: Callable[..., Any], kind: str | None = None) -> None:
        self.kind: str = kind or str(getattr(handler, "__name__", type(handler).__name__))
        parameters = self._parameters(handler)
        self.takes_run = bool(parameters) and _is_run(parameters[0])
        if self.takes_run:
            parameters = parameters[1:]
        self.hidden: tuple[str, ...] = ()
        """Names whose values no error may quote, beside the usual ones."""
        self.names: tuple[str, ...] = tuple(parameter.name for parameter in parameters)
        self.defaults: dict[str, Any] = {p.name: p.default for p in parameters if p.default is not p.empty}
        """The handler's own defaults, for templates that name a parameter the caller left out."""
        self._known = frozenset(self.names)
        self._positional = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        hints = _hints(inspect.unwrap(handler), parameters, self.kind)
        self.signature_text = f"({', '.join(_shown(p) for p in parameters)})"
        try:
            fields: list[Any] = [
                (name, hint, _UNSET) if name in self.defaults else (name, hint) for name, hint in hints.items()
            ]
            self._struct: type[msgspec.Struct] = msgspec.defstruct(
                "Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False
            )
            self._decoder = msgspec.json.Decoder(self._struct, dec_hook=_dec_hook)
            foreign = _foreign_type(self._struct)
        except (TypeError, ValueError, NameError) as error:
            raise ConfigurationError(
                self.kind,
                f"an annotation of {self.signature_text} cannot be used: {error}",
                "Use plain types, dataclasses, msgspec.Struct or pydantic models.",
            ) from error
        if foreign is not None:
            raise ConfigurationError(
                self.kind,
                f"arguments of type {getattr(foreign, '__name__', foreign)} cannot be sent as JSON",
                "Make it a dataclass, a msgspec.Struct or a pydantic model, or pass its id.",
            )
        # The bound methods are the hot path: two calls into C and one loop an enqueue.
        self._encode = msgspec.json.Encoder(enc_hook=enc_hook, decimal_format="string").encode
        self._decode = self._decoder.decode

    def encode(self, arguments: dict[str, Any]) -> bytes:
        """Return the payload: a JSON object by name, of at most PAYLOAD_LIMIT bytes.

        Raises ArgumentsRefused, with the path, for whatever would not reach the handler as it was given.
        """
        try:
            raw = self._encode(arguments)
            decoded = self._decode(raw)
        except Exception as error:  # hooks may raise anything; each is a refusal with its cause
            raise self._refusal(arguments, error) from error
        if len(raw) > PAYLOAD_LIMIT:
            raise ArgumentsRefused(
                self.kind,
                max(arguments, key=lambda name: len(self._encode(arguments[name]))),
                f"the payload has {len(raw)} bytes, {PAYLOAD_LIMIT} are allowed; store the data and pass its key",
            )
        for name, value in arguments.items():
            given = type(value)
            if given not in _PLAIN or given is not type(getattr(decoded, name)):
                self._compare(name, value, getattr(decoded, name))
            elif given is int and not INT_MIN <= value <= INT_MAX:
                self._compare(name, value, value)
        return raw

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name. Defaults are left out; whether all are there is seen by encode."""
        if not args:
            return kwargs
        if len(args) > len(self._positional):
            problem = f"{len(args)} positional arguments given, {self.kind}{self.signature_text} takes fewer"
            raise ArgumentsRefused(self.kind, "", problem)
        by_name = dict(zip(self._positional, args, strict=False))
        if twice := by_name.keys() & kwargs.keys():
            raise ArgumentsRefused(self.kind, min(twice), "it was given twice, by position and by name")
        return {**by_name, **kwargs}

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Return the keyword arguments for the handler; what the payload leaves out is left to its defaults.

        Raises PayloadUndecodable, which trying again cannot help.
        """
        try:
            decoded = self._decode(raw)
        except Exception as error:  # hooks may raise anything; the payload is at fault in every case
            problem = _problem_of(error)
            said = redact_text(problem.text, bytes(raw), self.hidden)
            text = f"`{problem.path}`: {said}" if problem.path else said
            raise PayloadUndecodable(self.kind, text, bytes(raw)) from error
        return {name: value for name in self.names if (value := getattr(decoded, name)) is not _UNSET}

    def accept(self, raw: bytes) -> dict[str, Any]:
        """Return the arguments that a JSON object from outside stands for, as the handler's types. Raises
        ArgumentsRefused, with the path."""
        try:
            decoded = self._decode(raw)
        except Exception as error:  # hooks may raise anything; each is a refusal with its cause
            try:
                given = msgspec.json.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as worse:
                raise ArgumentsRefused(self.kind, "", str(worse)) from worse
            if not isinstance(given, dict):
                raise ArgumentsRefused(self.kind, "", "they are not a JSON object by name") from error
            raise self._refusal(given, error) from error
        return {name: value for name in self.names if (value := getattr(decoded, name)) is not _UNSET}

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments object, with the handler's defaults where JSON can show them."""
        whole = msgspec.json.schema(self._struct, schema_hook=_schema_hook)
        definitions = whole.pop("$defs")
        schema: dict[str, Any] = definitions.pop("Arguments")
        schema["title"] = self.kind
        for field in msgspec.structs.fields(self._struct):
            if field.type is datetime.datetime:  # the codec takes aware ones only, of which msgspec need not know
                schema["properties"][field.name]["format"] = "date-time"
        for name, default in self.defaults.items():
            try:
                schema["properties"][name].setdefault("default", msgspec.to_builtins(default, enc_hook=enc_hook))
            except (TypeError, ValueError):
                continue
        return {**schema, "$defs": definitions} if definitions else schema

    def _compare(self, name: str, given: Any, arrived: Any) -> None:
        problem = find_unsafe(given, name) or find_unsafe(arrived, name) or find_change(given, arrived, name)
        if problem:
            raise ArgumentsRefused(self.kind, problem.path, redact_text(problem.text, {name: given}, self.hidden))

    def _refusal(self, arguments: dict[str, Any], error: Exception) -> ArgumentsRefused:
        """Say it in our words where they are better than the codec's: `null` was given as NaN, for instance."""
        for name in arguments:
            if name not in self._known:
                close = difflib.get_close_matches(str(name), self.names, 1)
                hint = f"did you mean `{close[0]}`" if close else f"it takes {', '.join(self.names) or 'none'}"
                return ArgumentsRefused(self.kind, str(name), f"{self.kind} has no such parameter; {hint}")
        for name in self.names:
            if name not in arguments and name not in self.defaults:
                return ArgumentsRefused(
                    self.kind, name, f"it is missing; the handler is {self.kind}{self.signature_text}"
                )
        problem = find_unsafe(arguments, "") or _problem_of(error)
        # A model's own check may quote what it was given.
        return ArgumentsRefused(self.kind, problem.path, redact_text(problem.text, arguments, self.hidden))

    def _parameters(self, handler: Callable[..., Any]) -> list[inspect.Parameter]:
        parameters = list(_signature(handler).parameters.values())
        for p in parameters:
            if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                problem = f"the handler takes {'**' if p.kind is p.VAR_KEYWORD else '*'}{p.name}"
            elif p.kind is p.POSITIONAL_ONLY and not (p is parameters[0] and _is_run(p)):
                problem = f"the parameter `{p.name}` is positional-only"
            else:
                continue
            raise ConfigurationError(
                self.kind,
                problem,
                "Name each parameter: arguments are stored by name, so that deploys cannot shift them.",
            )
        return parameters


def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(handler, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(handler)


def _is_run(parameter: inspect.Parameter) -> bool:
    """By name, because the class lives on a higher floor and may be imported for type checking only."""
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        annotation = getattr(annotation, "__forward_arg__", None) or getattr(annotation, "__name__", "")
    text = str(annotation)
    return parameter.name == "run" or text.strip("'\" ").split("[", 1)[0].rpartition(".")[2] == "Run"


def _hints(function: Any, parameters: list[inspect.Parameter], kind: str) -> dict[str, Any]:
    """Resolve annotations one by one, so that the error names the one that cannot be."""
    try:
        local = dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, ValueError):
        local = {}
    hints: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.annotation is parameter.empty:
            hints[parameter.name] = Any
            continue
        shim: Any = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
        try:
            hints[parameter.name] = typing.get_type_hints(
                shim, getattr(function, "__globals__", {}), local, include_extras=True
            )["it"]
        except Exception as error:  # an annotation in text is code, it may raise anything
            raise ConfigurationError(
                kind,
                f"the annotation of `{parameter.name}` cannot be resolved: {error}",
                "Import the type at the top of the module, outside `if TYPE_CHECKING`.",
            ) from error
    return hints


def _shown(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    text = parameter.name
    if annotation is not parameter.empty:
        text += f": {annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {parameter.default!r}" if annotation is not parameter.empty else f"={parameter.default!r}"
    return text


def _dec_hook(cls: type, value: Any) -> Any:
    if is_model(cls):
        return cls.model_validate(value)  # type: ignore[attr-defined]
    raise TypeError(f"{cls.__name__} cannot be read from JSON")


def _schema_hook(cls: type) -> dict[str, Any]:
    if is_model(cls):
        schema: dict[str, Any] = cls.model_json_schema()  # type: ignore[attr-defined]
        return schema
    raise NotImplementedError


def _foreign_type(struct: type) -> Any:
    """Return a type among the annotations that neither msgspec nor pydantic can read, or None."""
    import msgspec.inspect

    seen: set[int] = set()
    rest: list[Any] = [msgspec.inspect.type_info(struct)]
    kept = list(rest)  # ids stay unique while the objects live
    while rest:
        info = rest.pop()
        if isinstance(info, msgspec.inspect.CustomType) and not is_model(info.cls):
            return info.cls
        for part in _parts(info):
            if id(part) not in seen:
                seen.add(id(part))
                kept.append(part)
                rest.append(part)
    return None


def _parts(info: Any) -> Iterator[Any]:
    for name in getattr(info, "__struct_fields__", ()):
        if name in ("default", "default_factory", "cls"):
            continue
        value = getattr(info, name)
        yield from (
            item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, msgspec.Struct)
        )


def _problem_of(error: Exception) -> Problem:
    """Turn what a decoder raised into a path and half a sentence."""
    if isinstance(error, RecursionError):
        return Problem("", "it is nested too deep, or contains itself")
    text, path = str(error) or type(error).__name__, ""
    if match := _PATH.search(text):
        text, path = text[: match.start()], match["path"].lstrip(".")
        if match["part"]:
            text = f"{text} as a {match['part']}"
    if match := _FIELD.match(text):
        missing = match["what"] == "missing required"
        path = f"{path}.{match['name']}" if path else match["name"]
        text = "it is missing" if missing else "there is no such field"
    details = getattr(error.__cause__, "errors", None)
    if callable(details) and _is_model_error(error.__cause__):
        first = details()[0]
        for step in first["loc"]:
            path += f"[{step}]" if isinstance(step, int) else f".{step}"
        text = first["msg"]
    return Problem(path.lstrip("."), text)


def _is_model_error(error: BaseException | None) -> bool:
    """Whether this is pydantic's ValidationError, without importing pydantic."""
    return type(error).__name__ == "ValidationError" and type(error).__module__.startswith("pydantic")
