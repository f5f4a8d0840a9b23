"""`lw.metrics` is what its page says: every public name is documented, and the example of the page runs."""

from __future__ import annotations

import re
from pathlib import Path

import loopwright as lw

WHOLE = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text()
PAGE = re.split(r"^## ", WHOLE.split("\n## Metrics\n")[1], flags=re.MULTILINE)[0]  # the section on metrics alone


def test_every_public_name_is_on_the_page_and_exists() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", prose))))
    missing = [name for name in lw.metrics.__all__ if name not in named]
    assert not missing, missing
    assert [name for name in lw.metrics.__all__ if name not in dir(lw.metrics)] == []
    tables = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", PAGE, re.MULTILINE)
    assert len(tables) > 30
    assert {name for row in tables for name in row if name} <= set(lw.metrics.__all__)


def test_the_example_runs() -> None:
    names: dict = {}
    exec(compile(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], "analysis.md", "exec"), names)
    assert lw.metrics.LIMITS[names["limits"].label] == "slider"
