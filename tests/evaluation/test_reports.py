"""Reports on the disk, several starts in one, and two models paired."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch

import loopwright as lw
from loopwright.data.build import build_data
from loopwright.evaluation.paired import compare, recovered
from loopwright.evaluation.report import Saved, columns_of
from loopwright.evaluation.starts import StartReport, gathered
from loopwright.evaluation.text import HeldOut
from loopwright.model.parts.state import started_at
from tests.cases import noisy


@dataclass(frozen=True)
class Counts(Saved):
    what: ClassVar[str] = "a report of counts"

    name: str
    rows: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        return cls(**columns_of(cls, data))


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    report = Counts("a", ((1, 2), (3,)))
    path = report.save(tmp_path / "deep" / "counts.json")
    assert path.read_text() == '{"name":"a","rows":[[1,2],[3]]}\n' and Counts.load(path) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "a"}', '"a"'])
def test_something_else_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json: not a report of counts \(.+\)") as error:
        Counts.load(tmp_path / "x.json")
    assert "\n" not in str(error.value)


def test_an_unknown_field_is_left_out_and_a_number_that_is_none_is_not_written(tmp_path: Path) -> None:
    assert columns_of(Counts, {"name": "a", "rows": [[1]], "later": 3}) == {"name": "a", "rows": ((1,),)}
    with pytest.raises(ValueError, match="Out of range float"):
        Counts("a", ((float("nan"),),)).save(tmp_path / "x.json")  # type: ignore[arg-type]
    assert not (tmp_path / "x.json").exists()


DATA = {"kind": "addition", "digits": 2, "train": 16, "valid": 6, "test": 4}


def spread_of(report: StartReport) -> list[float]:
    return [high - low for low, high in zip(report.loss_low, report.loss_high, strict=True)]


@pytest.fixture(scope="module")
def model() -> lw.LoopedForCausalLM:
    return noisy("huginn-tiny", std=0.3)


@pytest.fixture(scope="module")
def report(model: lw.LoopedForCausalLM) -> Any:
    return lw.evaluate(model, data=DATA, splits="valid", depths=[1, 3], state_seeds=3)["valid"]


def test_each_start_is_what_its_seed_gives(model: lw.LoopedForCausalLM, report: StartReport) -> None:
    """Against passes by hand; the model's own seed is as it was."""
    batch = build_data(DATA).valid.batch(range(6))
    found = []
    for seed in range(3):
        with torch.no_grad():
            pairs = [(model(batch.input_ids, attention_mask=batch.attention_mask, depth=d, state_seed=seed), d) for d in (1, 3)]
        found.append([
            float(torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten()))
            for out, _ in pairs
        ])  # fmt: skip
    losses = torch.tensor(found)
    assert report.seeds == (0, 1, 2) and report.depth == (1, 3) and model.state.seed == 0
    for mine, theirs in ((report.losses, losses), ([report.loss], losses.mean(0)[None])):
        assert torch.allclose(torch.tensor(mine), theirs, rtol=1e-4)
    assert torch.allclose(
        torch.tensor([report.loss_low, report.loss_high]), torch.stack([losses.amin(0), losses.amax(0)]), rtol=1e-4
    )
    assert min(spread_of(report)) > 1e-3


def test_a_model_that_does_not_read_its_start_is_alike_from_all() -> None:
    deaf = noisy("huginn-tiny", std=0.3)
    deaf.state.scale = 0.0
    report: Any = lw.evaluate(deaf, data=DATA, splits="valid", depths=2, state_seeds=3)["valid"]
    assert spread_of(report) == [0.0] and report.exact_low == report.exact == report.exact_high


def test_a_report_is_read_back_shown_and_drawn(report: StartReport, tmp_path: Path) -> None:
    assert StartReport.load(report.save(tmp_path / "starts.json")) == report
    table = report.table(100)
    assert table.row_count == 2 and "seeds 0 to 2" in str(table.title) and report.measure == "exact"
    assert report.curve("loss").y == list(report.loss) and f"{report.loss[1]:.4g} (" in "".join(table.columns[1].cells)
    (tmp_path / "nothing.json").write_text("[]")
    with pytest.raises(ValueError, match="not a report of several starts"):
        StartReport.load(tmp_path / "nothing.json")


def test_what_is_not_finite_is_said(report: StartReport) -> None:
    one: Any = lw.evaluate(noisy("huginn-tiny"), data=DATA, splits="valid", depths=[1, 3])["valid"]
    bad = type(one)(**{**vars(one), "loss": (1.0, None)})
    both = gathered([one, bad], [0, 1], "x")
    assert both.loss[1] is None and "not finite" in "".join(both.table(100).columns[1].cells)


def test_a_state_that_is_no_noise_and_other_forms_are_refused(model: lw.LoopedForCausalLM) -> None:
    with pytest.raises(
        ValueError, match=r"state_seeds: 3 would change nothing; this model's state starts as 'input', not as noise"
    ):
        lw.evaluate(noisy("ouro-1.4b-tiny"), data=DATA, state_seeds=3)
    with pytest.raises(ValueError, match="exit: given with state_seeds, which does not go with it"):
        lw.evaluate(model, data=DATA, state_seeds=3, exit="all")
    with pytest.raises(ValueError, match="state_seeds"):
        lw.evaluate(model, data=DATA, state_seeds=0)


def test_the_own_seed_comes_back_after_an_error(model: lw.LoopedForCausalLM) -> None:
    with suppress(RuntimeError), started_at(model.state, 5):
        assert model.state.seed == 5
        raise RuntimeError
    assert model.state.seed == 0


PASSAGES = 80


def made_report(losses: torch.Tensor, **changes: object) -> HeldOut:
    """A report of 80 passages, two a document, of 1 to 4 targets each, with these losses by depth."""
    targets = torch.arange(PASSAGES) % 4 + 1
    nothing = (None,) * len(losses)
    made = HeldOut(
        "t", 8, "document", PASSAGES // 2, PASSAGES, int(targets.sum()), 100, "same", True, "", tuple(range(1, len(losses) + 1)),
        nothing, nothing, nothing, nothing, nothing, tuple((torch.arange(PASSAGES) // 2).tolist()), tuple(targets.tolist()),
        tuple(tuple(row) for row in (losses * targets).tolist()),
    )  # fmt: skip
    return replace(made, **changes)


def hard(seed: int = 0) -> torch.Tensor:
    return 3 + torch.randn(PASSAGES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_what_is_hard_about_a_passage_cancels() -> None:
    found = compare(made_report(hard()[None]), made_report(hard()[None] + 0.01))
    assert found.difference == pytest.approx(-0.01) and found.decided
    assert (found.difference_low, found.difference_high) == pytest.approx((-0.01, -0.01))
    assert found.won == found.won_high == 1 > found.won_low > 0.9 and found.passages == PASSAGES and found.likelihood
    assert (found.unit, found.units) == ("document", PASSAGES // 2)
    back = compare(made_report(hard()[None] + 0.01), made_report(hard()[None]))
    assert back.difference == pytest.approx(0.01) and back.won == 0


def test_the_difference_weighs_tokens_and_wins_count_passages() -> None:
    better = torch.where(torch.arange(PASSAGES) % 4 == 0, -3.0, 1.0).double()  # wins the passages of one token alone
    found = compare(made_report((hard() + better)[None]), made_report(hard()[None]))
    assert found.won == pytest.approx(0.25) and found.difference == pytest.approx((-3 + 2 + 3 + 4) / 10)
    assert found.won_low < 0.25 < found.won_high
    same = compare(made_report(hard()[None]), made_report(hard()[None]))
    assert same.difference == 0 and same.won == 0.5 and not same.decided


def test_depths_are_chosen_for_each() -> None:
    both = torch.stack([hard() + 1, hard()])
    assert compare(made_report(both), made_report(both)).depths == (2, 2)
    found = compare(made_report(both), made_report(both), depths=(1, 2))
    assert found.depths == (1, 2) and found.difference == pytest.approx(1.0)


@pytest.mark.parametrize(("pairs", "most"), [(20, 3), pytest.param(60, 9, marks=pytest.mark.slow)])
def test_noise_is_not_a_win_more_often_than_it_says(pairs: int, most: int) -> None:
    decided = sum(compare(made_report(hard(2 * s)[None]), made_report(hard(2 * s + 1)[None])).decided for s in range(pairs))
    assert decided <= most


def test_the_recovered_share_of_a_gap() -> None:
    worse, better = made_report(hard()[None] + 1), made_report(hard()[None])
    found = recovered(made_report(hard()[None] + 0.3), worse=worse, better=better)
    assert found.share == pytest.approx(0.7) and (found.low, found.high) == pytest.approx((0.7, 0.7))
    assert found.gap == pytest.approx(1) and recovered(worse, worse=worse, better=better).share == pytest.approx(0)
    below = recovered(made_report(hard()[None] + 1.068), worse=worse, better=better)
    assert below.share == pytest.approx(-0.068)
    noisy = recovered(made_report((hard() + 0.3 + 0.1 * (hard(9) - 3))[None]), worse=worse, better=better)
    assert noisy.low < 0.7 < noisy.high and noisy.high - noisy.low < 0.1
    rows = torch.stack([hard() + 1, hard() + 0.5, hard() + 9])  # at depths 1, 2 and 3
    at_depths = recovered(made_report(rows), worse=made_report(rows), better=better, depth=2, worse_depth=1)
    assert (at_depths.share, at_depths.gap) == pytest.approx((0.5, 1.0))
    with pytest.raises(ValueError, match="no gap"):
        recovered(worse, worse=better, better=worse)


def test_what_is_no_likelihood_stays_marked_and_other_passages_are_refused() -> None:
    leaking = made_report(hard()[None], likelihood=False)
    assert not compare(leaking, made_report(hard()[None])).likelihood
    assert not recovered(leaking, worse=made_report(hard()[None] + 1), better=made_report(hard()[None])).likelihood
    with pytest.raises(ValueError, match="not the same passages"):
        compare(made_report(hard()[None], fingerprint="other"), made_report(hard()[None]))
