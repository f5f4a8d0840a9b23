"""The gallery: every picture is there, small, and made by the line above it; every line runs."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

import loopwright as lw

ROOT = Path(__file__).parent.parent
GALLERY = runpy.run_path(str(ROOT / "docs" / "gallery.py"))
BYTES = 600_000


def test_every_picture_is_there_and_made_by_the_line_above_it() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text()
    shown = re.findall(r"```python\n([^`]*)```\n\n!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(shown) == len(GALLERY["pictures"]()) > 30
    for block, picture in shown:
        line = block.strip().splitlines()[-1]
        wanted = f'results / "{picture.split("results/")[1]}"' if "results/" in picture else f'here / "{Path(picture).name}"'
        assert wanted in line, picture
    made = [ROOT / path for path in GALLERY["pictures"]()]
    assert all(path.is_file() for path in made)
    own = [path for path in made if path.parent.name == "gallery"]
    assert set(own) == set((ROOT / "docs" / "gallery").iterdir())
    assert sum(path.stat().st_size for path in own) < BYTES


def test_every_name_of_the_figures_from_plain_numbers_stands_on_the_page() -> None:
    words = set(re.findall(r"\w+", (ROOT / "docs" / "gallery.md").read_text()))
    assert sorted(set(lw.plot.__all__) - words) == []


@pytest.mark.slow
def test_every_line_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "experiments" / "results", tmp_path / "experiments" / "results")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in GALLERY["blocks"]():
        exec(block, names)
    assert all((tmp_path / path).is_file() for path in GALLERY["pictures"]())
