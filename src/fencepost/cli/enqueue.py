"""`enqueue KIND k=v...`: with an application the arguments are checked by the handler's signature, as in code."""

from __future__ import annotations

import datetime
from typing import Any

import click
import msgspec

from fencepost.cli import output
from fencepost.cli.session import Session, connected
from fencepost.clock import epoch_ms, parse_duration_s, uuid7
from fencepost.codec import request_fingerprint
from fencepost.codec.arguments import PAYLOAD_LIMIT
from fencepost.errors import (
    ArgumentsRefused,
    ConfigurationError,
    FencepostError,
    JobCancelled,
    JobFailed,
    ResultTimeout,
)
from fencepost.handle import Job
from fencepost.handler import Handler, Prepared
from fencepost.idempotency import dedup_name, idempotency_name
from fencepost.job import JobSpec
from fencepost.redact import redact, redact_text, secrets_of

__all__ = ["enqueue", "moment_of"]


@click.command
@click.argument("kind")
@click.argument("pairs", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--json-args", metavar="JSON", help="The arguments as one JSON object, instead of pairs.")
@click.option("--queue", metavar="NAME", help="Another queue than the kind's own.")
@click.option("--delay", metavar="TIME", help="Not before this has passed, such as 90s, 2h.")
@click.option("--run-at", metavar="MOMENT", help="Not before this moment, with a zone: 2030-01-01T09:00:00+01:00.")
@click.option("--priority", type=click.IntRange(0, 9), help="Higher is served earlier.")
@click.option("--dedup", metavar="KEY", help="One live job a key; a duplicate shows the one that is there.")
@click.option("--idempotency-key", metavar="KEY", help="The same request sent again gets the same job.")
@click.option("--raw", is_flag=True, help="Send the arguments unchecked, without --app.")
@click.option("--resource", metavar="NAME", help="With --raw: the resource the job needs.")
@click.option("--wait", metavar="TIME", help="Wait as long for the result, and show it.")
@connected
def enqueue(session: Session, kind: str, pairs: tuple[str, ...], **options: Any) -> int:
    """Enqueue a job.

    VALUE is read as JSON where it is JSON (42, true, [1, 2], "text"), else as text; where the handler wants text, it
    is text. A kind's queue, resource, dedup key and retention are declared in its code, so --app is needed to honour
    them. --raw does without: what is sent is exactly what is said here, and nothing checks it before a worker does.
    """
    if pairs and options["json_args"] is not None:
        raise click.UsageError("Give NAME=VALUE pairs or --json-args, not both.")
    if options["raw"]:
        given = _given(pairs, options["json_args"])
        accepted = session.app.enqueue_many_sync([Prepared(_raw(kind, given, options))])[0]
        if isinstance(accepted, FencepostError):
            raise accepted
        return _answer(session, accepted, options["wait"], given)
    if not session.target:
        raise ConfigurationError(
            "app",
            f"without the code nobody knows the queue, the resource and the arguments of {kind!r}",
            "Give --app module:app, or say --raw to send the arguments as they are.",
        )
    if options["resource"]:
        raise click.UsageError("--resource goes with --raw; the kind's own is declared in its code.")
    handler = session.app.handler(kind)
    bound = handler.options(
        delay=options["delay"],
        run_at=moment_of(options["run_at"]),
        priority=options["priority"],
        dedup=options["dedup"],
        idempotency_key=options["idempotency_key"],
        queue=options["queue"],
    )
    given = _given(pairs, options["json_args"])
    accepted = bound.enqueue_sync(**_fitted(handler, pairs, options["json_args"]))
    return _answer(session, accepted, options["wait"], given)


def _answer(session: Session, accepted: Job[Any], wait: str | None, given: dict[str, Any]) -> int:
    told: dict[str, Any] = {
        "id": accepted.id,
        "state": accepted.state,
        "duplicate": accepted.duplicate,
        "replayed": accepted.replayed,
    }
    marks = "".join(f", {name}" for name in ("duplicate", "replayed") if told[name])
    error: FencepostError | None = None
    if wait:
        try:
            found = accepted.result_sync(parse_duration_s(wait, "wait"))
            told["result"] = redact(found, session.hidden, set(secrets_of(given, session.hidden)))
            told["state"] = "done"
        except (JobFailed, JobCancelled, ResultTimeout) as raised:
            error = raised
            if isinstance(raised, JobFailed):
                error = JobFailed(raised.job_id, raised.reason, redact_text(raised.error, given, session.hidden))
            told["state"] = {JobFailed: "failed", JobCancelled: "cancelled"}.get(type(raised), accepted.state)
            told["error"] = str(error)
    if session.as_json:
        output.show_json(told)
    else:  # the id also where the result does not come
        output.say(f"{accepted.id} {told['state']}{marks}")
        if "result" in told:
            output.fields([("result", told["result"])])
    if error is not None:
        raise error
    return 0


# -- arguments ------------------------------------------------------------------------------------------------


def _split(pairs: tuple[str, ...]) -> dict[str, str]:
    out: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"{pair!r} is not NAME=VALUE.")
        if name in out:
            raise click.UsageError(f"{name} is given twice.")
        out[name] = value
    return out


def _opened(text: str) -> Any:
    """JSON where it is JSON, else the text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def _given(pairs: tuple[str, ...], json_args: str | None) -> dict[str, Any]:
    if json_args is None:
        return {name: _opened(value) for name, value in _split(pairs).items()}
    try:
        return msgspec.json.decode(json_args, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ConfigurationError(
            "--json-args", f"it is not a JSON object: {error}", "Write '{\"order_id\": 42}'."
        ) from error


def _fitted(handler: Handler[Any, Any], pairs: tuple[str, ...], json_args: str | None) -> dict[str, Any]:
    """Read each pair as the handler's signature wants it. The decoder decides: JSON first, then plain text."""
    arguments, texts = _given(pairs, json_args), _split(pairs)
    as_json: dict[str, Any] = {}
    while True:
        try:
            return handler.codec.decode(_encoded(arguments))
        except FencepostError as error:
            name = _name_in(str(error), texts)
            if name is None or name in as_json:
                arguments.update(as_json)
                handler.codec.encode(arguments)  # raises with the path, in the words of an enqueue
                raise
            as_json[name], arguments[name] = arguments[name], texts[name]


def _name_in(problem: str, texts: dict[str, str]) -> str | None:
    """The argument a decoder complains about, if it was given as a pair: its path stands in backquotes."""
    for name in texts:
        if any(f"`{name}{end}" in problem for end in ("`", ".", "[")):
            return name
    return None


def _encoded(arguments: dict[str, Any]) -> bytes:
    return msgspec.json.encode(arguments)


# -- without the code -----------------------------------------------------------------------------------------


def moment_of(text: str | None) -> datetime.datetime | None:
    """A moment as ISO text. Raises ConfigurationError."""
    if text is None:
        return None
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError("run_at", f"{text!r} is no moment", "Write 2030-01-01T09:00:00+01:00.") from error


def _raw(kind: str, arguments: dict[str, Any], options: dict[str, Any]) -> JobSpec:
    payload = _encoded(arguments)
    if len(payload) > PAYLOAD_LIMIT:
        raise ArgumentsRefused(kind, "", f"the payload has {len(payload)} bytes, {PAYLOAD_LIMIT} are allowed")
    spec = JobSpec(id=uuid7(), kind=kind, queue=options["queue"] or "default", payload=payload)
    spec.priority = options["priority"] or 0
    spec.resource = options["resource"]
    if options["delay"]:
        spec.delay_ms = round(parse_duration_s(options["delay"], "delay") * 1000)
    moment = moment_of(options["run_at"])
    if moment is not None:
        spec.run_at_ms = max(0, epoch_ms(moment))
    if options["dedup"] is not None:
        spec.dedup = dedup_name(kind, options["dedup"])
    if options["idempotency_key"] is not None:
        spec.idem = idempotency_name(options["idempotency_key"])
        spec.fingerprint = request_fingerprint(kind, payload)
    spec.check()
    return spec
