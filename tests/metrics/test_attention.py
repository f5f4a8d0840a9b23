"""What attention maps say, how far they are from one another, and stage curves."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from loopwright.metrics.attention import (
    SINK,
    AttentionReading,
    AttentionSums,
    any_sink_rate,
    attention_bound,
    attention_distance,
    attention_distances,
    attention_pair_bytes,
    attention_reading,
    attention_sums,
    block_curves,
    block_halves,
    col_sum_concentration,
    curve_correlation,
    curve_distance,
    mixing_score,
    query_key_bound,
    relative_depth,
    resample,
    residual_pair_bytes,
    rotary_weight_norm,
    sink_rate,
    sink_score,
    squared_attention_distance,
    weight_norm,
)
from loopwright.model.taps import Recorder
from tests.cases import golden_folders, noisy
from tests.metrics.maps import causal_maps, with_padding

CASES = [
    (folder, case["prefix"])
    for folder in golden_folders("attention-metrics")
    for case in json.loads((folder / "case.json").read_text())["cases"]
]


def fields(reading: AttentionReading) -> list[Tensor]:
    return [reading.concentration, reading.mixing, reading.first_sink, reading.top_sink, reading.top_token.double()]


def reading_of(maps: Tensor, valid: Tensor | None = None) -> AttentionReading:
    return attention_reading(attention_sums(maps, valid), valid)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("folder", "prefix"), CASES)
def test_golden(folder: Path, prefix: str, dtype: torch.dtype, bound: float) -> None:
    values = {key.removeprefix(prefix): x for key, x in load_file(folder / "golden.safetensors").items() if key.startswith(prefix)}
    maps, valid = values["attention"].to(dtype), values.get("token_mask")
    real = torch.ones(maps.shape[-1], dtype=torch.bool) if valid is None else valid.bool()
    assert torch.allclose(col_sum_concentration(maps, valid).double(), values["colsum_concentration"], atol=bound, rtol=0)
    assert torch.allclose(mixing_score(maps, valid).double(), values["mixing_score"], atol=bound, rtol=0)
    assert torch.allclose(sink_score(maps, valid)[:, real].double(), values["sink_score"], atol=bound, rtol=0)
    assert torch.equal(sink_rate(maps, valid)[real], values["sink_rate"])
    sinks = values["sink_score"] > 0.3
    assert any_sink_rate(maps, valid).item() == sinks.any(-1).double().mean()
    reading = reading_of(maps, valid)
    assert torch.allclose((reading.first_sink > SINK).double().mean(-1), values["sink_rate"][0])
    assert torch.equal(reading.top_token, values["sink_score"].argmax(-1))
    assert torch.allclose(reading.mixing.double(), values["mixing_score"], atol=bound, rtol=0)


@pytest.mark.parametrize("tokens", [2, 3, 17])
def test_uniform_causal_rows_receive_the_tails_of_the_harmonic_series(tokens: int) -> None:
    maps = torch.ones(tokens, tokens, dtype=torch.float64).tril()
    maps = (maps / maps.sum(-1, keepdim=True))[None]
    received = [sum(1 / i for i in range(j, tokens + 1)) / tokens for j in range(1, tokens + 1)]
    expected = 1 + sum(c * math.log(c) for c in received) / math.log(tokens)
    assert col_sum_concentration(maps).item() == pytest.approx(expected, abs=1e-12)
    assert mixing_score(maps).item() == pytest.approx(sum(math.log(i) for i in range(1, tokens + 1)) / tokens, abs=1e-12)
    assert sink_score(maps)[0].tolist() == pytest.approx(received)


def test_limits() -> None:
    tokens = 9
    uniform = torch.full((1, tokens, tokens), 1 / tokens, dtype=torch.float64)
    assert col_sum_concentration(uniform).item() == pytest.approx(0, abs=1e-12)
    assert mixing_score(uniform).item() == pytest.approx(math.log(tokens))
    first = torch.zeros(1, tokens, tokens)
    first[..., 0] = 1
    assert col_sum_concentration(first).item() == 1 and mixing_score(first).item() == 0
    assert sink_rate(first).tolist() == [1.0] + [0.0] * (tokens - 1)
    itself = torch.eye(tokens, dtype=torch.float64)[None]
    assert col_sum_concentration(itself).item() == pytest.approx(0, abs=1e-12) and mixing_score(itself).item() == 0
    assert any_sink_rate(itself).item() == 0


def test_one_token_receives_everything_and_none_is_not_a_number() -> None:
    maps = torch.ones(2, 3, 1, 1)
    assert torch.equal(col_sum_concentration(maps), torch.ones(2, 3)) and torch.equal(mixing_score(maps), torch.zeros(2, 3))
    maps, valid = causal_maps(2, 3, 4), torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]])
    assert torch.equal(col_sum_concentration(maps, valid)[0], torch.ones(3))
    for values in (col_sum_concentration(maps, valid), mixing_score(maps, valid), sink_score(maps, valid)[..., 0]):
        assert values[1].isnan().all() and not values[0].isnan().any()


def test_the_threshold_is_strict() -> None:
    maps = torch.zeros(1, 10, 10, dtype=torch.float64)
    maps[0, :, 1], maps[0, :3, 1], maps[0, :3, 0] = 1, 0, 1  # 3 of 10 rows look at the first
    assert sink_score(maps)[0, 0].item() == 0.3
    assert sink_rate(maps)[0].item() == 0 and sink_rate(maps, threshold=0.29)[0].item() == 1
    assert sink_rate(maps)[1].item() == 1


@settings(max_examples=25)
@given(seed=st.integers(0, 999), tokens=st.integers(2, 9), left=st.integers(0, 3), right=st.integers(0, 3))
def test_padded_is_alone(seed: int, tokens: int, left: int, right: int) -> None:
    maps = causal_maps(2, 3, tokens, seed=seed)
    padded, valid = with_padding(maps, left, right)
    assert torch.allclose(col_sum_concentration(padded, valid), col_sum_concentration(maps), atol=1e-6)
    assert torch.allclose(mixing_score(padded, valid), mixing_score(maps), atol=1e-6)
    assert torch.allclose(sink_score(padded, valid)[..., left : left + tokens], sink_score(maps), atol=1e-6)
    assert torch.equal(any_sink_rate(padded, valid), any_sink_rate(maps))
    for found, expected in zip(fields(reading_of(padded, valid)), fields(reading_of(maps)), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


@settings(max_examples=25)
@given(seed=st.integers(0, 999), tokens=st.integers(2, 9), block=st.integers(1, 9), left=st.integers(0, 2))
def test_blocks_of_rows_add_up(seed: int, tokens: int, block: int, left: int) -> None:
    maps, valid = with_padding(causal_maps(2, 3, tokens, seed=seed), left, 1)
    length = maps.shape[-1]
    sums: AttentionSums | None = None
    for start in range(0, length, block):
        part = slice(start, start + block)
        new = attention_sums(maps[..., part, :], valid, valid_rows=valid[:, part])
        sums = new if sums is None else sums + new
    assert sums is not None
    reading = attention_reading(sums, valid)
    assert torch.allclose(reading.concentration, col_sum_concentration(maps, valid), atol=1e-6)
    assert torch.allclose(reading.mixing, mixing_score(maps, valid), atol=1e-6)
    scores = sink_score(maps, valid)
    assert torch.allclose(reading.first_sink, scores[..., left], atol=1e-6)
    assert torch.allclose(reading.top_sink, scores.amax(-1), atol=1e-6)
    assert torch.allclose(reading.any_sink_rate(), any_sink_rate(maps, valid).float(), atol=1e-6)


def test_low_precision_is_summed_in_float32_and_leading_dimensions_stay() -> None:
    maps = causal_maps(6, 3, 300).view(2, 3, 3, 300, 300)
    low = mixing_score(maps.bfloat16())
    assert low.dtype == torch.float32 and low.shape == (2, 3, 3)
    assert torch.allclose(low, mixing_score(maps.bfloat16().float()), atol=1e-6)
    assert col_sum_concentration(maps.bfloat16()).shape == (2, 3, 3)


def test_a_wrong_count_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="4 valid_rows for 2 rows"):
        attention_sums(torch.rand(1, 1, 2, 4), torch.ones(1, 4))


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


@settings(max_examples=25)
@given(seed=st.integers(0, 999), layers=st.integers(1, 12), points=st.integers(2, 50))
def test_resampling_is_linear_interpolation(seed: int, layers: int, points: int) -> None:
    curve = torch.randn(2, layers, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    at = numpy.linspace(0, 100, points)
    expected = [numpy.interp(at, relative_depth(layers).numpy(), row.numpy()) for row in curve]
    assert numpy.allclose(resample(curve, points).numpy(), numpy.stack(expected))


def test_a_line_is_the_same_line_at_any_number_of_layers() -> None:
    line = torch.linspace(0, 1, 4)
    assert curve_distance(line, torch.linspace(0, 1, 16)).item() == pytest.approx(0, abs=1e-7)
    assert curve_distance(line, torch.zeros(5)).item() == pytest.approx(0.5)
    assert curve_distance(line, line + 0.25).item() == pytest.approx(0.25)
    assert curve_correlation(line, torch.linspace(3, 9, 7)).item() == pytest.approx(1)
    assert curve_correlation(line, -line).item() == pytest.approx(-1)
    assert math.isnan(curve_correlation(line, torch.ones(3)).item())


def test_one_dense_curve_meets_every_step() -> None:
    steps, dense = torch.rand(5, 6), torch.rand(11)
    found = curve_distance(steps, dense)
    assert found.shape == (5,)
    assert torch.allclose(found, torch.stack([curve_distance(step, dense) for step in steps]))
    assert torch.allclose(curve_distance(dense, steps), found)


def test_a_block_stands_between_prelude_and_coda_at_every_step() -> None:
    prelude, core, coda = torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [4.0]]), torch.tensor([5.0])
    assert block_curves(prelude, core, coda).tolist() == [[1, 2, 3, 5], [1, 2, 4, 5]]
    assert block_curves(prelude[:0], core, coda[:0]).tolist() == core.tolist()
    assert block_curves(prelude.expand(3, 2), core.expand(3, 2, 1), coda.expand(3, 1)).shape == (3, 2, 4)


def test_halves() -> None:
    first, second = block_halves(torch.arange(6))
    assert first.tolist() == [0, 1, 2] and second.tolist() == [3, 4, 5]
    first, second = block_halves(torch.arange(5))
    assert first.tolist() == [0, 1, 2] and second.tolist() == [2, 3, 4]


def test_no_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="0 layers at 101 points"):
        resample(torch.zeros(0))
