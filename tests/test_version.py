"""The version stands in one place: the package, its metadata and the file agree, and the pages name it."""

import re
from importlib.metadata import version
from pathlib import Path

import loopwright as lw
from loopwright.version import VERSION


def test_one_version():
    assert lw.__version__ == VERSION == version("loopwright")


def test_the_pages_name_it():
    root = Path(__file__).parent.parent
    assert f"version: {VERSION}\n" in (root / "CITATION.cff").read_text()
    assert re.search(r"^## (?!Unreleased)(\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == VERSION
