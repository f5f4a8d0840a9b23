"""What every exit rule does with a trained model, from one pass over held-out tokens: loss at each mean depth, steps by need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.halting.tokens import BLOCKS, Known, Tokens
from loopwright.evaluation.exits import StepTable, by_row, exit_depths, read_steps
from loopwright.generation.exit_rules import build_exit
from loopwright.model.causal_lm import LoopedForCausalLM

SIMPLE = ("change", "divergence", "entropy", "stable")
LIMITS = {
    "gate": "threshold",
    "act": "eps",
    "change": "threshold",
    "divergence": "threshold",
    "entropy": "threshold",
    "stable": "count",
}
QUANTILES = 60


def measure(model: LoopedForCausalLM, tokens: Tokens, depth: int, learned: str) -> dict[str, Any]:
    """Returns the curves of all rules and of fixed depths, and what rules take where the mean depth is the oracle's.

    A curve is loss and exact match at mean depths 1, 1.5, 2 …: between two limits a token (for exact match, an answer) draws one of
    the two, so that losses between them lie on the line.
    """
    rules = {name: build_exit(name, model) for name in (learned, *SIMPLE)}
    with torch.no_grad():
        table = read_steps(model, tokens.batches(), rules, depth)
    losses, right = table.read(learned)  # of ACT the mean of the states, which is what it was trained to answer by
    known = tokens.known(table.row, losses, right)
    assert len(known.wants) == len(table.row)
    grid = [1 + 0.5 * i for i in range(2 * depth - 1)]
    target = float(known.settled.double().mean())
    fixed = [Point.of(losses, right, known, torch.full_like(known.settled, d)) for d in range(1, depth + 1)]
    best = Point.of(losses, right, known, known.settled)
    result: dict[str, Any] = {
        "grid": grid, "target": target, "needs": torch.bincount(known.group, minlength=1).tolist(),
        "fixed": {"loss": [p.mean_loss for p in fixed], "exact": [p.exact for p in fixed], **at_mean_depth(fixed, known, target)},
        "oracle": {"mean_steps": target, "loss": best.mean_loss, "by_need": by_need(known.settled, known.group)},
        "rules": {},
    }  # fmt: skip
    for family, rule in rules.items():
        result["rules"][family] = curve(model, table, family, rule, known, grid, target)
    return result


@dataclass(frozen=True)
class Point:
    """What tokens give that take `depths` steps each [N], by a rule of this limit: their losses [N], and the exact match."""

    depths: Tensor
    loss: Tensor
    exact: float
    limit: float

    @classmethod
    def of(cls, losses: Tensor, right: Tensor, known: Known, depths: Tensor, limit: float = 0.0) -> Point:
        """Returns the point of these depths, for loss and right after each step [S, N]."""
        loss, hit = (x.gather(0, depths[None] - 1)[0] for x in (losses, right))
        return cls(depths, loss.double(), exact_rate(known.answer, hit), limit)

    @property
    def mean_steps(self) -> float:
        """The mean depth."""
        return float(self.depths.double().mean())

    @property
    def mean_loss(self) -> float:
        """The mean loss of a token."""
        return float(self.loss.mean())


def curve(
    model: LoopedForCausalLM, table: StepTable, family: str, rule: Any, known: Known, grid: Sequence[float], target: float
) -> dict[str, Any]:
    """Returns loss and exact match of a family at each mean depth of the grid, and its choices where its mean depth is `target`."""
    losses, right = table.read(family)

    def point(chosen: Any, limit: float = 0.0) -> Point:
        return Point.of(losses, right, known, exit_depths(model, chosen, table.measured[family]), limit)

    found = limits(family, table.measured[family])
    chosen = [build_exit({"kind": family, LIMITS[family]: limit}, model) for limit in found]
    points = sorted(map(point, chosen, found), key=lambda each: each.mean_steps)
    means, mean_losses = [each.mean_steps for each in points], [each.mean_loss for each in points]
    told: dict[str, Any] = {"loss": [], "exact": []}
    for m in grid:
        at = between(means, m)
        told["loss"].append(None if at is None else mixed(at, mean_losses))
        told["exact"].append(None if at is None else mixed(at, [each.exact for each in points]))
    near = min(points, key=lambda each: abs(each.mean_steps - target))
    told |= at_mean_depth(points, known, target)
    told |= {
        "limit": float(near.limit), "mean_steps": near.mean_steps, "by_need": by_need(near.depths, known.group),
        "r": correlation(near.depths, known.wants),
    }  # fmt: skip
    own = point(rule)
    return told | {"own": [own.mean_steps, own.mean_loss, own.exact]}


def at_mean_depth(points: Sequence[Point], known: Known, m: float) -> dict[str, Any]:
    """Returns loss, that of each block, and exact match at a mean depth, of points in its order; nothing beyond their depths."""
    at = between([each.mean_steps for each in points], m)
    if at is None:
        return {}
    low, high, share = at
    ends = [block_means(points[i].loss, known.block) for i in (low, high)]
    return {
        "blocks": ((1 - share) * ends[0] + share * ends[1]).tolist(),
        "at_target": mixed(at, [each.mean_loss for each in points]),
        "exact_at_target": mixed(at, [each.exact for each in points]),
    }


def limits(family: str, measured: Tensor) -> list[float]:
    """Returns limits at even shares of what was measured, so that the mean depths lie close together."""
    if family == "stable":
        return list(range(1, len(measured) + 1))
    values = measured[measured.isfinite()].double()
    shares = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
    found = torch.quantile(values[:: max(len(values) // 100_000, 1)], shares)
    # nearly all values of a trained model lie in its tails, where even shares are too far apart
    tails = torch.logspace(-8, 2, QUANTILES, dtype=torch.float64)
    if family == "gate":
        found = torch.cat([found, 1 - tails[tails < 1], tails[tails < 1]])
    elif family == "act":
        found = 1 - torch.cat([found, 1 - tails[tails < 1], tails[tails < 1]])
    else:
        found = torch.cat([found, tails])
    return sorted({float(x) for x in found if x >= 0})


def between(means: Sequence[float], m: float) -> tuple[int, int, float] | None:
    """Returns two neighbours among sorted mean depths and the share of the second at which the mean is m; None outside of them."""
    if not means[0] <= m <= means[-1]:
        return None
    high = next(i for i, mean in enumerate(means) if mean >= m)
    low = max(high - 1, 0)
    width = means[high] - means[low]
    return low, high, 1.0 if width == 0 else (m - means[low]) / width


def mixed(at: tuple[int, int, float], values: Sequence[float]) -> float:
    """Returns the value between two neighbours."""
    low, high, share = at
    return (1 - share) * values[low] + share * values[high]


def block_means(loss: Tensor, block: Tensor) -> Tensor:
    """Returns the mean loss of the tokens of each block."""
    return by_row(loss, block, BLOCKS) / by_row(torch.ones_like(loss), block, BLOCKS)


def exact_rate(answer: Tensor, right: Tensor) -> float:
    """Returns the share of answers all of whose tokens are right [N]."""
    wrong = by_row((~right.bool()).double(), answer, int(answer.max()) + 1)
    return float((wrong == 0).double().mean())


def by_need(steps: Tensor, needs: Tensor) -> list[float | None]:
    """Returns the mean steps of the tokens of each group: those that need 0, 1, 2 … steps."""
    groups = [steps[needs == need].double() for need in range(int(needs.max()) + 1)]
    return [float(group.mean()) if len(group) else None for group in groups]


def correlation(steps: Tensor, needs: Tensor) -> float | None:
    """Returns Pearson's r of steps taken and what tokens want; None where all are equal."""
    both = torch.stack([steps.double(), needs.double()])
    return None if bool((both.std(1) == 0).any()) else float(torch.corrcoef(both)[0, 1])
