"""The page about Run and Job names every public member of both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fencepost import Job, Run

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run-and-job.md"


@pytest.mark.parametrize("cls", [Run, Job])
def test_each_public_member_is_on_the_page(cls):
    section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(f"`{cls.__name__}`"))
    mentioned = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", text))))
    members = {name for name in (*vars(cls), *cls.__slots__) if not name.startswith("_")}
    assert members - mentioned == set()
