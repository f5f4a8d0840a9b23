"""Gates: the equations, the start of the learned gate, and gradients to both states."""

import math

import pytest
import torch

from loopwright.metrics.dual import product
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.gate import GATES, LearnedGate, MixGate
from loopwright.model.parts.part import StepIndex
from loopwright.schema import build_kind
from tests.cases import gap, noisy

CONFIG = LoopedConfig(hidden_size=16)
SPECS = {"none": {}, "learned": {"bias": -1.0}, "grown": {"bias": 0.5}, "mix": {"weight": 0.3}}
LATER = StepIndex(1, 1)


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
    y = gate(old, new, LATER)
    assert y.shape == new.shape and y.dtype == dtype
    y.float().square().sum().backward()
    for tensor in (new, *gate.parameters(), *([] if kind == "none" else [old])):
        assert tensor.grad is not None and tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", GATES)
def test_equation(kind):
    gate, (old, new) = made(kind, torch.float64), states(torch.float64)
    g = {"none": 1.0, "mix": 0.3}.get(kind)
    if g is None:
        if kind == "grown":
            seen = [x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() for x in (new, old)]
            g = torch.tanh(torch.cat(seen, -1) @ gate.weight.T / (2 * new.shape[-1]) ** 0.5 + gate.bias)
        else:
            g = 1 / (1 + torch.exp(-(torch.cat([new, old], -1) @ gate.weight.T + gate.bias)))
    assert gap(gate(old, new, LATER), g * new + (1 - g) * old) < 1e-14


@pytest.mark.parametrize("kind", GATES)
def test_equal_states_stay(kind):
    """Every gate mixes: where old and new agree there is nothing to choose."""
    old, _ = states()
    assert gap(made(kind)(old, old, LATER), old) < 1e-6


def test_learned_gate_starts_near_the_identity():
    """W = 0 and b = −2: g = σ(−2) = 0.1192 everywhere, whatever the states."""
    model = LoopedForCausalLM(LoopedConfig(hidden_size=16, gate={"kind": "learned"}))
    assert torch.equal(model.gate.weight, torch.zeros(16, 32))
    assert torch.equal(model.gate.bias, torch.full((16,), -2.0))
    old, new = states()
    g = (model.gate(old, new, LATER) - old) / (new - old)
    assert gap(g, torch.full_like(g, 1 / (1 + math.exp(2)))) < 1e-4
    assert abs(g.mean().item() - 0.1192) < 1e-4


def test_learned_gate_start_bias_is_an_option():
    gate = LearnedGate(CONFIG, bias=3.0)
    gate.start()
    assert torch.equal(gate.bias, torch.full((16,), 3.0))


def test_mix_of_one_replaces():
    old, new = states()
    assert torch.equal(MixGate(CONFIG, weight=1.0)(old, new, LATER), new)


def test_grown_gate_takes_the_first_step_whole():
    gate, (old, new) = made("grown"), states()
    assert torch.equal(gate(old, new, StepIndex(0, 0)), new)
    assert gap(gate(old, new, LATER), new) > 1e-3


def test_grown_gate_with_rows_at_different_steps():
    gate, (old, new) = made("grown"), states()
    mixed = gate(old, new, StepIndex(torch.tensor([0, 2]), torch.tensor([0, 1])))
    assert torch.equal(mixed[0], new[0])
    assert torch.equal(mixed[1], gate(old, new, LATER)[1])


GROWN = {"gate": {"kind": "grown"}, "state": {"kind": "input"}, "injection": {"kind": "none"}}


def test_a_grown_model_starts_at_every_depth_as_at_depth_one():
    torch.manual_seed(0)
    model = LoopedForCausalLM(LoopedConfig(prelude_layers=1, core_layers=2, coda_layers=1, **GROWN)).eval()
    ids = torch.randint(0, 512, (2, 7))
    once = model(ids, depth=1).logits
    assert torch.equal(model(ids, depth=1).logits, model.without_adapters()(ids).logits)
    for depth in (2, 5):
        assert torch.equal(model(ids, depth=depth).logits, once)
    model(ids, labels=ids, depth=3).loss.backward()
    for parameter in model.gate.parameters():
        assert parameter.grad.abs().sum() > 0
    with torch.no_grad():
        model.gate.bias.fill_(0.1)
    assert gap(model(ids, depth=2).logits, once) > 1e-4


def test_a_grown_model_runs_rows_at_their_own_steps():
    model = noisy("huginn-tiny", **GROWN)
    e, p = model.embed(torch.randint(0, 96, (3, 5)))
    mixed = model.step(e + 1, e, torch.tensor([2, 0, 1]), p)
    for row, t in enumerate([2, 0, 1]):
        assert gap(mixed[row], model.step(e + 1, e, t, p)[row]) < 1e-5


@pytest.mark.parametrize("t", [0, 2, torch.tensor([0, 2])], ids=str)
def test_the_jacobian_of_a_grown_gate_is_exact(t):
    gate, (old, new) = made("grown", torch.float64), states(torch.float64)

    def step(s):
        return gate(s, torch.sin(s) + new, StepIndex(t, t))

    value, moved = product(step, old, new)
    want, tangent = torch.func.jvp(step, (old,), (new,))
    assert gap(value, want) < 1e-14 and gap(moved, tangent) < 1e-14


@pytest.mark.parametrize("weight", [0.0, -0.5, 1.01])
def test_mix_weight_outside_its_range(weight):
    with pytest.raises(ValueError, match=rf"gate \(mix\): weight {weight}; allowed: above 0, at most 1"):
        MixGate(CONFIG, weight=weight)


@pytest.mark.parametrize("kind", GATES)
def test_config_round_trip(kind):
    config = LoopedConfig(gate={"kind": kind, **SPECS[kind]})
    again = LoopedConfig(**config.to_dict())
    assert again.gate == config.gate == {"kind": kind, **SPECS[kind]}


def test_the_size_of_the_states_does_not_saturate_a_grown_gate():
    """One update of AdamW moves every weight by the rate, all in the worst direction at most."""
    old, new = states(torch.float64)
    gate = made("grown", torch.float64)
    with torch.no_grad():
        gate.weight.copy_(1e-3 * torch.sign(torch.cat([new, old], -1)[0, 0]).expand_as(gate.weight))
        gate.bias.zero_()
    large = gate(1000 * old, 1000 * new, LATER)
    assert gap(large, 1000 * gate(old, new, LATER)) < 1e-3
    g = (large - 1000 * old) / (1000 * (new - old))
    assert g.abs().max() < 1e-3 * (2 * new.shape[-1]) ** 0.5
