"""Do the settings of a worker and of its kinds agree with each other?

Each rule is a relation between two settings that a person would set in different places.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.doctor.finding import Finding, WorkerSettings, bad, doubtful, fine
from fencepost.handler import Handler
from fencepost.redact import is_secret
from fencepost.resource import ResourceRule, ResourceTemplate
from fencepost.retry import horizon_s

if TYPE_CHECKING:
    from fencepost.app import Fencepost

__all__ = ["kinds", "served", "settings_of"]

_SHORT_LEASE_S: Final = 5.0
_SHORT_GRACE_S: Final = 5.0
_LONG_GRACE_S: Final = 600.0
_LONG_THREAD_S: Final = 3_600.0
_MANY_THREADS: Final = 500
_IDEMPOTENCY_S: Final = 86_400.0
_SHORT_RETENTION_S: Final = 10.0
_SHORT_FAILED_S: Final = 3_600.0
_LONG_RESERVED_S: Final = 600.0

Handlers = Mapping[str, Handler[Any, Any]]


def settings_of(app: Fencepost) -> WorkerSettings:
    """The defaults of a worker of this application, where none is about to start."""
    return WorkerSettings(lease_s=app.lease_s)


def kinds(handlers: Handlers, about: WorkerSettings, hidden: Collection[str] = ()) -> list[Finding]:
    """Check the worker's settings, each kind, and the kinds against each other. hidden: as Fencepost(redact=…)."""
    found = [*_worker(handlers, about), *_limits(handlers), *_remote(handlers, about)]
    for handler in handlers.values():
        found += [*_times(handler, about), *_lifetimes(handler), *_waiting(handler), *_shown(handler, hidden)]
    if handlers and not any(one.level != "ok" for one in found):
        found.append(fine("kinds", f"the settings of {len(handlers)} kinds agree with each other"))
    return found


def _worker(handlers: Handlers, about: WorkerSettings) -> Iterator[Finding]:
    if about.lease_s < _SHORT_LEASE_S:
        yield doubtful(
            "lease",
            f"the lease is {about.lease_s:g} s: a worker that stands still for as long (a swap storm, a frozen VM) "
            "loses all its runs, and each loss counts as a crash",
            f"use {_SHORT_LEASE_S:g} s or more; 30 suits most work. It is renewed every third of it, so a long "
            "handler needs no long lease",
        )
    if about.grace_s < _SHORT_GRACE_S:
        yield doubtful(
            "grace",
            f"the grace at shutdown is {about.grace_s:g} s: nearly every run is cut and starts again at each deploy",
            "use about 25 s, and give the process manager a few seconds more than that",
        )
    if about.grace_s > _LONG_GRACE_S:
        yield doubtful(
            "grace",
            f"the grace at shutdown is {about.grace_s:g} s; most process managers kill long before, and then each "
            "running job counts as a crash",
            "use less, or raise the manager's own limit (terminationGracePeriodSeconds, TimeoutStopSec)",
        )
    threads = [kind for kind, handler in handlers.items() if not handler.is_async]
    if threads and about.concurrency > _MANY_THREADS:
        yield doubtful(
            "threads",
            f"concurrency is {about.concurrency} and {_some(threads)} would take a thread each",
            f"use at most {_MANY_THREADS} for kinds that are not async, or more processes",
        )
    long = [kind for kind, handler in handlers.items() if handler.settings.timeout_s > about.lease_s]
    if long:
        yield fine(
            "timeout",
            f"{_some(long)} may run for longer than the lease of {about.lease_s:g} s: the heartbeat renews it",
        )
    cut = [kind for kind, handler in handlers.items() if handler.settings.timeout_s > about.grace_s]
    if cut:
        yield fine(
            "grace", f"runs of {_some(cut)} that outlast {about.grace_s:g} s at shutdown are handed back, uncharged"
        )


def _remote(handlers: Handlers, about: WorkerSettings) -> Iterator[Finding]:
    for handler in handlers.values():
        if handler.settings.remote and handler.settings.queue in about.queues:
            yield doubtful(
                f"queue of {handler.kind}",
                f"the work of {handler.kind} is done over HTTP, and this worker serves its queue "
                f"{handler.settings.queue!r}: it takes such jobs from those who could do them and puts them back for "
                "5 s",
                "give the kinds of other languages queues of their own",
            )


def _times(handler: Handler[Any, Any], about: WorkerSettings) -> Iterator[Finding]:
    kind, timeout_s = handler.kind, handler.settings.timeout_s
    if timeout_s <= 0:
        yield bad(f"timeout of {kind}", f"{timeout_s:g} s: no run could ever end well", "give it a positive timeout")
    elif not handler.is_async and timeout_s > _LONG_THREAD_S:
        yield doubtful(
            f"timeout of {kind}",
            f"it may run for {timeout_s:g} s in a thread, and a thread cannot be stopped: until it ends by itself it "
            "keeps its slot, its lease and its resource",
            "make it async, call run.check() in its loop, or cut the work into jobs of less than an hour",
        )
    policy = handler.settings.retry
    if policy.attempts == 1 and (policy.transient or policy.when):
        yield doubtful(
            f"retry of {kind}",
            "it has one attempt, so what `transient` or `when` say about trying again never counts",
            "raise attempts, or leave them out",
        )


def _lifetimes(handler: Handler[Any, Any]) -> Iterator[Finding]:
    kind, settings = handler.kind, handler.settings
    life_s = horizon_s(settings.retry) + settings.retry.attempts * settings.timeout_s
    if life_s > _IDEMPOTENCY_S:
        yield doubtful(
            f"retry of {kind}",
            f"with all its waits and runs it may live for {_hours(life_s)}, longer than an idempotency key does by "
            "default (24 h): a request repeated after that starts a second job",
            "pass idempotency_ttl where it is enqueued with a key, or lower attempts, cap or timeout",
        )
    if settings.retention_s < _SHORT_RETENTION_S:
        yield doubtful(
            f"retention of {kind}",
            f"a done job can be read for {settings.retention_s:g} s only: who waits for its result may come too late",
            f"use {_SHORT_RETENTION_S:g} s or more",
        )
    if settings.failed_retention_s < max(_SHORT_FAILED_S, min(settings.retention_s, _IDEMPOTENCY_S)):
        yield doubtful(
            f"failed_retention of {kind}",
            f"a dead letter is forgotten after {settings.failed_retention_s:g} s, before anybody may have seen it",
            "keep it for a day at least; the default is seven",
        )


def _waiting(handler: Handler[Any, Any]) -> Iterator[Finding]:
    kind, rule, policy = handler.kind, handler.settings.resource, handler.settings.retry
    if rule is None:
        return
    if rule.ordered and policy.attempts > 1 and (wait_s := min(policy.cap, horizon_s(policy))) > _LONG_RESERVED_S:
        yield doubtful(
            f"ordered of {kind}",
            f"while a failed job waits for its next attempt (up to {wait_s:g} s) it keeps the resource, and all behind "
            "it wait too",
            "lower the cap of its retry policy, or give up ordered=True",
        )
    if 0 < rule.later_ms < 1_000:
        yield doubtful(
            f"on_busy of {kind}",
            f"each job that finds the resource taken comes back every {rule.later_ms} ms, only to look",
            'use on_busy="wait", which costs nothing while it waits, or a longer time',
        )
    life_s = horizon_s(policy) + policy.attempts * handler.settings.timeout_s
    if rule.later_ms / 1000 > max(3_600.0, life_s):
        yield doubtful(
            f"on_busy of {kind}",
            f"a job that finds the resource taken once comes back after {_hours(rule.later_ms / 1000)}, longer than "
            "the holder could take with all its retries",
            'use a shorter time, or on_busy="wait"',
        )


def _shown(handler: Handler[Any, Any], hidden: Collection[str]) -> Iterator[Finding]:
    """Secrets in names: those of resources and dedup keys stand in keys of Redis, in lists and in logs."""
    rule, dedup = handler.settings.resource, handler.settings.dedup
    templates = [rule.template] if rule is not None and isinstance(rule.template, ResourceTemplate) else []
    templates += [ResourceTemplate(dedup, "dedup")] if isinstance(dedup, str) else []
    for template in templates:
        for path in template.paths:
            if any(is_secret(part, hidden) for part in re.split(r"[.\[\]]+", path)):
                yield doubtful(
                    f"names of {handler.kind}",
                    f"{{{path}}} in {template.text!r} is a secret by its name, and names are shown: in keys of Redis, "
                    "in lists, events and logs",
                    "use an id instead, or a digest of the secret",
                )


def _limits(handlers: Handlers) -> Iterator[Finding]:
    """Two kinds that share a resource but not its limit."""
    by_text: dict[str, list[tuple[str, ResourceRule]]] = {}
    for kind, handler in handlers.items():
        if (rule := handler.settings.resource) is not None:
            shape = re.sub(r"\{[^}]*\}", "{}", str(getattr(rule.template, "text", rule.template)))
            by_text.setdefault(shape, []).append((kind, rule))
    for shape, users in by_text.items():
        if len({rule.limit for _, rule in users}) > 1:
            said = ", ".join(f"{kind} {rule.limit}" for kind, rule in users)
            yield bad(
                "limit",
                f"kinds that use the resource {shape!r} disagree on how many may hold it ({said}): the one with more "
                "places would run beside the one that counts on fewer",
                "give them the same limit, or different resources",
            )


def served(handlers: Handlers, about: WorkerSettings, alive: set[str]) -> list[Finding]:
    """Queues of the kinds that neither this worker nor any living one serves. alive: queues of the living ones."""
    lonely: dict[str, list[str]] = {}
    for kind, handler in handlers.items():
        queue = handler.settings.queue
        if queue not in alive and queue not in about.queues:
            lonely.setdefault(queue, []).append(kind)
    return [
        doubtful(
            "queues",
            f"no living worker serves queue {queue!r}, so jobs of {_some(names)} would wait",
            "start one in its language, with a token of the scope `work`"
            if all(handlers[name].settings.remote for name in names)
            else f"start one with `-q {queue}`",
        )
        for queue, names in sorted(lonely.items())
    ]


def _some(kinds: list[str]) -> str:
    names = ", ".join(sorted(kinds)[:3])
    return f"{names} and {len(kinds) - 3} more" if len(kinds) > 3 else names


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 7_200 else f"{seconds:.0f} s"
