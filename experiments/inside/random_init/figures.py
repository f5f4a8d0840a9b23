"""Figures of the random-initialisation sweep, from its saved numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from experiments.inside.figures_models import side_by_side
from experiments.inside.random_init.plan import INJECTIONS, MAIN_LAYERS, MAIN_START, NORMS, STARTS
from loopwright.analysis.figures import LAYER_ENDS
from loopwright.plot.drawing import DASHES, Curve, Drawing
from loopwright.plot.style import COLOURS

Results = Sequence[Mapping[str, Any]]
WORDS = {"pre": "pre-norm", "huginn": "Huginn's norms", "ouro": "Ouro's norms"}
SHORT = {"pre": "pre-norm", "huginn": "Huginn", "ouro": "Ouro"}
AFTER = {"injection": "injection", "none": "no injection"}
OWN, FAR = "its own fixed point", "the farthest layer's"
COSINE, DISTANCE = "cosine", "distance"
LAYER_COLOURS = dict(zip((4, 12, 16), (COLOURS[0], COLOURS[1], COLOURS[2]), strict=True))


def curve(results: Results, name: str, **wanted: Any) -> Curve | None:
    """Returns a number's mean over the seeds of the models that are wanted, with the least and the largest; None where there are
    none."""
    rows = [result["curves"][name] for result in results if all(result[key] == value for key, value in wanted.items())]
    if not rows:
        return None
    steps = [[value for value in values if value is not None] for values in zip(*rows, strict=True)]
    x = range(1, len(steps) + 1)
    return Curve(
        x,
        [sum(v) / len(v) if v else None for v in steps],
        [min(v) if v else None for v in steps],
        [max(v) if v else None for v in steps],
    )


def _panels(results: Results, lines: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, Curve]]:
    """A panel per norm and injection, with the lines that are there: name → (number, which models)."""
    groups: dict[str, dict[str, Curve]] = {}
    for injection in INJECTIONS:
        for norm in NORMS:
            found = {
                label: curve(results, name, norm=norm, injection=injection, **wanted) for label, (name, wanted) in lines.items()
            }
            groups[f"{WORDS[norm]}, {AFTER[injection]}"] = {label: each for label, each in found.items() if each is not None}
    return {title: group for title, group in groups.items() if group}


def norms_and_injection(results: Results) -> Drawing:
    """Figure 6: all six kinds in one panel; left to its own fixed point, right to the farthest layer's."""
    groups: dict[str, dict[str, Curve]] = {}
    styles = {}
    for title, name in ((OWN, "fixed_cosine"), (FAR, "far_cosine")):
        group = groups.setdefault(f"cosine to {title}", {})
        for colour, norm in zip(COLOURS, NORMS, strict=False):
            for injection in INJECTIONS:
                found = curve(results, name, norm=norm, injection=injection, layers=MAIN_LAYERS, start=MAIN_START)
                if found is not None:
                    label = f"{SHORT[norm]}, {AFTER[injection]}"
                    group[label] = found
                    styles[label] = {"color": colour, "linestyle": DASHES[0] if INJECTIONS[injection] else DASHES[2]}
    return side_by_side(groups, y_label="cosine", styles=styles, columns=2)


def own_and_farthest(results: Results, *, kind: str) -> Drawing:
    """Figures 29 and 30: the first layer against its own and the farthest fixed point, by distance or by cosine."""
    names = ("fixed_norm", "far_norm") if kind == DISTANCE else ("fixed_cosine", "far_cosine")
    wanted = {"layers": MAIN_LAYERS, "start": MAIN_START}
    styles = {OWN: {"color": LAYER_ENDS[0], "linestyle": DASHES[0]}, FAR: {"color": LAYER_ENDS[1], "linestyle": DASHES[1]}}
    groups = _panels(results, {label: (name, wanted) for label, name in zip((OWN, FAR), names, strict=True)})
    return side_by_side(groups, y_label=kind, styles=styles, log=kind == DISTANCE)


def by_layers(results: Results, *, name: str) -> Drawing:
    """Figure 31: a line per number of layers, to its own or to the farthest layer's fixed point."""
    lines = {f"{layers} layers": (name, {"layers": layers, "start": MAIN_START}) for layers in LAYER_COLOURS}
    return side_by_side(_panels(results, lines), y_label="cosine")


def by_start(results: Results) -> Drawing:
    """A line per way that weights start."""
    lines = {start: ("fixed_cosine", {"layers": MAIN_LAYERS, "start": start}) for start in STARTS}
    return side_by_side(_panels(results, lines), y_label="cosine")


FIGURES: dict[str, Callable[[Results], Drawing]] = {
    "figure-6": norms_and_injection,
    "figure-29": partial(own_and_farthest, kind=DISTANCE),
    "figure-30": partial(own_and_farthest, kind=COSINE),
    "figure-31": partial(by_layers, name="fixed_cosine"),
    "figure-31-farthest": partial(by_layers, name="far_cosine"),
    "starts": by_start,
}


def draw_all(results: Results) -> dict[str, Drawing]:
    """Returns every figure by its name."""
    return {name: draw(results) for name, draw in FIGURES.items()}
