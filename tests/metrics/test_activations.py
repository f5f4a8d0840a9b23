"""Massive activations: planted ones are found, padding is not."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.metrics.predictions import massive_activations


def test_a_planted_one_is_found_and_both_thresholds_count() -> None:
    x = torch.full((3, 4, 8), 0.1)
    x[0, 2, 5] = -150.0
    x[1, 2, 5] = 99.0  # too small
    x[2] = 1.0
    x[2, 1, 3] = 999.0  # not far enough from the rest
    found = massive_activations(x)
    assert found.massive.tolist() == [1, 0, 0]
    assert found.top.tolist() == [150, 99, 999] and found.token.tolist() == [2, 2, 1] and found.channel.tolist() == [5, 5, 3]
    assert found.ratio.tolist() == torch.tensor([150 / 0.1, 99 / 0.1, 999]).tolist()
    assert massive_activations(x, floor=90, ratio=900).massive.tolist() == [1, 1, 1]


@settings(max_examples=25)
@given(seed=st.integers(0, 999), tokens=st.integers(1, 6), left=st.integers(0, 3), right=st.integers(0, 3))
def test_padded_is_alone(seed: int, tokens: int, left: int, right: int) -> None:
    x = 100 * torch.randn(2, tokens, 5, generator=torch.Generator().manual_seed(seed))
    valid = torch.nn.functional.pad(torch.ones(2, tokens), (left, right))
    for value in (1e9, torch.nan):
        padded = torch.nn.functional.pad(x, (0, 0, left, right), value=value)
        found, alone = massive_activations(padded, valid, ratio=2), massive_activations(x, ratio=2)
        for name in ("top", "median", "token", "channel", "massive"):
            assert torch.equal(getattr(found, name), getattr(alone, name)), name


def test_what_is_no_number_is_said() -> None:
    x = torch.ones(3, 2, 4)
    x[0, 0, 0], x[1, 0, 0] = torch.nan, torch.inf
    found = massive_activations(x, torch.tensor([[1, 1], [1, 1], [0, 0]]))
    assert found.top[0].isnan() and found.top[1].isinf() and found.top[2].isnan() and found.median[2].isnan()
    assert found.massive.tolist() == [0, 1, 0]
