"""What published trainings draw: the first state and the depths; written from the papers and their public code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.state import STATES, NoiseState
from loopwright.retrofitting.systems import systems
from loopwright.schema import build_kind
from loopwright.training.depth import RULES
from loopwright.training.rollout import Plan
from tests.cases import noisy
from tests.systems.items import differs, same
from tests.training.test_fresh_start import NOISE, check_fresh, starts_of

HUGINN, RETROFIT, ANALYSIS = "Huginn", "Retrofitted recurrence", "A mechanistic analysis"
STD = math.sqrt(2 / (5 * 5280))


def first_states(config: LoopedConfig) -> Tensor:
    """The first states of 64 rows of 64 times one token, in training, of a narrow model with a config's std and scale [B, T, D]."""
    full: NoiseState = build_kind(config.state, STATES, config)
    state = {"kind": "noise", "std": full.std, "scale": full.scale}
    narrow = LoopedConfig(vocab_size=5, hidden_size=64, intermediate_size=8, num_attention_heads=2, state=state, depth=1)
    model = lw.LoopedForCausalLM(narrow).train()
    e, p = model.embed(torch.zeros(64, 64, dtype=torch.long))
    torch.manual_seed(0)
    return model.start_state(e, p).double()


def is_truncated_normal(x: Tensor, std: float) -> bool:
    """Kolmogorov and Smirnov's distance from a normal cut at three std is below its 0.1 % value."""
    found, edge = np.sort((x / std).flatten().numpy()), math.erf(3 / math.sqrt(2))
    wanted = (torch.erf(torch.from_numpy(found) / math.sqrt(2)).numpy() / edge + 1) / 2
    return bool(np.abs(wanted - (np.arange(len(found)) + 0.5) / len(found)).max() < 1.95 / math.sqrt(len(found)))


def independent(x: Tensor) -> bool:
    """Rows, positions and channels have nothing to do with each other."""
    for dim in range(3):
        series = x.movedim(dim, 0).flatten(1)[:24]
        off = torch.corrcoef(series) - torch.eye(24, dtype=x.dtype)
        if off.abs().max() > 5 / math.sqrt(series.shape[1]):
            return False
    return True


@same(HUGINN, "state: truncated normal, std √(2 / 5D) · √D, drawn for every row, position and channel")
def test_state_of_huginn() -> None:
    """initialize_state: trunc_normal_(std, ±3 std) times the embedding's scale, at every forward."""
    x = first_states(lw.preset("huginn"))
    assert is_truncated_normal(x, STD * math.sqrt(5280)) and independent(x)
    assert not is_truncated_normal(x * 1.03, STD * math.sqrt(5280))
    assert not independent(x[:1].expand_as(x)) and not independent(x[:, :1].expand_as(x))


@same(RETROFIT, "state: truncated normal of std 0.0087, without a scale, drawn in every pass that trains")
@pytest.mark.parametrize("of", ["preset", "system"])
def test_state_of_a_retrofit(of: str) -> None:
    chosen = lw.preset("retrofit-llama-1b").state if of == "preset" else systems()["retrofit"].plan["state"]
    config = LoopedConfig(vocab_size=5, hidden_size=64, num_attention_heads=2, intermediate_size=8, state=chosen)
    x = first_states(config)
    assert is_truncated_normal(x, 0.008703882797784892) and independent(x)


@same(HUGINN, "a new state for every row of every update")
@same(RETROFIT, "a new state for every row of every update")
@pytest.mark.long
def test_training_draws_anew(tmp_path: Path) -> None:
    check_fresh(starts_of(tmp_path / "run")[0], 48)
    one = {"model": {**NOISE["model"], "changes": {**NOISE["model"]["changes"], "state": {"kind": "zero"}}}}
    with pytest.raises(AssertionError):
        check_fresh(starts_of(tmp_path / "zero", one)[0], 48)


def published_depths(means: Sequence[float], draws: int, generator: np.random.Generator) -> list[list[int]]:
    """The sampler: a rate from LogNormal(ln m − 1/8, 1/2), one more than Poisson of it; so many draws an update."""
    rates = [np.exp(generator.normal(math.log(mean) - 1 / 8, 0.5, draws)) for mean in means]
    return [(generator.poisson(rate) + 1).tolist() for rate in rates]


def depths_of(rule: dict, batches: int, updates: int) -> tuple[list[list[int]], list[Plan]]:
    """The different depths of each update of a rule, one after the other, and all its plans."""
    built, generator = build_kind(rule, RULES), torch.Generator().manual_seed(1)
    plans = [built.plans(update, batches, generator) for update in range(updates)]
    draws = rule["draws"]
    each = [[plan.depth for plan in some[:: batches // draws]] for some in plans]
    assert [[plan.depth for plan in some] for some in plans] == [
        [depth for depth in depths for _ in range(batches // draws)] for depths in each
    ]
    return each, [plan for some in plans for plan in some]


HUGINNS = {"kind": "poisson-log-normal", "mean": 32, "sigma": 0.5, "grad_steps": 8}


@same(HUGINN, "one draw of depth an update, gradient through min(8, depth)")
def test_draws_of_huginn() -> None:
    """One draw a forward pass, the same on 4,096 devices of a row each: an update's mean depth spreads by 18.7."""
    found, plans = depths_of({"kind": "lockstep", "draws": 1, "rule": HUGINNS}, 16, 1500)
    wanted = published_depths([32] * 1500, 1, np.random.default_rng(0))
    assert np.std(found) == pytest.approx(np.std(wanted), rel=0.12) and np.mean(found) == pytest.approx(33, abs=1.6)
    assert all(plan.grad_steps == min(8, plan.depth) for plan in plans)
    alone = build_kind(HUGINNS, RULES)  # planted: a draw for each of 16 batches
    generator = torch.Generator().manual_seed(1)
    means = [np.mean([plan.depth for plan in alone.plans(update, 16, generator)]) for update in range(60)]
    assert np.std(means) < 0.4 * np.std(wanted)


@same(RETROFIT, "two draws of depth an update, the mean grown by 1 − √(1 − x)")
def test_draws_of_a_retrofit() -> None:
    rule = {"kind": "curriculum", "shape": "1-sqrt", "start": 1, "updates": 750, "rule": HUGINNS}
    found, plans = depths_of({"kind": "lockstep", "draws": 2, "rule": rule}, 16, 1000)
    means = [max(1, math.ceil(32 * (1 - math.sqrt(1 - min(update / 750, 1))))) for update in range(1000)]
    wanted = published_depths(means, 2, np.random.default_rng(0))
    for some in (slice(0, 300), slice(300, 700), slice(750, 1000)):
        assert np.mean(found[some]) == pytest.approx(np.mean(wanted[some]), rel=0.09)
        assert np.std(np.mean(found[some], 1)) == pytest.approx(np.std(np.mean(wanted[some], 1)), rel=0.25)
    assert all(plan.grad_steps == min(8, means[plan.update], plan.depth) for plan in plans)


@differs(HUGINN, "first state of an answer")
@differs(RETROFIT, "first state of an answer")
def test_answers_start_from_one_seed() -> None:
    """There torch's generator, in every forward pass; here a function of (seed, position, channel)."""
    model = noisy("huginn-tiny")
    ids = torch.arange(6)[None]
    assert torch.equal(model(ids).logits, model(ids).logits)
    assert not torch.equal(model(ids, state_seed=1).logits, model(ids).logits)


@differs(ANALYSIS, "first state of injected loops (2.1)")
def test_noise_is_cut_at_three_std() -> None:
    x = first_states(lw.preset("huginn"))
    assert 2.99 < (x.abs().max() / (STD * math.sqrt(5280))) <= 3
