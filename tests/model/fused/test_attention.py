"""Both kernels against rotation, cache write and SDPA: grouped heads, padding, rows of several lengths, end to end or anywhere."""

import pytest
import torch
import torch.nn.functional as F

from loopwright.model.layers.attention import rotate
from tests.cases import gap
from tests.model.fused.interpreted import DEVICE, need_triton, numbers

need_triton()

from loopwright.model.fused.attention import attend_many, attend_one  # noqa: E402

HEADS, KEY_HEADS, SIZE, CAPACITY = 4, 2, 12, 40
ROWS = (11, 0, 37)  # tokens before the new one


@pytest.mark.parametrize("kernel", ["one", "many", "many in one part"])
@pytest.mark.parametrize("kind", ["plain", "interleaved", "masked", "in a pool"])
def test_attention(kernel: str, kind: str):
    rows, wide = len(ROWS), (HEADS + 2 * KEY_HEADS) * SIZE
    keys, values = numbers(rows, CAPACITY, KEY_HEADS, SIZE), numbers(rows, CAPACITY, KEY_HEADS, SIZE, seed=1)
    parts = numbers(2, rows, wide)  # the product comes in two
    angle = numbers(rows, SIZE // 2)
    cos, sin = (x.repeat_interleave(2, -1) if kind == "interleaved" else torch.cat([x, x], -1) for x in (angle.cos(), angle.sin()))
    signs = torch.ones(SIZE, device=DEVICE)
    signs[:: 2 if kind == "interleaved" else 1][: SIZE // 2] = -1
    sin = sin * signs
    mask = torch.zeros(rows, CAPACITY, device=DEVICE)
    mask[2, :20] = float("-inf")  # more than one part of it
    wanted_keys, wanted_values, wanted = keys.clone(), values.clone(), []
    for row, count in enumerate(ROWS):
        q, k, v = parts.sum(0)[row].view(-1, SIZE).split([HEADS, KEY_HEADS, KEY_HEADS])
        table = cos[row, None, None, None], sin[row, None, None, None]
        q, k = (rotate(x[None, None], *table, interleaved=kind == "interleaved")[0, 0] for x in (q, k))
        wanted_keys[row, count], wanted_values[row, count] = k, v
        seen = mask[row, : count + 1] if kind == "masked" else torch.zeros(count + 1, device=DEVICE)
        k, v = (x[row, : count + 1].transpose(0, 1)[None] for x in (wanted_keys, wanted_values))
        wanted.append(F.scaled_dot_product_attention(q[None, :, None], k, v, attn_mask=seen[None], enable_gqa=True).flatten())
    place = torch.tensor([2, 0, 1] if kind == "in a pool" else [0, 1, 2], device=DEVICE)  # of the rows among the keys
    lying_keys, lying_values = torch.empty_like(keys), torch.empty_like(values)
    lying_keys[place], lying_values[place] = keys, values
    starts = place * CAPACITY if kind == "in a pool" else None
    chunk = 48 if kernel == "many in one part" else 16
    splits = -(-CAPACITY // chunk)
    out = torch.zeros(rows, HEADS * SIZE, device=DEVICE)
    sums, stats = torch.zeros(rows * HEADS * splits, SIZE, device=DEVICE), torch.zeros(rows * HEADS * splits, 2, device=DEVICE)
    ended = torch.zeros(rows * HEADS, dtype=torch.int32, device=DEVICE)
    index = torch.tensor(ROWS, device=DEVICE)
    given = (
        parts, lying_keys, lying_values, starts, cos, sin, mask if kind == "masked" else None, index, sums, stats, ended, out,
        CAPACITY, SIZE,
        parts[0].numel(), SIZE**-0.5, HEADS, KEY_HEADS, SIZE, 16, kind == "interleaved", 2, splits, 4, chunk,
    )  # fmt: skip
    if kernel == "one":
        attend_one[(HEADS, splits, rows)](*given, 8, False)
    else:
        attend_many[(KEY_HEADS, splits, rows)](*given, 16, 16, 1, False)
    assert gap(out, torch.stack(wanted)) < (1e-5 if DEVICE == "cpu" or kernel == "one" else 5e-3)
    assert gap(lying_keys[place], wanted_keys) < 1e-6 and gap(lying_values[place], wanted_values) < 1e-6
    assert not ended.any()
