"""Dual numbers: values and tangents against torch's own, gradients against differences of them, on parts and on whole steps."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from loopwright.metrics.dual import RULES, Dual, product
from tests.cases import gap, noisy

SHAPE = (1, 1, 3, 6)
NAMES = [
    "universal", "ouro-1.4b", "huginn", "retrofit-llama-1b", "retrofit-olmo2-1b", "stars-addition", "asura", "ouroboros-qwen2.5-3b",
    "relaxed",
]  # fmt: skip


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def seen_twice(s: torch.Tensor) -> torch.Tensor:
    return s[..., :4] * (1 + s[..., 2:]).reshape(s[..., 2:].shape) - 3 / (4 + s[..., 1:5] ** 2)


OPERATIONS = {
    "linear": lambda s, w, b: F.linear(s, torch.outer(w, b)[:4], b[:4]),
    "layer": lambda s, w, b: F.layer_norm(s, (6,), w, b, 1e-2),
    "layer, bare": lambda s, w, b: F.layer_norm(s, (6,), eps=1e-2),
    "rms": lambda s, w, b: F.rms_norm(s, (6,), w, 1e-2),
    "rms, bare": lambda s, w, b: F.rms_norm(s, (6,), None, 1e-2),
    "gelu": lambda s, w, b: F.gelu(s + w),
    "relu": lambda s, w, b: F.relu(s + w) * s,
    "gelu_tanh": lambda s, w, b: F.gelu(s * w, approximate="tanh"),
    "silu": lambda s, w, b: F.silu(s * w) * (b + s),
    "attention": lambda s, w, b: F.scaled_dot_product_attention(s * w, s + b, s * b, is_causal=True),
    "attention, grouped": lambda s, w, b: F.scaled_dot_product_attention(
        torch.cat([s * w, s], dim=1), s * b, s.roll(1, -1), attn_mask=torch.ones(3, 3, dtype=s.dtype).tril(), enable_gqa=True
    ),
    "operators": lambda s, w, b: seen_twice(s.transpose(1, 2).flatten(2).unflatten(-1, (1, 6)) * w),
    "untouched": lambda s, w, b: w * b,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_tangents_and_gradients(name):
    s, v, w, b = tensors(SHAPE, SHAPE, (6,), (6,))

    def both(s, v, w, b):
        return product(lambda x: OPERATIONS[name](x, w, b), s, v)

    with sdpa_kernel(SDPBackend.MATH):
        primal, tangent = torch.func.jvp(lambda x: OPERATIONS[name](x, w, b), (s,), (v,))
    found = both(s, v, w, b)
    assert gap(found[0], primal) < 1e-12
    assert gap(found[1], tangent) < 1e-12
    assert torch.autograd.gradcheck(both, (s, v, w, b), check_batched_grad=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_every_preset(name):
    """With a gradient that torch's forward mode gets right: its norms are spelled out."""
    model = noisy(f"{name}-tiny", std=0.3).double()
    ids = torch.randint(0, 15, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    e, p = model.embed(ids, attention_mask=mask)
    s = model.step(model.start_state(e, p), e, 0, p).detach().requires_grad_()
    e = e.detach().requires_grad_()
    v = tensors(tuple(s.shape), seed=1)[0].detach()
    wanted = [s, e, *(x for x in model.parameters() if x.requires_grad)]

    def slopes(y, t):
        return torch.autograd.grad((y * v).sum() + t.square().sum(), wanted, allow_unused=True)

    y, t = product(lambda x: model.step(x, e, 1, p), s, v)
    found = slopes(y, t)
    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        patch.setattr(F, "layer_norm", spelled_layer_norm)
        patch.setattr(F, "rms_norm", spelled_rms_norm)
        y2, t2 = torch.func.jvp(lambda x: model.step(x, e, 1, p), (s,), (v,))
        true = slopes(y2, t2)
    assert gap(y, y2) < 1e-11
    assert gap(t, t2) < 1e-11
    assert [x is None for x in found] == [x is None for x in true]
    assert max(gap(a, b) / (1 + b.abs().max().item()) for a, b in zip(found, true, strict=True) if a is not None) < 1e-10


def spelled_layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def spelled_rms_norm(x, shape, weight=None, eps=None):
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return y if weight is None else y * weight


def test_dropout_masks_are_those_of_the_plain_pass():
    model = noisy("stars-addition-tiny", dropout=0.3).double().train()
    ids = torch.randint(0, 15, (3, 7), generator=torch.Generator().manual_seed(0))
    e, p = model.embed(ids)
    v = torch.randn_like(e)
    torch.manual_seed(1)
    plain = model.step(e, e, 0, p)
    torch.manual_seed(1)
    y, t = product(lambda x: model.step(x, e, 0, p), e, v)
    torch.manual_seed(1)
    up = model.step(e + 1e-6 * v, e, 0, p)
    assert gap(y, plain) < 1e-12
    assert gap(t, (up - plain) / 1e-6) < 1e-3 * t.abs().max()


@pytest.mark.parametrize("name", ["stars-addition", "ouro-1.4b", "huginn"])
def test_autocast_gives_the_dtypes_of_the_plain_pass(name):
    model = noisy(f"{name}-tiny", std=0.3)
    e, p = model.embed(torch.arange(6)[None])
    v = torch.randn_like(e)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model.step(e, e, 0, p)
        y, t = product(lambda x: model.step(x, e, 0, p), e, v)
    exact = product(lambda x: model.step(x, e, 0, p), e, v)[1]
    assert y.dtype == plain.dtype
    assert gap(y, plain) < 0.1 * plain.abs().max()
    assert (t - exact).norm() < 0.05 * exact.norm()


def test_what_cannot_be_done_is_refused():
    s = Dual(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="in place"):
        s.add_(1)
    with pytest.raises(ValueError, match="several axes"):
        F.layer_norm(s, (2, 3))
    with pytest.raises(AttributeError, match="'mT'"):
        s.mT  # noqa: B018
    with pytest.raises(AttributeError):
        s.nothing  # noqa: B018


def test_rules_leave_the_form_alone():
    s = Dual(torch.ones(2, 3), torch.ones(2, 3))
    assert s.shape == (2, 3) and s.dim() == 2 and s.dtype == torch.float32 and s.device.type == "cpu"
    assert isinstance(s + 1, Dual) and (1 + s).shape == (2, 3)
    assert (torch.zeros(4, 2, 3) + s).tangent.shape == (4, 2, 3)
    assert torch.ones(3).expand_as(s).shape == (2, 3)
    assert all(rule.__doc__ for rule in RULES.values())
