"""`evaluate --exit` as a verb: a run's splits, a text, files that are not replaced by less, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from loopwright import cli
from loopwright.cli.results import evaluate
from loopwright.cli.runs import train
from loopwright.evaluation import exits as exit_rows
from loopwright.evaluation.exits import ExitReport
from loopwright.evaluation.throughput import exit_times
from tests.generation.tiny import save_model

pytestmark = pytest.mark.usefixtures("unlaid")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "toy"
    train("demo-stable", ["data.test=12"], out=str(folder), toy=True)
    return folder


@pytest.mark.long
def test_a_run_is_measured_on_its_own_split(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = evaluate(str(run), exit=["change", "stable:2", "lookahead:entropy:1"], batch=5, out=str(tmp_path))["test"]
    assert (report.rows, report.depth, report.points[-1].rule) == (12, (1, 2, 3, 4), "lookahead:entropy:1")
    assert sum(rule.startswith("change:") for rule in report.rules) > 5 and report.fixed[0].exact is not None
    assert ExitReport.load(tmp_path / "eval" / "exits-test.json") == report
    assert "<svg" in (tmp_path / "figures" / "exits-test.svg").read_text()
    assert "fewest mean steps within" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match="exit rules are not asked for now"):
        evaluate(str(run), exit=["stable"], out=str(tmp_path))
    with pytest.raises(ValueError, match="its steps is 4, now 3"):
        evaluate(str(run), exit=["change", "stable:2", "lookahead:entropy:1"], depths="3", out=str(tmp_path))
    evaluate(str(run), exit=["stable:2"], rows=4, out=str(tmp_path))
    assert (tmp_path / "eval" / "exits-test-rows-4.json").is_file()
    evaluate(str(run), exit=["stable:2"], out=str(tmp_path), overwrite=True)


def test_a_text_by_a_rule_of_each_kind_that_the_model_has(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    text = tmp_path / "held.txt"
    text.write_text("a b c d e f g h " * 8)
    report = evaluate(str(folder), exit=["all"], texts=[str(text)], context=8, depths="3", out=str(tmp_path / "out"))["held"]
    families = set(report.families())
    assert {"change", "divergence", "entropy", "stable"} <= families and "act" not in families
    assert report.fingerprint and report.fixed[0].exact is None and (tmp_path / "out" / "figures" / "exits-text-held.svg").is_file()


@pytest.mark.long
def test_exits_are_timed_where_asked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_rows, "exit_times", partial(exit_times, rounds=1))
    report = evaluate(str(run), exit=["stable:2"], rows=2, depths="2", out=str(tmp_path), time=True)["test"]
    assert report.batches == (1, 2) and {one.rule for one in report.times} == {"depth:1", "stable:2"}
    assert ExitReport.load(tmp_path / "eval" / "exits-test-rows-2.json") == report
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{report.clock} clock" in printed
    assert "time / full depth, batch 2" in (tmp_path / "figures" / "exits-test-rows-2.svg").read_text()
    with pytest.raises(ValueError, match="its timed is True, now False"):
        evaluate(str(run), exit=["stable:2"], rows=2, depths="2", out=str(tmp_path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--exit", "chnge"], "did you mean 'change'"),
        (["--exit", "change:x"], "'x' is not a number"),
        (["--exit", "gate"], "needs a model with an exit gate"),
        (["--exit", "change", "--depths", "1:4"], "give one depth, the most steps"),
        (["--time"], "time: belongs to exit, which is not given"),
        (["--exit", "change", "--no-decode"], "exit: given with decode, which does not go with it"),
    ],
)
def test_what_cannot_be_measured_is_refused(run: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["evaluate", str(run), *words])
    assert stopped.value.code == 2 and message in capsys.readouterr().err
