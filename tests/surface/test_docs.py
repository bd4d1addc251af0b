"""Every command and every Python block of the documentation does what its page shows; every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.surface.pages import ROOT, Block, Reading, blocks, commands, matches, pages

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_RUNS = ("python", "console")
_SHOWN = ("text", "sh", "lua", "sql", "ini", "json", "")
_PAGES = [page for page in pages() if any(block.language in _RUNS for block in blocks(page))]
# Its commands need a job to ask about; test_keys_page runs them.
_ELSEWHERE = {"docs/reference/keys.md"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(90)
@pytest.mark.parametrize("page", [page for page in _PAGES if name_of(page) not in _ELSEWHERE], ids=name_of)
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path):
    with Reading(tmp_path) as reading:
        reading.read(page)
        assert reading.ran


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_blocks_are_of_a_known_kind(page: Path):
    for block in blocks(page):
        assert block.language in _RUNS + _SHOWN, f"{block.where}: {block.language} is neither run nor known as shown"


@pytest.mark.parametrize("page", [*pages(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_links_lead_to_a_file_and_a_heading_that_exist(page: Path):
    for target in _LINK.findall(_without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), f"{name_of(page)}: {target}"
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{name_of(page)} links to {target}, which does not exist"
        assert not anchor or anchor in _anchors(other), f"{name_of(page)} links to {target}: no such heading"


def test_every_page_can_be_reached_from_the_readme():
    seen: set[Path] = set()
    rest = [ROOT / "README.md"]
    while rest:
        page = rest.pop()
        seen.add(page)
        for target in _LINK.findall(_without_code(page.read_text(encoding="utf-8"))):
            other = (page.parent / target.partition("#")[0]).resolve()
            if other.suffix == ".md" and other not in seen and other.exists():
                rest.append(other)
    assert {name_of(page) for page in pages()} <= {name_of(page) for page in seen}


def test_dots_stand_for_any_text():
    assert matches("a … c\n…\nend", "a long c\nx\ny\nend\n")
    assert matches("…\nend", "end\n")
    assert matches("", "\n")
    assert not matches("a … c", "a b d\n")
    assert not matches("", "something\n")


def test_commands_are_told_from_their_output():
    block = Block("p.md", 1, "console", "", "$ one \\\n  two\nshown\n\nmore\n$ three\n")
    assert list(commands(block)) == [("one \\\n  two", "shown\n\nmore"), ("three", "")]


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
