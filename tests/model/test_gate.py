"""Gates: the equations, the start of the learned gate, and gradients to both states."""

import math

import pytest
import torch

from loopwright.model.config import LoopedConfig
from loopwright.model.gate import GATES, LearnedGate, MixGate
from loopwright.model.looped import LoopedForCausalLM
from loopwright.settings import build_kind
from tests.cases import gap

CONFIG = LoopedConfig(hidden_size=16)
SPECS = {"none": {}, "learned": {"bias": -1.0}, "mix": {"weight": 0.3}}


def made(kind: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    gate = build_kind({"kind": kind, **SPECS[kind]}, GATES, CONFIG)
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter)
    return gate.to(dtype)


def states(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, 3, 16, generator=generator).to(dtype) for _ in range(2))


def test_every_gate_has_its_case():
    assert set(SPECS) == set(GATES)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_and_gradient(kind, dtype):
    gate, (old, new) = made(kind, dtype), states(dtype)
    old.requires_grad_(), new.requires_grad_()
    y = gate(old, new)
    assert y.shape == new.shape and y.dtype == dtype
    y.float().square().sum().backward()
    for tensor in (new, *gate.parameters(), *([] if kind == "none" else [old])):
        assert tensor.grad is not None and tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", GATES)
def test_equation(kind):
    gate, (old, new) = made(kind, torch.float64), states(torch.float64)
    g = {"none": 1.0, "mix": 0.3}.get(kind)
    if g is None:
        g = 1 / (1 + torch.exp(-(torch.cat([new, old], -1) @ gate.weight.T + gate.bias)))
    assert gap(gate(old, new), g * new + (1 - g) * old) < 1e-14


@pytest.mark.parametrize("kind", GATES)
def test_equal_states_stay(kind):
    """Every gate mixes: where old and new agree there is nothing to choose."""
    old, _ = states()
    assert gap(made(kind)(old, old), old) < 1e-6


def test_learned_gate_starts_near_the_identity():
    """W = 0 and b = −2: g = σ(−2) = 0.1192 everywhere, whatever the states."""
    model = LoopedForCausalLM(LoopedConfig(hidden_size=16, gate={"kind": "learned"}))
    assert torch.equal(model.gate.weight, torch.zeros(16, 32))
    assert torch.equal(model.gate.bias, torch.full((16,), -2.0))
    old, new = states()
    g = (model.gate(old, new) - old) / (new - old)
    assert gap(g, torch.full_like(g, 1 / (1 + math.exp(2)))) < 1e-4
    assert abs(g.mean().item() - 0.1192) < 1e-4


def test_learned_gate_start_bias_is_an_option():
    gate = LearnedGate(CONFIG, bias=3.0)
    gate.start()
    assert torch.equal(gate.bias, torch.full((16,), 3.0))


def test_mix_of_one_replaces():
    old, new = states()
    assert torch.equal(MixGate(CONFIG, weight=1.0)(old, new), new)


@pytest.mark.parametrize("weight", [0.0, -0.5, 1.01])
def test_mix_weight_outside_its_range(weight):
    with pytest.raises(ValueError, match=rf"gate \(mix\): weight {weight}; allowed: above 0, at most 1"):
        MixGate(CONFIG, weight=weight)


@pytest.mark.parametrize("kind", GATES)
def test_config_round_trip(kind):
    config = LoopedConfig(gate={"kind": kind, **SPECS[kind]})
    again = LoopedConfig(**config.to_dict())
    assert again.gate == config.gate == {"kind": kind, **SPECS[kind]}
