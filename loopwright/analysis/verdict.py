"""What a summary means, in words with the numbers behind them: what it converges to, whose stages it has, is more depth safe?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loopwright.analysis.places import Places
from loopwright.analysis.summary import grid, one_step
from loopwright.metrics.stages import curve_correlation, curve_distance

Metrics = Mapping[str, Any]
MOST = 0.95  # of tokens, layers or answers: what counts as nearly all
ALIKE = 0.7  # correlation of stage curves from which they are called alike
DRIFT = 0.1  # of the range of a stage curve: how far it may move and still be called the same


@dataclass(frozen=True)
class Finding:
    """An answer to one question: whether it is the good one (None: it cannot be said), the sentence, and its numbers as (value,
    what it is)."""

    good: bool | None
    sentence: str
    numbers: tuple[tuple[str, str], ...] = ()


def converges(metrics: Metrics) -> Finding:
    """Does the core converge, and to what?"""
    places = Places(**metrics["places"])
    if "convergence" not in metrics:
        return Finding(None, "Too few steps were run to say what the states settle into.")
    layers, rates = metrics["convergence"]["layers"], metrics["limits"]["tokens"]
    none, cyclic, degenerate = (sum(row[i] for row in layers) / len(layers) for i in range(3))
    numbers = (
        (percent(rates[0]), "of tokens rest at a fixed point of the last layer"),
        (percent(rates[1]), "orbit"),
        (percent(rates[2]), "slide"),
        (percent(rates[3]), "do something else"),
    )
    if none > 1 - MOST and none >= max(cyclic, degenerate):
        said = f"No: {percent(none)} of layers do not stay near where they stand after {places.steps} steps."
        return Finding(False, said, numbers)
    # a layer rests in the mean over its tokens: a few of them may still swing
    rest, loose = cyclic + degenerate, rates[0] < MOST
    sure = "Yes" if rest >= MOST and not loose else "Mostly"
    ways = ", ".join(
        f"{percent(rate)} {what}" for rate, what in zip(rates[1:], ("orbit", "slide", "do something else"), strict=True) if rate
    )
    others = f" Of their tokens {ways}." if loose else ""
    if degenerate > cyclic:
        said = f"{sure}, but to one point: {percent(degenerate)} of layers end in the same direction as the others.{others}"
        return Finding(sure == "Yes", said, numbers)
    points = "the same point" if places.core == 1 else "points of their own, which the core runs through again and again"
    some = f" ({percent(degenerate)} where the others rest too)" if degenerate > 1 - MOST else ""
    return Finding(sure == "Yes", f"{sure}: {percent(rest)} of layers come to rest, at {points}{some}.{others}", numbers)


def stages(metrics: Metrics, dense: Metrics | None, name: str = "colsum") -> Finding:
    """Are its stages those of a feedforward model?"""
    places = Places(**metrics["places"])
    steps = _tensor([one_step(metrics, name, t) for t in range(places.steps)])
    if dense is None:
        if places.steps == 1:
            return _feedforward(metrics)
        drift = _share(curve_distance(steps[0], steps[-1]).item(), steps)
        if math.isnan(drift):
            return Finding(None, "No dense model was given, and at the first step or the last a layer has no number.")
        said = f"No dense model was given. From the first step to the last the ColSum curve moves by {percent(drift)} of its range."
        return Finding(None, said, ((percent(drift), "of its range: how far the ColSum curve moves from first to last step"),))
    other = _tensor([dense["by_place"][name]["mean"]])[0]
    each = curve_correlation(steps, other)
    gap = curve_distance(steps, other)
    if each.isnan().all():
        return Finding(None, "It cannot be said: in every step a curve has a layer without a number, or is flat.")
    best, mean = each.nan_to_num(-1).max().item(), each.nanmean().item()
    numbers = (
        (f"{mean:z.2f}".replace("-", "−"), "mean correlation of a step's ColSum curve with the dense model's"),
        (f"{best:z.2f}".replace("-", "−"), f"best, at step {int(each.nan_to_num(-1).argmax()) + 1}"),
        (f"{gap.nanmean().item():.3f}", "mean distance between the curves"),
    )
    if best < ALIKE:
        return Finding(False, "No: no step's curve has the shape of the dense model's.", numbers)
    share = (each >= ALIKE).double().mean().item()
    return Finding(
        True, f"Yes, in {percent(share)} of steps: the curve over one block has the shape of the dense model's.", numbers
    )


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
        f"Its layers run once. Attention gathers most on few tokens at {gathers}, the residual is most compressed at {narrow}, and "
        f"its largest entry stands at {massive}."
    )
    numbers = (
        (f"{colsum:.2f}", f"ColSum concentration, at its largest at {gathers} (1: all attention on one token)"),
        (f"{entropy:.2f}", f"residual entropy in nats, at its least at {narrow}"),
        (f"{largest:,.4g}" if largest < 1e4 else f"{largest:,.0f}", f"largest activation, at {massive}"),
    )
    return Finding(None, said, numbers)


def safe(metrics: Metrics, name: str = "colsum") -> Finding:
    """Is more depth safe?"""
    places = Places(**metrics["places"])
    if places.steps == 1:
        return Finding(None, "The model has no core: there is no depth to add.")
    said = metrics.get("answers", {})
    depth, kept = said.get("depth"), said.get("kept")
    if depth is None or depth >= places.steps:
        return Finding(None, f"Only {places.steps} steps were run, no more than the model's own depth: nothing is known beyond it.")
    values = _tensor(grid(metrics, name))
    own = depth - 1
    drift = _share((values[-1] - values[own]).abs().mean().item(), values)
    radius = metrics.get("spectrum", {}).get("radius", [None])[-1]
    rests = metrics["limits"]["tokens"][0] if "limits" in metrics else None
    checks = {
        f"{percent(rests)} of tokens at rest" if rests is not None else "too few steps to see tokens rest": (rests or 0) >= MOST,
        f"{percent(kept or 0)} of answers as at depth {depth}": kept is not None and kept >= MOST,
        f"stages moved by {percent(drift)}": drift <= DRIFT,
        "ρ not measured" if radius is None else f"ρ = {radius:.2f} at the last state": radius is not None and radius < 1,
    }
    numbers = [
        (percent(kept or 0), f"of answers at depth {places.steps} are those of depth {depth}"),
        (percent(drift), "of its range: how far the ColSum curve moves beyond that depth"),
    ]
    if radius is not None:
        numbers += [(f"{radius:.2f}", "spectral radius ρ of a step at the first prompt's last state (below 1: it contracts)")]
    failed = [what for what, well in checks.items() if not well]
    if not failed:
        said = f"Yes, up to the {places.steps} steps that were run: states rest, answers stay, stages stand still."
        return Finding(True, said, tuple(numbers))
    wanted = f"at least {percent(MOST)} at rest and unchanged, at most {percent(DRIFT)} moved, ρ below 1"
    return Finding(False, f"Not shown: {'; '.join(failed)} (wanted: {wanted}).", tuple(numbers))


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
