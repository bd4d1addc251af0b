"""The page of Redis keys, docs/reference/keys.md, made from fencepost.keys.ALL.

python tools/keys_page.py            prints the page
python tools/keys_page.py --write    writes it to its place
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from fencepost.keys import ALL, KeySpec

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/keys.md"
PREFIX = "{shop:0}:"


class Question(NamedTuple):
    """What a person asks of Redis, and the command that answers. In it, ID, RESOURCE, … are to be filled in."""

    title: str
    command: str
    answer: str


QUESTIONS = (
    Question("What is known about a job?", "HGETALL {shop:0}:job:ID", "Every field of the job; see the list below."),
    Question(
        "What state is it in, who has it, since when?",
        "HMGET {shop:0}:job:ID state worker claimed_at attempts crashes token",
        "Times are milliseconds since 1970 by the clock of Redis.",
    ),
    Question(
        "Until when does its lease run?",
        "ZSCORE {shop:0}:leases ID",
        "Milliseconds since 1970; compare with `TIME`. No answer: nobody runs it.",
    ),
    Question(
        "Which runs have a lease that ran out?",
        "ZRANGEBYSCORE {shop:0}:leases -inf NOW_MS",
        "They are taken back by the next claim of any worker. If the list stays, no worker is there.",
    ),
    Question(
        "Who holds a resource?",
        "ZRANGE {shop:0}:slots:RESOURCE 0 -1 WITHSCORES",
        "A nonce is a run, `=ID` a place kept for a job that is coming, `@NONCE` a stand-alone lease; the score is "
        "the end of the lease in milliseconds.",
    ),
    Question(
        "Who waits for it, in which order?",
        "ZRANGE {shop:0}:line:RESOURCE 0 -1",
        "Job ids, first come first; `@NONCE` is a stand-alone lease that waits.",
    ),
    Question(
        "Who owns a stand-alone lease?",
        "HGETALL {shop:0}:lease:NONCE",
        "NONCE is what follows the `@`.",
    ),
    Question(
        "How many jobs are ready in a queue?", "ZCARD {shop:0}:ready:QUEUE", "Running and waiting ones not counted."
    ),
    Question(
        "Which jobs come next?",
        "ZRANGE {shop:0}:ready:QUEUE 0 9",
        "The order in which they are handed out.",
    ),
    Question(
        "What is due later, and when?",
        "ZRANGE {shop:0}:later 0 9 WITHSCORES",
        "Delayed jobs and retries; the score is the due time in milliseconds.",
    ),
    Question(
        "Which dead letters are the newest?",
        "ZREVRANGE {shop:0}:dead 0 9",
        "Ids of failed jobs. Their fields `reason`, `error_class` and `error` say why.",
    ),
    Question("Which jobs ended well, or were cancelled, lately?", "LRANGE {shop:0}:recent 0 9", "Newest first."),
    Question(
        "Which job holds a dedup key?",
        "GET {shop:0}:dedup:KIND:KEY",
        "The id of the live job. No answer: the key is free.",
    ),
    Question(
        "Was a request with this idempotency key accepted?",
        "GET {shop:0}:idem:CLIENT:KEY",
        "Job id and fingerprint. CLIENT is empty unless the option `client` was given.",
    ),
    Question(
        "Was a request to an idempotent endpoint answered?",
        "HMGET {shop:0}:answer:SCOPE:KEY status stored_at fingerprint",
        "Without a status it runs, or its last try failed; the lease `answer:SCOPE:KEY` says which.",
    ),
    Question(
        "What happened last?",
        "XREVRANGE {shop:0}:events + - COUNT 5",
        "One entry a script call; field `e` has one event a line. See [events](events.md).",
    ),
    Question(
        "How many stale writes were refused?",
        "HGETALL {shop:0}:stats",
        "Counters `refused:…` by verb, and all others.",
    ),
    Question("Which workers are there?", "ZRANGE {shop:0}:workers 0 -1", "Seen within the last hour."),
    Question("What is known about a worker?", "HGETALL {shop:0}:worker:WORKER", "Host, pid, queues, last claims."),
    Question(
        "Who may call the HTTP service?",
        "HGETALL {shop:0}:credentials",
        "Ids, and what each may do. Of a token's secret there is only the hash.",
    ),
    Question(
        "Which queues are paused, since when, by whom, why?",
        "HGET {shop:0}:meta pauses",
        "A line a queue; no answer: none is.",
    ),
    Question("Clock, token and sequence of the partition?", "HGETALL {shop:0}:meta", "See the fields below."),
)

FIELDS: dict[str, tuple[tuple[str, str], ...]] = {
    "job": (
        ("state", "scheduled, queued, waiting, processing, done, failed or cancelled"),
        ("kind, queue", "which handler, which queue"),
        ("payload", "the arguments, a JSON object by name"),
        ("opts", "options that differ from the defaults, one name=value a line"),
        ("score", "its place in the queue: arrival in µs, minus 60,000,000 per step of priority"),
        ("created_at, updated_at, claimed_at, finished_at, requeued_at", "moments, in ms; each only once it happened"),
        ("due_at", "when a scheduled job is due, in ms"),
        ("attempts", "runs charged so far, the present one included"),
        ("crashes", "runs whose lease ran out without an outcome"),
        ("unknown_since", "when a worker first met it and did not know its kind, in ms"),
        ("releases", "runs handed back, and put off because the resource was busy; never charged"),
        ("token", "the newest fencing token minted for this job"),
        ("nonce", "the run that owns it; empty while nobody does"),
        ("worker", "the worker that claimed it last"),
        ("bumped", "the nonce of a run whose token was raised, and the tokens it had before"),
        ("progress, checkpoint", "what the run stored, as JSON"),
        ("step:<name>", "the result of a step, as JSON; one field for each, kept over attempts and generations"),
        ("outside:<name>", "an effect outside SQL, as JSON: state, key, attempt, token, result; kept like the steps"),
        ("result", "what the handler returned, as JSON; absent for None"),
        ("reason", "why it failed or was cancelled"),
        ("error_class, error", "of the last failed run: class, message and end of the traceback, cut at 8 KiB"),
        ("settled", "nonce and outcome of the last run that did not end the job; makes a repeated write harmless"),
        ("cancel, cancel_request, cancelled_from", "somebody asked to cancel: reason, id of the request, state then"),
        ("generation, requeue_request", "how often it was started anew by hand, counted from 1, and by which request"),
        ("revoke_request", "the request that last took it from its worker, and what became of it then"),
    ),
    "lease": (
        ("state", "held, waiting or revoked"),
        ("revoke_request", "of a revoked one: the request that took it"),
        ("resource, owner", "what it is on, and which process has it"),
        ("token", "its fencing token"),
        ("bumped", "its nonce and the tokens it had before the present one"),
        ("ttl_ms", "how long it outlives a silent holder"),
        ("limit", "of a waiter: how many may be inside together with it"),
    ),
    "answer": (
        ("fingerprint", "of the request: method, path and body"),
        ("status, about, body", "the answer: its status, its headers as JSON, its body as it was sent"),
        ("nonce, token", "the lease under which it was made"),
        ("stored_at", "when, in ms; all but the fingerprint only once there is an answer"),
    ),
    "worker": (
        ("about", "JSON: host, pid, queues"),
        ("seen_at", "ms; written at most once a second"),
        ("lane0, lane1, …", "nonce and job ids of the last claim of each lane, handed out again if the reply is lost"),
    ),
    "meta": (
        ("token", "the last fencing token minted"),
        ("seq", "number of the last event"),
        ("last_us", "time of the last sweep in µs; the partition's clock never goes behind it"),
        ("lease_ms", "lease of the last worker that reported"),
        ("grace_until", "nothing is taken back before this moment, in ms; set after a silence"),
        ("incarnation", "when this partition was first written, in µs"),
        ("archived", "up to which event the ledger has copied them; absent without a ledger"),
        ("event_cap", "how many events are kept at most for a ledger that is away"),
        ("dropped_to", "up to which event they went without having been copied"),
        ("partitions", "the number of partitions of the namespace, noted when a worker first started: 1"),
        ("paused", "the names of the paused queues, with blanks around them; absent if there are none"),
        ("pauses", "a line for each of them: name, since when in ms, who paused it, why; with a tab between them"),
    ),
}  # fmt: skip

_TTL = {
    "never": "none; deleted by its owner",
    "always": "from its first write",
    "final": "once the job has ended",
}


def full(pattern: str) -> str:
    """Return the pattern of a key as it stands on the page."""
    return PREFIX + pattern.replace("{", "<").replace("}", ">")


def field_names(name: str) -> set[str]:
    """Return the fields of a hash that the page lists."""
    return {field.strip() for names, _ in FIELDS[name] for field in names.split(",") if field.strip() != "…"}


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD, "| Key | Type | Holds |\n|---|---|---|", *map(_row, ALL)]
    parts += ["", _LIFE, "| Key | Ends by | Bound | TTL |\n|---|---|---|---|", *map(_life_row, ALL)]
    parts += ["", _ASK]
    for question in QUESTIONS:
        parts += [f"\n**{question.title}**\n", "```console", f"$ redis-cli {quoted(question.command)}", "```\n"]
        parts += [question.answer]
    parts += ["", "## Fields of the hashes"]
    for name, fields in FIELDS.items():
        spec = next(spec for spec in ALL if spec.name == name)
        parts += [f"\n### `{full(spec.pattern)}`\n", "| Field | Holds |\n|---|---|"]
        parts += [f"| {', '.join(f'`{n.strip()}`' for n in names.split(','))} | {text} |" for names, text in fields]
    return "\n".join(parts) + "\n"


def quoted(command: str) -> str:
    """Return a command with its keys in quotes: shells give braces a meaning of their own."""
    return " ".join(f"'{word}'" if "{" in word else word for word in command.split(" "))


def _row(spec: KeySpec) -> str:
    return f"| `{full(spec.pattern)}` | {spec.type} | {spec.holds} |"


def _life_row(spec: KeySpec) -> str:
    return f"| `{full(spec.pattern)}` | {spec.owner} | {spec.bound} | {_TTL[spec.ttl]} |"


_HEAD = f"""\
<!-- Made by tools/keys_page.py from fencepost.keys; do not edit. `python tools/keys_page.py --write` makes it anew. -->

# Redis keys

Everything Fencepost keeps in Redis, to be read by a person with `redis-cli`. Reading is safe at any time. Do not write:
each key belongs to the scripts, which count on each other. To change something, use `fencepost cancel`, `dead`
and `heal`.

Every key begins with `{PREFIX}`. `shop` is the namespace (by default `fencepost`), `0` the partition. The braces
are part of the key: on a cluster they keep all keys of a partition in one slot, so that one script may touch any of
them.

`ms` and `µs` are since 1970, by the clock of Redis, never by that of a worker.
"""

_LIFE = """\
## How each key ends

Each key has a TTL, or an owner that deletes it. A test runs every verb and fails on a key that stands in no row.
"""

_ASK = """\
## Questions and the commands that answer them

For the private server of a data folder, add `-s "$(cat .fencepost/socket)"` to `redis-cli`. Words in capitals are for
you to fill in."""

if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
