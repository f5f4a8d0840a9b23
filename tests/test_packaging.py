"""What is packed: a page whose links lead somewhere, no stray tests, bounds that can be tried at both ends."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()
readme = runpy.run_path(str(ROOT / "setup.py"))["readme"]


def targets(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_links_of_the_package_page_are_absolute_where_the_repository_has_an_address() -> None:
    page = readme(README, "https://example.org/loop/", "1.2")
    assert all(target.startswith("https://") for target in targets(page)) and len(targets(page)) == len(targets(README))
    assert "](https://example.org/loop/blob/v1.2/docs/checkpoints.md#what-was-verified-and-how)" in page
    assert "](https://example.org/loop/raw/v1.2/docs/loop.svg)" in page
    assert [line for line in page.splitlines() if "](" not in line] == [line for line in README.splitlines() if "](" not in line]


def test_where_it_has_none_no_link_is_dead() -> None:
    page = readme(README, None, "1.2")
    assert targets(page) and all(target.startswith("https://") for target in targets(page))
    assert "![" not in page and "every part of it can be exchanged (docs/models.md)." in page


def test_a_bound_is_one_version_at_each_end() -> None:
    bounds = runpy.run_path(str(ROOT / ".ci" / "bounds"))
    pins = bounds["oldest"](PROJECT)
    assert {"numpy==2.0.*", "transformers==5.17.*", "lm-eval==0.4.13.*", "torch==2.11.*"} <= set(pins)
    assert len(pins) == len({pin.split("==")[0] for pin in pins})
    assert set(bounds["USERS"]) == set(PROJECT["optional-dependencies"]) - {"docs", "dev"}


@pytest.mark.long
def test_what_is_packed(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    folder = tmp_path / "loopwright.egg-info"
    files = set((folder / "SOURCES.txt").read_text().splitlines())
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "loopwright/py.typed", "loopwright/public.py"} <= files
    strays = {name for name in files if not name.startswith(("loopwright/", str(tmp_path)))}
    assert strays == {"pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"}
    page = (folder / "PKG-INFO").read_text()
    assert "Description-Content-Type: text/markdown" in page and "](docs/" not in page and "# loopwright" in page
    assert "Requires-Dist: lm-eval[api,hf]" in page
