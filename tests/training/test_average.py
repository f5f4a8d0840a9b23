"""The moving average: its equation, its place in an evaluation, and its way through a checkpoint."""

from __future__ import annotations

import pytest
import torch

from loopwright.schema import build_kind, check_kind
from loopwright.training.optim import AVERAGES, EMA, Average
from tests.cases import noisy


def wander(average: Average, updates: range) -> None:
    """Moves the parameters as a function of the update alone."""
    for update in updates:
        generator = torch.Generator().manual_seed(update)
        with torch.no_grad():
            for parameter in average.parameters.values():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        average.take_in(update)


@pytest.mark.parametrize(("decay", "warmup"), [(0.9, 0), (0.99, 9)])
def test_it_is_the_weighted_sum_of_all_that_was(decay: float, warmup: int) -> None:
    model = noisy("universal-tiny")
    spec = {"kind": "ema", "decay": decay, "warmup": warmup}
    check_kind("average", spec, AVERAGES)
    average = build_kind(spec, AVERAGES)(model)
    start = model.lm_head.weight.detach().double()
    seen = []
    for update in range(6):
        wander(average, range(update, update + 1))
        seen.append(model.lm_head.weight.detach().double())
    d = [min(decay, (u + 1) / (u + 1 + warmup)) for u in range(6)]
    assert [average.decay_at(u) for u in range(6)] == d
    if warmup == 9:
        assert d[:3] == [1 / 10, 2 / 11, 3 / 12]
    weights = [1.0 if place == 0 else 1 - d[place - 1] for place in range(7)]
    for place in range(7):
        for later in d[place:]:
            weights[place] *= later
    assert sum(weights) == pytest.approx(1)
    expected = sum(w * value for w, value in zip(weights, [start, *seen], strict=True))
    name = next(n for n, p in model.named_parameters() if p is model.lm_head.weight)
    assert (average.values[name].double() - expected).abs().max() < 1e-6


def test_the_averages_stand_in_and_the_parameters_come_back_bit_for_bit() -> None:
    model = noisy("universal-tiny")
    average = EMA(0.5)(model)
    wander(average, range(3))
    ids = torch.arange(8)[None]
    with torch.no_grad():
        plain, before = model(ids).logits, {n: p.clone() for n, p in model.named_parameters()}
        addresses = [p.data_ptr() for p in model.parameters()]
        with average.swapped():
            assert all(torch.equal(p, average.values[n]) for n, p in model.named_parameters())
            assert not torch.equal(model(ids).logits, plain)
        assert torch.equal(model(ids).logits, plain)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert addresses == [p.data_ptr() for p in model.parameters()]  # what was captured or compiled still points right
    with pytest.raises(KeyError), average.swapped():
        raise KeyError
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_only_what_is_trained_is_averaged() -> None:
    model = noisy("universal-tiny")
    model.embed_tokens.requires_grad_(False)
    assert set(EMA()(model).values) == {n for n, p in model.named_parameters() if p.requires_grad} != set()
    assert "embed_tokens.weight" not in EMA()(model).values


def test_averages_go_on_from_their_tensors_bit_for_bit() -> None:
    whole, first, second = (EMA(0.9, 5)(noisy("universal-tiny", seed=seed)) for seed in (0, 0, 1))
    wander(whole, range(6))
    wander(first, range(3))
    second.load_state_tensors(first.state_tensors())
    wander(second, range(3, 6))
    assert all(torch.equal(value, second.values[name]) for name, value in whole.values.items())


def test_averages_of_another_model_are_refused() -> None:
    average = EMA()(noisy("universal-tiny"))
    tensors = average.state_tensors()
    for wrong in ({}, {**tensors, "more": torch.zeros(1)}, {**tensors, "embed_tokens.weight": torch.zeros(3)}):
        with pytest.raises(ValueError, match="average: does not fit the trainable parameters: "):
            average.load_state_tensors(wrong)


@pytest.mark.parametrize("options", [{"decay": 1.0}, {"decay": -0.1}, {"warmup": -1}])
def test_what_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"average\.\w+ must be .* \(got "):
        EMA(**options)
