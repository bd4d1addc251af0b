"""What the OpenAPI document says of enqueueing: a path for each kind, with the schema of its arguments."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from fencepost.handler import Handler
from fencepost.resource import ResourceRule

if TYPE_CHECKING:
    from fencepost.api.service import Service

__all__ = ["batch_document", "described", "kind_document", "kinds_document"]

_DEEPEST: Final = 8
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "changed"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What, why, what was not changed, what to do."},
        "changed": {"type": "string", "enum": ["nothing", "unknown"]},
    },
}
_JOB: Final = {
    "type": "object",
    "required": ["id", "kind", "queue", "state", "duplicate", "replayed", "links"],
    "properties": {
        "id": {"type": "string"},
        "kind": {"type": "string"},
        "queue": {"type": "string"},
        "state": {"type": "string", "description": "At the moment of the answer; expired: its retention is over."},
        "duplicate": {"type": "boolean", "description": "Its dedup key belongs to this live job; nothing was stored."},
        "replayed": {"type": "boolean", "description": "This very request was accepted before."},
        "links": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
_OPTIONS: Final[dict[str, Any]] = {
    "delay": {
        "anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}, {"type": "null"}],
        "description": 'Seconds, or text such as "2m".',
        "examples": [60],
    },
    "run_at": {
        "anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}],
        "description": "A moment with an offset, after RFC 3339.",
    },
    "priority": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
    "dedup": {
        "anyOf": [{"type": "string", "minLength": 1, "maxLength": 512}, {"type": "boolean"}, {"type": "null"}],
        "description": "A key: one live job a key. true: all arguments are the key. false: none.",
    },
    "queue": {"anyOf": [{"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"}, {"type": "null"}]},
}
_RESOURCE: Final = {
    "anyOf": [{"type": "string", "minLength": 1, "maxLength": 512}, {"type": "null"}],
    "description": "What the job works on: two jobs with one resource never run together.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The answers that are problem documents."""
    meaning = {
        400: "Malformed", 401: "Who calls is not known", 403: "The scope is missing", 404: "There is none",
        409: "The present state does not allow it", 410: "It is gone", 413: "Too large", 415: "Not declared as JSON",
        422: "A value cannot be used", 429: "Too many calls", 503: "Redis or SQL is away, or the queue is full",
    }  # fmt: skip
    content = {"application/problem+json": {"schema": _PROBLEM}}
    return {status: {"description": meaning[status], "content": content} for status in statuses}


def kind_document(handler: Handler[Any, Any], service: Service) -> dict[str, Any]:
    """The keyword arguments of add_api_route for one kind."""
    required = handler.settings.idempotency == "required"
    ttl_s = service.settings.idempotency_ttl_s
    arguments = inlined(handler.codec.schema())
    needs_args = bool(arguments.get("required"))
    properties = {"args": arguments, **_OPTIONS}
    if handler.settings.caller_resource:
        properties["resource"] = _RESOURCE
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if needs_args:
        schema["required"] = ["args"]
    content = {"schema": schema, "example": {"args": example_of(arguments)}}
    doc = (handler.__doc__ or "").strip()
    resource = handler.settings.resource
    notes = [doc] if doc else []
    if resource is not None:
        notes.append(f"Resource: `{_template_of(resource)}`.")
    notes.append(f"Idempotency keys are remembered for {ttl_s / 3600:g} h.")
    return {
        "name": f"enqueue_{handler.kind}",
        "operation_id": f"enqueue_{handler.kind}",
        "summary": f"Enqueue {handler.kind}",
        "description": "\n\n".join(notes),
        "responses": {
            202: {
                "description": "Accepted, or accepted before",
                "headers": {
                    "Location": {"schema": {"type": "string"}, "description": "The job"},
                    "Idempotent-Replayed": {"schema": {"type": "string", "enum": ["true"]}},
                },
                "content": {"application/json": {"schema": _JOB}},
            },
            **problems(400, 401, 403, 413, 415, 422, 429, 503),
        },
        "openapi_extra": {
            "parameters": [_key_parameter(required)],
            "requestBody": {"required": needs_args, "content": {"application/json": content}},
        },
    }


def batch_document(service: Service) -> dict[str, Any]:
    """The keyword arguments of add_api_route for the batch."""
    item = {
        "type": "object",
        "required": ["kind"],
        "additionalProperties": False,
        "properties": {
            "kind": {"type": "string"},
            "args": {"type": "object"},
            "idempotency_key": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 255}, {"type": "null"}]},
            "resource": _RESOURCE,
            **_OPTIONS,
        },
    }
    jobs = {"type": "array", "items": item, "maxItems": service.settings.max_batch}
    schema = {"type": "object", "required": ["jobs"], "properties": {"jobs": jobs}, "additionalProperties": False}
    outcome = {
        "type": "object",
        "required": ["status"],
        "properties": {"status": {"type": "integer"}, "job": _JOB, "problem": _PROBLEM},
    }
    answer = {
        "type": "object",
        "required": ["jobs", "accepted", "refused"],
        "properties": {
            "jobs": {"type": "array", "items": outcome},
            "accepted": {"type": "integer"},
            "refused": {"type": "integer"},
        },
    }
    return {
        "operation_id": "enqueue_batch",
        "summary": "Enqueue many jobs, each with an outcome of its own",
        "description": "The outcomes come in the order of the items. An item that is refused keeps no other out. Under "
        "an Idempotency-Key, item i has the key `<key>#<i>` unless it brings one.",
        "responses": {
            200: {"description": "An outcome per item", "content": {"application/json": {"schema": answer}}},
            **problems(400, 401, 403, 413, 415, 422, 429, 503),
        },
        "openapi_extra": {
            "parameters": [_key_parameter(False)],
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        },
    }


def kinds_document() -> dict[str, Any]:
    """The keyword arguments of add_api_route for the list of kinds."""
    return {
        "operation_id": "list_kinds",
        "summary": "The kinds that the caller may enqueue",
        "responses": {
            200: {"description": "The kinds", "content": {"application/json": {"schema": {"type": "object"}}}},
            **problems(401, 403, 429, 503),
        },
    }


def described(handler: Handler[Any, Any]) -> dict[str, Any]:
    """One entry of the list of kinds."""
    settings = handler.settings
    return {
        "kind": handler.kind,
        "queue": settings.queue,
        "resource": None if settings.resource is None else _template_of(settings.resource),
        "caller_resource": settings.caller_resource,
        "idempotency": settings.idempotency,
        "priority": settings.priority,
        "timeout_s": settings.timeout_s,
        "attempts": settings.retry.attempts,
        "durable": settings.durable,
        "args": inlined(handler.codec.schema()),
    }


def _template_of(rule: ResourceRule) -> str:
    return rule.template if isinstance(rule.template, str) else rule.template.text


def _key_parameter(required: bool) -> dict[str, Any]:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": required,
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-~]([ -~]*[!-~])?$"},
        "description": "The same key with the same request gets the same job; with another request, 422.",
        "example": "8e03978e-40d5-43dd-bc93-6894a57f9324",
    }


# -- schemas --------------------------------------------------------------------------------------------------


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema without `$defs`: the document it goes into has another root. A type that holds itself is
    shown _DEEPEST levels deep, then as anything."""
    whole = copy.deepcopy(schema)
    definitions = whole.pop("$defs", {})
    out: dict[str, Any] = _opened(whole, definitions, {})
    return out


def _opened(node: Any, definitions: dict[str, Any], seen: dict[str, int]) -> Any:
    if isinstance(node, list):
        return [_opened(one, definitions, seen) for one in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        name = reference.removeprefix("#/$defs/")
        times = seen.get(name, 0)
        if times >= _DEEPEST or name not in definitions or sum(seen.values()) > 4 * _DEEPEST:
            return {}
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return {**_opened(definitions[name], definitions, {**seen, name: times + 1}), **rest}
    return {
        key: value if key in ("default", "enum", "const", "examples") else _opened(value, definitions, seen)
        for key, value in node.items()
        if key != "discriminator"  # its mapping points into the definitions
    }


def example_of(schema: dict[str, Any]) -> Any:
    """Return a value that fits a schema as msgspec makes them; only what is required."""
    if "default" in schema:
        return schema["default"]
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    if "const" in schema:
        return schema["const"]
    for name in ("anyOf", "oneOf"):
        if schema.get(name):
            return example_of(schema[name][0])
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        required = schema.get("required", ())
        return {key: example_of(one) for key, one in schema.get("properties", {}).items() if key in required}
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items") or {}] * int(schema.get("minItems", 1))
        return [example_of(one) for one in items]
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        return max(1, least) if "maximum" not in schema else min(max(1, least), schema["maximum"])
    return {"string": _text_of(schema), "boolean": True, "null": None}.get(str(kind), {})


def _text_of(schema: dict[str, Any]) -> str:
    known = {
        "date-time": "2026-11-30T08:00:00Z", "date": "2026-11-30", "time": "08:00:00Z", "duration": "PT1M",
        "uuid": "8e03978e-40d5-43dd-bc93-6894a57f9324", "decimal": "9.99", "byte": "AA==",
    }  # fmt: skip
    text = known.get(str(schema.get("format", "")), "text")
    return text.ljust(int(schema.get("minLength", 0)), "x")[: int(schema.get("maxLength", 1_000))]
