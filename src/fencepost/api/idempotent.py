"""Idempotency keys for the endpoints of a user's own FastAPI application.

    idempotent = Idempotent(queue, scope=lambda request: request.headers["x-shop"])
    router = APIRouter(route_class=IdempotentRoute)

    @router.post("/orders")
    async def order(order: Order, once: Annotated[Once, Depends(idempotent)]) -> Receipt: ...

A dependency says that an endpoint is protected and by which rules; it gives the handler its guard, and its scope can
come from the dependency that knows the user. But FastAPI shows a dependency neither the answer nor a way to give one. A
route class does the work: it runs the endpoint only for the one request that has the lease, after every other
dependency let it pass and its body was found good. Each of the two without the other is refused where it is declared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin

from fastapi import Depends, Request, params
from fastapi.dependencies.utils import get_typed_signature
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from fencepost.api.answers import Once, Policy, Turn, fingerprint
from fencepost.api.problems import Problem, rendered
from fencepost.api.requests import header_key
from fencepost.clock import parse_duration_s
from fencepost.errors import ConfigurationError, FencepostError

if TYPE_CHECKING:
    from fencepost.app import Fencepost

__all__ = ["Idempotent", "IdempotentRoute", "Once"]

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_MUST: Final = frozenset({"POST", "PATCH"})  # a second PUT or DELETE changes nothing more
_TURN: Final = "fencepost_turn"
_DONE: Final = "_fencepost_idempotent"


class Idempotent:
    """How requests are told apart, and for how long; declared as a dependency, Depends(idempotent).

    scope: a dependency that returns who calls, as text (a user's or tenant's id): two scopes never meet, and one never
    sees the answer of another. Also a function of the request alone. required: whether a request without a key is
    refused. lease: how long a request that went silent keeps its key, 1 s to 1 h; renewed while it runs. keep: how long
    an answer is kept, and a key stands for its request, a minute to a year.
    """

    def __init__(
        self,
        app: Fencepost,
        *,
        scope: Callable[..., Any],
        required: bool = True,
        lease: float | str = 30.0,
        keep: float | str = 86_400.0,
    ) -> None:
        lease_s, keep_s = parse_duration_s(lease, "lease"), parse_duration_s(keep, "keep")
        if not 1.0 <= lease_s <= 3_600:
            raise ConfigurationError("lease", f"{lease!r} is not 1 s to 1 h", "30 suits most work.")
        if not max(60.0, lease_s) <= keep_s <= 366 * 86_400:
            raise ConfigurationError("keep", f"{keep!r} is not a minute, or the lease, to a year", '"24h" is usual.')
        self.policy, self.required = Policy(app, lease_s, round(keep_s * 1000)), required
        self.turn, self.once = _dependencies(self, scope)

    def __call__(self) -> Once:
        raise _outside()

    @property
    def __signature__(self) -> inspect.Signature:
        # FastAPI asks for it as it builds a route. IdempotentRoute puts `once` in the place of this object before that,
        # so whoever asks is a route that would leave the endpoint unprotected.
        raise _outside()


def _outside() -> ConfigurationError:
    return ConfigurationError(
        "Idempotent",
        "Depends(idempotent) stands where no IdempotentRoute sees it, so the endpoint would be unprotected",
        "Write APIRouter(route_class=IdempotentRoute), and name the dependency in that router, in the decorator of the "
        "endpoint or among its parameters; not in include_router, and not in another dependency.",
    )


def _dependencies(idempotent: Idempotent, scope: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What FastAPI calls in the place of an Idempotent: the turn of a request, and what the handler gets of it."""
    asked = Depends(_of_request(scope))

    async def turn(request: Request, caller: Any = asked) -> Turn:
        request.scope[_TURN] = made = await _turn(idempotent, request, caller)
        return made

    taken = Depends(turn)

    async def once(turn: Any = taken) -> Once:
        return Once(turn)

    return turn, once


async def _turn(idempotent: Idempotent, request: Request, caller: Any) -> Turn:
    if request.method in _SAFE:
        return Turn(idempotent.policy)
    key = header_key(request)
    if key is None and idempotent.required:
        text = "This endpoint needs the header Idempotency-Key. Nothing was changed. Send a new one with each new "
        text += "request, and the same one when a request is repeated."
        raise Problem(400, "idempotency-key-missing", "The Idempotency-Key is missing", text)
    if key is None:
        return Turn(idempotent.policy)
    if not isinstance(caller, str) or len(caller) > 255:
        hint = "Return the id of the user or tenant as text; where there is none, refuse the request."
        raise ConfigurationError("scope", f"it returned {caller!a:.60}, which does not say who calls", hint)
    return Turn(idempotent.policy, key, caller, fingerprint(request, await request.body()))


def _of_request(scope: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one bare parameter, such as `lambda request: …`, is given the request; all else is a dependency."""
    try:
        parameters = list(inspect.signature(scope).parameters.values())
    except (TypeError, ValueError):
        return scope
    if len(parameters) != 1 or (parameters[0].annotation, parameters[0].default) != (inspect.Parameter.empty,) * 2:
        return scope

    async def of_request(request: Request) -> Any:
        found = scope(request)
        return await found if inspect.isawaitable(found) else found

    return of_request


class IdempotentRoute(APIRoute):
    """A route that does what the Idempotent among its dependencies says. Raises ConfigurationError where it is declared
    for POST or PATCH without one, with two, or for an endpoint that streams."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if not hasattr(endpoint, _DONE):  # some versions of FastAPI make a route anew when its router is included
            methods = {method.upper() for method in options.get("methods") or ("GET",)}
            given: Sequence[params.Depends] = options.get("dependencies") or ()
            signature, found = _without_idempotents(endpoint)
            found += [one.dependency for one in given if isinstance(one.dependency, Idempotent)]
            options["dependencies"] = [one for one in given if not isinstance(one.dependency, Idempotent)]
            if found:
                endpoint = _protected(endpoint, signature, _only(found, path))
                if not methods <= _SAFE:
                    _document(options, found[0].required)
            elif methods & _MUST:
                raise ConfigurationError(
                    "IdempotentRoute", f"{path} has no Idempotent among its dependencies and would be unprotected",
                    "Write APIRouter(route_class=IdempotentRoute, dependencies=[Depends(idempotent)]), or declare the "
                    "endpoint in a router of its own.",
                )  # fmt: skip
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        if not hasattr(self.endpoint, _DONE):
            return inner

        async def handler(request: Request) -> Response:
            try:
                return await _answered(inner, request)
            except Problem as problem:
                if not _rendered_by_app(request):
                    return rendered(problem)
                raise
            finally:
                turn: Turn | None = request.scope.pop(_TURN, None)
                if turn is not None:
                    await turn.end()

        return handler


async def _answered(inner: Callable[[Request], Coroutine[Any, Any, Response]], request: Request) -> Response:
    try:
        if "idempotency-key" in request.headers:
            await request.body()  # as bytes, before FastAPI reads it as a form
        response = await inner(request)
    except ClientDisconnect as error:
        text = "The connection ended before the body did. Nothing was changed."
        raise Problem(400, "body-cut-off", "The body is not whole", text) from error
    except FencepostError as error:
        turn: Turn | None = request.scope.get(_TURN)
        problem = None if turn is None else turn.of_handler(error)
        if problem is None:
            raise
        raise problem from error
    turn = request.scope.get(_TURN)
    return response if turn is None else await turn.keep(response)


def _rendered_by_app(request: Request) -> bool:
    """See to it that the application turns a Problem into its document. Raised, not returned: a dependency that opened
    a transaction and waits at its `yield` has to see that the request was refused, and roll back."""
    handlers = request.scope.get("starlette.exception_handlers")
    if handlers is None:
        return False
    handlers[0].setdefault(Problem, _show)
    return True


async def _show(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return rendered(problem)


def _without_idempotents(endpoint: Callable[..., Any]) -> tuple[inspect.Signature, list[Any]]:
    """The signature of an endpoint with `once` in the place of each Idempotent, and those that were there."""
    found: list[Any] = []
    parameters = []
    for parameter in get_typed_signature(endpoint).parameters.values():
        annotation, default = parameter.annotation, parameter.default
        if isinstance(default, params.Depends) and isinstance(default.dependency, Idempotent):
            found.append(default.dependency)
            default = Depends(default.dependency.once)
        elif get_origin(annotation) is Annotated:
            kind, *notes = get_args(annotation)
            for at, note in enumerate(notes):
                if isinstance(note, params.Depends) and isinstance(note.dependency, Idempotent):
                    found.append(note.dependency)
                    notes[at] = Depends(note.dependency.once)
            annotation = Annotated[(kind, *notes)]
        parameters.append(parameter.replace(annotation=annotation, default=default))
    returns = inspect.signature(endpoint).return_annotation
    return inspect.Signature(parameters, return_annotation=returns), found


def _only(found: list[Any], path: str) -> Idempotent:
    if any(one is not found[0] for one in found):
        raise ConfigurationError(
            "Idempotent", f"{path} has two of them", "Leave one: in the router, or in the endpoint."
        )
    one: Idempotent = found[0]
    return one


def _protected(endpoint: Callable[..., Any], signature: inspect.Signature, idempotent: Idempotent) -> Any:
    """The endpoint, run for the one request that has the lease of its key; others get the stored answer or a problem.

    FastAPI calls it when all dependencies have let the request pass and its body was found good: so no key is bound to
    a request that was refused, and no stored answer is shown to who may not have it.
    """
    plain = inspect.unwrap(endpoint)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        name = getattr(endpoint, "__name__", "the endpoint")
        raise ConfigurationError("Idempotent", f"{name} streams, and a stream cannot be repeated", "Return its answer.")

    @wraps(endpoint)
    async def protected(**values: Any) -> Any:
        turn: Turn = values.pop(_TURN)
        if (stored := await turn.begin()) is not None:
            return stored
        if inspect.iscoroutinefunction(endpoint) or inspect.iscoroutinefunction(plain):
            return await endpoint(**values)
        return await run_in_threadpool(endpoint, **values)

    own = inspect.Parameter(_TURN, inspect.Parameter.KEYWORD_ONLY, default=Depends(idempotent.turn))
    parameters = sorted((*signature.parameters.values(), own), key=lambda one: one.kind)
    protected.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    setattr(protected, _DONE, True)
    return protected


def _document(options: dict[str, Any], required: bool) -> None:
    """Tell of the header, and of the answers that are ours, in the OpenAPI document."""
    header = {
        "name": "Idempotency-Key", "in": "header", "required": required,
        "schema": {"type": "string", "minLength": 1},
        "description": "Names this request, 1 to 255 characters. The same one again gets the answer of the first.",
    }  # fmt: skip
    extra = dict(options.get("openapi_extra") or {})
    extra["parameters"] = [*extra.get("parameters", ()), header]
    options["openapi_extra"] = extra
    shown = {"application/problem+json": {"schema": {"type": "object"}}}
    ours = {
        400: "The Idempotency-Key is missing or malformed",
        409: "The first request with this key still runs, or its answer cannot be repeated",
        503: "Redis gave no answer, and nothing was done",
    }
    known = options.get("responses") or {}
    mine = {code: {"description": text, "content": shown} for code, text in ours.items()}
    options["responses"] = {**{code: one for code, one in mine.items() if code not in known}, **known}
