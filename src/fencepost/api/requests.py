"""From the body of a request to a job that can be sent: options, arguments, and the key of the request."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fastapi import Request

from fencepost.api.problems import Problem, of_error
from fencepost.codec import request_fingerprint
from fencepost.errors import ArgumentsRefused, ConfigurationError
from fencepost.handler import Handler, Options, Prepared

if TYPE_CHECKING:
    from fencepost.api.admission import Caller

__all__ = ["BatchBody", "BatchItem", "JobBody", "header_key", "idempotency_key", "prepared"]

_KEY_MOST: Final = 255
_QUOTED: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # a string as in RFC 8941
_ESCAPED: Final = re.compile(r'\\(["\\])')
_NO_ARGS: Final = msgspec.Raw(b"{}")


class JobBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What POST /v1/jobs/{kind} takes; all of it may be left out. As Options in Python, with run_at as RFC 3339."""

    args: msgspec.Raw = _NO_ARGS
    delay: float | str | None = None
    run_at: str | None = None
    priority: int | None = None
    dedup: bool | str | None = None
    resource: str | None = None
    queue: str | None = None


class BatchItem(JobBody, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One job of a batch."""

    kind: str
    idempotency_key: str | None = None


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """What POST /v1/jobs/batch takes. Items are opened one by one: a bad one keeps no other out."""

    jobs: list[msgspec.Raw]


def header_key(request: Request) -> str | None:
    """Return the key that a request names in its header. Raises Problem 400."""
    headers = request.headers.getlist("idempotency-key")
    if len(headers) > 1:
        raise _malformed("it was sent more than once")
    return idempotency_key(headers[0]) if headers else None


def idempotency_key(header: str | None) -> str | None:
    """Return the key that a header names: a quoted string as the IETF draft has it, or the bare text. Raises Problem
    400 for one that is empty, too long or not printable ASCII."""
    if header is None:
        return None
    text = header.strip(" \t")
    quoted = _QUOTED.fullmatch(text)
    key = _ESCAPED.sub(r"\1", quoted.group(1)) if quoted else text
    broken = text.startswith('"') and not quoted
    if broken or not 1 <= len(key) <= _KEY_MOST or not (key.isascii() and key.isprintable()):
        raise _malformed(f"it is not 1 to {_KEY_MOST} printable ASCII characters, bare or in quotes")
    return key


def _malformed(why: str) -> Problem:
    text = f"The Idempotency-Key cannot be used: {why}. Nothing was changed. Send a UUID, for instance."
    return Problem(400, "idempotency-key-malformed", "The Idempotency-Key cannot be used", text)


def prepared(
    handler: Handler[Any, Any], body: JobBody, key: str | None, caller: Caller, request: tuple[str, bytes], ttl_s: int
) -> Prepared:
    """Return the job that a body asks for.

    request: method and path, and the body as it came: what the key stands for. ttl_s: of the key. Raises Problem 400
    where the kind needs a key and there is none, 422 where the body does not fit.
    """
    if key is None and handler.settings.idempotency == "required":
        raise Problem(
            400, "idempotency-key-missing", "The Idempotency-Key is missing",
            f"Jobs of kind {handler.kind} need the header Idempotency-Key. Nothing was enqueued. Send a new one with "
            f"each new request, and the same one when a request is repeated.",
        )  # fmt: skip
    try:
        arguments = handler.codec.accept(bytes(body.args))
        spec = handler.spec(_options(body, key, caller, ttl_s), (), arguments)
    except ArgumentsRefused as error:
        path = f"args.{error.path}" if error.path else "args"
        raise _at(path, of_error(ArgumentsRefused(error.kind, path, error.problem))) from error
    except ConfigurationError as error:
        raise _at(_NAMES.get(error.setting, error.setting), of_error(error)) from error
    if key is not None:
        where, raw = request
        try:
            spec.fingerprint = request_fingerprint(where, raw or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = f"The body is not JSON that can be read: {error}. Nothing was enqueued."
            raise Problem(400, "no-json", "The body is not JSON", text) from error
    return Prepared(spec)


_NAMES: Final = {"delay_ms": "delay", "run_at_ms": "run_at"}


def _at(path: str, problem: Problem) -> Problem:
    problem.extra["path"] = path
    return problem


def _options(body: JobBody, key: str | None, caller: Caller, ttl_s: int) -> Options:
    return Options(
        delay=body.delay,
        run_at=_moment(body.run_at),
        priority=body.priority,
        dedup=body.dedup,
        idempotency_key=key,
        client=caller.id,
        queue=body.queue,
        idempotency_ttl=ttl_s,
        resource=body.resource,
    )


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return msgspec.convert(text, datetime)
    except msgspec.ValidationError as error:
        hint = 'Write "2026-11-30T08:00:00Z", or with another offset.'
        raise ConfigurationError("run_at", f"{text[:40]!a} is not a moment after RFC 3339", hint) from error
