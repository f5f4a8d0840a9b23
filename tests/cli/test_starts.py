"""`evaluate --state-seeds`: the splits of a run or texts from several starts; and what a run of one start says at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import loopwright as lw
from loopwright import cli
from loopwright.checkpoints.hub import _plain_model
from loopwright.checkpoints.source import Source
from loopwright.cli.results import evaluate
from loopwright.evaluation.starts import StartReport
from loopwright.storage.files import read_json, write_json
from loopwright.storage.run import MADE
from loopwright.training import checkpoint as resume
from loopwright.training.loop import train
from loopwright.training.report import Silent
from tests.generation.tiny import save_model
from tests.training.runs import Act, interrupt, small

NOISE: dict[str, Any] = {"model": {"kind": "preset", "name": "huginn-tiny", "changes": {"vocab_size": 15}}, "updates": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small(NOISE), tmp_path_factory.mktemp("runs") / "noise").folder.path


def as_older(patch: pytest.MonkeyPatch) -> None:
    """Runs are saved as a version did that drew one start, and did not say so."""
    patch.setattr(resume, "write_json", lambda path, facts: write_json(path, {k: v for k, v in facts.items() if k != "start"}))


def command(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Returns what the command line prints, and its errors and warnings, each as one line."""
    with pytest.raises(SystemExit):
        cli.main(words)
    out, err = capsys.readouterr()
    return " ".join(out.split()), " ".join(err.split())


@pytest.mark.long
def test_splits_from_several_starts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(run), "--state-seeds", "2", "--depths", "1,3", "--split", "valid", "--rows", "5"]
    printed, _ = command(words, capsys)
    path = run / "eval" / "starts-valid-rows-5.json"
    assert "valid: the state started from seeds 0 to 1" in printed and str(path) in printed
    report = StartReport.load(path)
    assert report.seeds == (0, 1) and report.depth == (1, 3) and report.dtype == "float32"
    given = {"data": str(run / "recipe.yaml"), "splits": "valid", "rows": 5, "depths": [1, 3]}
    assert report.losses[0] == lw.evaluate(lw.load(run), **given)["valid"].loss
    assert report.losses[0] != report.losses[1]


@pytest.mark.long
def test_more_starts_do_not_replace_fewer_unasked(run: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"splits": ["valid"], "rows": 3, "depths": "2", "out": str(tmp_path)}
    evaluate(str(run), state_seeds=2, **given)
    with pytest.raises(ValueError, match=r"starts-valid-rows-3\.json"):
        evaluate(str(run), state_seeds=3, **given)
    assert evaluate(str(run), state_seeds=3, **given, overwrite=True)["valid"].seeds == (0, 1, 2)


@pytest.mark.long
def test_texts_from_several_starts(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": word * 30}) + "\n" for word in ("ab ", "ba ", "bb ")))
    folder = save_model(tmp_path / "model", name="huginn-tiny")
    found = evaluate(str(folder), state_seeds=2, texts=[str(text)], depths="2", out=str(tmp_path / "out"))["text"]
    assert found.exact == (None,) and found.measure == "loss" and found.loss_low[0] < found.loss_high[0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--state-seeds", "2", "--exit", "all"],
            "exit: given with state_seeds, which does not go with it",
        ),
        (["--state-seeds", "0"], "state_seeds"),
        (["--state-seeds", "2", "--tasks", "arc_easy"], "tasks: given with state_seeds, which does not go with it"),
    ],
)
def test_what_does_not_go_together_is_one_line(run: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in command(["evaluate", str(run), *words], capsys)[1]


# what a run says of its start

TOLD = "trained by a version that began every row at the same noise; it may answer well from that start alone"


@pytest.mark.long
def test_a_run_says_at_once_that_it_had_one_start(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is loaded, measured and written with; on the card of what is published."""
    as_older(monkeypatch)
    old = train(small(NOISE), tmp_path / "old").folder.path
    assert Source(run).notes == [] and read_json(run / "checkpoints" / "00000004" / MADE)["start"] == "anew"
    with pytest.warns(UserWarning, match=TOLD):
        lw.load(old)
    with pytest.warns(UserWarning, match=TOLD):
        lw.evaluate(old, depths=2, splits="valid", rows=2)
    for words in (["evaluate", str(old), "--depths", "2", "--split", "valid", "--rows", "2"], ["generate", str(old), "1+1="]):
        _, said = command(words, capsys)
        assert TOLD in said and "evaluate --state-seeds 4 measures it" in said
    for source, count in ((old, 1), (run, 0)):
        card = (_plain_model(Source(source), tmp_path / f"card-{count}") / "README.md").read_text()
        assert card.count(f"This model was {TOLD}") == count and str(tmp_path) not in card


@pytest.mark.long
def test_a_run_that_goes_on_from_one_start_says_until_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for saved, count in (("old", 1), ("new", 0)):
        with monkeypatch.context() as patch:
            if count:
                as_older(patch)
            train(small(NOISE), tmp_path / saved, reporter=Act(2, interrupt))
        train(small(NOISE), tmp_path / saved, resume=True, reporter=(reporter := Silent()))
        assert sum(note.startswith("until here every row began at one and the same noise") for note in reporter.notes) == count
        notes = Source(tmp_path / saved).notes
        assert len(notes) == count and all("at the same noise, until update 2; it may" in note for note in notes)
