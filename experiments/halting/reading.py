"""What every exit rule does with a trained model, from one pass over the test rows: loss at each mean depth, steps by need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.data.batch import IGNORED
from loopwright.data.tasks.columns import BASE
from loopwright.data.tasks.table import Table
from loopwright.evaluate.early_exit import StepTable, by_row, exit_depths, read_steps
from loopwright.generate.exit_rules import build_exit
from loopwright.model.looped import LoopedForCausalLM

SIMPLE = ("change", "divergence", "entropy", "stable")
LIMITS = {
    "gate": "threshold",
    "act": "eps",
    "change": "threshold",
    "divergence": "threshold",
    "entropy": "threshold",
    "stable": "count",
}
BLOCKS = 50  # rows are counted into so many blocks, which are drawn for an interval over rows
QUANTILES = 60
ROWS = 250  # of a pass


def measure(model: LoopedForCausalLM, rows: Table, depth: int, learned: str) -> dict[str, Any]:
    """Returns the curves of all rules and of fixed depths, and what rules take where the mean depth is the oracle's.

    A curve is loss and exact match at mean depths 1, 1.5, 2 …: between two limits a token (for exact match, a row) draws one of the
    two, so that losses between them lie on the line.
    """
    families = (learned, *SIMPLE)
    rules = {name: build_exit(name, model) for name in families}
    batches = [
        (range(a, min(a + ROWS, len(rows))), rows.batch(range(a, min(a + ROWS, len(rows))))) for a in range(0, len(rows), ROWS)
    ]
    with torch.no_grad():
        table = read_steps(model, batches, rules, depth)
    needs = token_needs(rows)
    assert len(needs) == len(table.row)
    losses, right = table.read(learned)  # of ACT the mean of the states, which is what it was trained to answer by
    settled = first_settled(right)
    grid = [1 + 0.5 * i for i in range(2 * depth - 1)]
    target = float(settled.double().mean())
    result: dict[str, Any] = {
        "grid": grid, "target": target, "needs": torch.bincount(needs, minlength=1).tolist(),
        "fixed": {"loss": losses.double().mean(1).tolist(), "exact": [exact_rate(table, each) for each in right]},
        "oracle": {"mean_steps": target, "by_need": by_need(settled, needs)},
        "rules": {},
    }  # fmt: skip
    for family, rule in rules.items():
        result["rules"][family] = curve(model, table, family, rule, needs, grid, target)
    return result


def curve(
    model: LoopedForCausalLM, table: StepTable, family: str, rule: Any, needs: Tensor, grid: Sequence[float], target: float
) -> dict[str, Any]:
    """Returns loss and exact match of a family at each mean depth of the grid, and its choices where its mean depth is `target`."""
    losses, right = table.read(family)
    points = []
    for limit in limits(family, table.measured[family]):
        chosen = build_exit({"kind": family, LIMITS[family]: limit}, model)
        depths = exit_depths(model, chosen, table.measured[family])
        loss = losses.gather(0, depths[None] - 1)[0].double()
        points.append((float(depths.double().mean()), loss, exact_rate(table, right.gather(0, depths[None] - 1)[0]), depths, limit))
    points.sort(key=lambda point: point[0])
    means = [point[0] for point in points]
    told: dict[str, Any] = {"loss": [], "exact": []}
    for m in grid:
        at = between(means, m)
        told["loss"].append(None if at is None else mixed(at, [float(p[1].mean()) for p in points]))
        told["exact"].append(None if at is None else mixed(at, [p[2] for p in points]))
    at = between(means, target)
    if at is not None:
        told["blocks"] = mixed_tensor(at, [block_means(p[1], table.row) for p in points]).tolist()
        told["at_target"] = mixed(at, [float(p[1].mean()) for p in points])
        told["exact_at_target"] = mixed(at, [p[2] for p in points])
    near = min(points, key=lambda point: abs(point[0] - target))
    told |= {
        "limit": float(near[4]), "mean_steps": near[0], "by_need": by_need(near[3], needs), "r": correlation(near[3], needs),
    }  # fmt: skip
    own = exit_depths(model, rule, table.measured[family])
    own_loss, own_right = (x.gather(0, own[None] - 1)[0] for x in (losses, right))
    return told | {"own": [float(own.double().mean()), float(own_loss.double().mean()), exact_rate(table, own_right)]}


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


def mixed_tensor(at: tuple[int, int, float], values: Sequence[Tensor]) -> Tensor:
    """Returns the numbers between two neighbours."""
    low, high, share = at
    return (1 - share) * values[low] + share * values[high]


def block_means(loss: Tensor, row: Tensor) -> Tensor:
    """Returns the mean loss of the tokens of each block of rows."""
    block = row % BLOCKS
    return by_row(loss, block, BLOCKS) / by_row(torch.ones_like(loss), block, BLOCKS)


def exact_rate(table: StepTable, right: Tensor) -> float:
    """Returns the share of rows all of whose tokens are right [N]."""
    rows = int(table.row.max()) + 1
    wrong = by_row((~right.bool()).double(), table.row, rows)
    return float((wrong == 0).double().mean())


def first_settled(right: Tensor) -> Tensor:
    """Returns the depth from which a token stays right [N], for right [S, N]; the last depth where it never does."""
    held = right.flip(0).int().cumprod(0).sum(0)  # how many of the last depths are right
    return (len(right) - held + 1).clamp(max=len(right))


def by_need(steps: Tensor, needs: Tensor) -> list[float | None]:
    """Returns the mean steps of tokens that need 0, 1, 2 … steps."""
    groups = [steps[needs == need].double() for need in range(int(needs.max()) + 1)]
    return [float(group.mean()) if len(group) else None for group in groups]


def correlation(steps: Tensor, needs: Tensor) -> float | None:
    """Returns Pearson's r of steps taken and steps needed, over tokens; None where all are equal."""
    both = torch.stack([steps, needs]).double()
    return None if bool((both.std(1) == 0).any()) else float(torch.corrcoef(both)[0, 1])


def token_needs(rows: Table) -> Tensor:
    """Returns what each target of the task `columns` needs: how often the carry of its column is handed on."""
    batch = rows.batch(range(len(rows)))
    asked = batch.labels[:, 1:] != IGNORED
    ids = batch.input_ids[:, :-1]
    sums = ids // BASE + ids % BASE
    handed, each = torch.ones(len(ids), dtype=torch.long), []
    for column in range(1, ids.shape[1]):  # after the mark; what is no column is asked nothing
        each.append(handed)
        handed = torch.where(sums[:, column] == BASE - 1, handed, 0) + 1
    return torch.stack([torch.zeros(len(ids), dtype=torch.long), *each], dim=1)[asked]
