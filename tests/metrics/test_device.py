"""Metrics stay on the device of what they are given, and say the same on every device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from loopwright import metrics
from tests.metrics.maps import causal_maps

GENERATOR = torch.Generator().manual_seed(0)
VALID = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
MAPS, OTHER = causal_maps(2, 4, 5), causal_maps(2, 4, 5, seed=1)
STATES = torch.randn(3, 2, 5, 8, generator=GENERATOR)
QUERIES, KEYS = torch.randn(2, 2, 4, 5, 6, generator=GENERATOR), torch.randn(2, 2, 2, 5, 6, generator=GENERATOR)
SERIES = torch.rand(4, 31, generator=GENERATOR)

CALLS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "concentration": (metrics.col_sum_concentration, (MAPS, VALID)),
    "sink rate": (metrics.sink_rate, (MAPS, VALID)),
    "any sink rate": (metrics.any_sink_rate, (MAPS, VALID)),
    "mixing": (metrics.mixing_score, (MAPS, VALID)),
    "reading": (lambda a, v: metrics.attention_reading(metrics.attention_sums(a, v), v), (MAPS, VALID)),
    "reading, no padding": (lambda a: metrics.attention_reading(metrics.attention_sums(a)), (MAPS,)),
    "map distance": (lambda a, b, v: metrics.attention_distance(a, b, valid=v), (MAPS, OTHER, VALID)),
    "bound": (lambda q, k, v: metrics.query_key_bound(q[0], k[0], q[1], k[1], valid=v), (QUERIES, KEYS, VALID)),
    "weights": (lambda q, k: metrics.weight_norm(q[0, 0], k[0, 0]), (QUERIES, KEYS)),
    "norm": (metrics.residual_norm, (STATES[0], VALID)),
    "cosine": (lambda a, b, v: metrics.residual_cosine(a, b, valid=v), (STATES[0], STATES[1], VALID)),
    "cosines": (metrics.residual_cosines, (STATES, VALID)),
    "entropy": (metrics.residual_entropy, (STATES[0], VALID)),
    "farthest": (metrics.farthest_layers, (STATES, VALID)),
    "gap": (
        lambda s, f, v: metrics.fixed_point_gap(s, f, layer=1, farthest=metrics.farthest_layers(f, v), valid=v),
        (STATES[0], STATES, VALID),
    ),
    "convergence": (metrics.convergence, (SERIES, SERIES)),
    "limits": (metrics.classify_limit, (SERIES,)),
    "activations": (metrics.massive_activations, (STATES[0], VALID)),
    "lens": (metrics.lens_reading, (STATES[0], STATES[1])),
    "settled": (metrics.settled_step, (STATES.argmax(-1),)),
    "curves": (metrics.curve_distance, (SERIES, SERIES[0, :7])),
    "correlation": (metrics.curve_correlation, (SERIES, SERIES[0, :7])),
    "neurons": (metrics.neuron_moments, (STATES[0, 0], torch.randn(30, 5, generator=GENERATOR))),
}
# what must look at the numbers to know what to do
LOOKING: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "map distances": (metrics.attention_distances, (torch.stack([MAPS, OTHER]), VALID)),
    "counts": (lambda x, v: metrics.limit_counts(x, v).pairs, (STATES.argmax(-1) % 4, VALID)),
    "last token": (metrics.last_tokens, (STATES[0], VALID)),
}


def tensors(result: Any) -> list[Tensor]:
    return [getattr(result, field.name) for field in fields(result)] if is_dataclass(result) else [result]


@pytest.mark.parametrize("name", CALLS)
def test_results_stay_where_the_input_is(name: str) -> None:
    call, given = CALLS[name]
    expected, found = tensors(call(*given)), tensors(call(*(x.to("meta") for x in given)))
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]
    assert {x.device.type for x in found} == {"meta"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS | LOOKING)
def test_a_gpu_says_the_same(name: str) -> None:
    call, given = (CALLS | LOOKING)[name]
    for found, expected in zip(tensors(call(*(x.cuda() for x in given))), tensors(call(*given)), strict=True):
        assert torch.allclose(found.cpu().double(), expected.double(), atol=1e-5, equal_nan=True)
