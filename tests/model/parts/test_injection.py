"""Injections: the equations, the contraction of the diagonal one for any parameters, and one step per row."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.injection import INJECTIONS, ConcatInjection, DiagonalInjection
from loopwright.model.parts.part import StepIndex
from loopwright.schema import build_kind
from tests.cases import gap

WIDTH = 8
# concat-per-step is the only kind that holds rows per step, and a config refuses max_steps where nothing does
SPECS = {
    "none": {},
    "add": {},
    "concat": {"order": "input-state", "bias": True},
    "concat-per-step": {},
    "diagonal": {},
}


def config_of(kind: str, **options: object) -> LoopedConfig:
    per_step = {"max_steps": 5} if kind == "concat-per-step" else {}
    return LoopedConfig(hidden_size=WIDTH, injection={"kind": kind, **options}, depth=4, **per_step)


def made(kind: str, dtype: torch.dtype = torch.float32, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = config_of(kind, **(options or SPECS[kind]))
    part = build_kind(config.injection, INJECTIONS, config)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    return part.to(dtype)


def sample(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(3, 4, WIDTH, generator=generator).to(dtype) for _ in range(2))


def test_every_kind_has_its_case():
    assert set(SPECS) == set(INJECTIONS)


@pytest.mark.parametrize("kind", INJECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_and_gradient(kind, dtype):
    part, (s, e) = made(kind, dtype), sample(dtype)
    s.requires_grad_(), e.requires_grad_()
    x = part(s, e, StepIndex(1, 1))
    assert x.shape == s.shape and x.dtype == dtype
    x.float().square().sum().backward()
    for tensor in (s, *part.parameters(), *([] if kind == "none" else [e])):
        assert tensor.grad is not None and tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", INJECTIONS)
@pytest.mark.parametrize("step", [0, 3])
def test_equation(kind, step):
    part, (s, e) = made(kind, torch.float64), sample(torch.float64)
    if kind == "none":
        x = s
    elif kind == "add":
        x = s + e
    elif kind == "concat":
        x = torch.cat([e, s], -1) @ part.proj.weight.T + part.proj.bias
    elif kind == "concat-per-step":
        x = torch.cat([s, e], -1) @ part.weight[step].T + part.bias[step]
    else:
        dt = torch.log1p(part.step_size.exp())
        x = torch.exp(-dt * part.rate.exp()) * s + dt * (e @ part.input_proj.T)
    assert gap(part(s, e, StepIndex(step, step)), x) < (1e-6 if kind == "diagonal" else 1e-13)


@pytest.mark.parametrize("kind", INJECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_step_per_row_is_each_row_alone(kind, dtype):
    part, (s, e) = made(kind, dtype), sample(dtype)
    t = torch.tensor([4, 0, 2])
    mixed = part(s, e, StepIndex(t, t))
    for row, step in enumerate(t.tolist()):
        alone = part(s[row : row + 1], e[row : row + 1], StepIndex(step, step))
        assert gap(mixed[row : row + 1].float(), alone.float()) < (1e-6 if dtype == torch.float32 else 0.05)


def test_steps_of_the_per_step_projection_differ():
    part, (s, e) = made("concat-per-step"), sample()
    assert gap(part(s, e, StepIndex(0, 0)), part(s, e, StepIndex(1, 1))) > 0.1


def test_concat_order_is_only_an_order():
    """Swapping the halves of the projection swaps the order."""
    config, (s, e) = config_of("concat"), sample()
    one, other = ConcatInjection(config, order="state-input"), ConcatInjection(config, order="input-state")
    other.proj.weight.data = one.proj.weight.data.roll(WIDTH, dims=1)
    assert gap(one(s, e, StepIndex(0, 0)), other(s, e, StepIndex(0, 0))) < 1e-6
    with pytest.raises(ValueError, match=r"injection \(concat\): order 'se'; allowed: state-input, input-state"):
        ConcatInjection(config, order="se")


FLOATS = st.floats(-1e4, 1e4, allow_nan=False, width=32)


@pytest.mark.long
@given(st.lists(FLOATS, min_size=WIDTH, max_size=WIDTH), st.lists(FLOATS, min_size=WIDTH, max_size=WIDTH))
def test_diagonal_contracts_for_any_parameters(rate, step_size):
    part = DiagonalInjection(config_of("diagonal"))
    part.start()
    part.rate.data, part.step_size.data = torch.tensor(rate), torch.tensor(step_size)
    decay = part.decay()
    assert ((decay > 0) & (decay < 1)).all()
    # and it is the factor that the forward really uses
    s = torch.ones(1, 1, WIDTH)
    assert torch.equal(part(s, torch.zeros_like(s), StepIndex(0, 0)), (decay * s))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("value", [-60.0, -8.0, 0.0, 8.0, 60.0])
def test_diagonal_contracts_in_every_dtype(dtype, value):
    part = DiagonalInjection(config_of("diagonal")).to(dtype)
    part.rate.data.fill_(value), part.step_size.data.fill_(value)
    decay = part.decay()
    assert decay.dtype == dtype
    assert ((decay > 0) & (decay < 1)).all(), decay


def test_diagonal_factor_has_the_precision_of_its_dtype():
    part = made("diagonal", torch.float64)
    expected = torch.exp(-F.softplus(part.step_size) * part.rate.exp())
    assert gap(part.decay(), expected) < 1e-14
    gradients = [torch.autograd.grad(factor.sum(), [part.rate, part.step_size]) for factor in (part.decay(), expected)]
    for got, wanted in zip(*gradients, strict=True):
        assert gap(got, wanted) < 1e-14


@pytest.mark.parametrize("decay", [None, 0.2, math.exp(-1)])
def test_diagonal_start(decay):
    """Parcae starts at √(1/5), so that the state's share of the variance is a fifth; B is the identity."""
    part = LoopedForCausalLM(config_of("diagonal", **({} if decay is None else {"decay": decay}))).injection
    decay = math.sqrt(1 / 5) if decay is None else decay
    s, e = sample()
    assert gap(part(s, e, StepIndex(0, 0)), decay * s - math.log(decay) * e) < 1e-6
    assert gap(part.decay(), torch.full((WIDTH,), decay)) < 1e-6
    assert gap(F.softplus(part.step_size), torch.full((WIDTH,), -math.log(decay))) < 1e-6


def test_a_diagonal_start_that_cannot_be():
    for decay in (0.0, 1.0, 2.0):
        with pytest.raises(ValueError, match="decay"):
            LoopedForCausalLM(config_of("diagonal", decay=decay))


@pytest.mark.parametrize("kind", INJECTIONS)
def test_config_round_trip(kind):
    config = config_of(kind, **SPECS[kind])
    assert LoopedConfig(**config.to_dict()).injection == {"kind": kind, **SPECS[kind]}
    assert config.step_tables == (["injection"] if kind == "concat-per-step" else [])
