"""What a summary means, in words with the numbers behind them: what it converges to, whose stages it has, is more depth safe?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loopwright.analysis.summary import grid, one_step
from loopwright.analysis.trace.places import Places
from loopwright.metrics.attention import curve_correlation, curve_distance

Metrics = Mapping[str, Any]
MOST = 0.95  # of tokens, layers or answers: what counts as nearly all
ALIKE = 0.7  # correlation of stage curves from which they are called alike
NOT_SHOWN = "Not shown"
GROWS = 1.1  # times: how much longer a state may become over the later half of the steps and still be called at rest
DRIFT = 0.1  # of the range of a stage curve: how far it may move and still be called the same


@dataclass(frozen=True)
class Finding:
    """An answer to one question: it is good (True), bad (False) or neither is shown (None); in words with its reason, and its
    numbers as (value, what it is)."""

    good: bool | None
    answer: str
    reason: str
    numbers: tuple[tuple[str, str], ...] = ()

    @property
    def sentence(self) -> str:
        """The answer and its reason."""
        return f"{self.answer}: {self.reason}"


def converges(metrics: Metrics) -> Finding:
    """Does the core converge, and to what?"""
    places = Places(**metrics["places"])
    if "convergence" not in metrics:
        return Finding(None, NOT_SHOWN, "too few steps were run to say what the states settle into.")
    layers, rates = metrics["convergence"]["layers"], metrics["limits"]["tokens"]
    none, cyclic, degenerate = (sum(row[i] for row in layers) / len(layers) for i in range(3))
    numbers = (
        (percent(rates[0]), "of tokens come to rest at the last layer, by direction"),
        (percent(rates[1]), "orbit"),
        (percent(rates[2]), "slide"),
        (percent(rates[3]), "do something else"),
    )
    if none > 1 - MOST and none >= max(cyclic, degenerate):
        said = f"{percent(none)} of layers do not stay near where they stand after {places.steps} steps."
        return Finding(False, "No", said, numbers)
    sizes = metrics["by_step"]["state_norm"]["mean"] if "state_norm" in metrics.get("by_step", {}) else []
    half = (len(sizes) + 1) // 2
    if sizes and None not in (sizes[half - 1], sizes[-1]) and sizes[-1] > GROWS * sizes[half - 1]:  # rest is told by cosines
        times = f"{sizes[-1] / sizes[half - 1]:.1f} times as long after {places.steps} steps as after {half}"
        return Finding(False, "No, only in direction", f"the state keeps growing: it is {times}.", numbers)
    # a layer rests in the mean over its tokens: a few of them may still swing
    rest, loose = cyclic + degenerate, rates[0] < MOST
    good, sure = (True, "Yes") if rest >= MOST and not loose else (None, "Mostly")
    ways = ", ".join(
        f"{percent(rate)} {what}" for rate, what in zip(rates[1:], ("orbit", "slide", "do something else"), strict=True) if rate
    )
    others = f" Of their tokens {ways}." if loose else ""
    if degenerate > cyclic:
        said = f"{percent(degenerate)} of layers end in the same direction as the others.{others}"
        return Finding(good, f"{sure}, but to one point", said, numbers)
    points = "the same point" if places.core == 1 else "points of their own, which the core runs through again and again"
    some = f" ({percent(degenerate)} where the others rest too)" if degenerate > 1 - MOST else ""
    return Finding(good, sure, f"{percent(rest)} of layers come to rest, at {points}{some}.{others}", numbers)


def stages(metrics: Metrics, dense: Metrics | None, name: str = "colsum") -> Finding:
    """Are its stages those of a feedforward model?"""
    places = Places(**metrics["places"])
    if one_layer(metrics):
        return Finding(None, NOT_SHOWN, "one layer has no stages to run through; what it does at each step is below.")
    steps = _tensor([one_step(metrics, name, t) for t in range(places.steps)])
    if dense is None:
        if places.steps == 1:
            return _feedforward(metrics)
        drift = _share(curve_distance(steps[0], steps[-1]).item(), steps)
        if math.isnan(drift):
            return Finding(None, NOT_SHOWN, "no dense model was given, and at the first step or the last a layer has no number.")
        said = "no dense model was given to compare with (--compare). "
        said += f"From the first step to the last the ColSum curve moves by {percent(drift)} of its range."
        numbers: tuple[tuple[str, str], ...] = (
            (percent(drift), "of its range: how far the ColSum curve moves from first to last step"),
        )
        return Finding(None, NOT_SHOWN, said, numbers)
    other = _tensor([dense["by_place"][name]["mean"]])[0]
    each = curve_correlation(steps, other)
    gap = curve_distance(steps, other)
    if each.isnan().all():
        return Finding(None, NOT_SHOWN, "in every step a curve has a layer without a number, or is flat.")
    best, mean = each.nan_to_num(-1).max().item(), each.nanmean().item()
    numbers = (
        (f"{mean:z.2f}".replace("-", "−"), "mean correlation of a step's ColSum curve with the dense model's"),
        (f"{best:z.2f}".replace("-", "−"), f"best, at step {int(each.nan_to_num(-1).argmax()) + 1}"),
        (f"{gap.nanmean().item():.3f}", "mean distance between the curves"),
    )
    if best < ALIKE:
        said = f"no step's curve has the shape of the dense model's (best correlation {best:z.2f}, wanted: {ALIKE})."
        return Finding(False, "No", said.replace("-0", "−0"), numbers)
    share = (each >= ALIKE).double().mean().item()
    said = "the curve over one block has the shape of the dense model's."
    good, word = (True, "Yes,") if share >= 0.5 else (None, "Only")  # of one step in sixteen nobody would say yes
    return Finding(good, f"{word} in {percent(share)} of steps", said, numbers)


def one_layer(metrics: Metrics) -> bool:
    """Whether the model is one layer, looped or not: there is no line over its layers."""
    places = metrics["places"]
    return places["prelude"] + places["core"] + places["coda"] == 1


def _feedforward(metrics: Metrics) -> Finding:
    """Says where in a feedforward model attention gathers, the residual is compressed and activations are large."""
    by_place, layers = metrics["by_place"], Places(**metrics["places"]).count

    def end(name: str, pick: Any) -> tuple[float, str]:
        values = [x if x is not None else float("nan") for x in by_place[name]["mean"]]
        chosen = pick((x for x in values if x == x), default=float("nan"))
        place = values.index(chosen) if chosen == chosen else -1
        words = {-1: "no layer", 0: "its first layer", layers - 1: "its last layer"}
        return chosen, words.get(place) or f"{100 * place / (layers - 1):.0f} % of its depth"

    (colsum, gathers), (entropy, narrow), (largest, massive) = end("colsum", max), end("entropy", min), end("largest", max)
    said = (
        f"attention gathers most on few tokens at {gathers}, the residual is most compressed at {narrow}, and "
        f"its largest entry stands at {massive}."
    )
    numbers = (
        (f"{colsum:.2f}", f"ColSum concentration, at its largest at {gathers} (1: all attention on one token)"),
        (f"{entropy:.2f}", f"residual entropy in nats, at its least at {narrow}"),
        (f"{largest:,.4g}" if largest < 1e4 else f"{largest:,.0f}", f"largest activation, at {massive}"),
    )
    return Finding(None, "Each layer runs once", said, numbers)


def safe(metrics: Metrics, name: str = "colsum") -> Finding:
    """Is more depth safe?

    No: answers change beyond the model's own depth, or the state overflows. Yes: they stay, the states rest, the stages stand still
    and a step contracts. Not shown: they stay, but one of the others is missing or speaks against it, so that they may change
    farther on.
    """
    places = Places(**metrics["places"])
    if places.steps == 1:
        return Finding(None, NOT_SHOWN, "the model has no core, so there is no depth to add.")
    answers = metrics.get("answers", {})
    depth, kept = answers.get("depth"), answers.get("kept")
    if depth is None or depth >= places.steps:
        run = f"only {places.steps} steps were run, no more than the model's own depth; more steps are needed (--depth)."
        return Finding(None, NOT_SHOWN, run)
    values = _tensor(grid(metrics, name))
    drift = _share((values[-1] - values[depth - 1]).abs().mean().item(), values)
    radius = metrics.get("spectrum", {}).get("radius", [None])[-1]
    rests = metrics["limits"]["tokens"][0] if "limits" in metrics else None
    numbers = [(percent(drift), "of its range: how far the ColSum curve moves beyond that depth")]
    if kept is not None:
        numbers.insert(0, (percent(kept), f"of answers at depth {places.steps} are those of depth {depth}"))
    if radius is not None:
        numbers += [(f"{radius:.2f}", "spectral radius ρ of a step at the first prompt's last state (below 1: it contracts)")]
    others = {
        "too few steps to see tokens rest" if rests is None else f"{percent(rests)} of tokens at rest": (rests or 0) >= MOST,
        f"stages moved by {percent(drift)}": drift <= DRIFT,
        "ρ not measured" if radius is None else f"ρ = {radius:.2f} at the last state": radius is not None and radius < 1,
    }
    missing = [what for what, well in others.items() if not well]
    if values[-1].isnan().any() and not values[0].isnan().any():  # equal answers of such a state say nothing
        return Finding(False, "No", f"by step {places.steps} layers have lost their numbers; the state is no longer finite.")
    if kept is not None and kept < MOST:
        said = f"only {percent(kept)} of answers at depth {places.steps} are those of depth {depth}"
        reasons = [f"{said} (wanted: at least {percent(MOST)})", *missing]
        return Finding(False, "No", "; ".join(reasons) + ".", tuple(numbers))
    if missing or kept is None:
        stay = "no answers were compared" if kept is None else f"{percent(kept)} of answers stay as at depth {depth}, but"
        wanted = f"wanted: at least {percent(MOST)} at rest, at most {percent(DRIFT)} moved, ρ below 1"
        joined = f"{stay} {'; '.join(missing)}" if kept is not None else "; ".join([stay, *missing])
        return Finding(None, NOT_SHOWN, f"{joined} ({wanted}).", tuple(numbers))
    said = "states rest, answers stay, stages stand still and a step contracts."
    return Finding(True, f"Yes, up to the {places.steps} steps that were run", said, tuple(numbers))


def _tensor(rows: Sequence[Sequence[float | None]]) -> torch.Tensor:
    return torch.tensor([[float("nan") if x is None else x for x in row] for row in rows], dtype=torch.float64)


def _share(gap: float, values: torch.Tensor) -> float:
    reach = values[~values.isnan()]
    width = (reach.max() - reach.min()).item() if reach.numel() else 0.0
    return gap / width if width > 0 else 0.0


def percent(share: float) -> str:
    """Returns a share in words; from one percent on cut, not rounded, so that nothing reads as a bound it does not reach."""
    if share != share:
        return "–"
    return f"{100 * share:.2g} %" if 0 < share < 0.01 else f"{int(1000 * share) / 10:g} %"
