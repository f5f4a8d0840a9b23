"""The page and figures of stages on questions, from the rows alone; models that were not measured are left out.

Every looped model stands beside a dense one: the retrofit beside the model whose layers it has, models trained here beside their
control.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.inside.stages.measure import DEEP, FIRST, SETS
from experiments.pages import last_of_each, number, percent, save_all, table
from loopwright.analysis.figures import LABELS, STAGES, by_layer, by_step
from loopwright.analysis.summary import grid, one_step
from loopwright.metrics.attention import curve_correlation
from loopwright.plot.drawing import Axes, Curve, Drawing, lines, log_axis, panels
from loopwright.plot.figures import step_axis

Row = Mapping[str, Any]
DENSE, CONTROL, RETROFIT, START = "SmolLM2-135M-Instruct", "control", "heal-0", "retrofit-start"
ONCE = "unlooped-0"  # the retrofit's layers, trained on the same text and not looped
WORDS = {
    RETROFIT: "retrofit (4, 6⊗4, 4)", START: "retrofit, not yet trained", ONCE: "its 14 layers, trained unlooped",
    DENSE: "SmolLM2-135M, 30 layers", "sandwich-4-injected": "(2, 4⊗4, 2) I", "sandwich-4": "(2, 4⊗4, 2)",
    CONTROL: "control, 12 layers",
}  # fmt: skip
SHOWN = (2, 4, 16, 128)  # steps whose bound is given
LEAST = 1e-6  # distances below it are rounding, and not drawn


class Rows:
    """Rows by model, look and set of prompts."""

    def __init__(self, path: Path) -> None:
        self.found = last_of_each(path)

    def get(self, model: str, look: str, name: str = FIRST) -> Row | None:
        """Returns a row; None where it was not measured."""
        return self.found.get(f"{model}/{look}/{name}")

    def of(self, look: str) -> Iterator[tuple[str, Row]]:
        """Yields the models that have a look on the first set, in the order of WORDS."""
        for model in WORDS:
            row = self.get(model, look)
            if row is not None:
                yield model, row

    def dense(self, model: str, name: str = FIRST) -> Row | None:
        """Returns the stages of the dense model that a looped one stands beside; None for a dense one."""
        beside = {DENSE: None, CONTROL: None, RETROFIT: DENSE, START: DENSE, ONCE: DENSE}.get(model, CONTROL)
        return None if beside is None else self.get(beside, "near", name)


def curves(row: Row, name: str) -> torch.Tensor:
    """Returns the curve of each step over prelude, core and coda [S, n]."""
    return torch.tensor([one_step(row, name, step) for step in range(row["places"]["steps"])], dtype=torch.float64)


def alike(row: Row, dense: Row | None, name: str = "colsum") -> str:
    """Returns how each step's curve correlates with a dense model's, from the first step to the last."""
    if dense is None:
        return "–"
    return " / ".join(number(value, 2) for value in curve_correlation(curves(row, name), curves(dense, name)[0]).tolist())


def reach(row: Row, name: str) -> str:
    """Returns the least and the largest value of a curve over all places."""
    values = row["by_place"][name]["mean"]
    return f"{number(min(values), 2)} to {number(max(values), 2)}"


def average(row: Row, name: str) -> float:
    """Returns the mean of a value over all places."""
    values = row["by_place"][name]["mean"]
    return sum(values) / len(values)


def stage_table(rows: Rows) -> str:
    """Returns the stages on both sets of prompts."""
    found = []
    for model, first in rows.of("near"):
        for name in SETS:
            row = rows.get(model, "near", name)
            if row is not None:
                both = (
                    "–"
                    if row is first
                    else number(curve_correlation(curves(row, "colsum"), curves(first, "colsum")).min().item(), 2)
                )
                cells = [reach(row, "colsum"), percent(average(row, "sink_rate")), number(average(row, "mixing"), 2)]
                cells.append(number(average(row, "entropy"), 2))
                cells += [alike(row, rows.dense(model, name), curve) for curve in ("colsum", "sink_rate")]
                found.append([WORDS[model], name, f"{row['tokens'] / row['examples']:.0f}", *cells, both])
    return table(
        ["model", "prompts", "tokens each", "ColSum", "sink rate, mean over layers", "mixing (nats)", "entropy (nats)",
         "ColSum like the dense model's, by step", "sink rate likewise", "ColSum like that on GSM8K, least of steps"], found,
    )  # fmt: skip


def ablation_table(rows: Rows) -> str:
    """Returns what is left of the stages without the MLP of the layer that makes the largest entry."""
    found = []
    for model, row in rows.of("ablated"):
        before, dense = rows.get(model, "near"), rows.dense(model)
        for said, one in (("as it is", before), (f"without the MLP of layer {row['layer'] + 1}", row)):
            if one is not None:
                largest = max(one["by_place"]["largest"]["mean"])
                cells = [f"{largest:,.0f}", reach(one, "colsum"), percent(average(one, "sink_rate"))]
                found.append([WORDS[model], said, *cells, alike(one, dense if dense is not None else before)])
    return table(["model", "", "largest entry", "ColSum", "sink rate", "ColSum like the dense model's, by step"], found)


def beyond_table(rows: Rows) -> str:
    """Returns what becomes of a model far beyond its own depth."""
    found = []
    for model, row in rows.of("deep"):
        own, values, norms = row["answers"]["depth"], _grid(row, "colsum"), _grid(row, "norm")
        moved = (values[-1] - values[own - 1]).abs().mean() / (values.max() - values.min())
        limits = [percent(share) for share in row["limits"].get("tokens", [])]
        rests = torch.tensor(row["convergence"]["layers"]).mean(0).tolist() if row["convergence"] else []
        growth = number((norms[-1].mean() / norms[own - 1].mean()).item(), 2)
        cells = [*limits, *(percent(share, 0) for share in rests), percent(moved.item()), growth, percent(row["answers"]["kept"])]
        found.append([WORDS[model], str(row["places"]["steps"]), *cells])
    return table(
        ["model", "steps", "tokens at a fixed point", "orbit", "slider", "unknown", "layers that do not rest", "at own points",
         "at one point", "ColSum moved, of its range", "norm, times that at the model's depth", "next tokens kept"], found,
    )  # fmt: skip


def pair_table(rows: Rows) -> str:
    """Returns how far apart a layer is from itself at other steps, and layers from one another."""
    found = [
        [
            WORDS[model],
            str(row["steps"]),
            *(number(row[kind][which], 2) for kind in ("attention", "residual") for which in ("same", "other")),
        ]
        for model, row in rows.of("pairs")
    ]
    return table(
        ["model", "steps", "attention distance, same layer", "other layers", "residual cosine, same layer", "other layers"], found
    )


def bound_table(rows: Rows) -> str:
    """Returns how far maps move at some steps, and how far they could."""
    found = []
    for model, row in rows.of("bound"):
        broken, telling = [0.0, *row["broken"]], [None, *(sum(each) / len(each) for each in row["telling"])]
        for kind, means, out, tells in zip(row["kinds"], row["means"], broken, telling, strict=True):
            cells = [f"{means[step - 2]:.3g}" if step - 2 < len(means) else "–" for step in SHOWN]
            last = ["–", "–"] if tells is None else [percent(out, 2), percent(tells)]
            found.append([WORDS[model], kind, *cells, *last])
    return table(["model", "", *(f"step {step}" for step in SHOWN), "broken", "below √(2T)"], found)


def _grid(row: Row, name: str) -> torch.Tensor:
    return torch.tensor(grid(row, name), dtype=torch.float64)


def bound_figure(rows: Rows) -> Drawing | None:
    """Returns a panel per model: how far maps move at each step, and three bounds on it."""

    def draw(model: str, row: Row, axes: Axes) -> None:
        steps = range(2, len(row["means"][0]) + 2)
        shown = {kind: Curve(steps, [value if value > LEAST else None for value in means])
                 for kind, means in zip(row["kinds"], row["means"], strict=True)}  # fmt: skip
        lines(axes, shown)
        log_axis(axes, shown)
        step_axis(axes, row["steps"])
        axes.set_title(WORDS[model], loc="left", fontsize=9.5)
        axes.set_xlabel("step")
        axes.set_ylabel("attention change, bounds")

    drawn = [lambda axes, each=each: draw(*each, axes) for each in rows.of("bound")]
    return panels(drawn, legend_columns=2) if drawn else None


def beside_itself(row: Row, before: Row) -> Drawing:
    """Returns a panel per stage of a dense model over its layers: without the MLP of one layer, and as it is."""

    def draw(name: str, axes: Axes) -> None:
        both = {f"without the MLP of layer {row['layer'] + 1}": row, "as it is": before}
        values = {said: one["by_place"][name]["mean"] for said, one in both.items()}
        lines(axes, {said: Curve(range(1, len(means) + 1), means) for said, means in values.items()})
        axes.set_xlabel("layer")
        axes.set_ylabel(LABELS[name])

    return panels([lambda axes, name=name: draw(name, axes) for name in STAGES])


def draw(rows: Rows) -> dict[str, Drawing]:
    """Returns the figures by name."""
    made: dict[str, Drawing] = {}
    for model in (model for model in WORDS if model not in (START, ONCE)):  # whose steps are all alike; which has one
        for name in SETS if model == RETROFIT else SETS[1:]:  # on the first set, pages of `loopwright analyze` show the others
            row = rows.get(model, "near", name)
            if row is not None and row["places"]["core"]:
                made[f"stages-{model}-{name}"] = by_step(row, STAGES, dense=rows.dense(model, name))
        ablated = rows.get(model, "ablated")
        before = rows.get(model, "near")
        if ablated is not None and ablated["places"]["core"]:
            made[f"ablated-{model}"] = by_step(ablated, STAGES, dense=rows.dense(model))
        elif ablated is not None and before is not None:
            made[f"ablated-{model}"] = beside_itself(ablated, before)
    for model, row in rows.of("deep"):
        made[f"beyond-by-layer-{model}"] = by_layer(row, DEEP)
        made[f"beyond-by-step-{model}"] = by_step(row, DEEP, dense=rows.dense(model))
    bound = bound_figure(rows)
    return made if bound is None else made | {"bound": bound}


def page(rows: Rows) -> str:
    """Returns all tables as one page of Markdown."""
    parts: Sequence[str] = [
        "# Stages on questions", "`python -m experiments.inside.stages tables` made this page.",
        "## Stages at the model's own depth", stage_table(rows),
        "## Without massive activations", ablation_table(rows),
        "## Beyond the model's own depth", beyond_table(rows),
        "## All pairs of layers", pair_table(rows),
        "## Proposition 4.2",
        "Means over prompts, layers and heads. A bound is broken where a map moves farther; it tells something where it is below "
        "√(2T), the farthest that two maps of T tokens can be apart.", bound_table(rows),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def write(out: Path, path: Path) -> None:
    """Writes the page and the figures into a folder."""
    rows = Rows(path)
    made = save_all(draw(rows), out / "figures")
    (out / "stages.md").write_text(page(rows))
    print(f"{out / 'stages.md'} and {len(made)} figures, {sum(each.stat().st_size for each in made):,} bytes")
