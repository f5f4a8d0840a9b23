"""The Python blocks and the commands of the pages on inference and analysis run, in the order in which they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli import main
from tests.cases import noisy
from tests.generation.tiny import DENSE, letter_tokenizer, save_model
from tests.test_readme import blocks

DOCS = Path(__file__).parent.parent / "docs"


def run(page: str, title: str = "") -> dict[str, Any]:
    """Executes the Python blocks of a page, or of those of its sections whose titles match, and returns what they named."""
    parts = [part for part in (DOCS / page).read_text().split("\n## ") if re.match(title, part)]
    names: dict[str, Any] = {}
    for block in blocks("\n".join(parts), "python"):
        exec(compile(block, page, "exec"), names)
    return names


def lines(page: str) -> list[str]:
    """Returns the `loopwright` lines of a page's blocks, without comments."""
    code = "\n".join(blocks((DOCS / page).read_text())).splitlines()
    return [line.split(" #")[0].strip() for line in code if line.startswith("loopwright ")]


@pytest.mark.long
def test_requests_and_forms_of_the_page_of_inference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed (extra constrain)")
    noisy("huginn-tiny").save_pretrained(tmp_path / "my-model")
    letter_tokenizer().save_pretrained(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    seen = run("inference.md")
    assert seen["result"].depths and set(seen["result"].depths) == {8} and seen["result"].seed == 1
    assert set(seen["results"][1].depths) == {2} and len(seen["results"]) == 2
    assert seen["answer"].result().text in ("yes", "no") and seen["person"].result().text.startswith("{")


@pytest.mark.long
def test_traces_and_edits_of_the_page_of_analysis() -> None:
    seen = run("analysis.md", "Trace|Edits")
    assert seen["found"].values["colsum"].shape[0] == 2 and seen["found"].core("fixed_cosine").shape[:2] == (2, 16)
    assert callable(seen["turned"])


@pytest.mark.slow
def test_the_benchmark_of_the_page_of_inference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    here, on_a_gpu = lines("inference.md")
    assert "cuda" in on_a_gpu
    with pytest.raises(SystemExit) as end:
        main(here.split()[1:])
    assert end.value.code == 0 and {path.name for path in Path("runs/bench").iterdir()} == {"bench.json", "bench.svg"}


@pytest.mark.slow
def test_the_files_that_the_page_of_analysis_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "my-model")
    save_model(tmp_path / "its-base", "ouroboros-qwen2.5-3b-tiny", **DENSE)
    monkeypatch.chdir(tmp_path)
    Path("eval").mkdir()
    Path("eval/gsm8k_test.jsonl").write_text('{"question": "the cat sat"}\n{"question": "a dog ran again"}\n')
    with pytest.raises(SystemExit) as end:
        main([*lines("analysis.md")[0].split()[1:], "--depth", "8"])
    assert end.value.code == 0
    listing = next(block for block in blocks((DOCS / "analysis.md").read_text()) if block.startswith("OUT/"))
    paths = re.findall(r"OUT/(\S+)", listing)
    assert len(paths) == 7 and [path for path in paths if not list(Path("runs/inside").glob(path))] == []
