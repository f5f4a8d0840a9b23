"""Lays out the site for mkdocs: the pages stand where they stand in the repository, so that their links need no change.

Markdown files of the root, of docs/ and of what these link to are pages; figures, scripts and reports are copied as they are.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "examples/*.md", "experiments/LOG.md",
    "experiments/results/**/*.md",
)  # fmt: skip
COPIED = (
    "LICENSE",
    "docs/*.svg",
    "docs/*.gif",
    "docs/gallery/*",
    "docs/examples/**/*.html",
    "examples/*.py",
    "examples/*.yaml",
    "examples/*.ipynb",
    "experiments/results/**/*.svg",
)


def on_files(files: Files, config: Any) -> Files:
    """Returns the files of the site: the repository's in the place of those that mkdocs found in docs/, and the theme's own."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted(path for pattern in (*PAGES, *COPIED) for path in ROOT.glob(pattern))
    pages = [File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)) for path in paths]
    api = runpy.run_path(str(ROOT / "docs" / "api.py"))["page"]()
    return Files([*theme, *pages, File.generated(config, "docs/api.md", content=api)])
