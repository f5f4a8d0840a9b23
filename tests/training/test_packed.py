"""Muon on packs of maps: what stands on one another moves as one matrix."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.schema import build_kind
from loopwright.training.optim import OPTIMISERS, Optimiser, packs
from tests.cases import noisy

MUON: dict[str, Any] = {"kind": "muon", "lr": 2e-2, "adam_lr": 1e-2, "weight_decay": 0.1, "momentum": 0.9}


def make(model: lw.LoopedForCausalLM, **changes: Any) -> Optimiser:
    kind = build_kind({**MUON, **changes}, OPTIMISERS)
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
    packed, apart = make(model, packed=True), make(plain)
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
    packed, apart = make(model, packed=True), make(plain)
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
            make(lw.build("huginn-tiny", core_layers=1), packed=True, parts={"core.0.*.q_proj.weight": part})
    make(lw.build("huginn-tiny"), packed=True, train=["coda.*"])  # packs of which nothing trains are no fault
