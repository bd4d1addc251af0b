"""What must not be in the repository, and what must agree in it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import fencepost

ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = {".git", "build", "dist", "__pycache__"}
_TEXT_LIMIT = 2_000_000

# Written in pieces, so that this file does not find itself.
MACHINE_PATHS = re.compile(
    "|".join(["/wo" + "rk/", "/ro" + "ot/", "/ho" + r"me/\w+/", "/Us" + r"ers/\w+/", r"[A-Z]:\\Us" + "ers"])
)
REGISTRIES = re.compile(
    "|".join(
        [
            "--(?:extra-)?index" + "-url",
            "find" + r"-links\s*=",
            r"https?://[^\s/\"']*(?:pypi|pythonhosted|artifactory|nexus|mirror|npmjs|registry)" + r"[^\s/\"']*/",
            r"\btrusted" + "-host",
        ]
    ),
    re.IGNORECASE,
)
LOCK_FILES = {"poetry.lock", "uv.lock", "pdm.lock", "pipfile.lock", "package-lock.json", "yarn.lock", "pnpm-lock.yaml"}


def tracked() -> list[Path]:
    """Return the files that are, or could be, in the repository; without git, every file but the ignored folders."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
        found = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if not (_SKIPPED | _hidden(path)) & set(path.parts)]
    return [path for path in found if path.is_file() and path.stat().st_size < _TEXT_LIMIT]


def _hidden(path: Path) -> set[str]:
    return {part for part in path.relative_to(ROOT).parts[:-1] if part.startswith(".") and part != ".ci"}


@pytest.fixture(scope="module")
def lines() -> list[tuple[str, str]]:
    """Every line of every text file, with where it is."""
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        name = path.relative_to(ROOT)
        found += [(f"{name}:{number}", line) for number, line in enumerate(text.splitlines(), 1)]
    assert len(found) > 1_000
    return found


def test_no_file_names_a_path_of_somebody_s_machine(lines):
    assert [where for where, line in lines if MACHINE_PATHS.search(line)] == []


def test_no_file_names_a_package_registry(lines):
    assert [where for where, line in lines if REGISTRIES.search(line)] == []


def test_the_patterns_find_what_they_are_for():
    assert MACHINE_PATHS.search("cd /ho" + "me/ann/fencepost")
    assert REGISTRIES.search("pip install --index" + "-url=x")
    assert REGISTRIES.search("https://registry.npm" + "js.org/htmx")
    assert not REGISTRIES.search("redis://localhost:6379/0 https://redis.io/docs/")


def test_there_is_no_lock_file_and_no_binary_left_behind():
    names = [
        path for path in tracked() if path.name.lower() in LOCK_FILES or path.suffix in (".so", ".pyc", ".rdb", ".aof")
    ]
    assert names == []


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == fencepost.__version__
    assert f"## [{fencepost.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_what_pyproject_names_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for name in [project["project"]["readme"], *project["project"]["license-files"], *included]:
        assert (ROOT / name.lstrip("/")).exists(), name
