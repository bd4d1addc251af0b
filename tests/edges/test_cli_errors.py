"""Errors are one line that says what to do, and an exit code; help is fast."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fencepost.cli import main, root
from fencepost.cli.root import COMMANDS


def run(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "fencepost", *arguments],
        capture_output=True, text=True, timeout=15, env={**os.environ, **env}, check=False,
    )  # fmt: skip


def one_line(text):
    return text.startswith("fencepost: ") and text.count("\n") == 1 and "Traceback" not in text


@pytest.mark.parametrize(
    ("module", "target", "problem"),
    [
        (None, "no_such_module:app", "there is no module 'no_such_module'"),
        (None, "not a module", "names no module"),
        ("x = 1", "MODULE:app", "It has no Fencepost object"),
        ("from fencepost import Fencepost\nshop = Fencepost()", "MODULE", "It has MODULE:shop"),
        ("import no_such_library", "MODULE:app", "No module named 'no_such_library'"),
        ("\n1 / 0", "MODULE:app", ":2: ZeroDivisionError: division by zero"),
    ],
)
def test_an_application_that_cannot_be_loaded_is_explained(cli, shop, tmp_path, module, target, problem):
    name = shop.partition(":")[0]
    if module is not None:
        (tmp_path / f"{name}.py").write_text(module)
    cli("worker", target.replace("MODULE", name), code=2)
    assert one_line(cli.err)
    assert problem.replace("MODULE", name) in cli.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--queues", "a:x"], "a:x"),
        (["--queues", "a:0"], "a:0"),
        (["--queues", "a b"], "'a b' is not a name"),
        (["--queues", ","], "queues"),
        (["--lease", "0.1s"], "lease"),
        (["--grace", "soon"], "grace"),
    ],
)
def test_worker_settings_that_cannot_be_are_refused_before_anything_starts(cli, shop, arguments, problem):
    cli("worker", shop, *arguments, code=2)
    assert one_line(cli.err)
    assert problem in cli.err


def test_a_worker_needs_an_application(cli):
    cli("worker", code=2)
    assert "Write `fencepost worker module:app`" in cli.err


def test_redis_away_is_exit_code_4(cli, monkeypatch, tmp_path):
    monkeypatch.setattr("fencepost.cli.session.GIVE_UP_S", 0.05)
    cli("stats", "--url", f"unix://{tmp_path}/nobody.sock", code=4)
    assert one_line(cli.err)
    assert "Redis gave no answer" in cli.err


def test_a_server_that_refuses_the_user_is_told_in_one_line(cli, partition):
    partition.redis.execute_command("ACL", "SETUSER", partition.user, "-evalsha")
    url = f"unix://{partition.user}:any@{partition.url.removeprefix('unix://').partition('?')[0]}?db=0"
    cli("stats", "--url", url, code=1)
    assert one_line(cli.err)
    assert "no permissions" in cli.err


@pytest.mark.parametrize("arguments", [["no-such-command"], ["job"], ["jobs", "--state", "lost"], ["stats", "--what"]])
def test_wrong_usage_is_exit_code_2(cli, arguments):
    cli(*arguments, code=2)
    assert "Traceback" not in cli.err


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("demo", "bench", "sql")])
def test_every_command_has_help_and_the_common_options(cli, name):
    first = {"dead": ["list"], "ledger": ["status"], "token": ["list"]}.get(name, [])
    out = cli(name, *first, "--help")
    for option in ("--url", "--namespace", "--app", "--json"):
        assert option in out


def test_the_help_names_every_command_and_the_exit_codes(cli):
    out = cli("--help")
    assert all(f"  {name} " in out for name in COMMANDS)
    assert "5 in part" in " ".join(out.split())
    assert cli("--version").startswith("fencepost 0.")


def test_a_command_whose_extra_is_missing_says_what_to_install(cli, monkeypatch):
    entry = root._Entry("fencepost.no_such_part.command", "command", "x")
    monkeypatch.setitem(root.COMMANDS, "demo", entry)
    cli("demo", code=1)
    assert "pip install 'fencepost[demo]'" in cli.err


def test_without_click_the_command_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "click", None)
    assert main(["stats"]) == 2
    assert "pip install 'fencepost[cli]'" in capsys.readouterr().err


def test_help_imports_nothing_that_it_does_not_need():
    code = (
        "import sys; from fencepost.cli import main; main(['--help']); "
        "print([name for name in ('rich', 'fastapi', 'sqlalchemy', 'aiosmtpd', 'uvloop') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=15, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_goes_away_is_no_error(cli, url, namespace):
    command = f"{sys.executable} -m fencepost --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=15, check=False)
    assert done.stderr == ""


def test_odd_text_is_printed_escaped_on_an_ascii_terminal(cli, partition, url, namespace):
    """report: rq/rq#682"""
    run_key = partition.put("processing")
    partition.finish(run_key, "BURY", "permanent", "Fehler", "kaputt 中文 \u00e9")
    for options in ([], ["--json"]):
        done = run("job", run_key.job_id, "--url", url, "--namespace", namespace, *options, PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")
        assert "kaputt" in done.stdout
