"""The kernel's sums are those of rows made in chunks: grouped heads, padding, windows, an odd width, every type of number."""

import pytest
import torch

from loopwright.analysis.trace.collect import View, sum_maps, sum_rows
from loopwright.model.span import place_tokens
from tests.cases import gap

# rows, tokens, heads, key heads, width, padded, window, type: few widths and types, since each is compiled apart
SHAPES = {
    "short": (3, 9, 4, 2, 20, False, None, torch.float32),
    "one tile": (2, 64, 2, 2, 20, False, None, torch.float32),
    "tiles": (2, 130, 4, 2, 20, False, None, torch.float32),
    "window": (2, 70, 2, 1, 20, False, 5, torch.float32),
    "padded": (3, 130, 2, 1, 20, True, None, torch.float32),
    "padded window": (3, 70, 2, 1, 20, True, 5, torch.float32),
    "one token": (2, 1, 2, 1, 20, False, None, torch.float32),
    "bfloat16": (2, 200, 4, 2, 128, False, None, torch.bfloat16),
    "bfloat16, padded": (3, 200, 4, 2, 128, True, None, torch.bfloat16),
    "float16": (2, 130, 2, 1, 64, False, None, torch.float16),
    "float32, wide": (3, 70, 2, 1, 128, True, None, torch.float32),  # tiles grow with the width, and what a card holds does not
    "bfloat16, widest": (3, 70, 2, 1, 256, True, None, torch.bfloat16),
}


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_sums_what_rows_sum(shape: str):
    rows, tokens, heads, groups, width, padded, window, kind = SHAPES[shape]
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(rows, tokens, dtype=torch.long)
    if padded:
        mask[1, tokens - 5 :], mask[2, :7] = 0, 0
    given = mask.cuda() if padded else None
    view = View.of(place_tokens(rows, tokens, torch.device("cuda"), attention_mask=given), window)

    def pair() -> tuple[torch.Tensor, torch.Tensor]:
        shapes = ((rows, tokens, heads, width), (rows, tokens, groups, width))
        return tuple((2 * torch.randn(shape, generator=generator)).to("cuda", kind) for shape in shapes)

    (q, k), before = pair(), pair()
    exact, far = sum_rows(q.double(), k.double(), view, (before[0].double(), before[1].double()))
    found, change = sum_maps(q, k, view, before)
    alone, nothing = sum_maps(q, k, view)
    assert nothing is None and change is not None and far is not None
    for sums in (found, alone):
        assert gap(sums.columns, exact.columns) < 1e-4
        assert gap(sums.entropy / tokens, exact.entropy / tokens) < 1e-5
    assert gap(change.distance, far.distance) < 1e-4
    assert tokens == 1 or far.distance.min() > 0.1
    assert gap(change.bound / far.bound, torch.ones_like(far.bound)) < 1e-5
    again, _ = sum_maps(q, k, view, before)
    assert torch.equal(again.columns, found.columns) and torch.equal(again.entropy, found.entropy)


@pytest.mark.gpu
def test_scores_in_the_hundreds():
    generator = torch.Generator().manual_seed(0)
    view = View.of(place_tokens(1, 130, torch.device("cuda")), None)
    q, k = (10 * torch.randn(1, 130, 2, 8, generator=generator).cuda() for _ in range(2))
    sums, _ = sum_maps(q, k, view)
    exact, _ = sum_rows(q.double(), k.double(), view)
    assert gap(sums.entropy / 130, exact.entropy / 130) < 1e-4 and exact.entropy.min() > 1


@pytest.mark.gpu
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_overflowed_is_no_number_in_every_sum(value: float):
    generator = torch.Generator().manual_seed(0)
    view = View.of(place_tokens(1, 9, torch.device("cuda")), None)
    q, k = (torch.randn(1, 9, 1, 8, generator=generator).cuda() for _ in range(2))
    q[0, 5] = value
    for sums, change in (sum_maps(q, k, view, (q, k)), sum_rows(q, k, view, (q, k))):
        assert change is not None and change.distance.isnan().all() and change.bound.isnan().all()
        assert sums.columns[..., :6].isnan().all() and sums.entropy.isnan().all()
