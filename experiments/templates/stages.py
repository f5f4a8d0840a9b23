"""What docs/inside.md asks of the rows: stages of looped and dense models on questions and on everyday text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from experiments.inside.stages.tables import DENSE, ONCE, RETROFIT, START, Row, Rows, average, curves, reach
from experiments.templates.rows import RESULTS
from loopwright.analysis.summary import grid
from loopwright.metrics.attention import curve_correlation

INJECTED, PLAIN = "sandwich-4-injected", "sandwich-4"
LINES = {
    DENSE: "SmolLM2, 30 layers", RETROFIT: "retrofit (4, 6⊗4, 4), trained", ONCE: "its 14 layers, trained unlooped",
    START: "14 of its layers, before training", INJECTED: "(2, 4⊗4, 2) I", PLAIN: "(2, 4⊗4, 2)",
}  # fmt: skip
HIGHEST = (3, 4)  # layers of the retrofit's core, from 0, where attention mixes least


@cache
def found() -> Rows:
    """Returns the study's rows."""
    return Rows(RESULTS / "inside/stages/stages.jsonl")


def row(model: str, look: str = "near", name: str = "gsm8k") -> Row:
    """Returns a row that must be there."""
    one = found().get(model, look, name)
    if one is None:
        raise ValueError(f"inside/stages/stages.jsonl: no row {model}/{look}/{name}")
    return one


def mean(model: str, value: str, look: str = "near", name: str = "gsm8k") -> float:
    """Returns the mean of a value over all places."""
    return average(row(model, look, name), value)


def ends(model: str, value: str, name: str) -> str:
    """Returns the least and the largest of a value over all places: "0.08 to 0.69"."""
    return reach(row(model, name=name), value)


def means(model: str, value: str, look: str = "near") -> list[float]:
    """Returns a value's mean over questions at every place."""
    return list(row(model, look)["by_place"][value]["mean"])


def sinks(model: str, look: str = "near") -> float:
    """Returns the share of heads that are sinks, over places, in percent."""
    return 100 * mean(model, "sink_rate", look)


def last_step(model: str, value: str) -> list[float]:
    """Returns a value over prelude, the core's last step and coda."""
    return [float(each) for each in curves(row(model), value)[-1]]


def core(value: str, look: str = "near") -> torch.Tensor:
    """Returns a value in the retrofit's core, by step and layer."""
    return torch.tensor(grid(row(RETROFIT, look), value))


def at_highest(value: str, *steps: int) -> list[float]:
    """Returns a value at the two layers where attention mixes least, at some steps."""
    return core(value)[[step - 1 for step in steps]][:, list(HIGHEST)].flatten().tolist()


def alike(model: str, value: str) -> list[float]:
    """Returns how the curve of each step correlates with SmolLM2's."""
    return curve_correlation(curves(row(model), value), curves(row(DENSE), value)[0]).tolist()


def both_sets(model: str) -> float:
    """Returns how ColSum curves of the two sets correlate, the least over steps."""
    first, second = row(model), row(model, name="hellaswag")
    return curve_correlation(curves(second, "colsum"), curves(first, "colsum")).min().item()


def more_on_hellaswag() -> list[str]:
    """Returns the models whose sink rate is higher on HellaSwag."""
    return [model for model in LINES if mean(model, "sink_rate", name="hellaswag") > mean(model, "sink_rate")]


def prompt(model: str, name: str) -> float:
    """Returns the mean length of a prompt in tokens."""
    return float(row(model, name=name)["tokens"] / row(model, name=name)["examples"])


def beyond() -> tuple[float, float, int, int]:
    """Returns what 128 steps do: how far ColSum moves, of its range; the norm in times of that at the model's depth; how many next
    tokens are kept, and of how many. All tokens must be at a fixed point, each layer at one of its own."""
    deep = row(RETROFIT, "deep")
    if deep["limits"]["tokens"][0] != 1 or {layer[1] for layer in deep["convergence"]["layers"]} != {1}:
        raise ValueError("the retrofit does not rest at 128 steps")
    values, norms, own = (torch.tensor(grid(deep, "colsum")), torch.tensor(grid(deep, "norm")), deep["answers"]["depth"])
    moved = (values[-1] - values[own - 1]).abs().mean() / (values.max() - values.min())
    kept = round(deep["answers"]["kept"] * deep["examples"])
    return moved.item(), (norms[-1].mean() / norms[own - 1].mean()).item(), kept, int(deep["examples"])


def layer() -> int:
    """Returns the layer of SmolLM2 whose MLP is zeroed, from 0; its index is that of the first layer behind it, from 1."""
    return int(row(DENSE, "ablated")["layer"])


def pairs(model: str) -> list[float]:
    """Returns attention distance and residual cosine of a layer at two steps, and of different layers: same, other, same, other."""
    return [row(model, "pairs")[kind][which] for kind in ("attention", "residual") for which in ("same", "other")]


def bound(model: str, kind: str, step: int) -> str:
    """Returns a bound, or how far maps move, at a step, with two or three digits that count."""
    one = row(model, "bound")
    value = one["means"][one["kinds"].index(kind)][step - 2]
    kept = ((1000, -1), (10, 0), (1, 2 if kind == "change" else 1), (0.1, 2), (0.01, 3), (0, 4))
    digits = next(digits for least, digits in kept if value >= least)
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def telling(model: str, place: int) -> list[float]:
    """Returns the share of cases in which a bound says something, by step from the second on."""
    return list(row(model, "bound")["telling"][place])


def everywhere(model: str, place: int) -> int:
    """Returns the step from which on it says something everywhere."""
    shares = telling(model, place)
    return next(step for step in range(2, len(shares) + 2) if min(shares[step - 2 :]) == 1)


def above(model: str, until: int | None = None) -> list[float]:
    """Returns by how many times the proposition's bound is above what happens, up to a step; least and largest, in hundreds."""
    one = row(model, "bound")
    kinds = dict(zip(one["kinds"], one["means"], strict=True))
    last = len(kinds["change"]) if until is None else until - 1
    times = [bound / moved for bound, moved in zip(kinds["proposition"][:last], kinds["change"][:last], strict=True)]
    return [round(each, -2) for each in (min(times), max(times))]


def never_broken(models: Sequence[str] = (INJECTED, PLAIN, RETROFIT)) -> bool:
    """Whether no map moves farther than a bound."""
    return not any(share for model in models for share in row(model, "bound")["broken"])


def others_on_both() -> list[float]:
    """Returns the same of all models but the one whose curves are nearly flat."""
    return [both_sets(model) for model in LINES if model != PLAIN]
