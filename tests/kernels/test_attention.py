"""Both kernels against rotation, cache write and SDPA: grouped heads, padding, rows of several lengths, end to end or anywhere."""

import pytest
import torch
import torch.nn.functional as F

from loopwright.model.layers import rotate
from tests.cases import gap
from tests.kernels.interpreted import DEVICE, need_triton, numbers

need_triton()

from loopwright.kernels.decode_attention import attend_many, attend_one  # noqa: E402

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
        attend_many[(KEY_HEADS, splits, rows)](*given, 16, 16, 1, 1, 1, False)
    assert gap(out, torch.stack(wanted)) < 1e-5
    assert gap(lying_keys[place], wanted_keys) < 1e-6 and gap(lying_values[place], wanted_values) < 1e-6
    assert not ended.any()


@pytest.mark.parametrize("length", [2, 3, 8])
@pytest.mark.parametrize("kind", ["plain", "interleaved", "in a pool"])
@pytest.mark.parametrize("chunk", [16, 48])
def test_several_tokens_of_a_row(length: int, kind: str, chunk: int):
    rows, wide, tokens = len(ROWS), (HEADS + 2 * KEY_HEADS) * SIZE, len(ROWS) * length
    keys, values = numbers(rows, CAPACITY, KEY_HEADS, SIZE), numbers(rows, CAPACITY, KEY_HEADS, SIZE, seed=1)
    parts, angle = numbers(2, tokens, wide), numbers(tokens, SIZE // 2)
    first = (11, 0, CAPACITY - length)
    index = torch.tensor([[a + i for i in range(length)] for a in first], device=DEVICE)
    index[1, length // 2 :], twins = length // 2, slice(length + length // 2, 2 * length)  # a row that repeats its last token
    parts[:, twins], angle[twins] = parts[:, twins.start, None], angle[twins.start]
    cos, sin = (x.repeat_interleave(2, -1) if kind == "interleaved" else torch.cat([x, x], -1) for x in (angle.cos(), angle.sin()))
    signs = torch.ones(SIZE, device=DEVICE)
    signs[:: 2 if kind == "interleaved" else 1][: SIZE // 2] = -1
    sin = sin * signs
    q, k, v = parts.sum(0).view(1, tokens, -1, SIZE).split([HEADS, KEY_HEADS, KEY_HEADS], 2)
    q, k = (rotate(x, cos[None, :, None], sin[None, :, None], interleaved=kind == "interleaved") for x in (q, k))
    wanted_keys, wanted_values, wanted = keys.clone(), values.clone(), []
    for token, place in enumerate(index.flatten().tolist()):
        wanted_keys[token // length, place], wanted_values[token // length, place] = k[0, token], v[0, token]
    for token, place in enumerate(index.flatten().tolist()):
        held = (x[token // length, : place + 1].transpose(0, 1)[None] for x in (wanted_keys, wanted_values))
        wanted.append(F.scaled_dot_product_attention(q[:, token, :, None], *held, enable_gqa=True).flatten())
    at = torch.tensor([2, 0, 1] if kind == "in a pool" else [0, 1, 2], device=DEVICE)  # of the rows among the keys
    lying_keys, lying_values = torch.empty_like(keys), torch.empty_like(values)
    lying_keys[at], lying_values[at] = keys, values
    starts, splits = at * CAPACITY if kind == "in a pool" else None, -(-CAPACITY // chunk)
    out = torch.zeros(tokens, HEADS * SIZE, device=DEVICE)
    sums, stats = torch.zeros(tokens * HEADS * splits, SIZE, device=DEVICE), torch.zeros(tokens * HEADS * splits, 2, device=DEVICE)
    ended = torch.zeros(rows * KEY_HEADS, dtype=torch.int32, device=DEVICE)
    attend_many[(KEY_HEADS, splits, rows)](
        parts, lying_keys, lying_values, starts, cos, sin, None, index, sums, stats, ended, out, CAPACITY, SIZE, parts[0].numel(),
        SIZE**-0.5, HEADS, KEY_HEADS, SIZE, 16, kind == "interleaved", 2, splits, 4, chunk, 16, 16, length, 8, 1, False,
    )  # fmt: skip
    assert gap(out, torch.stack(wanted)) < 1e-5
    assert gap(lying_keys[at], wanted_keys) < 1e-6 and gap(lying_values[at], wanted_values) < 1e-6
    assert not ended.any()
