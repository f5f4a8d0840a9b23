"""Ouroboros (RightNow-AI), written again from its paper and from what its public code does."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.data.text import FINEWEB
from loopwright.model.cost import skeleton
from loopwright.model.parts.part import StepIndex
from loopwright.model.passes import Adaptation, Place
from loopwright.model.taps import Recorder
from loopwright.recipes import recipe
from loopwright.retrofitting.layout import find_layout
from loopwright.retrofitting.systems import make_plan, systems
from loopwright.schema import build_kind
from loopwright.training.depth import RULES
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.optim import OPTIMISERS, SCHEDULES
from loopwright.training.rollout import Plan, rollout
from loopwright.training.trainable import choose, drawn_plans
from tests.cases import gap, golden_folders, noisy
from tests.checkpoints.dense import IDS, source
from tests.systems.items import differs, same

SYSTEM = "Ouroboros"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RECIPES = ("ouroboros-qwen2.5-3b", "ouroboros-static-qwen2.5-3b", "ouroboros-refiner-qwen2.5-0.5b")
SMALL = {"rank": 4, "alpha": 16.0, "style": 8}
PRINTED = {"pooling": "sequence", "leak_future": True}


@cache
def dense() -> lw.LoopedForCausalLM:
    """A Qwen2 of six layers in float64; it may not be changed."""
    return deepcopy(source("qwen2")).double()


def moved(model: lw.LoopedForCausalLM, *, std: float = 0.2) -> lw.LoopedForCausalLM:
    """A model in float64 whose parts are no longer those of the start."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.double().named_parameters():
            if name.startswith(("adapters", "gate", "end_norm")) and "bases" not in name:
                p.add_(std * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model.eval()


def made(system: str, **changes: Any) -> lw.LoopedForCausalLM:
    with pytest.warns(UserWarning, match="leaks") if "leak_future" in str(changes) else nullcontext():
        return moved(lw.retrofit(deepcopy(dense()), system, **changes))


def linears(block: nn.Module) -> dict[str, nn.Linear]:
    return {name.split(".")[-1]: module for name, module in block.named_modules() if isinstance(module, nn.Linear)}


def gated(model: lw.LoopedForCausalLM, old: Tensor, new: Tensor, t: int) -> Tensor:
    """Equations 5 and 4."""
    normed = model.end_norm.weight[t] * new / (new.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    g = torch.sigmoid(torch.cat([normed, old], -1) @ model.gate.weight.T + model.gate.bias)
    return g * normed + (1 - g) * old


def algorithm_1(model: lw.LoopedForCausalLM, row: Tensor, depth: int, diagonals: Any) -> Tensor:
    """Algorithm 1 for one row: W + α/r · B diag(δ) A is written into the looped layer at every step."""
    h, p = model.embed(row)
    scale, bases = 16.0 / 4, model.adapters[0].bases
    for t in range(depth):
        block, delta = deepcopy(model.core[0]), diagonals(h, t)
        for k, name in enumerate(TARGETS):
            linears(block)[name].weight.data += scale * bases.b[name][0] @ delta[k].diag() @ bases.a[name][0]
        h = gated(model, h, block(h, p, _place(t)), t)
    return model.lm_head(model.features(h, p))


def _place(t: int) -> Place:
    return Place("core", StepIndex(t, t), 0)


@same(SYSTEM, "split into prelude, one looped layer and coda (3.1)")
def test_the_split() -> None:
    found = find_layout("ouroboros", 36)
    assert found.prelude == tuple(range(8)) and found.core == (18,) and found.coda == tuple(range(28, 36))
    assert found.dropped(36) == (*range(8, 18), *range(19, 28)) and len(found.kept) == 17


@same(SYSTEM, "bases: A = Vᵀ, B = U S of the mean residual, frozen (eq. 1)")
def test_bases() -> None:
    model = lw.retrofit(deepcopy(dense()), "ouroboros", adapters=SMALL)
    layers, removed = [*dense().prelude, *dense().coda], find_layout("ouroboros", 6).dropped(6)
    bases = model.adapters[0].bases
    for name in TARGETS:
        kept = linears(layers[3])[name].weight
        delta = sum(linears(layers[layer])[name].weight - kept for layer in removed) / len(removed)
        u, s, vh = torch.linalg.svd(delta.detach())
        assert gap(bases.b[name][0] @ bases.a[name][0], u[:, :4] * s[:4] @ vh[:4]) < 1e-5
        assert gap(bases.a[name][0].abs(), vh[:4].abs()) < 1e-4, "orthonormal rows: the size is B's"
        assert not bases.a[name].requires_grad and not bases.b[name].requires_grad


@same(SYSTEM, "start of what trains: controller within ±1/√inputs, heads 0, gate 0 and −2, step norms 1")
def test_start_of_the_parts() -> None:
    torch.manual_seed(0)
    model = lw.build("ouroboros-qwen2.5-3b", vocab_size=32, intermediate_size=64, prelude_layers=0, coda_layers=0)
    controller = model.adapters[0]
    for linear, inputs in ((controller.state_proj, 2048), (controller.style1, 384), (controller.style2, 256)):
        assert linear.in_features == inputs
        for tensor in (linear.weight, linear.bias):
            assert tensor.abs().max() <= inputs**-0.5
            assert float(tensor.detach().std()) == pytest.approx((3 * inputs) ** -0.5, rel=0.15 if tensor.dim() == 1 else 0.03)
    assert float(controller.step_embedding.detach().std()) == pytest.approx(1, rel=0.03) and controller.step_embedding.shape == (
        64,
        128,
    )
    assert not controller.heads.any() and controller.heads.shape == (7 * 32, 128)
    assert not model.gate.weight.any() and (model.gate.bias == -2).all() and (model.end_norm.weight == 1).all()
    retrofitted = lw.retrofit(source("qwen2"), "ouroboros", adapters=SMALL).adapters[0]
    assert retrofitted.state_proj.weight.abs().max() <= 32**-0.5 and retrofitted.state_proj.bias.any()


@same(SYSTEM, "a pass: Algorithm 1 with equations 2 to 5, at every depth")
def test_algorithm_1() -> None:
    model = made("ouroboros", adapters={**SMALL, **PRINTED})
    c = model.adapters[0]

    def delta(h: Tensor, t: int) -> Tensor:
        pooled = F.silu(c.state_proj.weight @ h[0].mean(0) + c.state_proj.bias)
        z = F.silu(c.style1.weight @ torch.cat([pooled, c.step_embedding[t]]) + c.style1.bias)
        return (c.heads @ F.silu(c.style2.weight @ z + c.style2.bias)).view(7, 4)

    with torch.no_grad():
        for depth in (1, 4):
            assert gap(model(IDS[:1], depth=depth).logits, algorithm_1(model, IDS[:1], depth, delta)) < 1e-11


@same(SYSTEM, "the static rival: a table of diagonals per step (5.1)")
def test_the_static_rival() -> None:
    model = made("ouroboros-static", adapters={"rank": 4})
    with torch.no_grad():
        expected = algorithm_1(model, IDS[:1], 3, lambda h, t: model.adapters[0].table[t, 0])
        assert gap(model(IDS[:1], depth=3).logits, expected) < 1e-11
    assert not lw.retrofit(source("qwen2"), "ouroboros-static", adapters={"rank": 4}).adapters[0].table.any()
    ours, rival = (dict(systems()[name].plan) for name in ("ouroboros", "ouroboros-static"))
    assert {k for k in ours if ours[k] != rival[k]} == {"adapters"} and set(ours) == set(rival)
    chosen = [recipe(name, []) for name in RECIPES[:2]]
    assert {name for name in vars(chosen[0]) if getattr(chosen[0], name) != getattr(chosen[1], name)} <= {"about", "model", "toy"}


@same(SYSTEM, "the refiner: the intact model and its last layer again (5.3)")
def test_the_refiner() -> None:
    sizes = {"rank": 2, "count": 2, "state": 8, "step": 4, "width": 12, "style": 6}
    model = made("ouroboros-refiner", adapters=sizes)
    with torch.no_grad():
        h, p = model.embed(IDS[:1])
        assert gap(model.lm_head(model.norm(h)), dense()(IDS[:1]).logits) < 1e-12, "before the first step: the intact model"
        for t in range(3):
            block, place = [*dense().prelude, *dense().coda][-1], _place(t)
            adapt = Adaptation([model.adapters[0].begin(place.step, h, p)])
            adapted = block(h, p, place, adapt)
            assert gap(adapted, block(h, p, place)) > 1e-4
            h = gated(model, h, adapted, t)
        assert gap(model(IDS[:1], depth=3).logits, model.lm_head(model.norm(h))) < 1e-11
    spec = make_plan("ouroboros-refiner", {}).adapters[0]
    assert (spec["rank"], spec["alpha"], spec["count"], spec["state"], spec["step"]) == (8, 16.0, 8, 256, 128)
    assert (spec["width"], spec["style"]) == (512, 32) and recipe(RECIPES[2], []).depth == {"kind": "fixed", "depth": 4}


@same(SYSTEM, "the 17-layer baseline")
def test_the_baseline() -> None:
    model = made("ouroboros", adapters=SMALL)
    layers = [*dense().prelude, *dense().coda]
    with torch.no_grad():
        _, p = model.embed(IDS[:1])
        h = model.embed_tokens(IDS[:1])
        for layer in find_layout("ouroboros", 6).kept:
            h = layers[layer](h, p, _place(0))
        assert gap(model.without_adapters()(IDS[:1]).logits, model.lm_head(model.norm(h))) < 1e-11


@same(SYSTEM, "what trains: controller, gate and step norms, 9,214,592 parameters (Table 2)")
def test_what_trains() -> None:
    for name in RECIPES:
        assert recipe(name, []).optim["train"] == ["adapters.*", "gate.*", "end_norm.*"]
        assert systems()[recipe(name, []).model["system"]].trains == "parts"
    model = skeleton(lw.preset("ouroboros-qwen2.5-3b"))
    choose(model, recipe(RECIPES[0], []).optim["train"])
    d, s, steps, r = 2048, 128, 64, 32
    controller = d * 2 * s + 2 * s + steps * s + 6 * s * s + 2 * s + 2 * s * s + s + 7 * s * r
    parts = {"adapters": controller, "gate": 2 * d * d + d, "end_norm": steps * d}
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    assert {top: sum(n for name, n in trained.items() if name.split(".")[0] == top) for top in parts} == parts
    assert sum(trained.values()) == sum(parts.values()) == 9_214_592


@same(SYSTEM, "every micro-batch at one depth (Tables 3, 4)")
def test_draws() -> None:
    for name, depth in zip(RECIPES, (8, 8, 4), strict=True):
        chosen = recipe(name, ["updates=3"])
        assert [plan.depth for plan in drawn_plans(build_kind(chosen.depth, RULES), chosen)] == [depth] * 48
        assert {plan.grad_steps for plan in drawn_plans(build_kind(chosen.depth, RULES), chosen)} == {depth}, (
            "the gradient is cut nowhere"
        )


@same(SYSTEM, "loss: cross-entropy of the next token")
def test_loss() -> None:
    for name in RECIPES:
        assert recipe(name, []).objective == {"kind": "final"}
    model = moved(noisy("ouroboros-qwen2.5-3b-tiny", std=0.3))
    loss, _ = build_kind(recipe(RECIPES[0], []).objective, OBJECTIVES)(model, rollout(model, Batch(IDS, IDS), Plan(3, 3)))
    logits = model(IDS, depth=3).logits
    rows = [F.cross_entropy(logits[b, i], IDS[b, i + 1]) for b in range(len(IDS)) for i in range(IDS.shape[1] - 1)]
    assert float(loss.detach()) == pytest.approx(float(torch.stack(rows).mean().detach()), abs=1e-12)


@same(SYSTEM, "AdamW at 3e-4, betas 0.9 and 0.95, decay 0.05 on all, clip 1")
def test_optimiser() -> None:
    for name in RECIPES:
        chosen = recipe(name, [])
        assert chosen.clip == 1.0
        kind, model = build_kind(chosen.optim, OPTIMISERS), noisy("ouroboros-qwen2.5-3b-tiny")
        kind.prepare(model)
        optimiser = kind(model)
        assert [type(one) for one in optimiser.optimisers] == [torch.optim.AdamW]
        found = {(g["lr"], tuple(g["betas"]), g["weight_decay"], g["eps"]) for g in optimiser.param_groups}
        assert found == {(3e-4, (0.9, 0.95), 0.05, 1e-8)}


@same(SYSTEM, "schedule: 300,000 micro-batches are 18,750 updates, warm-up 125, then a cosine")
def test_schedule() -> None:
    for name in RECIPES:
        chosen = recipe(name, [])
        assert chosen.updates * chosen.accumulate == 300_000 and chosen.schedule["warmup"] * chosen.accumulate == 2_000
        factor = build_kind(chosen.schedule, SCHEDULES)
        for update in (0, 60, 124):
            assert factor(update, chosen.updates) == pytest.approx((update + 1) / 126, abs=1e-12)
        for update in (125, 9_000, 18_749):
            share = (update - 125) / (18_750 - 125)
            assert factor(update, chosen.updates) == pytest.approx((1 + math.cos(math.pi * share)) / 2, abs=1e-12)


@same(SYSTEM, "16 times 2 rows of 2,048 tokens of FineWeb-edu, documents see each other")
def test_batch() -> None:
    for name in RECIPES:
        chosen = recipe(name, [])
        assert (chosen.batch // chosen.accumulate, chosen.accumulate, chosen.data["length"]) == (2, 16, 2048)
        assert chosen.data["kind"] == "hub" and chosen.data.get("dataset", FINEWEB) == FINEWEB and chosen.data["apart"] is False


@same(SYSTEM, "the halter of its code: an MLP, ACT's weights, nine steps at first")
def test_the_halter() -> None:
    torch.manual_seed(1)
    model = lw.build("ouroboros-qwen2.5-3b-tiny", halting={"kind": "halter", "init": "linear", "eps": 0.0}, max_steps=16).double()
    head, s = model.halting, torch.randn(2, 5, 32, dtype=torch.float64)
    assert (head.first.out_features, head.second.out_features) == (256, 256) and head.last.bias.tolist() == [-2]
    assert not head.last.weight.any() and 0 < head.first.weight.abs().max() <= 32**-0.5 and head.second.bias.any()
    assert torch.allclose(head.value(s), torch.sigmoid(torch.tensor(-2.0, dtype=torch.float64)).expand(2, 5, 1))
    with torch.no_grad():
        head.last.weight.normal_()
        hidden = F.silu(F.silu(s @ head.first.weight.T + head.first.bias) @ head.second.weight.T + head.second.bias)
        assert gap(head.value(s), torch.sigmoid(hidden @ head.last.weight.T + head.last.bias)) < 1e-14
    for p in ([0.119203] * 12, [0.3, 0.5, 0.4, 0.9], [0.1, 0.1, 0.1]):
        left, weights, out = 1.0, [], False
        for i, value in enumerate(p):
            last = out or left <= value or i == len(p) - 1
            weights.append(0.0 if out else left if last else value)
            left, out = left - weights[-1], out or last
        assert gap(head(torch.tensor(p, dtype=torch.float64)), torch.tensor(weights, dtype=torch.float64)) < 1e-12
    assert int(head(torch.full((12,), 0.119203)).nonzero().max()) == 8


@same(SYSTEM, "share of the gap that is recovered: 51.3 %")
def test_share_recovered() -> None:
    from loopwright.evaluation.paired import recovered
    from tests.evaluation.test_reports import made_report

    found = [made_report(torch.full((1, 80), loss, dtype=torch.float64)) for loss in (5.080, 8.975, 1.378)]
    share = recovered(found[0], worse=found[1], better=found[2]).share
    assert share == pytest.approx((8.975 - 5.080) / (8.975 - 1.378), abs=1e-9) and round(100 * share, 1) == 51.3


@differs(SYSTEM, "precision of the mean residual")
def test_the_mean_residual_is_worked_out_in_float32() -> None:
    half = deepcopy(dense()).bfloat16()
    bases = lw.retrofit(deepcopy(half), "ouroboros", adapters=SMALL).adapters[0].bases
    layers, removed = [*half.prelude, *half.coda], find_layout("ouroboros", 6).dropped(6)
    products = bases.b["q_proj"][0].float() @ bases.a["q_proj"][0].float()
    gaps = []
    for dtype in (torch.float32, torch.bfloat16):  # ours, and as its code does
        kept = layers[3].self_attn.q_proj.weight.to(dtype)
        mean = sum(layers[layer].self_attn.q_proj.weight.to(dtype) - kept for layer in removed) / len(removed)
        u, s, vh = torch.linalg.svd(mean.detach().float())
        gaps.append(float((products - u[:, :4] * s[:4] @ vh[:4]).norm() / products.norm()))
    assert 2 * gaps[0] < gaps[1] < 0.05, "the factors themselves are kept in bfloat16"


@differs(SYSTEM, "pooling of the state")
def test_pooling_is_causal() -> None:
    leaking = made("ouroboros", adapters={**SMALL, **PRINTED})
    assert systems()["ouroboros"].plan["adapters"][0].get("pooling") is None
    causal, other = made("ouroboros", adapters=SMALL), IDS[:1].clone()
    other[0, -1] += 1
    with torch.no_grad():
        assert gap(causal(IDS[:1], depth=3).logits[:, :-1], causal(other, depth=3).logits[:, :-1]) == 0
        assert gap(leaking(IDS[:1], depth=3).logits[:, :1], leaking(other, depth=3).logits[:, :1]) > 1e-6


@differs(SYSTEM, "labels in its code")
def test_labels_are_shifted_once() -> None:
    model = moved(noisy("ouroboros-qwen2.5-3b-tiny", std=0.3))
    rolled, logits = rollout(model, Batch(IDS, IDS), Plan(2, 2)), model(IDS, depth=2).logits
    inputs, labels = logits[:, :-1], IDS[:, 1:]  # what the data set gives; the model shifts once more
    theirs = F.cross_entropy(inputs[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    twice, _ = build_kind({"kind": "final", "ahead": 2}, OBJECTIVES)(model, rolled)
    assert float(twice) == pytest.approx(float(theirs), abs=1e-12)
    once, _ = build_kind(recipe(RECIPES[0], []).objective, OBJECTIVES)(model, rolled)
    assert abs(float(once) - float(theirs)) > 1e-3


@differs(SYSTEM, "depth in its public trainer")
def test_depths_of_the_public_trainer() -> None:
    """Its `--depth` is never read: one of 4, 8 and 16 is drawn for every micro-batch, whatever is asked for."""
    chosen = recipe(RECIPES[0], ["depth={kind: choice, values: [4, 8, 16]}", "updates=200"])
    rule = build_kind(chosen.depth, RULES)
    drawn = [plan.depth for plan in drawn_plans(rule, chosen)]
    assert len(drawn) == 200 * 16
    assert all(abs(drawn.count(depth) / len(drawn) - 1 / 3) < 0.03 for depth in (4, 8, 16))


@differs(SYSTEM, "rate in its code")
def test_the_schedule_decays() -> None:
    """There the cosine ends after 300,000 updates, of which 18,750 are made."""
    chosen = recipe(RECIPES[0], [])
    theirs = (1 + math.cos(math.pi * 18_750 / 300_000)) / 2
    assert theirs == pytest.approx(0.99, abs=0.002)
    assert build_kind(chosen.schedule, SCHEDULES)(18_749, chosen.updates) < 1e-6


@differs(SYSTEM, "numbers that train")
def test_master_weights() -> None:
    """In bfloat16 a step norm of 1 and a gate bias of −2 cannot move by 3e-4; here what trains is float32."""
    for start, step in ((1.0, 3e-4), (-2.0, 1e-3)):
        stuck = torch.tensor(start, dtype=torch.bfloat16)
        assert stuck - step == stuck
    model = lw.build("ouroboros-qwen2.5-3b-tiny").to(torch.bfloat16)
    build_kind(recipe(RECIPES[0], []).optim, OPTIMISERS).prepare(model)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32} and recipe(
        RECIPES[0], []
    ).precision == "bf16"


@differs(SYSTEM, "ends of documents")
def test_documents_end_with_a_token(tmp_path: Path) -> None:
    from loopwright.data.build import build_data
    from tests.data.words import save_words

    save_words(tmp_path / "tokenizer")
    end = lw.tokenizer(tmp_path / "tokenizer").eos_token_id
    (tmp_path / "text.jsonl").write_text('{"text": "the a"}\n' * 40)
    data = {
        "kind": "text",
        "files": str(tmp_path / "text.jsonl"),
        "tokenizer": str(tmp_path / "tokenizer"),
        "length": 8,
        "valid": 4,
    }
    ids = build_data({**data, "apart": False}, tmp_path / "shards").train.batch([0]).input_ids[0].tolist()
    assert ids.count(end) >= 2


@differs(SYSTEM, "start of the refiner's controller")
def test_the_refiners_controller_can_learn() -> None:
    """Both sides of its coefficients start at 0 there, so that each gradient is a product with 0."""
    a, b = (torch.zeros(3, requires_grad=True) for _ in range(2))
    (a.sum() * b.sum() * 2.0).backward()
    assert not a.grad.any() and not b.grad.any()
    model = lw.retrofit(
        deepcopy(dense()), "ouroboros-refiner", adapters={"rank": 2, "count": 2, "state": 8, "step": 4, "width": 12}
    )
    assert (
        gap(model.adapters[0].offset[:, :, 0], torch.full((1, 7, 2), 2**-0.5)) < 1e-6
        and not model.adapters[0].offset[:, :, 1].any()
    )
    model(IDS, depth=2, labels=IDS).loss.backward()
    assert model.adapters[0].heads.grad.any() and model.gate.bias.grad.any()


@differs(SYSTEM, "cost of halting in its code")
def test_the_ponder_cost() -> None:
    """There the probabilities of running steps are summed: less of it means longer thought. Here N + R: more steps cost more."""
    head = lw.build("ouroboros-qwen2.5-3b-tiny", halting={"kind": "halter", "eps": 0.0}).halting
    costs = [float(head.ponder_cost(torch.full((1, 1, 20), p))) for p in (0.051, 0.3, 0.9)]
    assert costs == pytest.approx([20 + 1 - 19 * 0.051, 4 + 1 - 0.9, 2 + 1 - 0.9], abs=1e-5)
    h = torch.full((1, 1, 20), 0.119203, requires_grad=True)
    head.ponder_cost(h).sum().backward()
    assert (h.grad <= 0).all() and h.grad.any()


@differs(SYSTEM, "where a token halts")
def test_halting_leaves_out_a_hundredth() -> None:
    """There the sum must reach 1; ACT's ε is 0.01 here, unless `eps` is 0."""
    values = torch.tensor([[[0.5, 0.495, 0.2]]])
    by_eps = {eps: lw.build("ouroboros-qwen2.5-3b-tiny", halting={"kind": "halter", **eps_of(eps)}).halting for eps in (None, 0.0)}
    assert by_eps[None](values).flatten().tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert by_eps[0.0](values).flatten().tolist() == pytest.approx([0.5, 0.495, 0.005], abs=1e-6)


def eps_of(eps: float | None) -> dict[str, float]:
    return {} if eps is None else {"eps": eps}


@differs(SYSTEM, "its three phases")
def test_three_phases_of_our_own() -> None:
    names = ("controller-fixed", "controller-random", "controller-halting")
    first, second, third = (recipe(name, []) for name in names)
    assert all("our own" in one.about and "uroboros" not in one.about for one in (first, second, third))
    assert "adapters.*" in first.optim["train"] and first.objective == second.objective == {"kind": "final"}
    assert third.objective["kind"] == "ponder" and first.model["changes"]["halting"]["kind"] == "act"
    assert second.model["source"] == f"runs/{names[0]}" and third.model["source"] == f"runs/{names[1]}"


@same(SYSTEM, "how far the gate is open (3.4) and the diagonals, seen by a tap")
def test_the_gate_and_the_diagonals_are_seen() -> None:
    model, seen = made("ouroboros", adapters=SMALL), Recorder(("gate", "diagonal", "state"))
    with torch.no_grad():
        model(IDS[:1], depth=3, tap=seen)
        start, _ = model.embed(IDS[:1])
    states = [start, *(seen.seen["state", "core", t, 1] for t in range(3))]
    for t in range(3):
        g, (old, new) = seen.seen["gate", "core", t, 1], states[t : t + 2]
        normed = old + (new - old) / g  # eq. 4 solved for what came in
        again = torch.sigmoid(torch.cat([normed, old], -1) @ model.gate.weight.T + model.gate.bias)
        assert gap(again, g) < 1e-9 and seen.seen["diagonal", "core", t, 0].shape == (1, IDS.shape[1], 7, 4)
    fresh, opened = lw.retrofit(source("qwen2"), "ouroboros", adapters=SMALL), Recorder(("gate",))
    fresh(IDS, depth=2, tap=opened)
    assert all(gap(g, torch.full_like(g, 0.11920292)) < 1e-6 for g in opened.seen.values())


@same(SYSTEM, "checkpoints of its trainer give its code's logits")
def test_checkpoints_of_its_trainer(tmp_path: Path) -> None:
    folder = golden_folders("ouroboros-v2-step")[0]
    said, golden = json.loads((folder / "config.json").read_text()), load_file(folder / "golden.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(said["base"]))
    save_file(load_file(folder / "model.safetensors"), tmp_path / "model.safetensors", metadata={"format": "pt"})
    saved: dict[str, Any] = {"controller": {}, "gate": {}, "step_norm": {}, "step": 1}
    for key, value in load_file(folder / "sgrc.safetensors").items():
        saved[key.split(".")[0]][key.split(".", 1)[1]] = value
    torch.save(saved, tmp_path / "parts.pt")
    sizes = {"rank": said["ouroboros"]["lora_rank"], "style": said["ouroboros"]["controller_style_dim"], **PRINTED}
    with pytest.warns(UserWarning, match="leaks"):
        base = lw.retrofit(tmp_path, "ouroboros", prelude=1, core=3, coda=1, max_steps=5, depth=3, adapters=sizes)
    with torch.no_grad():
        found = lw.load_adapters(base, tmp_path / "parts.pt")(golden["input_ids"], depth=3).logits
    assert gap(found, golden["logits_depth_3"]) < 1e-4


@differs(SYSTEM, "decay, the rival's size and StyleNet")
def test_what_the_print_and_the_code_say_otherwise() -> None:
    """The code's decay is 0.01. 5.1's table is 14,336 numbers at rank 32, where the abstract calls it of the controller's size."""
    assert recipe("ouroboros-qwen2.5-3b", []).optim["weight_decay"] == 0.05
    config = lw.preset("ouroboros-qwen2.5-3b")
    with torch.device("meta"):
        table = lw.LoopedForCausalLM(lw.preset("ouroboros-qwen2.5-3b", adapters=[{"kind": "diagonal", "rank": 32, "alpha": 16}]))
    assert sum(p.numel() for p in table.adapters.parameters() if p.requires_grad) == config.max_steps * 7 * 32 == 14_336
