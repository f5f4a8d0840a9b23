"""Optimisers: who gets what, equality with torch's own, bitwise resume, and Muon against a dense SVD."""

from __future__ import annotations

import copy
import math
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import loopwright as lw
from loopwright.model.presets import PRESETS
from loopwright.schema import build_kind, check_kind
from loopwright.training.optim import (
    OPTIMISERS,
    AdamW,
    EllisAdam,
    Muon,
    Optimiser,
    PackedMuon,
    as_masters,
    clip,
    packs,
    spread,
    whole,
)
from tests.cases import UNLIKE, noisy, some

ADAMW: dict[str, Any] = {"kind": "adamw", "lr": 1e-2, "betas": [0.9, 0.99], "weight_decay": 0.1}
MUON: dict[str, Any] = {"kind": "muon", "lr": 2e-2, "adam_lr": 1e-2, "weight_decay": 0.1}
ELLIS: dict[str, Any] = {"kind": "ellis-adam", "lr": 1e-2, "weight_decay": 1e-3}


def make(spec: dict[str, Any], model: lw.LoopedForCausalLM) -> Optimiser:
    check_kind("optim", spec, OPTIMISERS)
    kind = build_kind(spec, OPTIMISERS)
    kind.prepare(model)
    return kind(model)


def learn(model: lw.LoopedForCausalLM, optimiser: Optimiser, updates: range) -> list[float]:
    """A few updates whose data, depth and rate are functions of the update alone."""
    losses = []
    for update in updates:
        ids = torch.randint(0, 96, (2, 9), generator=torch.Generator().manual_seed(update))
        optimiser.set_factor(1 / (1 + update))
        loss = model(ids, depth=1 + update % 3, labels=ids).loss
        loss.backward()
        clip(optimiser.parameters.values(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


# resumed = uninterrupted


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("huginn-tiny", ADAMW, id="huginn-tiny-adamw"),
        pytest.param("asura-tiny", MUON, id="asura-tiny-muon"),
        pytest.param("asura-tiny", ADAMW, id="asura-tiny-adamw"),
        pytest.param("huginn-tiny", ELLIS, id="huginn-tiny-ellis"),
        pytest.param("asura-tiny", {**MUON, "packed": True}, id="asura-tiny-packed"),
        pytest.param("huginn-tiny", MUON, id="huginn-tiny-muon", marks=pytest.mark.slow),  # its products in bfloat16 take seconds
    ],
)
def test_a_fresh_optimiser_goes_on_bit_for_bit(spec: dict[str, Any], name: str) -> None:
    spec = {**spec, "parts": {"injection.*": {"lr": 3e-3}, "embed_tokens.*": {"freeze": True}}}
    model = noisy(name, std=0.1, core_layers=1)
    optimiser = make(spec, model)
    learn(model, optimiser, range(3))
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    stored, handed = ({key: value.clone() for key, value in optimiser.state_tensors().items()} for _ in range(2))

    other = noisy(name, seed=1, std=0.1, core_layers=1)
    fresh = make(spec, other)
    learn(other, fresh, range(10, 11))  # nothing of what was there before may stay
    other.load_state_dict(weights)
    fresh.load_state_tensors(handed)
    assert learn(model, optimiser, range(3, 6)) == learn(other, fresh, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    ended, again = optimiser.state_tensors(), fresh.state_tensors()
    assert sorted(ended) == sorted(again) and all(torch.equal(ended[key], again[key]) for key in ended)
    assert all(torch.equal(handed[key], value) for key, value in stored.items())  # what was handed in does not move along
    fresh.load_state_tensors({})
    assert fresh.state_tensors() == {}


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [ADAMW, MUON, ELLIS, {**MUON, "packed": True}], ids=["adamw", "muon", "ellis", "packed"])
def test_on_a_gpu_state_goes_through_the_cpu_bit_for_bit(spec: dict[str, Any]) -> None:
    """Gradients are drawn, so that nothing but the optimiser could differ."""

    def push(model: lw.LoopedForCausalLM, optimiser: Optimiser, updates: range) -> None:
        for update in updates:
            generator = torch.Generator().manual_seed(update)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator).cuda()
            clip(optimiser.parameters.values(), 1.0)
            optimiser.step()

    model, other = noisy("huginn-tiny").cuda(), noisy("huginn-tiny").cuda()
    optimiser, fresh = make(spec, model), make(spec, other)
    push(model, optimiser, range(3))
    other.load_state_dict(model.state_dict())
    fresh.load_state_tensors({key: value.cpu() for key, value in optimiser.state_tensors().items()})
    push(model, optimiser, range(3, 6))
    push(other, fresh, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert all(value.is_cuda for key, value in fresh.state_tensors().items() if not key.endswith("/step"))


def test_parameters_that_never_had_a_gradient_have_no_state() -> None:
    model = noisy("ouro-1.4b-tiny", std=0.1)  # its exit head is not read by the plain loss
    optimiser = make(ADAMW, model)
    learn(model, optimiser, range(2))
    tensors = optimiser.state_tensors()
    assert not any(key.startswith("halting.") for key in tensors) and "core.0.mlp.up_proj.weight/exp_avg" in tensors
    other = make(ADAMW, noisy("ouro-1.4b-tiny"))
    other.load_state_tensors(tensors)
    assert sorted(other.state_tensors()) == sorted(tensors) and set(tensors) < set(other.state_forms())


@pytest.mark.parametrize("spec", [ADAMW, MUON, ELLIS])
def test_the_forms_of_state_are_those_it_has(spec: dict[str, Any]) -> None:
    model = noisy("universal-tiny", std=0.1)
    optimiser = make(spec, model)
    learn(model, optimiser, range(2))
    forms = optimiser.state_forms()
    for key, value in optimiser.state_tensors().items():
        assert (forms[key].shape, forms[key].dtype) == (value.shape, value.dtype), key


def test_state_that_does_not_fit_is_refused() -> None:
    model = noisy("universal-tiny", std=0.1)
    optimiser = make(ADAMW, model)
    learn(model, optimiser, range(1))
    tensors, name = optimiser.state_tensors(), "embed_tokens.weight"
    with pytest.raises(ValueError, match=r"embed_token.weight/step is of no trained parameter; near: embed_tokens.weight/step"):
        optimiser.load_state_tensors({"embed_token.weight/step": tensors[f"{name}/step"]})
    with pytest.raises(ValueError, match=r"embed_tokens.weight/exp_avg is \[3\]; allowed: \[96, 32\]"):
        optimiser.load_state_tensors({**tensors, f"{name}/exp_avg": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"embed_tokens.weight has only step, exp_avg; allowed: step, exp_avg, exp_avg_sq"):
        optimiser.load_state_tensors({key: value for key, value in tensors.items() if key != f"{name}/exp_avg_sq"})


# who gets what


@pytest.mark.parametrize("spec", [ADAMW, MUON, ELLIS])
@pytest.mark.parametrize("name", some(PRESETS, UNLIKE))
def test_each_trainable_parameter_is_in_exactly_one_group(name: str, spec: dict[str, Any]) -> None:
    model = lw.build(f"{name}-tiny")
    optimiser = make(spec, model)
    grouped = [id(p) for group in optimiser.param_groups for p in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in model.parameters() if p.requires_grad}
    assert optimiser.parameters == {n: p for n, p in model.named_parameters() if p.requires_grad}


def settings_of(optimiser: Optimiser) -> dict[str, tuple[float, float]]:
    return {name: (g["base_lr"], g["weight_decay"]) for g in optimiser.param_groups for name in g["param_names"]}


def test_decay_reaches_matrices_or_all() -> None:
    """Norms and biases with one row per step are no matrices, whatever their shape."""
    found = settings_of(make(ADAMW, lw.build("asura-tiny")))
    spared = ("end_norm.weight", "end_norm.bias", "layer_post_norm.weight", "injection.bias", "lm_head.bias", "embed_norm.weight")
    assert {found[name][1] for name in spared} == {0.0}
    reached = ("embed_tokens.weight", "lm_head.weight", "injection.weight", "core.0.self_attn.q_proj.weight")
    assert {found[name][1] for name in reached} == {0.1}
    assert {drop for _, drop in settings_of(make({**ADAMW, "decay": "all"}, lw.build("asura-tiny"))).values()} == {0.1}


def test_parts_set_rates_and_decay_and_the_last_match_decides() -> None:
    parts = {
        "core.*": {"lr": 1e-3, "weight_decay": 0.5},
        "core.*.mlp.*": {"lr": 1e-4},
        "prelude.*": {"freeze": True},
        "prelude.1.*": {"freeze": False, "lr": 1e-5},
    }
    model = lw.build("huginn-tiny", prelude_layers=2).to(torch.bfloat16)
    found = settings_of(make({**ADAMW, "parts": parts}, model))
    assert found["core.0.self_attn.q_proj.weight"] == (1e-3, 0.5)
    assert found["core.0.attention_norms.input.weight"] == (1e-3, 0.0)
    assert found["core.0.mlp.up_proj.weight"] == (1e-4, 0.1)
    assert found["prelude.1.mlp.up_proj.weight"] == (1e-5, 0.1)
    assert found["coda.0.mlp.up_proj.weight"] == (1e-2, 0.1)
    assert not any(name.startswith("prelude.0.") for name in found)
    for name, parameter in model.named_parameters():
        frozen = name.startswith("prelude.0.")
        assert parameter.requires_grad == (not frozen) and parameter.dtype == (torch.bfloat16 if frozen else torch.float32)


def test_one_factor_scales_every_rate() -> None:
    optimiser = make({**MUON, "parts": {"embed_tokens.*": {"lr": 0.5}}}, lw.build("huginn-tiny"))
    for factor in (0.5, 0.25, 1.0):
        optimiser.set_factor(factor)
        assert all(group["lr"] == group["base_lr"] * factor for group in optimiser.param_groups)
        assert optimiser.lr == 2e-2 * factor
    assert {group["base_lr"] for group in optimiser.param_groups} == {2e-2, 1e-2, 0.5}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"adapter.*": {"lr": 1}}, r"'adapter.\*' matches no parameter; near: .*parameters begin with: .*core.*embed_tokens"),
        ({"core.0.mlp.up_porj.weight": {"lr": 1}}, r"near: core.0.mlp.up_proj.weight"),
        ({"core.0.*": {"lr": 1}, "core.*": {"lr": 2}}, r"'core.0.\*' decides nothing: later patterns match all"),
        ({"core.*": {"rate": 1}}, "unknown 'rate'"),
        ({"core.*": {}}, "allowed: lr, weight_decay or both, or freeze: true alone"),
        ({"core.*": {"freeze": True, "lr": 1}}, "freeze: true alone"),
        ({"core.*": {"lr": "fast"}}, "lr is 'fast'; allowed: a number"),
        ({"core.*": {"lr": -1}}, r"optim\.parts\.core\.\*\.lr must be >= 0 \(got -1\)"),
        ({"core.*": 3}, "allowed: a mapping of names to values"),
    ],
)
def test_parts_that_make_no_sense_are_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make({**ADAMW, "parts": parts}, lw.build("huginn-tiny", core_layers=1))


def test_a_tied_head_is_named_by_its_owner() -> None:
    with pytest.raises(ValueError, match=r"lm_head.weight is tied to embed_tokens.weight, which stands for both"):
        make({**ADAMW, "parts": {"lm_head.*": {"lr": 1}}}, lw.build("huginn-tiny", tie_word_embeddings=True))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**ADAMW, "lr": 0}, r"optim\.lr must be > 0 \(got 0\)"),
        ({**ADAMW, "betas": [0.9]}, r"optim\.betas must be two numbers >= 0 and < 1 \(got \[0.9\]\)"),
        ({**ADAMW, "betas": [0.9, 1.0]}, r"optim\.betas must be >= 0 and < 1 \(got 1.0\)"),
        ({**ADAMW, "decay": "some"}, "decay is 'some'; allowed: all, matrices"),
        ({**ADAMW, "weight_decay": -1}, r"optim\.weight_decay must be >= 0 \(got -1\)"),
        ({**MUON, "scale": "mine"}, "scale is 'mine'; allowed: match_rms_adamw, original"),
        ({**MUON, "momentum": 1.5}, r"optim\.momentum must be >= 0 and < 1 \(got 1.5\)"),
        ({"kind": "muon", "lr": 1}, "missing adam_lr"),
        ({**ADAMW, "momentum": 0.9}, "unknown 'momentum'"),
        ({"kind": "sgd", "lr": 1}, "unknown kind 'sgd'; allowed: adamw, ellis-adam, muon"),
    ],
)
def test_options_that_make_no_sense_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(spec, lw.build("universal-tiny"))


def test_a_model_that_was_not_prepared_is_refused() -> None:
    model = lw.build("universal-tiny").to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"embed_tokens.weight is torch.bfloat16 and trainable; the model must be prepared first"):
        AdamW(1e-3)(model)
    with pytest.raises(ValueError, match="no trainable parameter"):
        AdamW(1e-3)(lw.build("universal-tiny").requires_grad_(False))
    model = lw.build("universal-tiny")
    model.core.requires_grad_(False)
    with pytest.raises(ValueError, match="muon has nothing to move"):
        Muon(1e-3, 1e-3)(model)


def test_masters_are_float32_and_frozen_parameters_stay() -> None:
    model = lw.build("ouroboros-qwen2.5-3b-tiny", tie_word_embeddings=True).to(torch.bfloat16)
    model.prelude.requires_grad_(False)
    as_masters(model)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16), name
    assert model.lm_head.weight is model.embed_tokens.weight


# equality with torch, and with the equations


def test_adamw_is_torchs_and_its_equation() -> None:
    """One update from rest: p ← p(1 − lr·wd) − lr·g/(|g| + eps)."""
    model = noisy("universal-tiny", std=0.1)
    optimiser = make(ADAMW, model)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = {n: (p.detach().clone(), p.grad.clone()) for n, p in model.named_parameters()}  # type: ignore[union-attr]
    decays = {name: drop for name, (_, drop) in settings_of(optimiser).items()}
    optimiser.step()
    for name, parameter in model.named_parameters():
        old, grad = before[name]
        expected = old * (1 - 1e-2 * decays[name]) - 1e-2 * grad / (grad.abs() + 1e-8)
        assert (parameter - expected).abs().max() < 2e-6, name


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16)])
@pytest.mark.parametrize(("scale", "size"), [("original", None), ("match_rms_adamw", 0.2)])
def test_muon_moves_along_the_nearest_orthogonal_matrix(shape: tuple[int, int], scale: str, size: float | None) -> None:
    """Against a dense SVD: the update is U S′ Vᵀ with S′ about 1. The quintic does not settle: its values lie in [0.7, 1.2]."""
    rows, columns = shape
    rank = min(shape)
    torch.manual_seed(0)
    u, v = torch.linalg.qr(torch.randn(rows, rank))[0], torch.linalg.qr(torch.randn(columns, rank))[0]
    grad = u @ torch.diag(torch.linspace(0.2, 3.0, rank)) @ v.T
    model = lw.build("universal-tiny")
    weight = torch.nn.Parameter(torch.randn(shape))
    model.core[0].mlp.up_proj.weight = weight
    optimiser = make({**MUON, "scale": scale}, model)
    weight.grad, old = grad.clone(), weight.detach().clone()
    optimiser.step()
    rate = 2e-2 * (math.sqrt(max(1.0, rows / columns)) if size is None else size * math.sqrt(max(shape)))
    moved = (old * (1 - 2e-2 * 0.1) - weight.detach()) / rate
    # one gradient from rest: the momentum is a multiple of it, and the direction does not see the factor
    left, _, right = torch.linalg.svd(grad, full_matrices=False)
    inner = left.T @ moved @ right.T
    diagonal = inner.diagonal()
    assert diagonal.min() > 0.67 and diagonal.max() < 1.22  # bf16 products round otherwise on each kind of processor
    assert (inner - torch.diag(diagonal)).abs().max() < 0.03  # bfloat16 inside
    assert (moved - left @ inner @ right).norm() / moved.norm() < 0.02  # nothing outside the gradient's spaces
    nearest = left @ right
    assert (moved * nearest).sum() / (moved.norm() * nearest.norm()) > 0.98


def test_muon_takes_the_matrices_of_blocks_and_injection_alone() -> None:
    model = lw.build("huginn-tiny")
    optimiser = make(MUON, model)
    kinds = {name: type(o).__name__ for o in optimiser.optimisers for g in o.param_groups for name in g["param_names"]}
    muon = {name for name, kind in kinds.items() if kind == "Muon"}
    assert {"injection.proj.weight", "core.0.mlp.down_proj.weight", "coda.0.self_attn.q_proj.weight"} <= muon
    assert all(model.get_parameter(name).dim() == 2 for name in muon)
    others = ("embed_tokens.weight", "norm.weight", "core.0.attention_norms.input.weight", "core.0.self_attn.q_proj.bias")
    assert {kinds[name] for name in others if name in kinds} == {"AdamW"}
    assert not any(name.startswith(("embed_", "lm_head", "adapters.")) for name in muon)


def test_clip_scales_and_returns_the_norm_before() -> None:
    model = noisy("universal-tiny")
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)

    def norm() -> Tensor:
        return torch.cat([p.grad.flatten() for p in model.parameters()]).norm()  # type: ignore[union-attr]

    before = norm()
    assert torch.allclose(clip(model.parameters(), None), before) and norm() == before
    assert torch.allclose(clip(model.parameters(), 0.5), before) and norm().item() == pytest.approx(0.5, rel=1e-4)
    assert clip(model.parameters(), 3.0).item() == pytest.approx(0.5, rel=1e-4) and norm().item() == pytest.approx(0.5, rel=1e-4)
    model.lm_head.weight.grad[0, 0] = float("nan")  # type: ignore[index]
    assert clip(model.parameters(), 1.0).isnan()
    assert clip([], 1.0) == 0


# Whole tensors and spread ones. With several processes: tests/training/test_world_size.py


def test_a_tensor_of_one_process_is_whole() -> None:
    x = torch.randn(3)
    assert whole(x) is x and spread(x, torch.zeros(3)) is x


def test_spread_parameters_move_as_whole_ones(tmp_path: os.PathLike[str]) -> None:
    """Both optimisers that are our own, on tensors as a run that shards them holds them."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for kind in (EllisAdam, PackedMuon):
            torch.manual_seed(0)
            weights, ends = [torch.randn(4, 6) for _ in range(2)], []
            for held in (False, True):
                named = [
                    (name, torch.nn.Parameter(distribute_tensor(w.clone(), mesh, [Shard(0)]) if held else w.clone()))
                    for name, w in zip(("m.gate_proj.weight", "m.up_proj.weight"), weights, strict=True)
                ]
                options = {"betas": (0.9, 0.95)} if kind is EllisAdam else {}
                optimiser = kind(named, lr=0.1, **options)  # type: ignore[arg-type]
                for seed in range(2):
                    for place, (_, p) in enumerate(named):
                        grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(2 * seed + place))
                        p.grad = spread(grad, p)
                    optimiser.step()
                assert all(isinstance(p.data, DTensor) == held for _, p in named)
                ends.append([whole(p.detach()) for _, p in named])
            assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    finally:
        dist.destroy_process_group()


# Huginn's Adam. Its equation over several updates is held in tests/systems/test_huginn.py


def moved(grads: list[float], weight: float = 0.0, **options: float) -> float:
    """Where a weight stands after updates with these gradients, in units of the rate."""
    p = torch.nn.Parameter(torch.tensor([weight], dtype=torch.float64))
    optimiser = EllisAdam([p], lr=1e-3, betas=(0.9, 0.95), **options)
    for grad in grads:
        p.grad = torch.tensor([grad], dtype=torch.float64)
        optimiser.step()
    return (p.item() - weight) / 1e-3


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_the_first_step_is_larger_than_the_rate_and_the_same_for_every_size_of_gradient(size: float) -> None:
    assert moved([size]) == pytest.approx(-math.atan2(1, 1 / math.sqrt(0.05)) / 0.1, rel=1e-9)


def test_a_gradient_of_zero_moves_nothing_and_is_no_fault() -> None:
    assert moved([0.0, 0.0, 0.0]) == 0.0


def test_a_spike_is_held_back_over_its_whole_tensor() -> None:
    """g / √v of a spike is 1 / √(1 − β₂) at most: so much less the tensor moves, also where its gradient is as it was."""
    p = torch.nn.Parameter(torch.zeros(4))
    optimiser = EllisAdam([p], lr=1.0, betas=(0.9, 0.95))
    for spike in (1.0, 1.0, 1e3):
        before = p.detach().clone()
        p.grad = torch.tensor([spike, spike, spike, 1.0])
        optimiser.step()
    bias = 1 - 0.9**3
    free = math.atan2(1.0, math.sqrt(1.0 / (1 - 0.95**3))) / bias  # of the last weight, whose gradients are all alike
    assert (before - p)[3].item() == pytest.approx(free / math.sqrt(3 / 4 / 0.05), rel=0.02)


def test_decay_follows_the_schedule_and_not_the_rate() -> None:
    p = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimiser = EllisAdam([p], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for factor, left in ((1.0, 0.9), (0.5, 0.9 * 0.95), (0.0, 0.9 * 0.95)):
        optimiser.param_groups[0]["lr"] = 1e-3 * factor
        p.grad = torch.zeros_like(p)
        optimiser.step()
        assert p.item() == pytest.approx(left, rel=1e-12)


def test_what_has_no_gradient_stays_and_a_closure_is_called() -> None:
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimiser = EllisAdam([p, q], lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)

    def closure() -> float:
        p.grad = torch.ones(2)
        return 3.0

    assert optimiser.step(closure) == 3.0 and p[0] < 0.9 and torch.equal(q, torch.ones(2)) and q not in optimiser.state


def test_a_rate_of_zero_moves_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    EllisAdam([weight], lr=0.0, betas=(0.9, 0.95), weight_decay=0.1).step()
    assert torch.equal(weight, torch.ones(3))


# Muon on packs of maps: what stands on one another moves as one matrix


PACKED: dict[str, Any] = {"kind": "muon", "lr": 2e-2, "adam_lr": 1e-2, "weight_decay": 0.1, "momentum": 0.9}


def make_packed(model: lw.LoopedForCausalLM, **changes: Any) -> Optimiser:
    kind = build_kind({**PACKED, **changes}, OPTIMISERS)
    kind.prepare(model)
    return kind(model)


def push(model: lw.LoopedForCausalLM, optimiser: Optimiser, seeds: range) -> None:
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimiser.step()


def test_maps_of_one_module_are_one_pack() -> None:
    names = [f"core.{layer}.{name}.weight" for layer in range(2) for name in ("a.q_proj", "a.k_proj", "a.o_proj", "m.gate_proj")]
    assert packs([*names, "core.0.m.up_proj.weight", "injection.proj.weight"]) == [
        ["core.0.a.q_proj.weight", "core.0.a.k_proj.weight"], ["core.0.a.o_proj.weight"],
        ["core.0.m.gate_proj.weight", "core.0.m.up_proj.weight"],
        ["core.1.a.q_proj.weight", "core.1.a.k_proj.weight"], ["core.1.a.o_proj.weight"], ["core.1.m.gate_proj.weight"],
        ["injection.proj.weight"],
    ]  # fmt: skip


def test_a_pack_moves_as_one_matrix_and_the_rest_as_without() -> None:
    """Two updates of q, k, v as they are and of one matrix that holds their rows, by torch's own Muon."""
    model = noisy("huginn-tiny", std=0.1, core_layers=1)
    plain, q = copy.deepcopy(model), model.core[0].self_attn
    joined = torch.nn.Parameter(torch.cat([q.q_proj.weight, q.k_proj.weight, q.v_proj.weight]).detach().clone())
    torchs = torch.optim.Muon([joined], lr=2e-2, momentum=0.9, weight_decay=0.1, adjust_lr_fn="original")
    packed, apart = make_packed(model, packed=True), make_packed(plain)
    for seed in range(2):
        push(model, packed, range(seed, seed + 1))
        push(plain, apart, range(seed, seed + 1))
        joined.grad = torch.cat([p.grad for p in (q.q_proj.weight, q.k_proj.weight, q.v_proj.weight)])  # type: ignore[misc]
        torchs.step()
    assert torch.equal(torch.cat([q.q_proj.weight, q.k_proj.weight, q.v_proj.weight]), joined)
    assert not torch.allclose(q.q_proj.weight, plain.core[0].self_attn.q_proj.weight, atol=1e-3)
    assert torch.equal(q.o_proj.weight, plain.core[0].self_attn.o_proj.weight)


def test_momentum_goes_from_one_to_the_other() -> None:
    model = noisy("huginn-tiny", std=0.1, core_layers=1)
    plain = copy.deepcopy(model)
    packed, apart = make_packed(model, packed=True), make_packed(plain)
    push(model, packed, range(1))
    push(plain, apart, range(1))
    first, second = packed.state_tensors(), apart.state_tensors()
    assert sorted(first) == sorted(second) and all(torch.equal(first[name], second[name]) for name in first)
    apart.load_state_tensors(first)


def test_what_does_not_move_together_is_refused() -> None:
    message = (
        "core.0.self_attn.q_proj.weight, core.0.self_attn.k_proj.weight, core.0.self_attn.v_proj.weight must all train, at one"
    )
    for part in ({"lr": 1e-3}, {"freeze": True}):
        with pytest.raises(ValueError, match=message):
            make_packed(lw.build("huginn-tiny", core_layers=1), packed=True, parts={"core.0.*.q_proj.weight": part})
    make_packed(lw.build("huginn-tiny"), packed=True, train=["coda.*"])  # packs of which nothing trains are no fault
