"""Which claims of "A Mechanistic Analysis of Looped Language Models" hold in the training study: each with its rule and numbers.

A stage curve is ColSum concentration over prelude, the core at one step, and coda; distances and correlations of curves are those
of `loopwright.metrics.attention`, thresholds those of `loopwright.analysis.report.findings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from experiments.inside.train_plan import CONTROL, STEPS, written
from experiments.pages import number
from loopwright.analysis.report.findings import ALIKE, DRIFT, MOST
from loopwright.analysis.summary import grid, one_step
from loopwright.metrics.attention import curve_correlation, curve_distance

LOST = 0.05  # nats: how much a loss may rise beyond the trained depth and still be called the same


@dataclass(frozen=True)
class Reading:
    """The numbers of one looped run that claims are about, beside those of the control."""

    run: Mapping[str, Any]
    control: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Which model it is."""
        return self.run["label"]

    def curves(self, when: str = "near") -> Tensor:
        """Returns the stage curve of each step [S, n], after training or before it ("start")."""
        steps = self.run[when]["places"]["steps"]
        return _tensor([one_step(self.run[when], "colsum", step) for step in range(steps)])

    def alike(self, when: str = "near") -> Tensor:
        """Returns the correlation of each step's stage curve with the trained control's [S]."""
        return curve_correlation(self.curves(when), self.dense)

    @property
    def dense(self) -> Tensor:
        """The trained control's stage curve [layers]."""
        return _tensor(self.control["near"]["by_place"]["colsum"]["mean"])

    @cached_property
    def gaps(self) -> Tensor:
        """The distance of each step's stage curve from the control's [S]."""
        return curve_distance(self.curves(), self.dense)

    @cached_property
    def repeats(self) -> Tensor:
        """The correlation of the core's part of the stage curve at each step from the second on with that at the last [S − 2]."""
        core = _tensor(grid(self.run["near"], "colsum"))
        return curve_correlation(core[1:-1], core[-1])

    @cached_property
    def rests(self) -> tuple[float, float, float] | None:
        """The shares of layers and prompts that do not rest, rest at points of their own, and rest at one point; None: unknown."""
        layers = self.run.get("deep", {}).get("convergence", {}).get("layers")
        if layers is None:
            return None
        shares = _tensor(layers).mean(0).tolist()
        return shares[0], shares[1], shares[2]

    @cached_property
    def drift(self) -> float | None:
        """How far the core's stage curve moves from the trained depth to the last step, as a share of its range; None: unknown."""
        if "deep" not in self.run or self.run["deep"]["places"]["steps"] <= STEPS:
            return None
        values = _tensor(grid(self.run["deep"], "colsum"))
        reach = _range(values)
        return ((values[-1] - values[STEPS - 1]).abs().mean() / reach).item() if reach else 0.0

    @cached_property
    def growth(self) -> float | None:
        """By which factor the norm of the core's residuals grows from the trained depth to the last step; None: unknown."""
        if self.drift is None:
            return None
        deep = self.run["deep"]
        return deep["growth"] if "growth" in deep else norm_growth(deep)  # a thinned trace has no norms

    def loss(self, depth: int) -> float:
        """Returns the held-out loss at a depth; infinite where it is not a number."""
        held = self.run["held_out"]
        found = held["loss"][held["depth"].index(depth)]
        return math.inf if found is None else found

    @property
    def lost(self) -> float:
        """By how much the loss at the largest depth is above that at the trained one."""
        return self.loss(max(self.run["held_out"]["depth"])) - self.loss(STEPS)

    @property
    def at_rest(self) -> bool | None:
        """Whether nearly all layers rest somewhere; None: unknown."""
        return None if self.rests is None else self.rests[0] <= 1 - MOST


@dataclass(frozen=True)
class Case:
    """One model's part in a claim: its number in words, and whether the rule holds; None: it cannot be said."""

    label: str
    seed: int
    number: str
    holds: bool | None


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the figures it rests on, the rule it is held to here, and how each model fares."""

    said: str
    figures: str
    rule: str
    cases: Callable[[Sequence[Reading]], Iterator[Case]]


def norm_growth(deep: Mapping[str, Any]) -> float:
    """Returns by which factor the norm of the core's residuals grows from the trained depth to the last step of a trace."""
    norms = _tensor(grid(deep, "norm"))
    return (norms[-1].mean() / norms[STEPS - 1].mean()).item()


def readings(runs: Sequence[Mapping[str, Any]]) -> list[Reading]:
    """Returns the looped runs, each beside the control of its seed, or the first there is; none where there is no control."""
    controls = {run["seed"]: run for run in runs if run["label"] == CONTROL}
    if not controls:
        return []
    first = controls[min(controls)]
    return [Reading(run, controls.get(run["seed"], first)) for run in runs if run["label"] != CONTROL]


def stages(found: Sequence[Reading]) -> Iterator[Case]:
    """Every step has the control's stages, in models with prelude and coda and no injection."""
    for one in _of(found, "sandwich", injected=False):
        each, before = one.alike(), one.alike("start")
        said = (
            f"least {number(each.min().item(), 2)}, mean {number(each.mean().item(), 2)} "
            f"(before training: mean {number(before.mean().item(), 2)}); "
        )
        said += f"range of the curves {_range(one.curves()):.3g}, of the control's {_range(one.dense):.3g}"
        yield Case(one.label, one.run["seed"], said, bool((each >= ALIKE).all()))


def repeated(found: Sequence[Reading]) -> Iterator[Case]:
    """Every step from the second on repeats the last one's stages."""
    for one in found:
        yield Case(one.label, one.run["seed"], f"least {number(one.repeats.min().item(), 2)}", bool((one.repeats >= ALIKE).all()))


def nearest(found: Sequence[Reading]) -> Iterator[Case]:
    """Of the four models of one core, that with prelude and coda and no injection is nearest to the control."""
    cores = sorted({(one.run["layers"]["core_layers"], one.run["seed"]) for one in found})
    for core, seed in cores:
        same = [one for one in found if (one.run["layers"]["core_layers"], one.run["seed"]) == (core, seed)]
        gaps = {one.label: one.gaps.mean().item() for one in same}
        said = ", ".join(f"{written(label)} {gap:.3g}" for label, gap in sorted(gaps.items(), key=lambda item: item[1]))
        mine = f"sandwich-{core}"
        known = mine in gaps and len(gaps) > 1
        yield Case(f"core of {core}", seed, said, min(gaps, key=gaps.__getitem__) == mine if known else None)


def last_step(found: Sequence[Reading]) -> Iterator[Case]:
    """Injection brings the last step nearer to the control than the earlier ones, and those farther than without it."""
    plain = {(one.label, one.run["seed"]): one for one in _of(found, "sandwich", injected=False)}
    for one in _of(found, "sandwich", injected=True):
        last, early = one.gaps[-1].item(), one.gaps[:-1].mean().item()
        without = plain.get((one.label.removesuffix("-injected"), one.run["seed"]))
        said = f"last {last:.3g}, earlier {early:.3g}"
        if without is None:
            yield Case(one.label, one.run["seed"], said, None)
            continue
        other = without.gaps[:-1].mean().item()
        yield Case(one.label, one.run["seed"], f"{said}; without injection earlier {other:.3g}", last < early and early > other)


def own_points(found: Sequence[Reading]) -> Iterator[Case]:
    """With injection each layer rests at a point of its own."""
    for one in (one for one in found if one.run["injected"]):
        yield Case(one.label, one.run["seed"], _shares(one), None if one.rests is None else one.rests[1] >= MOST)


def one_point(found: Sequence[Reading]) -> Iterator[Case]:
    """Without injection all layers rest at one point."""
    for one in (one for one in found if not one.run["injected"]):
        yield Case(one.label, one.run["seed"], _shares(one), None if one.rests is None else one.rests[2] >= MOST)


def steady(found: Sequence[Reading]) -> Iterator[Case]:
    """What rests keeps its stages beyond the trained depth, and what does not rest loses them."""
    for one in found:
        if one.drift is None or one.at_rest is None:
            yield Case(one.label, one.run["seed"], "not deep enough", None)
            continue
        words = "rests" if one.at_rest else "does not rest"
        yield Case(one.label, one.run["seed"], f"{words}, moved by {100 * one.drift:.1f} %", one.at_rest == (one.drift <= DRIFT))


def lossless(found: Sequence[Reading]) -> Iterator[Case]:
    """What rests loses nothing beyond the trained depth, and what does not rest does."""
    for one in found:
        words = {None: "unknown whether it rests", True: "rests", False: "does not rest"}[one.at_rest]
        holds = None if one.at_rest is None else one.at_rest == (one.lost <= LOST)
        deepest = max(one.run["held_out"]["depth"])
        yield Case(one.label, one.run["seed"], f"{words}, {one.loss(STEPS):.3f} at {STEPS}, {one.lost:+.3f} at {deepest}", holds)


def _of(found: Sequence[Reading], family: str, *, injected: bool) -> list[Reading]:
    return [one for one in found if one.label.startswith(family) and one.run["injected"] == injected]


def _shares(one: Reading) -> str:
    if one.rests is None:
        return "not deep enough"
    said = "none {:.0f} %, own points {:.0f} %, one point {:.0f} %".format(*(100 * share for share in one.rests))
    return said if one.growth is None else f"{said}; norm {one.growth:.3g} times that at step {STEPS}"


def _range(values: Tensor) -> float:
    return (values.max() - values.min()).item()


def _tensor(values: Any) -> Tensor:
    def plain(value: Any) -> Any:
        return [plain(item) for item in value] if isinstance(value, list) else math.nan if value is None else value

    return torch.tensor(plain(values), dtype=torch.float64)


CLAIMS = (
    Claim(
        "Looped models organise into the stages of a feedforward model within each step", "10, 54–56",
        f"the stage curve of every step correlates with the control's by at least {ALIKE}", stages,
    ),
    Claim(
        "The stages repeat with every step", "7, 10, 54–62",
        f"from the second step on, the core's part of the curve correlates with the last step's by at least {ALIKE}", repeated,
    ),
    Claim(
        "They are nearest to the feedforward model's with prelude and coda and without injection", "54–62",
        "of the models with one core, the mean distance of its curves from the control's is the least", nearest,
    ),
    Claim(
        "With injection the last step follows the feedforward model more closely, to the detriment of earlier ones", "57–59",
        "the last step's curve is nearer to the control's than the mean of the earlier ones, and those are farther than without "
        "injection", last_step,
    ),
    Claim(
        "With injection each layer comes to rest at a point of its own", "4, 6",
        f"at least {100 * MOST:.0f} % of layers and prompts rest (cosine at least 0.95 over the second half of the steps), and not "
        "at one point", own_points,
    ),
    Claim(
        "Without injection pre-norm comes to rest at one point for all layers", "6",
        f"at least {100 * MOST:.0f} % of layers and prompts rest, in direction (their norm may grow), "
        "at where the farthest layer does", one_point,
    ),
    Claim(
        "Models that rest keep their stages beyond the trained depth; models that do not lose them", "11, 12, 47–53",
        f"at most {100 * (1 - MOST):.0f} % do not rest where, and only where, the core's curve moves by at most "
        f"{100 * DRIFT:.0f} % of its range from the trained depth to the last step", steady,
    ),
    Claim(
        "Models that rest do not lose performance beyond the trained depth; models that do not rest do", "Section 5.2",
        f"it rests where, and only where, the held-out loss rises by at most {LOST} nats from the trained depth to the largest",
        lossless,
    ),
)  # fmt: skip
