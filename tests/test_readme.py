"""The pages are true: links lead somewhere, the first example runs, commands and public names exist."""

import re
from pathlib import Path

import pytest
import typer.main

import loopwright as lw
from loopwright.cli import make_app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()


def blocks(text: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_are_there(page):
    for name in re.findall(r"`((?:tests|docs|experiments|benchmarks)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), name


def test_the_first_example_runs():
    exec(compile(blocks(README, "python")[0], "README.md", "exec"), {})


def test_commands_parse():
    """Every `$ loopwright …` line of the README has a verb and flags that the command line knows."""
    verbs = typer.main.get_command(make_app()).commands
    lines = re.findall(r"^\$ loopwright (.+)$", README, re.MULTILINE)
    assert len(lines) > 3
    for line in lines:
        verb = line.split()[0]
        known = {flag for param in verbs[verb].params for flag in param.opts}
        assert set(re.findall(r" (--[\w-]+)", line)) <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_public_names_exist(page):
    for name in re.findall(r"\blw\.(\w+)", page.read_text()):
        assert name in lw.__all__, name
