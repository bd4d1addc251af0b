"""The reference pages say what the code says: settings with their defaults, errors with their data, events by name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost import Fencepost, ResourceRule, RetryPolicy, Worker, errors, scripts
from fencepost.handler import Handler, Options
from tests.surface.pages import ROOT

REFERENCE = ROOT / "docs/reference"
SOURCE = ROOT / "src/fencepost"
SIGNATURES: dict[str, Callable[..., Any]] = {
    "Fencepost": Fencepost,
    "app.job": Fencepost.job,
    "options": Handler.options,
    "Worker": Worker,
    "app.lease": Fencepost.lease,
    "RetryPolicy": RetryPolicy,
    "ResourceRule": ResourceRule,
}


def section(page: str, heading: str) -> str:
    """Return what stands below a heading, up to the next one of the same level or above."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,3}} |\Z)", text, re.M | re.S)
    assert found, f"{page} has no section {heading}"
    return found[2]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables in a text, without their heads."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        is_head = number + 1 < len(lines) and lines[number + 1].startswith("|--")
        if line.startswith("| ") and not is_head:
            yield [cell.strip() for cell in line.strip()[1:-1].split("|")]


def first_column(page: str, heading: str) -> set[str]:
    return {row[0].strip("`") for row in rows(section(page, heading)) if row[0].startswith("`")}


@pytest.mark.parametrize("name", SIGNATURES)
def test_each_setting_is_listed_with_its_default(name: str):
    wanted = {
        parameter.name: "required" if parameter.default is parameter.empty else parameter.default
        for parameter in inspect.signature(SIGNATURES[name]).parameters.values()
        if parameter.name != "self" and parameter.kind is not parameter.POSITIONAL_ONLY
    }
    table = section("settings.md", f"`{name}`").split("\n\n`on_busy`:")[0]
    listed = {row[0].strip("`"): row[1] for row in rows(table)}
    listed = {key: text if text == "required" else ast.literal_eval(text.strip("`")) for key, text in listed.items()}
    assert listed == wanted


def test_options_on_a_handler_and_as_a_value_are_the_same():
    fields = {name: parameter.default for name, parameter in inspect.signature(Options).parameters.items()}
    assert fields == {n: p.default for n, p in inspect.signature(Handler.options).parameters.items() if n != "self"}


def test_each_environment_variable_is_listed():
    used: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        used |= set(re.findall(r"\bFENCEPOST_[A-Z_]+\b", path.read_text(encoding="utf-8")))
    private = {name for name in used if name.startswith(("FENCEPOST_DEMO_", "FENCEPOST_CHILD_"))}  # to own processes
    assert first_column("settings.md", "Environment") == used - private


@pytest.mark.parametrize("name", errors.__all__)
def test_each_error_is_described_with_its_attributes(name: str):
    text = section("errors.md", f"`{name}`")
    listed = re.search(r"Attributes: (.*)", text)
    assert listed
    own = getattr(errors, name)
    parameters = [] if own.__init__ is Exception.__init__ else list(inspect.signature(own).parameters)
    assert re.findall(r"`(\w+)`", listed[1]) == parameters


def test_the_error_tree_of_the_page_is_that_of_the_code():
    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    tree = page.split("```text\n")[1].split("```")[0]
    public = __import__("fencepost").__all__
    assert sorted(re.findall(r"\w+(?=\*)", tree)) == sorted(name for name in errors.__all__ if name not in public)
    assert set(re.findall(r"[A-Z]\w+", tree)) == {*errors.__all__, "ValueError"}


NAMED_BY_CALLERS = {
    "state": {"done", "failed", "cancelled"},
    "event or state": {"done", "failed", "cancelled", "concluded"},
    "event": {"step", "intent", "outcome"},
    "j.late and 'late_effect' or ARGV[a + 4]": {"late_effect", "effect", "effect_found"},
}
"""What stands in a variable where a script tells or counts something."""


def lua_names(call: str) -> set[str]:
    """Return the names that scripts give to emit() or count(), and those they write as lines themselves."""
    names: set[str] = set()
    for path in (SOURCE / "scripts").glob("*.lua"):
        text = path.read_text(encoding="utf-8")
        for argument in re.findall(rf"(?<!function )\b{call}\(([^,]*),", text):
            found = NAMED_BY_CALLERS.get(argument) or set(re.findall(r"'(\w+)'", argument)) - {"RETRY"}
            assert found, f"{path.name}: {call}({argument}, …)"
            names |= found
        if call == "emit":
            names |= set(re.findall(r"lines\[told\] = '(\w+)\\t'", text))
    return names


def test_each_event_of_the_scripts_is_listed_and_no_other():
    assert first_column("events.md", "The event stream") - {"t", "w", "e"} == lua_names("emit")


def test_each_counter_of_the_scripts_is_listed_and_no_other():
    assert first_column("events.md", "Counters") == lua_names("count")


def test_each_refused_verb_is_listed():
    words = {
        word.lower()
        for word in re.findall(r"(\w+) = \d", scripts.source("finish").split("VALUES = {")[1].split("}")[0])
    }
    words.remove("note")  # SQL has accepted it: it is told, whoever the owner is
    others = {verb for name in scripts.names() for verb in re.findall(r"refuse\('(\w+)'", scripts.source(name))}
    others |= set(re.findall(r"where ~= '(\w+)'", scripts.source("bump")))
    row = next(row for row in rows(section("events.md", "Counters")) if row[0] == "`refused`")
    assert set(re.findall(r"`(\w+)`", row[1])) == words | others


def test_each_kind_of_orphan_is_listed():
    kinds = {
        kind
        for path in (SOURCE / "scripts").glob("*.lua")
        for kind in re.findall(r"count\('orphan', '(\w+)'", path.read_text())
    }
    row = next(row for row in rows(section("events.md", "Counters")) if row[0] == "`orphan`")
    assert set(re.findall(r"`(\w+)`", row[1])) == kinds


def log_lines(path: Path) -> Iterator[str]:
    """Yield the event names that a module logs, as far as they are written out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "emit":
            name = node.args[2]
            if isinstance(name, ast.Constant):
                yield str(name.value)


def test_each_log_line_is_listed_and_no_other():
    written = {name for path in SOURCE.rglob("*.py") for name in log_lines(path)}
    # Names that are put together: worker.lose logs the reason, the doctor the level, the books what they cannot reach.
    written |= {"lost", "cancelled", "timeout", "shutdown", "doctor_error", "doctor_warning"}
    written |= {"ledger_away", "ledger_back", "outbox_away", "outbox_back"}
    assert first_column("events.md", "Log lines") == written


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("queues", "billing"),  # a text is a sequence of letters: it would serve the queues b, i, l, …
        ("queues", [("billing", 0)]),
        ("poll_s", 0),  # Redis reads 0 as "block for ever"
        ("grace_s", -1),
        ("lanes", 0),
    ],
)
def test_a_worker_s_setting_outside_its_bounds_is_refused(setting: str, value: object):
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(errors.ConfigurationError, match=f"^{setting.removesuffix('_s')}"):
        Worker(Fencepost(), **settings)
