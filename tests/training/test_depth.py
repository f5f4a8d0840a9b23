"""Depth rules: their moments against the published settings, their bounds, their stream of random numbers, their refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.schema import build_kind, check_kind
from loopwright.training.depth import (
    RULES,
    Choice,
    Curriculum,
    DepthRule,
    Fixed,
    Lockstep,
    LogNormal,
    Poisson,
    PoissonLogNormal,
    Uniform,
    poisson_cdf,
    poisson_quantile,
)

SPECS: dict[str, dict[str, Any]] = {
    "fixed": {"kind": "fixed", "depth": 4},
    "choice": {"kind": "choice", "values": [4, 8, 16, 32]},
    "uniform": {"kind": "uniform", "least": 2, "most": 9},
    "poisson": {"kind": "poisson", "mean": 10, "most": 30},
    "log-normal": {"kind": "log-normal", "mu": 2, "sigma": 0.7, "most": 100},
    "poisson-log-normal": {"kind": "poisson-log-normal", "mean": 32},
    "curriculum": {"kind": "curriculum", "rule": {"kind": "poisson-log-normal", "mean": 32}, "updates": 100, "shape": "1-sqrt"},
    "lockstep": {"kind": "lockstep", "rule": {"kind": "poisson-log-normal", "mean": 32}},
}


def rule_of(name: str, **changes: Any) -> DepthRule:
    spec = {**SPECS[name], **changes}
    check_kind("depth", spec, RULES)
    return build_kind(spec, RULES)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spread(rule: DepthRule) -> np.ndarray:
    """Depths at evenly spaced quantiles: the distribution of a rule that reads only the first number, without noise."""
    return np.array([rule.depth_at((i + 0.5) / 20_000, 0.5) for i in range(20_000)])


def test_every_rule_is_here() -> None:
    assert set(SPECS) == set(RULES)


@pytest.mark.parametrize(
    ("mu", "sigma", "most", "mean", "median"),
    # the STARS study's settings, and the ones of the addition prototype
    [(2, 0.7, 100, 9.4, 7), (1.7, 0.4, 16, 5.9, 5), (2.62, 0.6, 40, 16.0, 14), (3.2, 0.45, 80, 27, 25), (1.4, 0.5, 16, 4.5, 4)],
)
def test_log_normal_moments(mu: float, sigma: float, most: int, mean: float, median: int) -> None:
    rule = LogNormal(mu, sigma, most)
    depths = spread(rule)
    assert depths.mean() == pytest.approx(mean, abs=0.11 if mean < 20 else 0.3)
    assert rule.median == int(np.median(depths)) == median
    assert depths.min() >= 1 and depths.max() <= most
    if (mu, sigma) == (2, 0.7):
        assert np.percentile(depths, 99) == pytest.approx(38, abs=1)


@pytest.mark.parametrize("mean", [5, 10])
def test_poisson_moments(mean: float) -> None:
    rule = Poisson(mean, most=30)
    depths = np.array([rule.depth_at((i + 0.5) / 2000, 0.5) for i in range(2000)])
    assert depths.mean() == pytest.approx(mean, abs=0.05) and depths.var() == pytest.approx(mean, rel=0.03)
    assert rule.median == int(np.median(depths)) == mean
    assert depths.min() == 1 and depths.max() <= 30


def test_poisson_quantiles_are_those_of_the_probabilities() -> None:
    rate = 7.3
    mass = [math.exp(k * math.log(rate) - rate - math.lgamma(k + 1)) for k in range(40)]
    total = np.cumsum(mass)
    assert np.allclose(poisson_cdf(torch.arange(40.0, dtype=torch.float64), torch.tensor(rate, dtype=torch.float64)), total)
    for u in (0.0, 1e-9, 0.01, 0.3, 0.5, 0.77, 0.999):
        assert poisson_quantile(u, rate) == int(np.searchsorted(total, u, side="right"))
    assert poisson_quantile(0.5, 1e-12) == 0
    assert poisson_quantile(0.5, 5000.0) == 5000


def test_uniform_and_choice_moments() -> None:
    depths = spread(Uniform(40))
    assert (depths.min(), depths.max()) == (1, 40) and np.ptp(np.bincount(depths)[1:]) <= 1
    assert Uniform(10).median == 5 and Uniform(9, least=3).median == 6
    ouroboros = Choice([32, 4, 16, 8])
    values, counts = np.unique(spread(ouroboros), return_counts=True)
    assert values.tolist() == [4, 8, 16, 32] and set(counts) == {5000}
    assert (ouroboros.median, ouroboros.most) == (8, 32)
    weighted = Choice([8, 2], weights=[3, 1])
    assert np.mean(spread(weighted) == 8) == 0.75 and weighted.median == 8
    assert set(spread(Choice([3, 5, 7], weights=[1, 0, 0]))) == {3}
    assert Choice([7, 3], weights=[0, 1]).depth_at(1 - 2.0**-53, 0.0) == 3


@pytest.mark.long
def test_huginn() -> None:
    """Mean 33, deviation 18, median 29, 99th percentile 94, less than 8 in under 1 % (simulated from the released sampler)."""
    rule = PoissonLogNormal(32)
    draw = generator()
    plans = [rule(0, draw) for _ in range(4000)]
    depths = np.array([plan.depth for plan in plans])
    assert depths.mean() == pytest.approx(33, abs=1) and depths.std() == pytest.approx(18, abs=1)
    assert np.percentile(depths, 99) == pytest.approx(94, abs=7) and np.mean(depths < 8) < 0.015
    assert rule.median == 29 and np.median(depths) == pytest.approx(29, abs=1)
    assert all(plan.grad_steps == min(8, plan.depth) for plan in plans)
    assert rule.most is None


def test_huginn_split_of_short_means_and_of_all_steps() -> None:
    assert {PoissonLogNormal(3)(0, generator(seed)).grad_steps for seed in range(60)} == {1, 2, 3}
    assert PoissonLogNormal(2.5).grad_steps == 3 and PoissonLogNormal(0.5).grad_steps == 1
    plan = PoissonLogNormal(32, grad_steps=None)(0, generator())
    assert plan.grad_steps == plan.depth
    assert max(PoissonLogNormal(32, most=20)(0, generator(seed)).depth for seed in range(60)) == 20


@pytest.mark.parametrize("name", sorted(set(SPECS) - {"curriculum", "lockstep"}))
def test_gradient_through_the_last_steps_or_all(name: str) -> None:
    few, every = rule_of(name, grad_steps=3), rule_of(name, grad_steps=None)
    for seed in range(8):
        plan, whole = few(5, generator(seed)), every(5, generator(seed))
        assert plan.grad_steps == min(3, plan.depth) and plan.depth == whole.depth == whole.grad_steps
        assert plan.update == 5


@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_stream_is_two_numbers_a_call(name: str) -> None:
    rule, draw, reference = rule_of(name), generator(9), generator(9)
    for update in (0, 3, 50, 200):
        rule(update, draw)
        torch.rand(2, dtype=torch.float64, generator=reference)
        assert torch.equal(draw.get_state(), reference.get_state())
    before = torch.get_rng_state()
    saved = draw.get_state()
    first = [rule(update, draw) for update in range(20)]
    resumed = torch.Generator()
    resumed.set_state(saved)
    assert [rule(update, resumed) for update in range(20)] == first
    assert torch.equal(before, torch.get_rng_state())


@given(
    name=st.sampled_from(sorted(SPECS)), u=st.floats(0, 1, exclude_max=True), v=st.floats(0, 1, exclude_max=True),
    update=st.integers(0, 150),
)  # fmt: skip
@settings(max_examples=120)
def test_bounds(name: str, u: float, v: float, update: int) -> None:
    rule = rule_of(name)
    plan = rule.plan(update, u, v)
    assert 1 <= plan.grad_steps <= plan.depth
    assert rule.most is None or plan.depth <= rule.most
    if name == "uniform":
        assert plan.depth >= 2


@given(u=st.floats(0, 1, exclude_max=True), w=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60)
def test_larger_numbers_are_deeper(u: float, w: float) -> None:
    """What makes the median of a rule its depth at one half."""
    for name in ("fixed", "choice", "uniform", "poisson", "log-normal"):
        assert rule_of(name).depth_at(min(u, w), 0.5) <= rule_of(name).depth_at(max(u, w), 0.5)


def test_curriculum_grows_the_mean_as_published() -> None:
    """m = max(1, ⌈M f⌉), f = x or 1 − √(1 − x), x = update / updates; the gradient through min(8, m) steps."""
    for shape, share in (("linear", lambda x: x), ("1-sqrt", lambda x: 1 - math.sqrt(1 - x))):
        rule = Curriculum({"kind": "poisson-log-normal", "mean": 32}, updates=1000, shape=shape)
        for update in (0, 1, 10, 250, 500, 750, 999):
            size = max(1, math.ceil(32 * share(update / 1000)))
            assert rule.at(update).size == size and rule.at(update).grad_steps == min(8, size)
        assert rule.at(1000) is rule.rule and rule.at(10**9).size == 32
        assert rule.median == rule.rule.median == 29
    early, late = (
        np.mean([rule(update, draw).depth for _ in range(300)]) for update, draw in ((100, generator()), (1000, generator()))
    )
    assert early == pytest.approx(1 + 2, abs=0.5) and late == pytest.approx(33, abs=3)


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ({"kind": "fixed", "depth": 8}, [2, 4, 8]),
        ({"kind": "choice", "values": [4, 8]}, [2, 4, 8]),
        ({"kind": "uniform", "least": 3, "most": 8}, [2, 4, 8]),
        ({"kind": "poisson", "mean": 7.5}, [2, 4, 7.5]),
        ({"kind": "log-normal", "mu": math.log(8), "sigma": 0, "most": 100}, [2, 4, 8]),
    ],
    ids=lambda x: x["kind"] if isinstance(x, dict) else "",
)
def test_curriculum_grows_every_rule_from_its_start(spec: dict[str, Any], sizes: list[float]) -> None:
    rule = Curriculum(spec, updates=10, start=2)
    assert [pytest.approx(rule.at(update).size) for update in (0, 5, 10)] == sizes
    depths = [max(rule.plan(update, u, 0.5).depth for u in (0.1, 0.5, 0.9)) for update in range(11)]
    assert depths == sorted(depths)
    if spec["kind"] != "poisson":
        assert depths[0] == 2 and depths[-1] == 8
    assert rule.most == rule.rule.most
    assert max(rule.at(9.99).size, rule.rule.size) == rule.rule.size


def test_batches_in_lockstep_share_a_depth_and_the_stream_goes_on_as_ever() -> None:
    """Each group has the depth that its first batch would have; what is drawn after the update is what would be drawn anyway."""
    plain, own = rule_of("poisson-log-normal"), generator()
    each = plain.plans(5, 12, own)
    assert each == [plain(5, draw) for draw in [generator()] for _ in range(12)] and len({plan.depth for plan in each}) > 4
    for draws in (1, 2, 12):
        draw = generator()
        found = rule_of("lockstep", draws=draws).plans(5, 12, draw)
        assert found == [each[place // (12 // draws) * (12 // draws)] for place in range(12)]
        assert torch.equal(draw.get_state(), own.get_state())
    with pytest.raises(ValueError, match=r"depth \(lockstep\): draws 5; allowed: a divisor of accumulate \(12\)"):
        rule_of("lockstep", draws=5).check(12)


def test_a_curriculum_grows_in_lockstep() -> None:
    rule, grown = rule_of("lockstep", rule=SPECS["curriculum"]), rule_of("curriculum")
    assert [rule.plans(update, 4, generator(update)) for update in (0, 50, 200)] == [
        [grown(update, generator(update))] * 4 for update in (0, 50, 200)
    ]
    assert (rule.median, rule.most, rule.grad_steps, rule.size, rule.span) == (29, None, 8, 32, grown.span)
    assert rule_of("lockstep", rule=SPECS["fixed"]).constant and not rule.constant


REFUSED: list[tuple[type, dict[str, Any], str]] = [
    (Fixed, {"depth": 0}, r"depth \(fixed\): least must be >= 1 \(got 0\)"),
    (Fixed, {"depth": 4, "grad_steps": 0}, "grad_steps must be >= 1, or null for all steps"),
    (Choice, {"values": []}, r"values \[\]; allowed: a list of depths"),
    (Choice, {"values": [4, 0]}, r"values \[4, 0\]"),
    (Choice, {"values": [4, 2.5]}, r"values \[4, 2.5\]"),
    (Choice, {"values": [4, 8], "weights": [1]}, r"weights \[1\]; allowed: one per value"),
    (Choice, {"values": [4, 8], "weights": [1, -1]}, "none below 0"),
    (Choice, {"values": [4, 8], "weights": [0, 0]}, "not all 0"),
    (Uniform, {"least": 5, "most": 4}, "most must be >= 5"),
    (Poisson, {"mean": 0}, "mean must be > 0"),
    (Poisson, {"mean": 3, "least": -1}, r"least must be >= 1 \(got -1\)"),
    (LogNormal, {"mu": 2, "sigma": -0.1, "most": 9}, "sigma must be between 0 and 3"),
    (LogNormal, {"mu": 2, "sigma": 30, "most": 9}, r"sigma must be .* \(got 30\)"),
    (PoissonLogNormal, {"mean": -3}, r"mean must be .* \(got -3\)"),
    (Curriculum, {"rule": {"kind": "fixed", "depth": 4}, "updates": 0}, "updates 0; allowed: at least 1"),
    (
        Curriculum,
        {"rule": {"kind": "fixed", "depth": 4}, "updates": 9, "start": 5},
        "start 5; allowed: from 1 to the rule's own size, 4",
    ),
    (Curriculum, {"rule": {"kind": "fixed", "depth": 4}, "updates": 9, "shape": "linaer"}, "shape 'linaer'; did you mean 'linear'"),
    (Curriculum, {"rule": {"kind": "fixd", "depth": 4}, "updates": 9}, "unknown kind 'fixd'; did you mean 'fixed'"),
    (Curriculum, {"rule": {"kind": "fixed", "dept": 4}, "updates": 9}, "unknown 'dept'; did you mean 'depth'"),
    (Curriculum, {"rule": {"kind": "curriculum", "rule": {}, "updates": 9}, "updates": 9}, "unknown kind 'curriculum'"),
    (Curriculum, {"rule": {"kind": "lockstep", "rule": {}}, "updates": 9}, "unknown kind 'lockstep'"),
    (Lockstep, {"rule": {"kind": "fixed", "depth": 4}, "draws": 0}, "draws 0; allowed: at least 1"),
    (Lockstep, {"rule": {"kind": "lockstep", "rule": {}}}, "unknown kind 'lockstep'"),
]


@pytest.mark.parametrize(("kind", "options", "message"), REFUSED, ids=lambda x: str(x)[:40])
def test_refusals_are_one_line(kind: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        kind(**options)
    assert "\n" not in str(caught.value)


def test_options_have_forms() -> None:
    for spec, message in (
        ({"kind": "fixed", "depth": "4"}, "a whole number"), ({"kind": "uniform"}, "missing most"),
        ({"kind": "choice", "values": 4}, "a list"), ({"kind": "poisson", "mean": 3, "grad_steps": 1.5}, "a whole number"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            check_kind("depth", spec, RULES)


def test_the_span_of_a_picture_holds_nearly_all_draws() -> None:
    rule = build_kind({"kind": "log-normal", "mu": 2.0, "sigma": 0.7, "least": 1, "most": 100}, RULES)
    low, median, high = rule.span
    generator = torch.Generator().manual_seed(0)
    drawn = [rule(0, generator).depth for _ in range(4000)]
    assert (low, median, high) == (1, 7, 38)
    assert 0.97 < sum(low <= depth <= high for depth in drawn) / len(drawn) < 1
    assert build_kind({"kind": "fixed", "depth": 4}, RULES).span == (4, 4, 4)
