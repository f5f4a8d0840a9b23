"""RLTT (arXiv 2602.10520), written again from its equations and public code: weights of the steps, loss, divergence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.training.grpo import Grpo, Likelihoods, kl_estimate
from loopwright.training.objectives.readout import find_targets
from loopwright.training.rollout import Plan, rollout
from tests.cases import noisy
from tests.systems.items import differs, same

RLTT = "RLTT"
T = 4


def answers() -> Batch:
    """Two prompts of three tokens with completions of four."""
    ids = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(6))
    labels = ids.clone()
    labels[:, :3] = -100
    return Batch(ids, labels)


def policy(std: float = 0.3) -> lw.LoopedForCausalLM:
    return noisy("ouro-1.4b-tiny", std=std).double()


def per_loop(model: lw.LoopedForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """log P^(t) of the completions [T, 8], and the exit distribution there [T, 8], by their definitions."""
    out = model(batch.input_ids, depth=T, output_steps=True)
    logs = [x[:, 2:-1].log_softmax(-1).gather(-1, batch.input_ids[:, 3:, None]).flatten() for x in out.step_logits]
    gate = [torch.sigmoid(s[:, 2:-1] @ model.halting.proj.weight[0] + model.halting.proj.bias).flatten() for s in out.states]
    pdf, left = [], torch.ones_like(gate[0])
    for t in range(T):
        pdf.append(gate[t] * left if t < T - 1 else left)
        left = left * (1 - gate[t])
    return torch.stack(logs), torch.stack(pdf)


def found(model: lw.LoopedForCausalLM, credit: Any) -> Likelihoods:
    batch, objective = answers(), Grpo("exact", credit=credit)
    path = rollout(model, batch, Plan(T, T), keeps=objective.reads)
    return objective.log_likelihoods(model, path, find_targets(batch))


@pytest.mark.parametrize("credit", ["uniform", "linear", "exit-pdf"])
@same(
    RLTT,
    "log p = Σ_t w_t log p_t: uniform, progressive with α = 1, exit-PDF weights (eq. 4)",
)
def test_weights_of_the_steps(credit: str) -> None:
    model = policy()
    logs, pdf = per_loop(model, answers())
    share = {"uniform": torch.full((T, 1), 1 / T), "linear": torch.arange(1, T + 1)[:, None] / 10, "exit-pdf": pdf}[credit].double()
    told = (share * logs).sum(0)
    credited = found(model, credit).credited
    assert torch.allclose(credited, told, atol=1e-12, rtol=0)
    weight = model.halting.proj.weight
    ours, theirs = (torch.autograd.grad(x.sum(), weight, allow_unused=True)[0] for x in (credited, told))
    assert (ours is None) == (theirs is None) == (credit != "exit-pdf")
    if ours is not None:
        assert torch.allclose(ours, theirs, atol=1e-10, rtol=0) and ours.abs().max() > 1e-3


@same(RLTT, "divergence of the last loop alone from the model at the start (eq. 5, 7)")
def test_divergence() -> None:
    model, start = (each.requires_grad_(False) for each in (policy(), policy(0.2)))
    logs, before = (per_loop(each, answers())[0][-1] for each in (model, start))
    ratio = before - logs
    ours, theirs = (found(each, "uniform").last for each in (model, start))
    assert torch.allclose(kl_estimate(ours, theirs), ratio.exp() - ratio - 1, atol=1e-12, rtol=0)
    mixed = [found(each, "uniform").credited for each in (model, start)]
    assert float((kl_estimate(*mixed) - kl_estimate(ours, theirs)).abs().max()) > 1e-2  # a divergence of mixtures is another
    # over the vocabulary the mixture is no distribution, the last loop is one
    steps = torch.stack(model(answers().input_ids, depth=T, output_steps=True).step_logits).log_softmax(-1)
    sums = [float(x.exp().sum(-1).mean()) for x in (steps.mean(0), steps[-1])]
    assert sums[0] < 0.995 and math.isclose(sums[1], 1, abs_tol=1e-12)


@same(RLTT, "loss: −A times the mean of log p over a completion, without ratio or clip (eq. 6)")
def test_loss() -> None:
    model = policy()
    loss, _ = Grpo("exact", credit="exit-pdf")(model, rollout(model, answers(), Plan(T, T)))
    assert float(loss.detach()) == pytest.approx(-float(found(model, "exit-pdf").credited.mean().detach()), abs=1e-12)


@differs(RLTT, "learned weights, progressive ones with α ≠ 1")
def test_learned_weights_are_refused() -> None:
    for credit in ("learned", "progressive"):
        with pytest.raises(ValueError, match=f"credit is '{credit}'"):
            Grpo("exact", credit=credit)
    assert Grpo("exact", credit=[1, 4, 9, 16]).weights(T) == [w / 30 for w in (1, 4, 9, 16)]  # α = 2 as a list
