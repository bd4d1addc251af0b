"""What every command has: where it connects, which application it means, and how it answers."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from fencepost.app import Fencepost
from fencepost.driver import Connections
from fencepost.errors import ConfigurationError
from fencepost.keys import Keys
from fencepost.operate import Operator, Plan
from fencepost.operate.acts import local_actor
from fencepost.operate.jobs import present
from fencepost.redact import checked_names
from fencepost.store import Store

__all__ = ["Session", "connected", "load_app"]

T = TypeVar("T")
GIVE_UP_S: Final = 5.0
"""How long a command waits for a server that is away; a person looks at it."""


class Session:
    """The options of one command. app: made at first use; without a URL on an embedded server."""

    def __init__(self, url: str | None, namespace: str | None, target: str | None, as_json: bool) -> None:
        self.url, self.namespace, self.target, self.as_json = url, namespace, target, as_json
        self._app: Fencepost | None = None

    @property
    def app(self) -> Fencepost:
        if self._app is None:
            self._app = self._made()
        return self._app

    @property
    def operator(self) -> Operator:
        return Operator(self.app, actor=local_actor("cli"))

    def run(self, plan: Plan[T]) -> T:
        """Run an operator's plan."""
        return self.operator.run_sync(plan, GIVE_UP_S)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Names whose values are secret, beside the usual ones: the application's, and those of FENCEPOST_REDACT, for
        commands that do not load the code."""
        said = os.environ.get("FENCEPOST_REDACT", "").split(",")
        return (*self.app.redact, *checked_names([name.strip() for name in said if name.strip()]))

    @property
    def longest_retention_s(self) -> float:
        """The longest that any kind of --app keeps its ended jobs; 7 days at least."""
        handlers = self.app.handlers.values() if self.target else ()
        kept = (max(one.settings.retention_s, one.settings.failed_retention_s) for one in handlers)
        return max(7 * 86_400.0, *kept, 0.0)

    def present(self, job_ids: Sequence[str]) -> set[str]:
        """Those of the jobs that Redis still has."""
        return self.run(present(self.app.link.store.keys, job_ids))

    def close(self) -> None:
        """Close the connections, and the embedded server if it was started here."""
        if self._app is not None:
            self._app.close_sync()

    def _made(self) -> Fencepost:
        if self.target:
            app = load_app(self.target)
            if self.url or self.namespace:
                _redirect(app, self.url, self.namespace)
            return app
        namespace = self.namespace or "fencepost"
        if self.url:
            return Fencepost(self.url, namespace=namespace, give_up=GIVE_UP_S)
        return Fencepost.embedded(namespace=namespace, give_up=GIVE_UP_S)


def _redirect(app: Fencepost, url: str | None, namespace: str | None) -> None:
    """Point an application that was made by its module elsewhere. In place: its handlers share these objects."""
    if url:
        Connections.__init__(app.link.connections, url)
    if namespace:
        app.namespace = namespace
        Store.__init__(app.link.store, Keys(namespace))


def load_app(target: str) -> Fencepost:
    """Import `module:name` (by default `module:app`). Raises ConfigurationError that says where an import failed."""
    module_name, _, name = target.partition(":")
    hint = "Write module:app, the module as Python would import it from here."
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigurationError("app", f"{target!r} names no module", hint)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name not in (module_name, module_name.partition(".")[0]):
            raise _import_failed(module_name, error) from error
        raise ConfigurationError(
            "app", f"there is no module {error.name!r} in {os.getcwd()} or installed", hint
        ) from error
    except Exception as error:
        raise _import_failed(module_name, error) from error
    found: Any = module
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if isinstance(found, Fencepost):
        return found
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, Fencepost))
    there = f"It has {', '.join(f'{module_name}:{one}' for one in apps)}." if apps else "It has no Fencepost object."
    raise ConfigurationError("app", f"{module_name} has no application {name or 'app'!r}", there)


def _import_failed(module: str, error: BaseException) -> ConfigurationError:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    what = f"importing {module} failed{place}: {type(error).__name__}: {error}"
    return ConfigurationError("app", what, "Mend the module; `python -c 'import …'` shows the whole traceback.")


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the common options; it gets a Session as its first argument, closed at its end."""

    @click.option("--url", envvar="FENCEPOST_REDIS_URL", metavar="URL", help="Redis or Valkey. [FENCEPOST_REDIS_URL]")
    @click.option(
        "--namespace", envvar="FENCEPOST_NAMESPACE", metavar="NAME", help="Of the keys. [FENCEPOST_NAMESPACE]"
    )
    @click.option("--app", "target", envvar="FENCEPOST_APP", metavar="MODULE:APP", help="The code. [FENCEPOST_APP]")
    @click.option("--json", "as_json", is_flag=True, help="Answer with one JSON value.")
    @click.pass_context
    def wrapped(
        ctx: click.Context, /, url: str | None, namespace: str | None, target: str | None, as_json: bool, **rest: Any
    ) -> Any:
        if target or rest.get("target_argument"):  # an application brings its own; only what was typed is stronger
            url, namespace = (
                value if _typed(ctx, name) else None for name, value in (("url", url), ("namespace", namespace))
            )
        session = Session(url, namespace, target, as_json)
        ctx.call_on_close(session.close)
        return function(session, **rest)

    return functools.update_wrapper(wrapped, function)


def _typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
