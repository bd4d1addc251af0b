"""The log lines of a worker process, for people and for programs."""

from __future__ import annotations

import json
import logging
import os
import sys

import pytest

from fencepost.cli import logs
from fencepost.log import emit


@pytest.fixture
def logged(capsys, monkeypatch):
    """Set up logging in a form, and return a function that gives the lines written so far."""
    logger = logging.getLogger("fencepost")
    root = logging.getLogger()
    before = logger.handlers[:], logger.level, logger.propagate, root.handlers[:], root.level

    def start(form, level="info"):
        handler = logs.set_up(form, level)
        return handler, lambda: capsys.readouterr().err.splitlines()

    yield start
    logger.handlers[:], logger.level, logger.propagate, root.handlers[:], root.level = before
    logger.setLevel(logger.level)


def test_a_line_for_people_has_time_level_event_and_fields(logged):
    _, lines = logged("human")
    emit(logging.getLogger("fencepost.worker"), logging.WARNING, "lease_lost", job_id="j1", late_by_ms=310, why="a b")
    [line] = lines()
    assert line.endswith(" WARNING  lease_lost job_id=j1 late_by_ms=310 why='a b'")


def test_a_line_for_programs_is_one_json_object_with_the_fields_as_they_are(logged):
    _, lines = logged("json")
    emit(logging.getLogger("fencepost.worker"), logging.WARNING, "lease_lost", job_id="j1", late_by_ms=310, host="x")
    [line] = map(json.loads, lines())
    assert (line["event"], line["level"], line["job_id"], line["late_by_ms"]) == ("lease_lost", "warning", "j1", 310)
    assert line["host_"] == "x", "a field never hides what every line has"
    assert line["pid"] == os.getpid()
    assert line["host"]
    assert line["time"].endswith("Z")


@pytest.mark.parametrize("odd", ["\udc80", "中文\n\x00", float("nan"), 2**70, object(), b"\xff", {1: {2: 3}}])
def test_odd_values_are_logged_escaped_and_break_nothing(logged, odd):
    """report: rq/rq#682"""
    for form in ("json", "human"):
        _, lines = logged(form)
        emit(logging.getLogger("fencepost.worker"), logging.INFO, "odd", value=odd)
        [line] = lines()
        if form == "json":
            assert json.loads(line)["event"] == "odd"


def test_the_level_is_obeyed(logged):
    _, lines = logged("human", "error")
    emit(logging.getLogger("fencepost.worker"), logging.WARNING, "warned")
    emit(logging.getLogger("fencepost.worker"), logging.ERROR, "failed")
    assert [line.split()[-1] for line in lines()] == ["failed"]


def test_the_applications_own_lines_come_too_unless_it_set_up_logging_itself(logged):
    handler, lines = logged("json")
    root = logging.getLogger()
    root.handlers[:] = []
    logs.adopt_root(handler, "info")
    logging.getLogger("shop").info("sold %d", 3)
    [line] = map(json.loads, lines())
    assert (line["event"], line["logger"], line["message"]) == ("log", "shop", "sold 3")
    root.handlers[:] = [logging.NullHandler()]
    logs.adopt_root(handler, "info")
    logging.getLogger("shop").info("sold again")
    assert lines() == []


def test_a_traceback_is_part_of_the_line(logged):
    _, lines = logged("json")
    try:
        raise ValueError("no good")
    except ValueError:
        logging.getLogger("fencepost.worker").error("broken", exc_info=sys.exc_info())
    [line] = map(json.loads, lines())
    assert "ValueError: no good" in line["traceback"]
