"""Distances between maps: blocks = whole, padded = alone, every pair = each pair; Proposition 4.2's bound and the nearer hold."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopwright.metrics.attention import (
    attention_bound,
    attention_distance,
    attention_distances,
    attention_pair_bytes,
    query_key_bound,
    residual_pair_bytes,
    rotary_weight_norm,
    squared_attention_distance,
    weight_norm,
)
from loopwright.model.taps import Recorder
from tests.cases import noisy
from tests.metrics.maps import causal_maps, with_padding


def test_known_distances() -> None:
    tokens = 6
    first, itself = torch.zeros(tokens, tokens), torch.eye(tokens)
    first[:, 0] = 1
    # all rows but the first differ in two entries by 1
    assert attention_distance(first[None], itself[None]).item() == pytest.approx(math.sqrt(2 * (tokens - 1)))
    assert attention_distance(first[None], first[None]).item() == 0


@settings(max_examples=25)
@given(seed=st.integers(0, 999), tokens=st.integers(1, 8), left=st.integers(0, 3), right=st.integers(0, 3), block=st.integers(1, 8))
def test_padded_is_alone_and_blocks_add_up(seed: int, tokens: int, left: int, right: int, block: int) -> None:
    a, b = causal_maps(2, 3, tokens, seed=seed), causal_maps(2, 3, tokens, seed=seed + 1)
    (padded_a, valid), (padded_b, _) = with_padding(a, left, right), with_padding(b, left, right)
    found = attention_distance(padded_a, padded_b, valid=valid)
    assert torch.allclose(found, torch.linalg.matrix_norm(a - b), atol=1e-6)
    parts = [slice(i, i + block) for i in range(0, valid.shape[1], block)]
    squares = [
        squared_attention_distance(padded_a[..., i, :], padded_b[..., i, :], valid=valid, valid_rows=valid[:, i]) for i in parts
    ]
    assert torch.allclose(sum(squares, torch.zeros(2, 3)).sqrt(), found, atol=1e-6)


def test_every_pair_is_each_pair() -> None:
    maps = torch.stack([causal_maps(3, 2, 5, seed=i) for i in range(4)])
    maps[2] = maps[1] + 1e-6  # nearly equal: the expanded square would lose this
    valid = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])
    found = attention_distances(maps, valid)
    each = torch.stack([torch.stack([attention_distance(a, b, valid=valid).mean() for b in maps]) for a in maps])
    assert torch.allclose(found, each, atol=1e-6) and found.diagonal().abs().max() == 0
    assert found[1, 2].item() == pytest.approx(each[1, 2].item(), rel=1e-3) and 0 < found[1, 2] < 1e-5
    row = attention_distance(maps[:3], maps[3], valid=valid).mean((1, 2))  # a new map against the earlier ones
    assert torch.allclose(row, found[3, :3], atol=1e-6)


def test_bytes_are_those_of_the_tensors() -> None:
    assert attention_pair_bytes(4, 2, 5, rows=3) == torch.zeros(4, 3, 2, 5, 5).nbytes
    assert residual_pair_bytes(4, 7, 5, rows=3, number_bytes=2) == torch.zeros(4, 3, 5, 7, dtype=torch.bfloat16).nbytes


# the bound


def rotate(x: Tensor) -> Tensor:
    """Turns pairs of channels of [B, H, T, K] by angles that grow with the position."""
    angle = torch.arange(x.shape[-2])[:, None] / 10.0 ** torch.arange(x.shape[-1] // 2)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1)


def map_of(query: Tensor, key: Tensor) -> Tensor:
    later = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool).triu(1)
    return (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(later, -torch.inf).softmax(-1)


@settings(max_examples=25)
@given(seed=st.integers(0, 999), move=st.floats(1e-3, 3), groups=st.sampled_from([1, 2, 4]), pad=st.integers(0, 2))
def test_the_bounds_hold_in_order(seed: int, move: float, groups: int, pad: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    heads, head_dim, width, tokens = 4, 4, 10, 6
    w_q, w_k = (torch.randn(count, head_dim, width, generator=generator) / 3 for count in (heads, groups))
    x = torch.randn(2, tokens, width, generator=generator)
    moved = x + move * torch.randn(x.shape, generator=generator)
    size, change = torch.maximum(x.flatten(1).norm(dim=1), moved.flatten(1).norm(dim=1)), (moved - x).flatten(1).norm(dim=1)

    def heads_of(x: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("btd,hkd->bhtk", x, w)

    queries, keys = [heads_of(s, w_q) for s in (moved, x)], [heads_of(s, w_k) for s in (moved, x)]
    wide = [k.repeat_interleave(heads // groups, 1) for k in keys]
    near = query_key_bound(queries[0], keys[0], queries[1], keys[1])
    plain = attention_distance(map_of(queries[0], wide[0]), map_of(queries[1], wide[1]))
    turned = attention_distance(map_of(rotate(queries[0]), rotate(wide[0])), map_of(rotate(queries[1]), rotate(wide[1])))
    slack = 1 + 1e-5
    for order in ("fro", 2):
        kappa, rotary = weight_norm(w_q, w_k, order=order), rotary_weight_norm(w_q, w_k, order=order)
        assert (kappa <= rotary * slack).all()
        assert (plain <= attention_bound(kappa, size, change, head_dim=head_dim) * slack).all()
        assert (turned <= attention_bound(rotary, size, change, head_dim=head_dim) * slack).all()
    assert (plain <= near * slack).all() and (turned <= near * slack).all()
    assert (near <= attention_bound(rotary_weight_norm(w_q, w_k, order=2), size, change, head_dim=head_dim) * slack).all()
    # padding changes nothing, nor does rotation
    valid = torch.nn.functional.pad(torch.ones(2, tokens), (pad, 0))
    padded = [torch.nn.functional.pad(z, (0, 0, pad, 0), value=torch.nan) for z in (queries[0], keys[0], queries[1], keys[1])]
    assert torch.allclose(query_key_bound(*padded, valid=valid), near)
    assert torch.allclose(query_key_bound(*(rotate(z) for z in (queries[0], keys[0], queries[1], keys[1]))), near, rtol=1e-4)


def test_weight_norm_is_that_of_the_product() -> None:
    generator = torch.Generator().manual_seed(0)
    w_q, w_k = torch.randn(4, 3, 7, generator=generator), torch.randn(2, 3, 7, generator=generator)
    for order in ("fro", 2):
        product = w_q.mT @ w_k.repeat_interleave(2, 0)
        assert torch.allclose(weight_norm(w_q, w_k, order=order), torch.linalg.matrix_norm(product, ord=order), rtol=1e-5)
    with pytest.raises(ValueError, match="4 query heads for 3 key heads"):
        weight_norm(w_q, torch.randn(3, 3, 7))


def test_the_bound_is_the_formula() -> None:
    found = attention_bound(torch.tensor([2.0, 4.0]), torch.tensor([3.0]), torch.tensor([0.1]), head_dim=16)
    assert found[0].tolist() == pytest.approx([0.5 * 2 * 3 * 2 / 4 * 0.1, 0.5 * 2 * 3 * 4 / 4 * 0.1])


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny", "retrofit-olmo2-1b-tiny"])
def test_the_bound_holds_in_a_looped_model(name: str) -> None:
    """Rotary positions, biases and shared keys as they come: measured change ≤ bound, at every layer of every step."""
    model, tap = noisy(name), Recorder(("query", "key"))
    with torch.no_grad():
        model(torch.arange(1, 9)[None], depth=5, tap=tap)
    seen = {place: x.transpose(1, 2) for place, x in tap.seen.items() if place[1] == "core"}
    places = sorted((step, layer) for point, _, step, layer in seen if point == "query" and step)
    assert len(places) >= 8
    ratios = []
    for step, layer in places:
        now, before = ([seen[point, "core", t, layer] for point in ("query", "key")] for t in (step, step - 1))
        heads = now[0].shape[1]
        maps = [map_of(q, k.repeat_interleave(heads // k.shape[1], 1)) for q, k in (now, before)]
        ratios.append(attention_distance(*maps) / query_key_bound(*now, *before))
    assert max(ratio.max() for ratio in ratios) <= 1
    assert max(ratio.max() for ratio in ratios) > 1e-3  # and it is not empty
