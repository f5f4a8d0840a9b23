"""What a verb opens, and what it says of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright.checkpoints.adapters import RECORD
from loopwright.checkpoints.source import Source
from loopwright.cli.continuation import generate
from loopwright.cli.opening import find_config, open_model
from loopwright.recipes import recipe
from loopwright.training.loop import train
from loopwright.training.report import Run
from tests.generation.tiny import DENSE, WORDS, save_model

IDS = torch.arange(7)[None]


@pytest.fixture(scope="module", params=[True, False], ids=["parts alone", "whole"])
def healed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("healed")
    source = save_model(place / "source", "ouroboros-qwen2.5-3b-tiny", **DENSE)
    (place / "text.jsonl").write_text("".join(f'{{"text": "{" ".join(WORDS[:12])}"}}\n' for _ in range(30)))
    data = f"data={{kind: text, files: {place}/text.jsonl, tokenizer: {source}, length: 8, valid: 5}}"
    changes = ["adapters={rank: 4, style: 8}", "depth=2", "max_steps=4"]
    chosen = recipe("controller-fixed", [
        data, f"model.source={source}", *[f"model.changes.{change}" for change in changes], "depth={kind: fixed, depth: 2}",
        "updates=2", "batch=4", "accumulate=1", "precision=fp32", "validate.every=0", "schedule.warmup=0",
        f"save={{every: 1, parts: {str(request.param).lower()}}}",
    ])  # fmt: skip
    found = train(chosen, place / "run")
    assert (found.checkpoint / RECORD).is_file() == request.param
    return found


def test_a_run_is_opened_with_its_base_and_its_tokenizer(healed: Run) -> None:
    source = Source(str(healed.folder.path))
    model = open_model(source, torch.float32, "cpu")
    with torch.no_grad():
        assert torch.equal(model(IDS, depth=3).logits, healed.model(IDS, depth=3).logits)
    config = find_config(source)
    assert config.adapters == healed.model.config.adapters and config.depth == 2
    assert find_config(source, ["depth=3"]).depth == 3 and config.depth == 2
    assert source.folder == healed.checkpoint and source.recipe is not None
    named = lw.tokenizer(source.recipe["data"]["tokenizer"]).get_vocab()
    # a checkpoint holds the tokenizer itself: the folder that the recipe names may be gone
    assert source.tokenizer().get_vocab() == lw.tokenizer(healed.checkpoint).get_vocab() == named
    assert source.tokenizer_folder() == healed.checkpoint


def test_a_run_speaks(healed: Run, capsys: pytest.CaptureFixture[str]) -> None:
    generate(str(healed.folder.path), WORDS[0], depth=2, max_new_tokens=3)
    assert "depth 2" in capsys.readouterr().err


def test_a_damaged_checkpoint_that_is_passed_over_is_one_line_on_stderr(
    healed: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(healed.folder.path, run)
    (run / "checkpoints" / "00000002" / "config.json").unlink()
    open_model(Source(run), torch.float32, "cpu")
    said = capsys.readouterr().err
    assert said == (
        f"loopwright: warning: {run}/checkpoints/00000002/config.json: missing; {run}/checkpoints/00000001 is used instead\n"
    )


def test_a_folder_is_itself(healed: Run) -> None:
    name = str((Source(healed.folder.path).recipe or {})["model"]["source"])
    source = Source(name)
    assert source.recipe is None and source.folder == Path(name)
    assert not open_model(source, torch.float32, "cpu").config.is_looped
