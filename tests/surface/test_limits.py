"""The limits on size hold, and the tool that checks them finds what it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import limits


@pytest.mark.parametrize("folder", limits.FOLDERS)
def test_nothing_is_longer_than_the_limits(folder):
    assert list(limits.too_long(limits.ROOT / folder)) == []


def test_a_long_module_function_and_script_are_named(tmp_path: Path):
    body = "    x = 1\n" * limits.FUNCTION_LINES
    (tmp_path / "a.py").write_text("#\n" * limits.MODULE_LINES + "#\n")
    (tmp_path / "b.py").write_text(f"class C:\n  def just_right():\n{body[10:]}\n  async def too_long():\n{body}")
    (tmp_path / "c.lua").write_text("--\n" * limits.SCRIPT_LINES + "--\n")
    found = [problem.removeprefix(f"{tmp_path}/") for problem in limits.too_long(tmp_path)]
    assert found == [
        "a.py: 401 lines, the limit is 400; split it by duty",
        "b.py:63: too_long has 61 lines, the limit is 60",
        "c.lua: 201 lines, the limit is 200; split it by duty",
    ]
