"""Norms against torch's own, in float32 and, bit for bit, in bfloat16; one row of weights per step, by step or by row."""

import pytest
import torch
import torch.nn.functional as F

from loopwright.model.layers import NORMS, LayerNorm, RMSNorm, SimpleNorm, build_norm
from loopwright.model.parts.part import StepIndex
from tests.cases import gap

WIDTH = 24
EPS = 1e-5


def made(kind: str, steps: int | None = None, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    norm = build_norm({"kind": kind, "eps": EPS}, WIDTH, steps=steps)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    return norm.to(dtype)


def sample(dtype: torch.dtype = torch.float32, scale: float = 3.0) -> torch.Tensor:
    return (torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1)) * scale + 0.5).to(dtype)


def by_torch(norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    if isinstance(norm, RMSNorm):
        return F.rms_norm(x, (WIDTH,), norm.weight, EPS)
    if isinstance(norm, LayerNorm):
        return F.layer_norm(x, (WIDTH,), norm.weight, norm.bias, EPS)
    return F.layer_norm(x, (WIDTH,), None, None, EPS)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_equal_to_torch_in_float32(kind, scale):
    norm, x = made(kind), sample(scale=scale)
    assert gap(norm(x), by_torch(norm, x)) < 2e-6


@pytest.mark.parametrize("kind", NORMS)
def test_equal_to_the_equation_in_float64(kind):
    norm, x = made(kind, dtype=torch.float64), sample(torch.float64)
    if kind == "rms":
        y = norm.weight * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()
    else:
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + EPS).sqrt()
        y = y * norm.weight + norm.bias if kind == "layer" else y
    assert gap(norm(x), y) < 1e-12


def test_rms_in_bfloat16_rounds_before_the_weight():
    """Llama's order: normalise in float32, cast, then multiply. Bitwise, since released weights were trained with it."""
    norm, x = made("rms", dtype=torch.bfloat16), sample(torch.bfloat16)
    wide = x.float()
    expected = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(torch.bfloat16) * norm.weight
    assert torch.equal(norm(x), expected)
    late = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * norm.weight.float()).to(torch.bfloat16)
    assert not torch.equal(late, expected), "the two orders must differ here, or this test could not fail"


@pytest.mark.parametrize("kind", ["layer", "simple"])
def test_layer_norms_in_bfloat16_are_torchs(kind):
    norm, x = made(kind, dtype=torch.bfloat16), sample(torch.bfloat16)
    assert torch.equal(norm(x), by_torch(norm, x))


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_and_gradient(kind, dtype):
    for steps, step in ((None, None), (4, StepIndex(2, 2))):
        norm, x = made(kind, steps, dtype), sample(dtype).requires_grad_()
        y = norm(x) if step is None else norm(x, step)
        assert y.shape == x.shape and y.dtype == dtype
        y.float().square().sum().backward()
        for tensor in (x, *norm.parameters()):
            assert tensor.grad is not None and tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_start_is_plain_normalisation(kind):
    for steps, step in ((None, None), (3, StepIndex(1, 1))):
        norm, x = made(kind, steps), sample()
        norm.start()
        reference = NORMS["simple"](WIDTH, eps=EPS)(x) if kind == "layer" else F.rms_norm(x, (WIDTH,), None, EPS)
        assert torch.equal(norm(x) if step is None else norm(x, step), reference)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_step_per_row_is_each_row_alone(kind, dtype):
    norm, x = made(kind, steps=4, dtype=dtype), sample(dtype)
    t = torch.tensor([3, 0, 2])
    mixed = norm(x, StepIndex(t, t))
    for row, step in enumerate(t.tolist()):
        assert torch.equal(mixed[row : row + 1], norm(x[row : row + 1], StepIndex(step, step)))


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_row_of_a_step_table_is_a_norm_of_its_own(kind):
    table, one, x = made(kind, steps=3), made(kind), sample()
    for step in range(3):
        one.load_state_dict({name: rows[step] for name, rows in table.state_dict().items()})
        assert gap(table(x, StepIndex(step, step)), one(x)) < 2e-6


def test_simple_norm_has_no_parameters():
    assert not list(SimpleNorm(WIDTH, eps=EPS, steps=3).parameters())
