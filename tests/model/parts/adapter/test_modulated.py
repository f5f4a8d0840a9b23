"""Modulated maps by kernels, beside the equation, forward and back: in float32 by Triton's interpreter, in bfloat16 on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.model.fused.interpreted import DEVICE, need_triton, numbers

need_triton()

from loopwright.model.config import LoopedConfig  # noqa: E402
from loopwright.model.forward.launches import free_launches  # noqa: E402
from loopwright.model.looped import LoopedForCausalLM  # noqa: E402
from loopwright.model.parts.adapter import diagonal  # noqa: E402
from loopwright.model.parts.adapter import modulated as under_test  # noqa: E402  (the interpreter must have been chosen)
from loopwright.model.parts.adapter.modulated import Tile, modulated  # noqa: E402

SCALE = 0.5
GROUPS = {"one": (48,), "two": (96, 96), "three": (64, 32, 40)}
NEAR = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def plain(x: Tensor, w: list, bias: list, a: list, b: list, d: Tensor) -> list[Tensor]:
    """The equation, map by map."""
    ds = d.flatten(0, 1).chunk(len(w), dim=-1)
    return [F.linear(x, w[i], bias[i]) + SCALE * F.linear(F.linear(x, a[i]) * ds[i], b[i]) for i in range(len(w))]


def given(outs: tuple[int, ...], *, biased: bool, wide: bool, width: int = 72, rank: int = 16) -> tuple:
    """Returns x, W, b, A, B and d; where not `wide`, d is alike for all tokens of a row. Sizes are no multiples of a tile."""
    rows, tokens, maps = 3, 47, len(outs)
    x = numbers(rows * tokens, width)
    w = [numbers(n, width, seed=i) * width**-0.5 for i, n in enumerate(outs)]
    bias = [numbers(n, seed=i) if biased else None for i, n in enumerate(outs)]
    a = [numbers(rank, width, seed=3 + i) * width**-0.5 for i in range(maps)]
    b = [numbers(n, rank, seed=6 + i) * rank**-0.5 for i, n in enumerate(outs)]
    d = numbers(rows, tokens, (maps + 2) * rank)[..., rank : rank + maps * rank] if wide else numbers(rows, 1, maps * rank)
    return x, w, bias, a, b, d


def cast(tree: object, kind: torch.dtype) -> object:
    """Returns leaves of a type that gradients reach."""
    if isinstance(tree, Tensor):
        return tree.detach().to(kind).requires_grad_()
    return None if tree is None else [cast(one, kind) for one in tree]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":  # several programs, and quickly
        small = Tile(32, 32, 32, 4, 2)
        for name in ("INNER", "OUTER", "OUTER_BACK"):
            monkeypatch.setattr(under_test, name, small)


@pytest.mark.parametrize("wide", [True, False], ids=["token", "row"])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "bare"])
@pytest.mark.parametrize("outs", GROUPS.values(), ids=GROUPS)
def test_kernels_are_the_equation(outs: tuple[int, ...], biased: bool, wide: bool) -> None:
    """Values, and gradients of x, d, W, b, A and B, beside those in float64 of what the kernels read."""
    mine = cast(given(outs, biased=biased, wide=wide), DTYPE)
    exact = cast(mine, torch.float64)
    x, w, bias, a, b, d = mine  # type: ignore[misc]
    *ys, _ = modulated(x, w, a, b, d.expand(3, 47, -1), SCALE, *bias, *[None] * (3 - len(bias)))
    want = plain(*exact[:5], exact[5].expand(3, 47, -1))  # type: ignore[index]
    grads = [numbers(*y.shape, seed=9).to(DTYPE) for y in ys]
    torch.autograd.backward(ys, grads)
    torch.autograd.backward(want, [g.double() for g in grads])
    near = NEAR[DTYPE]
    for y, right in zip(ys, want, strict=True):
        torch.testing.assert_close(y.double(), right, rtol=near, atol=near * float(right.detach().abs().max()))
    found, right = ([one for one in torch.utils._pytree.tree_leaves(tree) if one is not None] for tree in (mine, exact))
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=near, atol=near * float(other.grad.abs().max()))


def test_frozen_weights_get_no_gradient_and_x_is_not_kept() -> None:
    x, w, bias, a, b, d = given(GROUPS["two"], biased=False, wide=True)
    x, d = (one.to(DTYPE).requires_grad_() for one in (x, d))
    w, a, b = ([one.to(DTYPE) for one in ones] for ones in (w, a, b))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ys = modulated(x, w, a, b, d, SCALE, *bias, *[None] * (3 - len(bias)))[:-1]
    assert all(one.data_ptr() != x.data_ptr() for one in kept)
    sum(y.square().sum() for y in ys).backward()
    assert x.grad is not None and d.grad is not None and all(one.grad is None for one in (*w, *a, *b))


@pytest.mark.parametrize("targets", ["linears", ["q_proj", "v_proj", "down_proj"]], ids=["all", "some"])
@pytest.mark.parametrize("compiled", [False, True], ids=["written", "compiled"])
def test_a_layer_by_kernels_is_the_layer_by_products(
    targets: str | list[str], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients of state and controller, at one step per row too; as one graph where it is compiled."""
    shape = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    adapters = [{"kind": "controller", "rank": 16, "targets": targets}, {"kind": "diagonal", "rank": 16}]
    model = LoopedForCausalLM(LoopedConfig(depth=2, max_steps=2, adapters=adapters, **shape)).to(DEVICE, DTYPE)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.startswith("adapters.") and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    x = numbers(3, 17, 32).to(DTYPE)
    _, p = model.embed(inputs_embeds=x)
    weights = [w for name, w in model.named_parameters() if name.startswith("adapters.") and w.requires_grad]
    found = []
    for kind in (None, DTYPE):
        monkeypatch.setattr(diagonal, "kernel_dtype", lambda *given, kind=kind: kind)
        torch._dynamo.reset()
        step = torch.compile(model.step, backend="aot_eager", fullgraph=True) if compiled and kind is not None else model.step
        s = x.clone().requires_grad_()
        y = step(s, x, 1, p)
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), [s, *weights])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=(1e-4 if DEVICE == "cpu" else 0.05) * float(one.abs().max()))


@pytest.mark.gpu
def test_kernels_run_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Hopper GPU, for enough tokens; not where second derivatives may be asked for; in one graph where it is compiled."""
    if torch.cuda.get_device_capability()[0] != diagonal.HOPPER:
        pytest.skip("no Hopper GPU")
    shape = {"vocab_size": 32, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    model = LoopedForCausalLM(LoopedConfig(depth=1, max_steps=1, adapters=[{"kind": "diagonal", "rank": 16}], **shape))
    model = model.to(DEVICE, DTYPE)
    torch.nn.init.normal_(model.adapters[0].table)
    called: list[int] = []
    plain = diagonal.Bases._by_kernels
    monkeypatch.setattr(diagonal.Bases, "_by_kernels", lambda *given: called.append(0) or plain(*given))
    x = numbers(16, diagonal.LEAST_REPLAYED // (16 * 256), 256).to(DTYPE)
    _, p = model.embed(inputs_embeds=x)
    by_products = model.step(x, x, 0, p)
    with free_launches():
        with sdpa_kernel(SDPBackend.MATH):
            model.step(x, x, 0, p)
        assert called == []  # neither there, nor before, where it was too little to launch one by one
        by_kernels = model.step(x, x, 0, p)
        assert len(called) == 4  # q, k, v; o; gate, up; down
        monkeypatch.setattr(diagonal.Bases, "_by_kernels", plain)
        compiled = torch.compile(model.step, backend="aot_eager", fullgraph=True)(x, x, 0, p)
    near = 0.05 * float(by_products.detach().abs().max())
    torch.testing.assert_close(by_kernels, by_products, rtol=0, atol=near)
    torch.testing.assert_close(compiled, by_kernels, rtol=0, atol=near)


def test_the_operators_keep_what_torch_asks_of_them() -> None:
    x, w, bias, a, b, d = given(GROUPS["two"], biased=True, wide=True)
    x, w, bias, a, b, d = cast((x, w, bias, a, b, d), DTYPE)  # type: ignore[misc]
    torch.library.opcheck(modulated, (x, w, a, b, d, SCALE, *bias, *[None] * (3 - len(bias))))
