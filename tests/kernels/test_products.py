"""Each kernel against plain torch, with and without every optional part; sizes that fill no block."""

import pytest
import torch
import torch.nn.functional as F

from tests.cases import gap
from tests.kernels.interpreted import need_triton, numbers

need_triton()

from loopwright.kernels.products import gemm_rows, gemv, norm_gemv, norm_rows  # noqa: E402

EPS, WIDTH = 1e-5, 20
NORMS = [(), ("input",), ("output",), ("residual",), ("input", "output", "residual")]


def gains(places: tuple[str, ...]) -> dict[str, torch.Tensor | None]:
    return {name: numbers(WIDTH, seed=i) if name in places else None for i, name in enumerate(("input", "output", "residual"))}


def normed(x: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
    return x if gain is None else F.rms_norm(x, (WIDTH,), gain, EPS)


def summed(x: torch.Tensor, y: torch.Tensor | None, gain: dict) -> torch.Tensor:
    return x if y is None else normed(x + normed(y, gain["output"]), gain["residual"])


@pytest.mark.parametrize("places", NORMS)
@pytest.mark.parametrize("first", [False, True])
def test_a_product_of_one_token(places: tuple[str, ...], first: bool):
    gain, x, y = gains(places), numbers(1, WIDTH), None if first else numbers(1, WIDTH, seed=5)
    weights, biases = [numbers(n, WIDTH, seed=n) for n in (6, 4, 3)], [numbers(6), None, numbers(3)]
    kept, out = torch.zeros_like(x), torch.zeros(1, 13, device=x.device)
    given = (gain["output"], gain["residual"], gain["input"], kept, *weights, *biases, None, None, out)
    norm_gemv[(4,)](x, y, *given, EPS, 13, 6, 4, WIDTH, 32, 4, False)
    wanted = summed(x, y, gain)
    assert gap(kept, wanted) < 1e-5
    h = normed(wanted, gain["input"])
    assert gap(out, torch.cat([F.linear(h, w, b) for w, b in zip(weights, biases, strict=True)], -1)) < 1e-5


def test_swiglu_of_one_token():
    x, gate, up, bias = numbers(1, WIDTH), numbers(7, WIDTH), numbers(7, WIDTH, seed=1), numbers(7)
    out = torch.zeros(1, 7, device=x.device)
    nothing = (None, None, None, None)
    norm_gemv[(2,)](
        x, *nothing, torch.zeros_like(x), gate, None, None, bias, None, None, up, bias, out, EPS, 7, 7, 0, WIDTH, 32, 4, False
    )  # fmt: skip
    assert gap(out, F.silu(F.linear(x, gate, bias)) * F.linear(x, up, bias)) < 1e-5


@pytest.mark.parametrize("bias", [None, numbers(7)])
def test_a_product_in_chunks(bias: torch.Tensor | None):
    w, x = numbers(7, 40), numbers(1, 40)
    out = torch.zeros(1, 7, device=x.device)
    gemv[(4,)](w, bias, x, out, 7, 40, 16, 2, False)
    assert gap(out, F.linear(x, w, bias)) < 1e-5


@pytest.mark.parametrize("places", NORMS)
def test_the_residual_of_many_tokens(places: tuple[str, ...]):
    gain, x, parts = gains(places), numbers(3, WIDTH), numbers(4, 3, WIDTH, seed=2)
    kept, h = torch.zeros_like(x), torch.zeros_like(x)
    norm_rows[(3,)](x, parts, gain["output"], gain["residual"], gain["input"], kept, h, 3, EPS, WIDTH, 32, 4, False)
    wanted = summed(x, parts.sum(0), gain)
    assert gap(kept, wanted) < 1e-5 and gap(h, normed(wanted, gain["input"])) < 1e-5
    norm_rows[(3,)](x, None, None, None, None, kept, None, 3, EPS, WIDTH, 32, 1, False)
    assert gap(kept, x) == 0


@pytest.mark.parametrize(("tokens", "splits"), [(3, 1), (17, 1), (3, 2), (3, 3)])
def test_products_of_many_tokens(tokens: int, splits: int):
    x, weights = numbers(tokens, 72), [numbers(n, 72, seed=n) for n in (20, 9, 4)]
    biases = [None, numbers(9), None]
    out = torch.zeros(splits, tokens, 33, device=x.device)
    gemm_rows[(3, splits, 2)](x, *weights, *biases, None, None, out, tokens, 33, 20, 9, 72, 16, 16, 16, splits, 1, 0, False)
    wanted = torch.cat([F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], -1)
    assert gap(out.sum(0), wanted) < 1e-4


def test_swiglu_of_many_tokens():
    x, gate, up, bias = numbers(5, 32), numbers(32, 32), numbers(32, 32, seed=1), numbers(32)
    out = torch.zeros(5, 32, device=x.device)
    gemm_rows[(2, 1, 1)](
        x, gate, None, None, bias, None, None, up, bias, out, 5, 32, 32, 0, 32, 16, 16, 16, 1, 1, 0, False
    )  # fmt: skip
    assert gap(out, F.silu(F.linear(x, gate, bias)) * F.linear(x, up, bias)) < 1e-4
