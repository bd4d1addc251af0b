"""JSON schemas as an OpenAPI document can hold them: without definitions of their own, and with an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["example_of", "inlined"]

_DEEPEST: Final = 3
_MOST: Final = 300
_OF_SCHEMAS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
_SCHEMAS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMA: Final = frozenset({"items", "additionalProperties", "contains", "propertyNames", "not"})


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON schema without `$defs`: references into it would be lost in a document with another root.

    A type that holds itself is shown _DEEPEST levels deep, then as anything; so is what comes after _MOST references.
    """
    opened: dict[str, Any] = _Opening().open(schema, {}, {})
    return opened


class _Opening:
    """One walk through a schema. Only what stands where a schema may stand is opened: a property can have any name,
    and a default or an enum can have any content."""

    def __init__(self) -> None:
        self._left = _MOST

    def open(self, node: Any, known: Mapping[str, Any], inside: Mapping[str, int]) -> Any:
        if not isinstance(node, Mapping):
            return node  # true and false are schemas, too
        known = {**known, **node.get("$defs", {})}
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            return self._referred(reference.removeprefix("#/$defs/"), node, known, inside)
        out: dict[str, Any] = {}
        for name, value in node.items():
            if name in _OF_SCHEMAS:
                out[name] = {key: self.open(one, known, inside) for key, one in value.items()}
            elif name in _SCHEMAS:
                out[name] = [self.open(one, known, inside) for one in value]
            elif name in _SCHEMA:
                out[name] = self.open(value, known, inside)
            elif name not in ("$defs", "discriminator"):  # the latter's mapping points into the definitions
                out[name] = value
        return out

    def _referred(self, name: str, node: Mapping[str, Any], known: Mapping[str, Any], inside: Mapping[str, int]) -> Any:
        depth = inside.get(name, 0)
        self._left -= 1
        if depth >= _DEEPEST or name not in known or self._left < 0:
            return {}
        beside = {key: value for key, value in node.items() if key not in ("$ref", "$defs")}
        return {**self.open(known[name], known, {**inside, name: depth + 1}), **beside}


# -- examples -------------------------------------------------------------------------------------------------

_TEXTS: Final = {
    "date-time": "2026-11-30T08:00:00Z", "date": "2026-11-30", "time": "08:00:00Z", "duration": "PT1M",
    "uuid": "8e03978e-40d5-43dd-bc93-6894a57f9324", "decimal": "9.99", "email": "ann@example.org",
    "uri": "https://example.org/",
}  # fmt: skip


def example_of(schema: Mapping[str, Any]) -> Any:
    """Return a plain value for an inlined schema, of an object only what is required. It may not fit a pattern."""
    for name in ("default", "const"):
        if name in schema:
            return schema[name]
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return example_of(schema[name][0])
    kind = schema.get("type")
    if kind == "object":
        required = schema.get("required", ())
        return {key: example_of(one) for key, one in schema.get("properties", {}).items() if key in required}
    if kind == "array":
        items = list(schema.get("prefixItems", ()))
        item = schema.get("items")
        items += [item if isinstance(item, Mapping) else {}] * (int(schema.get("minItems", 1)) - len(items))
        return [example_of(one) for one in items]
    if kind in ("integer", "number"):
        return _number_of(schema)
    if kind == "string":
        return _text_of(schema)
    return {"boolean": True, "null": None}.get(str(kind), "text")


def _number_of(schema: Mapping[str, Any]) -> int | float:
    value: int | float = max(1, schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
    if (step := schema.get("multipleOf")) is not None:
        value = -(-value // step) * step
    value = min(value, schema.get("maximum", value), schema.get("exclusiveMaximum", value + 1) - 1)
    return value


def _text_of(schema: Mapping[str, Any]) -> str:
    if schema.get("contentEncoding") == "base64":
        return "AAAA"
    text = _TEXTS.get(str(schema.get("format", "")), "text")
    return text.ljust(int(schema.get("minLength", 0)), "x")[: int(schema.get("maxLength", 1_000))]
