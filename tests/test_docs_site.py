"""The docs site: its API page has every public name, its menu every page."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import loopwright as lw
from loopwright.schema import read_yaml

ROOT = Path(__file__).parent.parent
API = runpy.run_path(str(ROOT / "docs" / "api.py"))


def test_the_api_page_has_every_public_name() -> None:
    page = API["page"]()
    assert set(re.findall(r"^### lw\.(\w+)$", page, re.MULTILINE)) == set(lw.__all__) - modules()
    assert "lw.build(name: str, **changes: Any) -> LoopedForCausalLM" in page
    assert "    depths: int | str | Iterable[int] | None = None," in page  # a long signature, one argument a line
    assert "- `vocab_size`: the number of ids" in page and "Args:" not in page
    assert "- `.ok`: Whether no check failed." in page


def modules() -> set[str]:
    return {name for name in lw.__all__ if type(getattr(lw, name)).__name__ == "module"}


def test_the_menu_has_every_page_and_no_other() -> None:
    nav = read_yaml((ROOT / "mkdocs.yml").read_text(), "mkdocs.yml")["nav"]
    listed = {page for part in nav for pages in part.values() for entry in pages for page in paths(entry)}
    docs = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert {page for page in listed if page.startswith("docs/")} == docs | {"docs/api.md"}
    assert all((ROOT / page).exists() for page in listed - {"docs/api.md"})


def paths(entry: str | dict[str, str]) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry.values())
