"""Measured from several starts: each is what its seed gives, and a model that answers from one start alone is told from another."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.data.build import build_data
from loopwright.evaluation.starts import StartReport, gathered
from loopwright.model.parts.state import started_at
from tests.cases import noisy

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
