"""`evaluate` as a verb: a run, a model on a recipe's data, files and figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.commands.evaluate import evaluate, usual_depths
from loopwright.commands.train import train
from loopwright.convert.load import load
from loopwright.evaluate.sweep import SweepReport
from loopwright.recipes.shelf import recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "toy"
    train("demo-stable", ["data.longer=[4]", "data.test=12"], out=str(folder), toy=True)
    return folder


def test_a_run_is_measured_at_every_depth(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = evaluate(str(run), depths="1:6", batch=5)
    assert list(reports) == ["test", "digits-4"]
    report = reports["test"]
    assert report.depth == (1, 2, 3, 4, 5, 6) and report.rows == 12 and report.disagreements == 0
    assert [check.depth for check in report.decoded] == [1, 4, 6]
    assert SweepReport.load(run / "eval" / "test.json") == report
    printed = capsys.readouterr().out
    assert "exact match" in printed and "exact-by-depth.svg" in printed and "split-by-depth.svg" in printed
    assert "<svg" in (run / "figures" / "exact-by-depth.svg").read_text()


def test_a_model_on_the_data_of_a_recipe(run: Path, tmp_path: Path) -> None:
    folder = run / "checkpoints" / "00000002"
    with pytest.raises(ValueError, match="needs --data RECIPE"):
        evaluate(str(folder))
    reports = evaluate(str(folder), data=str(run / "recipe.yaml"), depths="2", rows=4, splits=["valid"], out=str(tmp_path / "here"))
    assert reports["valid"].rows == 4 and (tmp_path / "here" / "eval" / "valid.json").is_file()
    assert evaluate(str(run), depths="2", rows=4, splits=["valid"])["valid"].loss == reports["valid"].loss


def test_answers_in_place_are_not_decoded(tmp_path: Path) -> None:
    train("addition-longer", [], out=str(tmp_path / "run"), toy=True)
    reports = evaluate(str(tmp_path / "run"), depths="1:3")
    assert "length-12" in reports and all(report.decoded == () and report.exact[0] is not None for report in reports.values())


def test_what_is_asked_wrongly_is_said(run: Path) -> None:
    with pytest.raises(ValueError, match="split: unknown 'tset'; did you mean 'test'"):
        evaluate(str(run), splits=["tset"])
    with pytest.raises(ValueError, match="depths"):
        evaluate(str(run), depths="one")
    with pytest.raises(ValueError, match="checkpoint: 'first'"):
        evaluate(str(run), checkpoint="first")
    with pytest.raises(ValueError, match="learned positions end at"):
        evaluate(str(run), data="universal-act", depths="1")


def test_the_usual_depths_go_well_beyond_training(run: Path) -> None:
    model = load(run / "checkpoints" / "00000002")
    depths = usual_depths(recipe("demo-stable"), model)
    assert depths[:8] == [1, 2, 3, 4, 5, 6, 7, 8] and depths[-1] == 64
