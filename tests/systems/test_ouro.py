"""Ouro (arXiv 2510.25741), written again from its equations, Table 1 and the hub's code: losses, exits, stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.generation.exit_rules import build_exit
from loopwright.model.config import LoopedConfig
from loopwright.recipes import recipe
from loopwright.training.model import FromWeights
from loopwright.training.objectives.losses import ExitGateStage, ExpectedExit
from loopwright.training.recipe import Recipe
from loopwright.training.rollout import Plan, rollout
from tests.systems.items import differs, same
from tests.systems.test_rltt import T, answers, per_loop, policy

OURO = "Ouro"


def losses_and_gate(model: lw.LoopedForCausalLM, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """L^(t) and p(t) of every target [T, N], and λ_t there."""
    logs, pdf = per_loop(model, batch)
    states = model(batch.input_ids, depth=T, output_steps=True).states
    gate = [torch.sigmoid(s.detach()[:, 2:-1] @ model.halting.proj.weight[0] + model.halting.proj.bias).flatten() for s in states]
    return -logs, pdf, torch.stack(gate)


def gradients(model: lw.LoopedForCausalLM, loss: Tensor) -> list[Tensor]:
    wanted = [x for x in model.parameters() if x.requires_grad]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, wanted, strict=True)]


@pytest.mark.parametrize("beta", [0.1, 0.05])
@same(OURO, "stage I: the loss expected over exits less β times their entropy (eq. 3, 4)")
def test_stage_1(beta: float) -> None:
    model, batch = policy(), answers()
    losses, p, _ = losses_and_gate(model, batch)
    told = ((p * losses).sum(0) + beta * (p * p.log()).sum(0)).mean()
    found, _ = ExpectedExit(beta)(model, rollout(model, batch, Plan(T, T)))
    assert float(found.detach()) == pytest.approx(float(told.detach()), abs=1e-11)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(gradients(model, found), gradients(model, told), strict=True))


@same(
    OURO,
    "stage II: the gate's cross-entropy with σ(50 (I − 0.005)) over T_max, gradient of the gate alone (eq. 5, 6)",
)
def test_stage_2() -> None:
    model, batch = policy(), answers()
    losses, _, gate = losses_and_gate(model, batch)
    better = (losses[:-1] - losses[1:]).clamp(min=0).detach()
    go_on = torch.sigmoid(50 * (better - 0.005))
    told = -(go_on * (1 - gate[1:]).log() + (1 - go_on) * gate[1:].log()).sum(0).mean() / T
    found, _ = ExitGateStage()(model, rollout(model, batch, Plan(T, T)))
    assert float(found.detach()) == pytest.approx(float(told.detach()), abs=1e-11)
    ours, theirs = gradients(model, found), gradients(model, told)
    assert all(torch.allclose(a, b, atol=1e-11) for a, b in zip(ours, theirs, strict=True))
    names = [name for name, x in model.named_parameters() if x.requires_grad]
    assert {name for name, g in zip(names, ours, strict=True) if g.abs().max() > 0} == {"halting.proj.weight", "halting.proj.bias"}


@pytest.mark.parametrize("q", [0.0, 0.2, 0.5, 0.8, 1.0])
@same(OURO, "Q-exit: a token leaves after the first step where the sum of exit probabilities reaches q")
def test_q_exit(q: float) -> None:
    model = policy().requires_grad_(False)
    out = model(torch.arange(12)[None], depth=T, output_steps=True)
    gate = torch.stack([torch.sigmoid(s[0] @ model.halting.proj.weight[0] + model.halting.proj.bias) for s in out.states])
    rule, memory = build_exit({"kind": "gate", "threshold": q}, model), {}
    left = torch.stack([rule.leaves(model, s[0], s[0], None, memory) for s in out.states])
    for token in range(12):
        stay, told = 1.0, T
        for t in range(T - 1):
            stay *= 1 - float(gate[t, token])
            if 1 - stay >= q:
                told = t + 1
                break
        asked = left[: T - 1, token].tolist()
        assert (asked.index(True) + 1 if True in asked else T) == told


def tokens(found: Recipe) -> float:
    return found.updates * found.batch * found.data["length"]


@same(
    OURO,
    "pretraining 1a and 1b of Table 1: 8 and 4 steps, β .1 and .05, rates, AdamW, clip, length, tokens",
)
def test_pretraining() -> None:
    for name, depth, beta, update in (("ouro-pretrain", 8, 0.1, 4e6), ("ouro-stable", 4, 0.05, 8e6)):
        found = recipe(name, [])
        assert dict(found.depth) == {"kind": "fixed", "depth": depth}
        assert dict(found.objective) == {"kind": "expected-exit", "beta": beta}
        assert dict(found.optim) == {"kind": "adamw", "lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1} and found.clip == 1.0
        assert found.schedule["kind"] == "constant" and found.data["length"] == 4096
        assert found.batch * 4096 == pytest.approx(update, rel=0.05) and tokens(found) == pytest.approx(3e12, rel=1e-5)
    first, second = recipe("ouro-pretrain", []), recipe("ouro-stable", [])
    assert second.model["source"] == "runs/ouro-pretrain" and second.model["changes"] == {"depth": 4}
    config: LoopedConfig = lw.preset("ouro-1.4b", **first.model["changes"])
    assert (config.depth, config.rope_parameters["rope_theta"]) == (8, 1e4)


@differs(OURO, "upcycling to 48 layers")
def test_upcycling(tmp_path: Path) -> None:
    model = lw.build("ouro-1.4b-tiny", core_layers=3)
    lw.save(model, tmp_path)
    grown = FromWeights(str(tmp_path), changes={"core_layers": 6}).build(0)
    assert len(grown.core) == 6 and lw.preset("ouro-2.6b").core_layers == 2 * lw.preset("ouro-1.4b").core_layers == 48
    for layer, block in enumerate(grown.core):
        assert all(torch.equal(x, model.core[layer % 3].get_parameter(name)) for name, x in block.named_parameters())
    others = {name: x for name, x in grown.named_parameters() if not name.startswith("core.")}
    assert {"end_norm.weight", "halting.proj.weight"} <= set(others)
    assert all(torch.equal(x, model.get_parameter(name)) for name, x in others.items())


@same(OURO, "reasoning SFT: 2 passes, 32K tokens, 2e-5, a cosine")
def test_sft() -> None:
    found = recipe("ouro-sft", [])
    assert found.data["length"] == 32768 and found.optim["lr"] == 2e-5 and found.optim["betas"] == [0.9, 0.95]
    assert found.schedule["kind"] == "cosine" and found.updates * found.batch == pytest.approx(2 * 8.3e6, rel=1e-3)


@differs(OURO, "batch, warm-up and text of stage 1a and the SFT")
def test_what_is_ours_in_the_stages() -> None:
    assert recipe("ouro-pretrain", []).schedule["warmup"] == 1000 and recipe("ouro-stable", []).schedule.get("warmup", 0) == 0
    assert {recipe(name, []).data["kind"] for name in ("ouro-pretrain", "ouro-stable")} == {"hub"}
    assert recipe("ouro-sft", []).batch == 256


@differs(OURO, "the gate's stage")
def test_the_gates_stage_is_ours() -> None:
    found = recipe("ouro-gate", [])
    assert (found.updates, found.batch, found.optim["lr"], found.schedule["kind"]) == (2000, 256, 1e-3, "cosine")


@differs(OURO, "stages 2 to 4")
def test_later_stages_are_changes_to_a_recipe() -> None:
    changes = ["data.length=16384", "schedule={kind: cosine, floor: 0.1}", "batch=512", "updates=166893"]
    rope = "model.changes={depth: 4, rope_parameters: {rope_type: default, rope_theta: 40000.0}}"
    found = recipe("ouro-stable", [*changes, rope, "model.source=runs/ouro-stable"])
    assert tokens(found) == pytest.approx(1.4e12, rel=1e-5) and found.schedule["floor"] == 0.1


@differs(OURO, "recipe `looped-ouro`")
def test_our_own_recipe() -> None:
    found = recipe("looped-ouro", [])
    assert found.schedule["kind"] == "wsd" and dict(found.depth)["depth"] == 4 and found.objective["beta"] == 0.05
    assert tokens(found) == pytest.approx(105e9, rel=0.01) and lw.preset("ouro-1.4b").rope_parameters["rope_theta"] == 1e6
