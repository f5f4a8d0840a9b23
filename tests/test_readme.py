"""The pages are true: links lead somewhere, the first example runs, commands and public names exist."""

import gzip
import json
import re
from pathlib import Path

import pytest
import typer.main

import loopwright as lw
from loopwright.cli import main, make_app
from tests.cases import noisy
from tests.data.words import save_words
from tests.generation.tiny import WORDS, save_model

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()
MOST_LINES, MOST_WORDS = 130, 1_100  # of the README


def blocks(text: str, language: str = "") -> list[str]:
    """The code blocks of a page that name this language; all fences are paired, so that no end is taken for a beginning."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for named, code in found if named == language]


def anchors(page: Path) -> set[str]:
    """The anchors that headings of a page get, as GitHub and the docs site make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target
            assert not anchor or anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_are_there(page):
    for name in re.findall(r"`((?:tests|docs|experiments|benchmarks)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), name


def test_the_readme_is_short():
    assert len(README.splitlines()) <= MOST_LINES and len(README.split()) <= MOST_WORDS


def test_the_first_example_runs():
    exec(compile(blocks(README, "python")[0], "README.md", "exec"), {})


@pytest.mark.long
def test_the_examples_of_the_python_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks((ROOT / "docs" / "python.md").read_text(), "python"):
        exec(compile(block, "python.md", "exec"), names)
    assert (tmp_path / "runs" / "counting" / "log.jsonl").exists()
    assert names["report"].ok and len(names["out"].states) == 4 and names["more"].shape == (1, 5)


def test_commands_parse():
    """Every `loopwright …` line in a code block of a page has a verb and flags that the command line knows."""
    verbs = typer.main.get_command(make_app()).commands
    code = "\n".join(block for page in PAGES for block in blocks(page.read_text()))
    lines = re.findall(r"^(?:\$ )?loopwright (\w.+?)(?: #.*)?$", code.replace("\\\n", " "), re.MULTILINE)
    assert len(lines) > 40
    for line in lines:
        verb = line.split()[0]
        known = {flag for param in verbs[verb].params for flag in (*param.opts, *param.secondary_opts)}
        assert set(re.findall(r" (--[\w-]+)", line)) <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_public_names_exist(page):
    for name in re.findall(r"\blw\.(\w+)", page.read_text()):
        assert name in lw.__all__, name


def run(command: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(command.split()[1:])
    assert end.value.code == 0, command


def section(page: str, title: str) -> str:
    return (ROOT / "docs" / page).read_text().split(title)[1].split("\n## ")[0]


def test_parts_become_a_model_that_generates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = blocks(section("training.md", "### Parts alone"), "python")[0]
    name = "ouroboros-qwen2.5-3b-tiny"
    save_model(tmp_path / re.search(r'source = "(.+)"', example)[1], name)
    lw.save_adapters(noisy(name), re.search(r'"(runs/.+?)"', example)[1])
    exec(compile(example, "training.md", "exec"), {"lw": lw})
    run("loopwright generate healed the --max-new-tokens 2")


@pytest.mark.long
def test_what_the_page_of_checkpoints_says_runs_in_that_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 272}
    lw.save(lw.LoopedForCausalLM(lw.LoopedConfig(prelude_layers=6, core_layers=0, **sizes)), "path/to/llama")
    save_words(tmp_path / "path/to/llama")
    *lines, foreign = blocks((ROOT / "docs" / "checkpoints.md").read_text(), "python")[0].splitlines()
    assert "ouroboros.pt" in foreign  # a file that nobody has here
    exec("\n".join(lines).replace(', device="cuda"', ""), {"lw": lw})
    run("loopwright generate whole the --max-new-tokens 2")
    assert {"copy", "back", "parts", "differs", "whole"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.long
def test_models_are_compared_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part = section("evaluation.md", "## Two models")
    for folder, noise in (("source", 1.0), ("cut", 5.0), ("healed", 1.0)):
        save_model(tmp_path / folder, std=noise)
    with gzip.open("valid.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": " ".join(WORDS[i % 3 :])}) + "\n" for i in range(4))
    for command in blocks(part)[1].splitlines():
        run(command)
    seen: dict = {}
    exec(compile(blocks(part, "python")[0], "evaluation.md", "exec"), seen)
    assert seen["found"].depths == (4, 1) and seen["found"].difference < 0 and seen["share"].share == 1
