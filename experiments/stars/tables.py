"""The study's tables and figures, from its results alone.

python -m experiments.stars.tables experiments/results/stars/runs.jsonl experiments/results/stars
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from experiments.pages import Result, by_label
from experiments.seeds import shared as pairs_of_seeds
from experiments.stars.paths import named, path_panels, with_path
from experiments.stars.plan import GROUPS, PLACES, Run, depth_rules
from experiments.tables import Columns, Page, arm_table, of, points_table
from loopwright.metrics.intervals import wilson_interval
from loopwright.metrics.score import holds_from_to
from loopwright.plot.drawing import Drawing
from loopwright.plot.figures import Curve, accuracy_by_depth, length_by_depth_heatmap, radius_bars
from loopwright.plot.figures import Radius as Bar
from loopwright.schema import build_kind
from loopwright.training.depth import RULES

SHOWN = (1, 2, 4, 8, 16, 32, 64, 100, 1000)
SOLVED = 0.99
MOST_LINES = 6  # of a figure; more are a grid
# groups of which no page has exact match as a figure: it is in the tables, or drawn of other groups
ONLY_PATHS = ("brief_norms", "brief_static", "paths", "target", "loader", "weights", "stacks", "changes")
# the same settings without the penalty and with it: group and label of both
PAIRS = {
    "no other part, finite difference": (("ablation", "none"), ("ablation", "penalty")),
    "no other part, as released": (("ablation", "none"), ("alike", "penalty, released")),
    "no other part, exact products": (("ablation", "none"), ("alike", "penalty, exact")),
    "every-step loss, finite difference": (("ablation", "every step"), ("ablation", "every step + penalty")),
    "injection + embedding norm, finite difference": (
        ("ablation", "injection + embedding norm"), ("ablation", "injection + embedding norm + penalty"),
    ),
    "all parts (`addition-stable`), finite difference": (
        ("ablation", "injection + embedding norm + every step"), ("target", "addition-stable"),
    ),
    "paper: random depth, as released": (("main", "random"), ("main", "random + penalty")),
    "paper: fixed depth 4, as released": (("main", "fixed"), ("main", "fixed + penalty")),
}  # fmt: skip
FORMS = {"off": ("ablation", "none")} | {form.rpartition(", ")[2]: PAIRS[form][1] for form in list(PAIRS)[:3]}

ABOUT = (
    "5,000 held-out sums to depth 100; beyond it the first 1,000 of them (all 5,000 in `target`); in the `brief_` groups and "
    "`paths` 1,000 and 250.",
    "Of the penalty on and off all else is equal, and differences are paired by seed. The interval is that of the mean over seeds "
    "(Student's t, 95 %): a difference is decided where it leaves 0 out. Finite differences are added with a ramp, the other two "
    "forms are weighted convexly without one. The penalty begins at the look at which 99 % of the validation sums are right, in "
    "the paper's settings at a fixed update.",
)

Runs = list[dict[str, Any]]


def read(paths: Iterable[str]) -> dict[str, dict[str, Runs]]:
    """Returns the results by group and label, in the order of the plan."""
    return by_group(PAGE.read([*paths]))


def by_group(runs: Sequence[Result]) -> dict[str, dict[str, Runs]]:
    """Returns results in the order of the plan by group and label."""
    found = {group: by_label(run for run in runs if run["group"] == group) for group in dict.fromkeys(map(of("group"), runs))}
    # by the placement of norms, the greatest mean depth first: both groups are rows of one table
    rows = [f"{place} {rule}" for place in PLACES for rule, _ in sorted(depth_rules(place).items(), key=lambda each: -each[1][1])]
    for group in {"distributions", "brief_distributions"} & found.keys():
        found[group] = {label: found[group][label] for label in rows if label in found[group]}
    return found


def accuracy(run: dict[str, Any]) -> dict[int, float]:
    """Returns exact match at each depth measured."""
    found = {depth: value for part in ("far", "near") for depth, value in zip(run[part]["depth"], run[part]["exact"], strict=True)}
    return {depth: value for depth, value in found.items() if value is not None}


def solved(run: dict[str, Any]) -> int | None:
    """Returns the update at which the median training depth was first right on 99 % of the validation rows."""
    median = str(build_kind(run["recipe"]["depth"], RULES).median)
    return next((update + 1 for update, seen in run["looks"] if (seen.get(median) or 0) >= SOLVED), None)


def side_by_side(values: Iterable[float]) -> str:
    """Returns percentages, seeds side by side."""
    return " / ".join(f"{value:.4g}" for value in values)


def shared(first: Runs, second: Runs) -> tuple[Runs, Runs] | None:
    """Returns the runs of the seeds that both have, in one order; None where there is none."""
    both = pairs_of_seeds(sorted(first, key=of("seed")), second)
    return ([a for a, _ in both], [b for _, b in both]) if both else None


def change_at_100(run: dict[str, Any]) -> float:
    """Returns the relative change of the state by step 100, the largest of all rows."""
    return float(run["near"]["change_largest"][-1])


def radius_at_100(run: dict[str, Any]) -> float:
    """Returns the spectral radius at depth 100, the mean over rows."""
    return float(run["radius"]["100"]["radius_mean"])


def curve(runs: Runs) -> Curve:
    """Returns exact match over depth: the mean of the seeds with the least and the largest, of one seed Wilson's interval."""
    depths = sorted(set.intersection(*[set(accuracy(run)) for run in runs]))
    exact = [[accuracy(run)[depth] for run in runs] for depth in depths]
    means = [sum(each) / len(each) for each in exact]
    ends = [(min(each), max(each)) for each in exact]
    if len(runs) == 1:
        rows = [runs[0]["near" if depth <= 100 else "far"]["rows"] for depth in depths]
        ends = [wilson_interval(round(mean * count), count) for mean, count in zip(means, rows, strict=True)]
    return Curve(depths, means, [low for low, _ in ends], [high for _, high in ends])


def draw_forms(found: dict[str, dict[str, Runs]]) -> Drawing:
    """Returns a grid of exact match by depth: the penalty off, and on in its three forms, a row for each seed."""
    depths = SHOWN[1:]  # at depth 1 nothing was trained for; without it every cell holds its number
    runs = {f"{form}, seed {run['seed']}": run for form, (g, label) in FORMS.items() for run in found.get(g, {}).get(label, [])}
    values = [[accuracy(run)[depth] for depth in depths] for run in runs.values()]
    return length_by_depth_heatmap(values, rows=list(runs), columns=depths)


def draw_all(found: dict[str, dict[str, Runs]]) -> dict[str, Drawing]:
    """Returns every figure by its name."""
    drawings = {}
    for group, labels in found.items():
        if group in ONLY_PATHS:
            continue
        if group == "alike":  # every seed: one that did not learn would bend a mean
            drawing = draw_forms(found)
        elif len(labels) <= MOST_LINES:
            drawing = accuracy_by_depth({label: curve(runs) for label, runs in labels.items()})
        else:
            means = [[sum(accuracy(run)[depth] for run in runs) / len(runs) for depth in SHOWN] for runs in labels.values()]
            drawing = length_by_depth_heatmap(means, rows=list(labels), columns=SHOWN)
        drawings[f"{group}-by-depth"] = drawing
    bars = {}
    for group in ("target", "main"):
        for label, runs in found.get(group, {}).items():
            radii = [run["radius"]["100"] for run in runs]
            mean = sum(r["radius_mean"] for r in radii) / len(radii)
            bars[label] = Bar(mean, min(r["radius_least"] for r in radii), max(r["radius_largest"] for r in radii))
    paths = {f"{group}-paths": with_path(named(found, group)) for group in found}
    return drawings | {name: path_panels(each) for name, each in paths.items() if each} | {"radius": radius_bars(bars)}


def percent_at(run: Result, depth: int) -> float:
    """Returns exact match at a depth, in percent."""
    return 100 * accuracy(run)[depth]


def parts(runs: list[Result]) -> dict[str, str]:
    """Returns the tables of the page."""
    found = by_group(runs)
    made = {group: arm_table(labels, COLUMNS, "run") for group, labels in found.items()}
    named = {what: [found.get(group, {}).get(label, []) for group, label in sides] for what, sides in PAIRS.items()}
    pairs = [(what, "the same without it", on, off) for what, (off, on) in named.items() if on and off]
    for what, value in COMPARED.items():
        made[f"The penalty on less off: {what}"] = points_table(pairs, what, value)
    return made


def planned(found: Sequence[Result]) -> list[Run]:
    """Returns all runs of the plan."""
    return [run for group in GROUPS.values() for run in group()]


COMPARED = {f"exact (%) at depth {depth}": partial(percent_at, depth=depth) for depth in (100, 1000)}
COLUMNS: Columns = {
    "99 % at update": lambda run: solved(run) or "never", **{str(depth): partial(percent_at, depth=depth) for depth in SHOWN},
    "≥ 99 % from 8 to (1,000 is the last measured)": lambda run: holds_from_to(accuracy(run), 8, SOLVED) or "no",
    "ρ at 100: mean": radius_at_100, "largest": of("radius", "100", "radius_largest"),
    "K = 1 reading": of("radius", "100", "reading"),
    "largest change at 100": of("near", "change_largest", -1),
}  # fmt: skip
PAGE = Page(
    "The STARS study: exact match (%) by depth, seeds side by side", ("stars/runs.jsonl",), parts, planned,
    lambda found: draw_all(by_group(found)), about=ABOUT,
)  # fmt: skip


if __name__ == "__main__":
    PAGE.main(__doc__, "experiments.stars.tables")
