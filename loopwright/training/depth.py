"""How deep each batch goes, and through how many of its last steps the gradient flows.

A rule is (update, generator) → Plan. Every call of every rule takes two uniform numbers from the generator and nothing else, so
the stream is a matter of counting: a resumed run, another process or another rule stands where it should.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from loopwright.schema import Kinds, build_kind, check_kind, suggest
from loopwright.training.rollout import Plan
from loopwright.untrusted import shown

HALF = math.nextafter(0.5, 0.0)  # the quantile of the lower median
WIDEST = 3.0  # of the logarithm of a depth: a spread of e³ either way


class DepthRule:
    """Draws depths. Abstract: a kind is the depth that belongs to two uniform numbers, the first the more the deeper.

    `most` is the largest depth there can be, None where there is none; `size` is what a curriculum grows; a rule is `constant`
    where every batch of a run has the same depth.
    """

    size: float = 1.0
    most: int | None = None
    grad_steps: int | None = None
    constant: bool = False

    def __call__(self, update: int, generator: torch.Generator) -> Plan:
        """Returns the plan of one batch."""
        return self.plan(update, *two_numbers(generator))

    def check(self, batches: int) -> None:
        """Raises a ValueError where it does not suit an update of so many batches."""

    def plans(self, update: int, batches: int, generator: torch.Generator) -> list[Plan]:
        """Returns the plan of each of the batches that an update accumulates."""
        return [self(update, generator) for _ in range(batches)]

    def plan(self, update: int, u: float, v: float) -> Plan:
        """Returns the plan that belongs to two numbers in [0, 1)."""
        depth = self.depth_at(u, v)
        return Plan(depth, depth if self.grad_steps is None else min(self.grad_steps, depth), update)

    @property
    def median(self) -> int:
        """The median depth (the lower one of two), that of the end where depths grow: what evaluation takes as typical."""
        return self.depth_at(HALF, HALF)

    @property
    def span(self) -> tuple[int, int, int]:
        """The depths trained at, for a picture: the median between nearly the least and nearly the most (98 of 100 draws)."""
        return self.depth_at(0.01, HALF), self.median, self.depth_at(0.99, HALF)

    def depth_at(self, u: float, v: float) -> int:
        """Returns the depth that belongs to two numbers in [0, 1)."""
        raise NotImplementedError

    def resized(self, size: float) -> DepthRule:
        """Returns the same rule at another size."""
        raise NotImplementedError


class Fixed(DepthRule):
    """Always the same depth."""

    constant = True

    def __init__(self, depth: int, grad_steps: int | None = None) -> None:
        _check("fixed", depth, depth, grad_steps)
        self.size = self.most = self.depth = depth
        self.grad_steps = grad_steps

    def depth_at(self, u: float, v: float) -> int:
        return self.depth

    def resized(self, size: float) -> DepthRule:
        return Fixed(math.ceil(size), self.grad_steps)


class Choice(DepthRule):
    """One of some depths, all alike or by weight (Ouroboros: 4, 8, 16 or 32)."""

    def __init__(self, values: list[int], weights: list[float] | None = None, grad_steps: int | None = None) -> None:
        if not values or not all(isinstance(value, int) and value > 0 for value in values):
            raise ValueError(f"depth (choice): values {shown(values)}; allowed: a list of depths, each at least 1")
        weights = [1.0] * len(values) if weights is None else weights
        if len(weights) != len(values) or not all(w >= 0 for w in weights) or not 0 < sum(weights) < math.inf:
            raise ValueError(f"depth (choice): weights {shown(weights)}; allowed: one per value, none below 0, not all 0")
        _check("choice", min(values), max(values), grad_steps)
        pairs = sorted(zip(values, weights, strict=True))
        self.values, self.weights = [value for value, _ in pairs], [weight for _, weight in pairs]
        self.shares = [total / sum(weights) for total in accumulate(self.weights)][:-1]
        self.size = self.most = max(values)
        self.grad_steps = grad_steps

    def depth_at(self, u: float, v: float) -> int:
        return self.values[bisect_right(self.shares, u)]

    def resized(self, size: float) -> DepthRule:
        return Choice([min(value, math.ceil(size)) for value in self.values], self.weights, self.grad_steps)


class Uniform(DepthRule):
    """Any depth from `least` to `most`, both included, all alike."""

    def __init__(self, most: int, least: int = 1, grad_steps: int | None = None) -> None:
        _check("uniform", least, most, grad_steps)
        self.least, self.grad_steps = least, grad_steps
        self.size = self.most = most

    def depth_at(self, u: float, v: float) -> int:
        return self.least + int(u * (self.most - self.least + 1))

    def resized(self, size: float) -> DepthRule:
        return Uniform(math.ceil(size), min(self.least, math.ceil(size)), self.grad_steps)


class Poisson(DepthRule):
    """Poisson(mean), clipped to [least, most]."""

    def __init__(self, mean: float, most: int | None = None, least: int = 1, grad_steps: int | None = None) -> None:
        _check("poisson", least, most, grad_steps, mean=mean)
        self.mean, self.least, self.most, self.grad_steps = mean, least, most, grad_steps
        self.size = mean

    def depth_at(self, u: float, v: float) -> int:
        return _clip(poisson_quantile(u, self.mean), self.least, self.most)

    def resized(self, size: float) -> DepthRule:
        return Poisson(size, self.most, self.least, self.grad_steps)


class LogNormal(DepthRule):
    """exp(Normal(mu, sigma)), rounded, then clipped to [least, most] (STARS: mu 2, sigma 0.7, from 1 to 100)."""

    def __init__(self, mu: float, sigma: float, most: int, least: int = 1, grad_steps: int | None = None) -> None:
        _check("log-normal", least, most, grad_steps, sigma=sigma)
        self.mu, self.sigma, self.least, self.grad_steps = mu, sigma, least, grad_steps
        self.most: int = most
        self.size = math.exp(min(mu, math.log(most)))

    def depth_at(self, u: float, v: float) -> int:
        z = self.mu + self.sigma * normal_quantile(u)
        return _clip(round(math.exp(min(z, math.log(self.most) + 1))), self.least, self.most)

    def resized(self, size: float) -> DepthRule:
        return LogNormal(math.log(size), self.sigma, self.most, self.least, self.grad_steps)


class PoissonLogNormal(DepthRule):
    """1 + Poisson(rate) with rate = exp(Normal(log mean − sigma²/2, sigma)), so that depths are mean + 1 on average (Huginn).

    The gradient flows through the last `grad_steps`, of a batch that is less deep through all, and never through more than
    the mean, so that short means keep a part without a gradient (as in Retrofitted recurrence, arXiv 2511.07384).
    """

    def __init__(self, mean: float, sigma: float = 0.5, most: int | None = None, grad_steps: int | None = 8) -> None:
        _check("poisson-log-normal", 1, most, grad_steps, mean=mean, sigma=sigma)
        self.mean, self.sigma, self.most = mean, sigma, most
        self.size = mean
        self.asked = grad_steps
        self.grad_steps = None if grad_steps is None else min(grad_steps, math.ceil(mean))

    def rate(self, u: float) -> float:
        """Returns the Poisson rate at a quantile."""
        return math.exp(math.log(self.mean) - self.sigma**2 / 2 + self.sigma * normal_quantile(u))

    def depth_at(self, u: float, v: float) -> int:
        return _clip(1 + poisson_quantile(v, self.rate(u)), 1, self.most)

    @property
    def median(self) -> int:
        """The median depth, from the mixture's distribution at 2,048 rates of equal weight."""
        rates = torch.tensor([self.rate((i + 0.5) / 2048) for i in range(2048)], dtype=torch.float64)
        counts = torch.arange(int(4 * self.mean) + 24, dtype=torch.float64)
        below = poisson_cdf(counts[:, None], rates).mean(1)
        return _clip(1 + int(torch.searchsorted(below, HALF, right=True)), 1, self.most)

    def resized(self, size: float) -> DepthRule:
        return PoissonLogNormal(size, self.sigma, self.most, self.asked)


class Curriculum(DepthRule):
    """Another rule, grown over the first `updates`: its size M is m = max(start, ⌈M·f⌉) until then and M from then on.

    f is x for the shape "linear" and 1 − √(1 − x) for "1-sqrt", with x = update / updates. The size of a rule is the depth
    (fixed), the largest depth (choice, uniform; larger values of a choice are cut to it), the mean (poisson,
    poisson-log-normal) or the median before rounding (log-normal). With poisson-log-normal and a start of 1 this is what
    Retrofitted recurrence (arXiv 2511.07384) does; `grad_steps` is the rule's own.
    """

    def __init__(self, rule: dict[str, Any], updates: int, start: int = 1, shape: str = "linear") -> None:
        plain = {kind: option for kind, option in RULES.items() if option not in (Curriculum, Lockstep)}
        check_kind("depth (curriculum): rule", rule, plain)
        self.rule: DepthRule = build_kind(rule, RULES)
        if updates < 1:
            raise ValueError(f"depth (curriculum): updates {updates}; allowed: at least 1")
        if not 1 <= start <= self.rule.size:
            raise ValueError(f"depth (curriculum): start {start}; allowed: from 1 to the rule's own size, {self.rule.size:g}")
        try:
            self.rule.resized(start)
        except NotImplementedError:
            raise ValueError(
                f"depth (curriculum): rule {rule['kind']!r} cannot be resized; allowed: a rule that offers it"
            ) from None
        if shape not in SHAPES:
            raise ValueError(f"depth (curriculum): shape {shape!r}; {suggest(shape, SHAPES)}")
        self.updates, self.start, self.shape = updates, start, shape
        self.size, self.most, self.grad_steps = self.rule.size, self.rule.most, self.rule.grad_steps

    def at(self, update: int) -> DepthRule:
        """Returns the rule as it is at an update."""
        if update >= self.updates:
            return self.rule
        share = SHAPES[self.shape](update / self.updates)
        return self.rule.resized(min(self.rule.size, max(self.start, math.ceil(self.rule.size * share))))

    def plan(self, update: int, u: float, v: float) -> Plan:
        return self.at(update).plan(update, u, v)

    def depth_at(self, u: float, v: float) -> int:
        """Returns the depth of the grown rule."""
        return self.rule.depth_at(u, v)

    @property
    def median(self) -> int:
        """The median depth of the grown rule."""
        return self.rule.median


class Lockstep(DepthRule):
    """Another rule, drawn `draws` times an update: neighbours among the batches that it accumulates share a depth.

    Published trainings hold in one pass on many devices, at one depth, what fewer devices take in many batches: Huginn draws once
    an update (arXiv 2502.05171), Retrofitted recurrence twice (arXiv 2511.07384).
    """

    def __init__(self, rule: dict[str, Any], draws: int = 1) -> None:
        check_kind("depth (lockstep): rule", rule, {kind: option for kind, option in RULES.items() if option is not Lockstep})
        if draws < 1:
            raise ValueError(f"depth (lockstep): draws {draws}; allowed: at least 1")
        self.rule: DepthRule = build_kind(rule, RULES)
        self.draws = draws
        self.size, self.most, self.grad_steps = self.rule.size, self.rule.most, self.rule.grad_steps
        self.constant = self.rule.constant

    def check(self, batches: int) -> None:
        """Raises a ValueError where it does not suit an update of so many batches."""
        if batches % self.draws:
            raise ValueError(f"depth (lockstep): draws {self.draws}; allowed: a divisor of accumulate ({batches})")

    def plans(self, update: int, batches: int, generator: torch.Generator) -> list[Plan]:
        """Returns the plan of each of the batches that an update accumulates."""
        numbers, together = [two_numbers(generator) for _ in range(batches)], batches // self.draws
        drawn = [self.plan(update, *pair) for pair in numbers[::together]]
        return [drawn[place // together] for place in range(batches)]

    def plan(self, update: int, u: float, v: float) -> Plan:
        return self.rule.plan(update, u, v)

    def depth_at(self, u: float, v: float) -> int:
        return self.rule.depth_at(u, v)

    @property
    def median(self) -> int:
        """The median depth of the rule."""
        return self.rule.median


def two_numbers(generator: torch.Generator) -> tuple[float, float]:
    """Returns the next two uniform numbers of a generator."""
    u, v = torch.rand(2, dtype=torch.float64, generator=generator).tolist()
    return u, v


def normal_quantile(u: float) -> float:
    """Returns the quantile of the standard normal distribution for u in [0, 1)."""
    return NormalDist().inv_cdf(max(u, 2.0**-54))


def poisson_cdf(count: Tensor, rate: Tensor) -> Tensor:
    """Returns the probability of `count` or less."""
    return torch.special.gammaincc(count + 1, rate)


def poisson_quantile(u: float, rate: float) -> int:
    """Returns the smallest count whose cumulative probability is above u."""
    counts = torch.arange(int(rate + 12 * math.sqrt(rate)) + 24, dtype=torch.float64)
    return int(torch.searchsorted(poisson_cdf(counts, torch.tensor(rate, dtype=torch.float64)), u, right=True))


def _clip(depth: int, least: int, most: int | None) -> int:
    return max(least, depth if most is None else min(depth, most))


def _check(
    kind: str, least: int, most: int | None, grad_steps: int | None, *, mean: float | None = None, sigma: float | None = None
) -> None:
    """Raises a ValueError that names the first bound, spread or number of steps that cannot be."""
    wrong = ""
    if least < 1:
        wrong = f"least must be >= 1 (got {least})"
    elif most is not None and most < least:
        wrong = f"most must be >= {least}, the least depth (got {most})"
    elif grad_steps is not None and grad_steps < 1:
        wrong = f"grad_steps must be >= 1, or null for all steps (got {grad_steps})"
    elif mean is not None and not 0 < mean < 1e6:
        wrong = f"mean must be > 0 and below a million (got {mean})"
    elif sigma is not None and not 0 <= sigma <= WIDEST:
        wrong = f"sigma must be between 0 and {WIDEST:g} (got {sigma})"
    if wrong:
        raise ValueError(f"depth ({kind}): {wrong}")


SHAPES = {"linear": lambda x: x, "1-sqrt": lambda x: 1 - math.sqrt(1 - x)}

RULES = Kinds(
    "depth",
    {
        "fixed": Fixed, "choice": Choice, "uniform": Uniform, "poisson": Poisson, "log-normal": LogNormal,
        "poisson-log-normal": PoissonLogNormal, "curriculum": Curriculum, "lockstep": Lockstep,
    },
    inherits=DepthRule, offers=["depth_at"],
)  # fmt: skip
