"""What the OpenAPI document says of enqueueing: a path for each kind, with the schema of its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from fastapi.routing import APIRoute

from fencepost.api.schemas import example_of, inlined
from fencepost.errors import FencepostError
from fencepost.handler import Handler, Options
from fencepost.resource import ResourceRule

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI

    from fencepost.api.service import Service

__all__ = [
    "batch_document",
    "completed",
    "described",
    "inlined",
    "kind_document",
    "kinds_document",
    "problems",
    "secured",
]

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
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": 315_360_000},
            {"type": "string", "maxLength": 60, "pattern": "^([0-9]{1,7}(\\.[0-9]{1,3})?(ms|s|m))+$"},
            {"type": "null"},
        ],
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
    content = {"schema": schema, **_example(handler, arguments)}
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
            "kind": {"type": "string", "examples": sorted(service.app.handlers)[:1]},
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


def _example(handler: Handler[Any, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """An example of the body; nothing where the one that the schema gives would be refused."""
    args = example_of(arguments)
    try:
        handler.spec(Options(), (), handler.codec.accept(msgspec.json.encode(args)))
    except FencepostError:
        return {}
    return {"example": {"args": args}}


def completed(router: APIRouter) -> None:
    """Add to each route that needs a token the problems that all of those can have, where it does not tell them."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            extra = route.openapi_extra or {}
            if extra.get("security") != []:
                shared = (400, 401, 403, 413, 415, 422, 429, 503) if "requestBody" in extra else (401, 403, 429, 503)
                route.responses = {**problems(*shared), **route.responses}


def secured(served: FastAPI) -> None:
    """Say in the document of a whole service that each call needs a token, but for those routes that say otherwise."""
    plain = served.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        about = {"type": "http", "scheme": "bearer", "description": "`fencepost token make` makes one: fp_…"}
        document.setdefault("components", {})["securitySchemes"] = {"bearer": about}
        document["security"] = [{"bearer": []}]
        return document

    served.openapi = openapi  # type: ignore[method-assign]


def _key_parameter(required: bool) -> dict[str, Any]:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": required,
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-~]([ -~]*[!-~])?$"},
        "description": "The same key with the same request gets the same job; with another request, 422.",
        "example": "8e03978e-40d5-43dd-bc93-6894a57f9324",
    }
