"""Attention metrics: golden numbers, analytic limits, padded = alone, blocks of rows = the whole map."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from loopwright.metrics.attention import (
    AttentionReading,
    AttentionSums,
    any_sink_rate,
    attention_reading,
    attention_sums,
    col_sum_concentration,
    mixing_score,
    sink_rate,
    sink_score,
)
from tests.cases import golden_folders
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
    assert torch.allclose(reading.first_sink_rate().double(), values["sink_rate"][0])
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
