"""The implicit gradient against the exact one through many steps, on maps that contract, in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.training.gradient import Implicit
from loopwright.training.rollout import Plan, rollout
from tests.cases import noisy
from tests.training.gradient_helpers import gradients, padded_batch

DEPTH = 30


def contracting(**changes: Any) -> lw.LoopedForCausalLM:
    """A model whose state part of the step is small: each step moves the state by about half of what the one before did."""
    model = noisy("huginn-tiny", std=0.3, gate={"kind": "mix", "weight": 0.7}, **changes).double()
    with torch.no_grad():
        model.injection.proj.weight[:, : model.config.hidden_size] *= 0.2
    return model


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return float(max((a[name] - b[name]).norm() / b[name].norm() for name in b))


@pytest.mark.long
def test_agreement_with_the_exact_gradient_grows_with_the_terms() -> None:
    model = contracting()
    exact = gradients(model, Plan(DEPTH, DEPTH), keeps="last")
    assert all(bool(grad.abs().sum() > 0) for grad in exact.values())
    kinds = [Implicit(terms) for terms in (1, 4, 16, 32)]
    gaps = [distance(gradients(model, Plan(DEPTH, DEPTH), keeps="last", remat=kind), exact) for kind in kinds]
    assert all(later < earlier / 1.5 for earlier, later in pairwise(gaps))
    assert gaps[0] > 0.05 and gaps[-1] < 1e-7
    assert kinds[0].residual is not None and kinds[0].residual < 1e-9


def test_one_term_is_the_gradient_of_the_last_step() -> None:
    model = contracting()
    one = gradients(model, Plan(DEPTH, 1), keeps="last")
    found = gradients(model, Plan(DEPTH, DEPTH), keeps="last", remat=Implicit(terms=1))
    assert distance(found, one) < 1e-12


def test_k_terms_are_the_gradient_of_the_last_k_steps_at_the_fixed_point() -> None:
    model = contracting()
    few = gradients(model, Plan(50, 4), keeps="last")
    assert distance(gradients(model, Plan(50, 50), keeps="last", remat=Implicit(terms=4)), few) < 1e-9


def test_random_numbers_are_those_of_the_forward_pass_alone() -> None:
    model = contracting(dropout=1e-12).train()  # draws, and drops nothing: dropout leaves no fixed point
    path = rollout(model, padded_batch(model), Plan(DEPTH, 2), remat="implicit", keeps="last")
    state = torch.get_rng_state()
    path.last.sum().backward()
    assert torch.equal(state, torch.get_rng_state())


def test_refuses_away_from_a_fixed_point() -> None:
    model = contracting()
    with pytest.raises(ValueError, match=r"relative step is 0\.\d+; allowed: at most 0.001"):
        rollout(model, padded_batch(model), Plan(3, 3), remat="implicit", keeps="last")
    nowhere = contracting()
    with torch.no_grad():
        nowhere.core[0].mlp.down_proj.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="relative step is nan"):
        rollout(nowhere, padded_batch(nowhere), Plan(DEPTH, 4), remat="implicit", keeps="last")


@pytest.mark.parametrize("rows", [[0, 1], [1]])
def test_the_residual_is_that_of_the_worst_row_without_padding(rows: list[int]) -> None:
    model, kind = contracting(), Implicit()
    whole = padded_batch(model)
    batch = Batch(whole.input_ids[rows], whole.labels[rows], whole.attention_mask[rows])
    with torch.no_grad():
        path = rollout(model, batch, Plan(6, 6))
        rollout(model, batch, Plan(6, 6), remat=kind, keeps="last")
    a, b = path.states[3], path.states[4]  # the last step of all is not part of what is measured
    real = [mask.bool() for mask in batch.attention_mask]
    found = [float((y[r] - x[r]).norm() / x[r].norm()) for x, y, r in zip(a, b, real, strict=True)]
    assert kind.residual == pytest.approx(max(found), rel=1e-9)
    assert len(set(found)) == len(rows)


def test_refuses_what_has_no_meaning() -> None:
    model = contracting()
    with pytest.raises(ValueError, match="reads every step"):
        rollout(model, padded_batch(model), Plan(DEPTH, DEPTH), remat="implicit", keeps="every")
    with pytest.raises(ValueError, match="one step with a gradient"):
        rollout(model, padded_batch(model), Plan(DEPTH, 1), remat="implicit", keeps="last")
    with pytest.raises(ValueError, match=r"terms must be a whole number >= 1 \(got 0\)"):
        Implicit(terms=0)
