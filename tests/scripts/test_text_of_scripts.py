"""The text of each script keeps the rules: a header that is a contract, and nothing that numbers or errors slip by."""

from __future__ import annotations

import hashlib
import re

import pytest

from fencepost.scripts import load, names, source

HEADER = re.compile(
    r"#!lua(?: flags=(?:allow-oom|no-writes))?\n"
    r"-- (?P<name>\w+): (?P<does>.+\n(?:--  .*\n)*)"
    r"-- KEYS: (?P<keys>.+\n(?:--  .*\n)*)"
    r"-- ARGV: (?P<argv>.+\n(?:--  .*\n)*)"
    r"-- RETURNS: (?P<returns>.+\n(?:--  .*\n)*)"
    r"-- TWICE: (?P<twice>.+\n)"
)
BASE_KEYS = "meta events stats leases later dead recent"
FLAGS = {
    **dict.fromkeys(("claim", "finish", "renew", "checkpoint", "release", "cancel", "purge", "heal"), "allow-oom"),
    **dict.fromkeys(("bump", "archived", "conclude", "pause", "revoke", "credential", "answer"), "allow-oom"),
    **dict.fromkeys(("look",), "no-writes"),
}
INCLUDES = re.compile(r"^--- @include (\w+)$", re.M)
FILES = sorted({*names(), *(inner for name in names() for inner in INCLUDES.findall(source(name)))})
# Numbers that need all their digits: tokens and microseconds. Text of a number goes through int() or mint().
BIG = r"(?:token|us|last_us|seq)"


def code(name: str) -> str:
    """A file without its comments and its quoted text."""
    return re.sub(r"'[^'\n]*'", "''", re.sub(r"--.*", "", source(name)))


@pytest.mark.parametrize("name", names())
def test_the_header_says_what_goes_in_what_comes_out_and_what_a_repetition_does(name):
    header = HEADER.match(source(name))
    assert header, f"{name}.lua: the header lacks one of: name, KEYS, ARGV, RETURNS, TWICE (in this order)"
    assert header["name"] == name
    assert header["keys"].startswith((BASE_KEYS, "as claim"))


@pytest.mark.parametrize("name", names())
def test_a_script_that_lets_the_queue_drain_may_run_when_memory_is_full(name):
    wanted = f"#!lua flags={FLAGS[name]}" if name in FLAGS else "#!lua"
    assert source(name).split("\n", 1)[0] == wanted


@pytest.mark.parametrize("name", FILES)
def test_no_text_swallows_an_error_or_looks_for_keys(name):
    text = code(name)
    # claim reads jobs below the writes of the sweep and of finish; it treats an error of that one read as "no job".
    assert text.count("pcall") == (1 if name == "_claim" else 0)
    assert not re.search(r"'(?:KEYS|SCAN|FLUSH\w*|EVAL\w*|SELECT)'", source(name))
    assert "cjson" not in text, "a number that went through JSON has lost digits"
    if "include _begin" in source(name) or name.startswith("_"):
        assert "'TIME'" not in source(name) or name == "_begin", "the time is asked once, in _begin"


@pytest.mark.parametrize("name", FILES)
def test_no_big_number_becomes_text_without_all_its_digits(name):
    text = code(name)
    assert not re.search(rf"\.\.\s*{BIG}\b(?!\w*\()|(?<![\w.]){BIG}\s*\.\.", text)
    assert not re.search(rf"tostring\(\s*{BIG}", text)
    assert not re.search(r"(?<![\w.])tostring\((?!word\))", text)


@pytest.mark.parametrize("name", names())
def test_a_script_has_few_includes_and_each_of_them_once(name):
    includes = INCLUDES.findall(source(name))
    assert len(includes) <= 6
    assert len(set(includes)) == len(includes)
    assert all(inner.startswith("_") for inner in includes)
    assert source(name).count("@include") == len(includes)


@pytest.mark.parametrize("name", FILES)
def test_a_script_is_short_enough_to_be_read(name):
    assert len(source(name).splitlines()) <= 200
    assert "@include" not in source(name) or name in names(), "an include includes nothing itself"


@pytest.mark.parametrize("name", names())
def test_a_script_is_known_by_the_hash_of_what_is_sent(redis, name):
    script = load(name)
    assert script.sha == hashlib.sha1(script.text.encode()).hexdigest()
    assert redis.script_load(script.text) == script.sha
    assert len(script.origin) == len(script.text.splitlines())


def test_the_line_of_an_error_is_told_in_its_own_file():
    script = load("finish")
    for number, line in enumerate(script.text.splitlines(), 1):
        name, inner = script.origin[number - 1]
        assert source(name).splitlines()[inner - 1] == line
        assert script.where(f"ERR user_script:{number}: oops") == f"{name}.lua:{inner}"
    assert script.where("ERR something else") == "finish.lua"
    assert script.where("ERR user_script:99999: oops") == "finish.lua"
