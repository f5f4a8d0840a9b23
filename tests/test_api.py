"""Training, evaluating and comparing from Python, with objects in the place of names."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.cli import main
from loopwright.evaluation.by_depth import sweep
from loopwright.generation.readings import readings
from loopwright.training.rollout import Rollout
from tests.training.runs import PLAIN

VOCAB = 11
RECIPE = {
    "about": "counting", "updates": 6, "batch": 4, "depth": {"kind": "fixed", "depth": 2}, "optim": {"kind": "adamw", "lr": 1e-3},
    "validate": {"every": 3, "depths": [1, 2], "rows": 8},
}  # fmt: skip


def counting(rows: int, first: int = 0) -> list[list[int]]:
    """Rows of unequal length that count upwards."""
    return [[(first + i + j) % VOCAB for j in range(4 + i % 3)] for i in range(rows)]


def model() -> lw.LoopedForCausalLM:
    torch.manual_seed(0)
    return lw.build("stars-addition-tiny", vocab_size=VOCAB)


def data() -> lw.Splits:
    return lw.splits(counting(16), counting(8, 3), tests={"far": counting(6, 5)})


class Squared:
    """An objective of somebody's own: the mean squared difference between the last two states, and a metric."""

    reads = "last"

    def __call__(self, model: lw.LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        loss = (rollout.last - rollout.before).square().mean()
        return loss, {"seen": loss.detach()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> lw.Run:
    return lw.train(RECIPE, model=model(), data=data(), out=tmp_path_factory.mktemp("mine") / "run", progress=False)


def test_gradients_that_a_model_comes_with_are_no_part_of_an_update(run: lw.Run, tmp_path: Path) -> None:
    given, ids = model(), torch.tensor(counting(1))
    given(ids, labels=ids).loss.backward()
    losses = lw.train({**RECIPE, "updates": 2}, model=given, data=data(), out=tmp_path, progress=False).losses().y
    assert losses == run.losses().y[:2]


def test_a_model_and_data_of_ones_own_are_trained(run: lw.Run) -> None:
    updates = [row for row in run.log() if "loss" in row]
    assert len(updates) == 6 and run.finished and updates[-1]["loss"] < updates[0]["loss"]
    untrained, trained = model().state_dict(), run.model.state_dict()
    assert any(not torch.equal(untrained[name], trained[name]) for name in untrained)
    reloaded = lw.load(run.folder.path)
    ids = torch.tensor(counting(1))
    assert torch.equal(reloaded(ids).logits, run.model(ids).logits)


def test_the_recipe_of_such_a_run_says_what_was_passed(run: lw.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the model (LoopedForCausalLM)" in run.folder.recipe.read_text()
    with pytest.raises(SystemExit) as end:
        main(["evaluate", str(run.folder.path)])
    assert end.value.code == 2
    assert "the data (Splits of 16 rows, " in (error := capsys.readouterr().err) and "so the recipe cannot build it" in error


def test_resuming_with_the_same_objects_ends_bitwise_where_an_undisturbed_run_does(run: lw.Run, tmp_path: Path) -> None:
    seen: list[int] = []

    def stop_at_four(row: dict[str, Any]) -> bool:
        seen.append(row["update"])
        return row["update"] == 3

    stopped = lw.train(RECIPE, model=model(), data=data(), out=tmp_path / "run", on_update=stop_at_four, progress=False)
    assert not stopped.finished and seen == [0, 1, 2, 3] and stopped.progress.update == 4
    resumed = lw.train(RECIPE, model=model(), data=data(), out=tmp_path / "run", resume=True, progress=False)
    wanted = run.model.state_dict()
    assert resumed.finished and all(torch.equal(value, wanted[name]) for name, value in resumed.model.state_dict().items())


def test_an_objective_of_ones_own(tmp_path: Path) -> None:
    found = lw.train({**RECIPE, "updates": 2}, model=model(), data=data(), objective=Squared(), out=tmp_path, progress=False)
    assert all(row["seen"] == pytest.approx(row["loss"]) for row in found.log() if "loss" in row)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda rollout: rollout.last.mean(), r"must return \(loss tensor, dict of metrics\) \(got Tensor\)"),
        (lambda rollout: (rollout.last.mean(), 3), r"must return \(loss tensor, dict of metrics\)"),
    ],
)
def test_what_an_objective_returns_is_checked(tmp_path: Path, made: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        lw.train(RECIPE, model=model(), data=data(), objective=lambda m, rollout: made(rollout), out=tmp_path, progress=False)


def test_metrics_of_an_objective_may_be_numbers_and_what_it_reads_is_checked(tmp_path: Path) -> None:
    def mine(model: lw.LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Any]]:
        return rollout.last.square().mean(), {"half": 0.5}

    found = lw.train({**RECIPE, "updates": 1}, model=model(), data=data(), objective=mine, out=tmp_path / "a", progress=False)
    assert found.log()[0]["half"] == 0.5
    mine.reads = "evry"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="reads must be 'every' or 'last'"):
        lw.train(RECIPE, model=model(), data=data(), objective=mine, out=tmp_path / "b", progress=False)


def test_resuming_with_other_data_is_refused(tmp_path: Path) -> None:
    lw.train({**RECIPE, "updates": 1}, model=model(), data=data(), out=tmp_path / "run", progress=False)
    other = lw.splits(counting(16, 2), counting(8, 3))
    with pytest.raises(ValueError, match=r"was trained with another recipe; it differs in data\.what"):
        lw.train({**RECIPE, "updates": 1}, model=model(), data=other, out=tmp_path / "run", resume=True, progress=False)


def test_different_tokenizers_are_not_compared_on_a_text(tmp_path: Path) -> None:
    sums = {**PLAIN, "updates": 1, "validate": {"every": 0}}
    first = lw.train(sums, out=tmp_path / "a", progress=False)
    words = json.loads((first.checkpoint / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    second = lw.train({**sums, "seed": 1}, out=tmp_path / "b", progress=False)
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    lw.save(second.model, tmp_path / "other")
    for name in ("tokenizer_config.json",):
        (tmp_path / "other" / name).write_text((second.checkpoint / name).read_text())
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(words))
    (tmp_path / "other" / "manifest.json").unlink()
    (tmp_path / "sums.txt").write_text("12+34=64§" * 4)
    with pytest.raises(ValueError, match="have different tokenizers, so their losses per token cannot be compared"):
        lw.compare(first, tmp_path / "other", text=tmp_path / "sums.txt", context=8)
    assert lw.compare(first, second, text=tmp_path / "sums.txt", context=8).results


def test_an_exception_of_a_callback_ends_the_run_with_its_own_words(tmp_path: Path) -> None:
    def fail(row: dict[str, Any]) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        lw.train(RECIPE, model=model(), data=data(), out=tmp_path / "run", on_update=fail, progress=False)


def test_names_specs_and_recipes_do_as_well(tmp_path: Path) -> None:
    by_spec = lw.train({**PLAIN, "updates": 2}, out=tmp_path / "a", progress=False)
    laid = lw.train({**PLAIN, "updates": 2, "data": {"kind": "chain"}}, data=PLAIN["data"], out=tmp_path / "b", progress=False)
    assert [row.get("loss") for row in by_spec.log()] == [row.get("loss") for row in laid.log()]
    with pytest.raises(ValueError, match="did you mean 'demo-plain'"):
        lw.train("demo-plane", out=tmp_path / "c")


def test_evaluate_measures_what_the_sweep_does(run: lw.Run) -> None:
    found = lw.evaluate(run, depths=[1, 3])
    direct = sweep(run.model, run.splits.tests["far"], depths=[1, 3], batch_size=500, exact=False, split="far")
    assert found["far"].loss == direct.loss and list(found.reports) == ["far"]
    rows = found.to_dict()["far"]
    assert [row["depth"] for row in rows] == [1, 3] and rows[1]["loss"] == direct.loss[1]
    assert "<svg" in found.plot() and "far" in found._repr_html_() and "Evaluation(" in repr(found)
    assert ">far<" in found["far"].plot()
    with pytest.raises(ValueError, match=r"heatmap: no split has right and wrong answers \(got far\); use plot"):
        found.heatmap()
    with pytest.raises(KeyError, match="'near' was not measured; there are far"):
        found["near"]
    json.dumps(found.to_dict())


def test_the_same_numbers_from_a_folder_a_run_and_a_model(run: lw.Run) -> None:
    whole = lw.TokenRows(counting(6, 5))
    losses = {lw.evaluate(each, depths=[2], data=whole)["test"].loss for each in (run, run.folder.path, run.model)}
    assert len(losses) == 1


def test_text_is_measured_with_the_tokenizer_of_the_folder(tmp_path: Path) -> None:
    trained = lw.train({**PLAIN, "updates": 2}, out=tmp_path / "run", progress=False)
    text = tmp_path / "sums.txt"
    text.write_text("12+34=64§" * 3)
    found = lw.evaluate(trained, text=text, depths=[1, 2], context=8)
    assert math.isfinite(found["sums"].loss[0]) and found["sums"].depth == (1, 2)
    assert "bits_per_byte" in found.to_dict()["sums"][0] and "<svg" in found.plot()
    again = lw.evaluate(trained.folder.path, text={"named": text}, depths=[1, 2], context=8)
    assert again["named"].loss == found["sums"].loss
    with pytest.raises(ValueError, match="a model alone has none; give tokenizer="):
        lw.evaluate(trained.model, text=text)
    one = lw.compare(trained, trained, text=text, depths=(1, 2), context=8)
    assert one.results[0].difference == pytest.approx(found["sums"].loss[0] - found["sums"].loss[1], abs=1e-5)


def test_comparing_is_paired_row_by_row(run: lw.Run) -> None:
    rows = lw.TokenRows(counting(40))
    found = lw.compare(run, model(), data=rows, depths=2)
    (loss,) = found.results
    each = [next(iter(readings(m.eval(), rows.batch(range(40)), [2]))) for m in (run.model, model())]
    means = [float(r.loss.sum() / r.targets.sum()) for r in each]
    assert loss.difference == pytest.approx(means[0] - means[1]) and loss.difference_low <= loss.difference <= loss.difference_high
    assert loss.won == pytest.approx(float((each[0].loss < each[1].loss).double().mean()))
    words = found._repr_html_()
    assert ("is better" in words) == loss.decided and found.to_dict()["results"][0]["decided"] == loss.decided


def test_a_model_against_itself_is_undecided() -> None:
    trained = model()
    (loss,) = lw.compare(trained, trained, data=lw.TokenRows(counting(12))).results
    assert loss.difference == 0 and loss.won == 0.5 and not loss.decided


def test_five_rows_decide_nothing(run: lw.Run) -> None:
    (few,) = lw.compare(run, model(), data=lw.TokenRows(counting(5))).results
    assert few.difference_low * few.difference_high > 0 and not few.decided
    assert "undecided: 5 is too few" in lw.compare(run, model(), data=lw.TokenRows(counting(5)))._repr_html_()


def test_exact_match_is_compared_where_answers_are_right_or_wrong(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first, second = lw.build("stars-addition-tiny"), lw.build("stars-addition-tiny")
    found = lw.compare(first, second, data={**PLAIN["data"], "test": 12})
    assert {r.measure for r in found.results} == {"loss", "exact match"}
    right = next(r for r in found.results if r.measure == "exact match")
    assert -1 <= right.difference <= 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lw.evaluate(model()), "give data= .* or text="),
        (lambda: lw.compare(model(), model()), "give data= .* or text="),
        (lambda: lw.evaluate(model(), data=3), "data: int; give lw.splits"),
        (lambda: lw.evaluate(model(), data=data(), splits=["nosuch"]), "split: unknown 'nosuch'; allowed: far, valid"),
        (lambda: lw.evaluate(model(), data=lw.TokenRows([[1, 2, 3, 99]])), "from 1 to 99; allowed: 0 to 10"),
        (lambda: lw.evaluate("huginn", data=data()), "is a preset, which has no trained weights"),
        (lambda: lw.compare(model(), model(), data=data(), depths=(1, 2, 3)), "one depth for both, or a pair"),
        (lambda: lw.compare(model(), model(), data=data(), text="x.txt"), "text: given with data, which does not go with it"),
        (lambda: lw.evaluate(model(), data=data(), context=8), "context: belongs to text, which is not given"),
        (lambda: lw.evaluate(model(), data=data(), rows=-1), r"rows must be a whole number >= 1 \(got -1\)"),
        (lambda: lw.evaluate(model(), data=data(), batch=0), r"batch must be a whole number >= 1 \(got 0\)"),
        (lambda: lw.evaluate(None, data=data()), r"model: must be a model, a run or what lw.load takes \(got NoneType\)"),
        (lambda: lw.train(RECIPE, model="universal-tiny", data=data()), r"model: must come from lw.build.* \(got str\)"),
        (lambda: lw.train(RECIPE, model=model(), data=[[1, 2]]), r"data: must come from lw.splits.* \(got list\)"),
        (lambda: lw.train(RECIPE, model=model(), data=data(), objective="ce"), r"objective: must be callable \(got str\)"),
        (lambda: lw.train(RECIPE, model=model(), data=data(), on_update=3), r"on_update: must be callable \(got int\)"),
    ],
)
def test_mistakes_are_one_line(call: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_depths_as_the_command_line_writes_them() -> None:
    rows, trained = lw.TokenRows(counting(8)), model()
    words, numbers = (lw.evaluate(trained, data=rows, depths=depths)["test"] for depths in ("1:3", [1, 2, 3]))
    assert words.depth == (1, 2, 3) and words.loss == numbers.loss
    assert lw.compare(trained, trained, data=rows, depths=[1, 3]).results[0].depths == (1, 3)


def test_a_looped_model_at_some_depth_against_a_dense_one() -> None:
    changes = {"prelude_layers": 1, "core_layers": 0, "injection": {"kind": "none"}, "state": {"kind": "input"}}
    rows, dense = lw.TokenRows(counting(8)), lw.build("stars-addition-tiny", vocab_size=VOCAB, **changes)
    assert lw.compare(model(), dense, data=rows, depths=(3, 1)).results[0].depths == (3, 1)
    with pytest.raises(ValueError, match="depth: 3 was asked of a dense model"):
        lw.compare(model(), dense, data=rows, depths=3)
