"""The module that is trained: parts that add up, penalties that count, the step it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.data.batch import IGNORED, Batch
from loopwright.training.objectives.losses import EveryStep, Final
from loopwright.training.objectives.penalties import PENALTIES, Weighted
from loopwright.training.rollout import Plan, rollout
from loopwright.training.run import Share, TrainingModule
from tests.cases import noisy


def make_batch(rows: int = 6, length: int = 7) -> Batch:
    """Rows that ask for 0 to 5 tokens."""
    ids = torch.randint(0, 15, (rows, length), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    for row in range(rows):
        labels[row, row + 1 :] = IGNORED
    return Batch(ids, labels, rows=torch.arange(rows))


def cut(batch: Batch, rows: slice) -> Batch:
    assert batch.rows is not None
    return replace(batch, input_ids=batch.input_ids[rows], labels=batch.labels[rows], rows=batch.rows[rows])


def gradients(model: lw.LoopedForCausalLM) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("weighting", ["convex", "add"])
@pytest.mark.parametrize("mode", [None, "fd", "exact", "released"])
def test_the_parts_of_an_update_add_up_to_the_whole(mode: str | None, weighting: str) -> None:
    """Parts of different numbers of targets, the first of them with none at all."""
    model, batch, plan = noisy("stars-addition-tiny").double().train(), make_batch(), Plan(3, 3, 5)
    share = 1.0 if mode == "released" else 0.5  # the rows that are probed fall unevenly to the parts too
    specs = [] if mode is None else [{"kind": "jacobian", "mode": mode, "share": share, "weight": 0.3, "weighting": weighting}]
    penalties = [Weighted.build(spec, PENALTIES) for spec in specs]
    module, weights = TrainingModule(model, EveryStep(), penalties), [0.3] * len(specs)
    loss, metrics = module(batch, plan, Share(), weights)
    loss.backward()
    whole = gradients(model)
    pieces = [cut(batch, slice(row, row + 1)) for row in range(6)]
    assert pieces[0].targets == 0 < pieces[1].targets
    total, sums = 0.0, dict.fromkeys(metrics, 0.0)
    for piece in pieces:
        part, found = module(piece, plan, Share(piece.targets / batch.targets, 1 / 6), weights)
        part.backward()
        total += part.item()
        sums = {name: sums[name] + value.item() for name, value in found.items()}
    assert total == pytest.approx(loss.item(), rel=1e-9)
    assert sums == pytest.approx({name: value.item() for name, value in metrics.items()}, rel=1e-9)
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, whole[name], rtol=1e-7, atol=1e-9)


def test_the_loss_is_the_objective_with_the_penalty_weighed_in() -> None:
    model, batch, plan = noisy("stars-addition-tiny"), make_batch(), Plan(3, 3)
    penalty = Weighted.build({"kind": "state-change", "weight": 0.25, "weighting": "convex"}, PENALTIES)
    module = TrainingModule(model, Final(), [penalty])
    path = rollout(model, batch, plan)
    plain, change = Final()(model, path)[0], penalty.penalty(model, path)
    loss, metrics = module(batch, plan, Share(), [0.25])
    torch.testing.assert_close(loss, 0.75 * plain + 0.25 * change)
    assert metrics["objective"] == plain and metrics["state-change"] == change
    loss, metrics = module(batch, plan, Share(), [None])
    assert torch.equal(loss, plain) and "state-change" not in metrics, "where it does not count it is not computed"


def test_a_penalty_that_rides_costs_no_further_step() -> None:
    model, batch = noisy("stars-addition-tiny"), make_batch()
    counts, own = [], model.step
    for mode, weights in (("fd", [0.1]), ("fd", [None]), ("paper", [0.1])):
        module = TrainingModule(model, Final(), [Weighted.build({"kind": "jacobian", "mode": mode}, PENALTIES)])
        calls: list[int] = []

        def watched(s: Any, e: Any, t: Any, p: Any, calls: list[int] = calls) -> torch.Tensor:
            calls.append(t)
            return own(s, e, t, p)

        module.step = watched
        module(batch, Plan(4, 4), Share(), weights)
        counts.append(len(calls))
    assert counts == [4, 4, 4]


def test_two_penalties_of_one_kind_are_refused() -> None:
    twice = [Weighted.build({"kind": "jacobian", "mode": mode}, PENALTIES) for mode in ("fd", "exact")]
    with pytest.raises(ValueError, match="jacobian stands there twice; allowed: each kind once"):
        TrainingModule(noisy("stars-addition-tiny"), Final(), twice)
