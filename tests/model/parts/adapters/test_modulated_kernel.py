"""The kernels of modulated maps beside the equation, forward and back: in float32 by Triton's interpreter, in bfloat16 on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.interpreted import need_triton, numbers
from tests.model.parts.adapters.modulated_maps import DTYPE, GROUPS, NEAR, SCALE, cast, given, plain, small_tiles

need_triton()

from loopwright.model.parts.adapters import modulated as launched  # noqa: E402  (the interpreter must have been chosen)
from loopwright.model.parts.adapters.modulated import modulated  # noqa: E402


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch, launched)


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
