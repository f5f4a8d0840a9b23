"""Figures and page of the random-initialisation sweep, from its saved numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.inside.figures_models import side_by_side
from experiments.inside.random_init.claims import WORD, Cell, Claim, cells, judge
from experiments.inside.random_init.plan import INJECTIONS, MAIN_LAYERS, MAIN_START, NORMS, SHARED, STARTS
from experiments.pages import save_all
from loopwright.analysis.figures import LAYER_ENDS
from loopwright.analysis.report.page import Grid, Outcome, Picture, Section, write_report
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


# file: how to read it, and what draws it
FIGURES = {
    "figure-6": (
        "Figure 6, 12 layers: a line that stays at 1 on the left has come to rest; one that is at 1 on the right too rests where "
        "all layers do.",
        norms_and_injection,
    ),
    "figure-29": (
        "Figure 29, 12 layers: distances on a logarithmic axis; a falling solid line comes to rest, and the dashed one shows how "
        "far apart the layers' own points lie.",
        partial(own_and_farthest, kind=DISTANCE),
    ),
    "figure-30": ("Figure 30, 12 layers: the same by cosine; lines on one another are layers that share one direction.",
                  partial(own_and_farthest, kind=COSINE)),
    "figure-31": ("Figure 31, cosine to its own fixed point: where lines lie on one another, the number of layers changes nothing.",
                  partial(by_layers, name="fixed_cosine")),
    "figure-31-farthest": ("Figure 31, cosine to the farthest layer's fixed point: the lower, the farther apart layers rest.",
                           partial(by_layers, name="far_cosine")),
    "starts": ("Cosine to its own fixed point, 12 layers, a line per way in which weights start.", by_start),
}  # fmt: skip


def write_page(out: Path, results: Results, claims: Sequence[Claim]) -> Path:
    """Draws every figure and writes the page; returns where."""
    drawings = {name: draw(results) for name, (_, draw) in FIGURES.items()}
    save_all(drawings, out)
    pictures = {name: Picture(drawings[name], read) for name, (read, _) in FIGURES.items()}
    first = results[0]
    verdicts = [claim.holds for claim in claims]
    kept = verdicts.count(True)
    outcome = Outcome(
        False if False in verdicts else None if None in verdicts else True,
        f"{kept} of {len(claims)} claims of the paper hold on models that were never trained.",
        [(f"{cell.own:.2f} / {cell.far:.2f}", f"{_named(cell)}: cosine to its own / the farthest fixed point")
         for cell in cells(results, MAIN_START) if cell.layers == MAIN_LAYERS],
    )  # fmt: skip
    sections = [
        Section("The claims", "Judged on mean curves over prompts and seeds, at each number of layers.",
                tables=[_claims(claims, cells(results, MAIN_START))]),
        Section("Does the first layer come to rest?", pictures=[pictures["figure-6"]]),
        Section("At a point of its own?", pictures=[pictures["figure-30"]]),
        Section("", pictures=[pictures["figure-29"]]),
        Section("Does the number of layers matter?", pictures=[pictures["figure-31"]]),
        Section("", pictures=[pictures["figure-31-farthest"]],
                tables=[_cells(cells(results, MAIN_START), MAIN_START)]),
        Section("Does the way that weights start matter?", "The paper does not say how its models start. From other starts the "
                "claims were judged too, at 12 layers with one seed, and are not asserted.", pictures=[pictures["starts"]],
                tables=[_starts(results), *[_cells(cells(results, start), start) for start in STARTS if start != MAIN_START]]),
        Section("What was run", tables=[_settings(first)]),
    ]  # fmt: skip
    made = first["origin"]
    return write_report(
        out / "random-init.html", "What random initialisation already decides", sections, outcome=outcome,
        lead="Looped models with random weights, 128 steps: do layers come to rest, and where, by norms and injection.",
        footer=f"loopwright {made['loopwright']}, torch {made['torch']}, {len(results)} models, "
        f"{sum(result['seconds'] for result in results):.0f} s of one core. Bands are the least and the largest of the seeds.",
    )  # fmt: skip


def _named(cell: Cell) -> str:
    return f"{WORDS[cell.norm]}, {AFTER[cell.injection]}"


def _claims(claims: Sequence[Claim], found: Sequence[Cell]) -> Grid:
    sizes = sorted({cell.layers for cell in found})
    judged = [judge([cell for cell in found if cell.layers == layers]) for layers in sizes]
    rows = [
        [claim.text, *(_word(each[i]) for each in judged), _word(claim),
         "; ".join(f"{_named(cell)}, {cell.layers} layers: {cell.verdict}" for cell in claim.against) or "–"]
        for i, claim in enumerate(claims)
    ]  # fmt: skip
    return Grid(["claim", *(f"{layers} layers" for layers in sizes), "all", "against it"], rows)


def _word(claim: Claim) -> str:
    return WORD[claim.holds]


def _cells(found: Sequence[Cell], start: str) -> Grid:
    order = sorted(found, key=lambda cell: (list(INJECTIONS).index(cell.injection), list(NORMS).index(cell.norm), cell.layers))
    rows = [[_named(cell), str(cell.layers), cell.verdict, f"{cell.seeds} of {cell.models}",
             f"{cell.own:.3f}", f"{cell.lowest:.3f}", f"{cell.far:.3f}"] for cell in order]  # fmt: skip
    return Grid(
        ["model", "layers", "settles into", "seeds that do so alone", "cosine to its own", "lowest of it", "to the farthest"], rows,
        f"{STARTS[start].about}. Means over the second half of the steps. None: it moves; "
        "cyclic: at rest, each layer elsewhere; degenerate: at rest, all layers at one point.",
    )  # fmt: skip


def _starts(results: Results) -> Grid:
    judged = {start: judge([cell for cell in cells(results, start) if cell.layers == MAIN_LAYERS]) for start in STARTS}
    texts = [claim.text for claim in next(iter(judged.values()))]
    rows = [[text, *(_word(judged[start][i]) for start in STARTS)] for i, text in enumerate(texts)]
    return Grid(["claim, at 12 layers", *STARTS], rows)


def _settings(first: Mapping[str, Any]) -> Grid:
    rows = [
        f"width {SHARED['hidden_size']}, {SHARED['num_attention_heads']} heads, SwiGLU of {SHARED['intermediate_size']}, rotary "
        "positions, no biases, no prelude, no coda, float32",
        "injection: W [state; input] at each step, the first state noise; without it the first state is the input",
        f"{first['prompts']} prompts of {first['tokens']} random tokens out of {SHARED['vocab_size']}, other ones for each seed",
        f"{first['steps']} steps; the approximate fixed point of a layer is its residual at the last",
        *[f"start {name!r}: {start.about}" for name, start in STARTS.items()],
    ]
    return Grid(["settings"], [[row] for row in rows])
