"""Schedules: exact values against closed forms, and what holds of every one of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.schema import build_kind, check_kind
from loopwright.training.optim import AVERAGES, EMA, SCHEDULES, Average, cut_short
from tests.cases import noisy

KINDS: list[dict[str, Any]] = [
    {"kind": "constant", "warmup": 3},
    {"kind": "cosine", "warmup": 3, "floor": 0.1},
    {"kind": "linear", "warmup": 3},
    {"kind": "wsd", "warmup": 3, "decay": 4, "shape": "sqrt"},
    {"kind": "wsd", "warmup": 3, "decay": 4, "shape": "linear", "floor": 0.2},
]


def factors(spec: dict[str, Any], updates: int) -> list[float]:
    check_kind("schedule", spec, SCHEDULES)
    schedule = build_kind(spec, SCHEDULES)
    return [schedule(update, updates) for update in range(updates + 2)]


def test_exact_values() -> None:
    warm = [1 / 4, 2 / 4, 3 / 4, 1.0]
    assert factors({"kind": "constant", "warmup": 3}, 6) == [*warm, 1, 1, 1, 1]
    assert factors({"kind": "constant"}, 2) == [1, 1, 1, 1]
    assert factors({"kind": "linear", "warmup": 3}, 8) == [*warm, 4 / 5, 3 / 5, 2 / 5, pytest.approx(1 / 5), 0, 0]
    half = 0.1 + 0.9 * 0.5
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * x)) / 2 for x in (0, 0.25, 0.5, 0.75)]
    assert factors({"kind": "cosine", "warmup": 3, "floor": 0.1}, 7) == pytest.approx([*warm[:3], *cosine, 0.1, 0.1])
    assert cosine[2] == pytest.approx(half)
    root = [1 - math.sqrt(x) for x in (0, 0.25, 0.5, 0.75)]
    assert factors({"kind": "wsd", "warmup": 3, "decay": 4, "shape": "sqrt"}, 10) == pytest.approx([*warm, 1, 1, *root, 0, 0])
    line = [0.2 + 0.8 * x for x in (1, 0.75, 0.5, 0.25)]
    spec = {"kind": "wsd", "warmup": 3, "decay": 4, "floor": 0.2}
    assert factors(spec, 10) == pytest.approx([*warm, 1, 1, *line, 0.2, 0.2])


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: f"{spec['kind']}-{spec.get('shape', '')}")
@given(updates=st.integers(1, 40), warmup=st.integers(0, 50))
def test_every_update_moves_and_none_is_above_the_full_rate(spec: dict[str, Any], updates: int, warmup: int) -> None:
    """Also where the run is shorter than its warm-up or decay: a recipe must run at toy size."""
    found = factors({**spec, "warmup": warmup}, updates)
    assert all(0 < factor <= 1 for factor in found[:updates])
    top = min(warmup, updates - 1)
    assert found[: top + 1] == pytest.approx([(u + 1) / (warmup + 1) for u in range(top + 1)])
    if updates > warmup:
        assert found[top:] == sorted(found[top:], reverse=True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "cosine", "warmup": -1}, r"schedule\.warmup must be a whole number >= 0 \(got -1\)"),
        ({"kind": "linear", "floor": 1.5}, r"schedule\.floor must be >= 0 and <= 1 \(got 1.5\)"),
        ({"kind": "wsd", "decay": 3, "shape": "cubic"}, "shape is 'cubic'; allowed: linear, cosine, sqrt"),
        ({"kind": "wsd"}, "missing decay"),
        ({"kind": "cosine", "warmups": 3}, "did you mean 'warmup'"),
        ({"kind": "cosine", "warmup": 0.1}, "allowed: a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        factors(spec, 4)


NEVER = "schedule: warmup is {} and the run has {} updates: it never comes to the full rate"


@pytest.mark.parametrize(
    ("spec", "updates", "told"),
    [
        ({"kind": "constant", "warmup": 9}, 10, []),
        ({"kind": "constant", "warmup": 10}, 10, [NEVER.format(10, 10)]),
        ({"kind": "cosine", "warmup": 2_000}, 20, [NEVER.format("2,000", 20)]),
        ({"kind": "wsd", "warmup": 4, "decay": 6}, 10, []),
        (
            {"kind": "wsd", "warmup": 4, "decay": 7}, 10,
            ["schedule: decay is 7 and the run has 6 updates after its warmup: the rate falls over these alone"],
        ),
    ],
)  # fmt: skip
def test_what_a_run_is_too_short_for_is_told_and_so(spec: dict[str, Any], updates: int, told: list[str]) -> None:
    schedule = build_kind(spec, SCHEDULES)
    assert cut_short(schedule, updates) == told
    rates = [schedule(update, updates) for update in range(updates)]
    assert (max(rates) == 1) is not any("full rate" in line for line in told)
    if spec["kind"] == "wsd":
        assert sum(rate < 1 for rate in rates[spec["warmup"] :]) == min(spec["decay"], updates - spec["warmup"]) - 1


def test_a_kind_of_ones_own_is_asked_for_nothing() -> None:
    assert cut_short(lambda update, updates: 1.0, 3) == []


# The moving average: its equation, its place in an evaluation, and its way through a checkpoint


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
def test_an_average_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"average\.\w+ must be .* \(got "):
        EMA(**options)
