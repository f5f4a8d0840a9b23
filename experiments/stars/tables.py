"""The study's tables and figures, from its results alone.

python -m experiments.stars.tables experiments/results/stars/runs.jsonl experiments/results/stars
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.pages import asked_tables, missing_part, save_all
from experiments.pages import table as markdown
from experiments.seeds import over_seeds
from experiments.stars.paths import named, path_panels, with_path
from experiments.stars.plan import GROUPS, PLACES, depth_rules
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
ONLY_PATHS = ("brief_norms", "brief_static", "paths")  # what they get right is drawn of other groups
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

ON_AND_OFF = """## The penalty on and off, all else equal

Paired by seed. The interval is that of the mean difference over seeds (Student's t, 95 %): a difference is decided where it \
leaves 0 out. Finite differences are added with a ramp, the other two forms are weighted convexly without one. The penalty begins \
at the look at which 99 % of the validation sums are right, in the paper's settings at a fixed update."""

Runs = list[dict[str, Any]]


def read(paths: Iterable[str]) -> dict[str, dict[str, Runs]]:
    """Returns the results by group and label, in the order of the plan."""
    runs = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    place = {run.name: number for number, run in enumerate(run for group in GROUPS.values() for run in group())}
    found: dict[str, dict[str, Runs]] = {}
    for run in sorted(runs, key=lambda run: place[run["name"]]):
        found.setdefault(run["group"], {}).setdefault(run["label"], []).append(run)
    for labels in found.values():
        for runs in labels.values():
            runs.sort(key=lambda run: run["seed"])
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


def row(label: str, runs: Runs) -> list[str]:
    """Returns one line of a table: every seed at each depth, and what the states do."""
    exact = [accuracy(run) for run in runs]
    held = [holds_from_to(values, 8, SOLVED) for values in exact]
    radius = [run["radius"]["100"] for run in runs]
    return [
        label,
        ", ".join(str(run["seed"]) for run in runs),
        ", ".join(str(solved(run) or "never") for run in runs),
        *[" / ".join(f"{100 * values[depth]:.4g}" for values in exact) for depth in SHOWN],
        ", ".join("no" if h is None else f"{h}{'+' if h == 1000 else ''}" for h in held),
        f"{sum(r['radius_mean'] for r in radius) / len(radius):.2f} (to {max(r['radius_largest'] for r in radius):.2f})",
        f"{sum(r['reading'] for r in radius) / len(radius):.3f}",
        f"{max(run['near']['change_largest'][-1] or float('nan') for run in runs):.0e}",
    ]


def table(group: dict[str, Runs]) -> str:
    """Returns a group as a Markdown table."""
    head = [
        "run",
        "seeds",
        "99 % at update",
        *map(str, SHOWN),
        "≥ 99 % from 8 to",
        "ρ at 100: mean (largest)",
        "K = 1 reading",
        "largest change at 100",
    ]
    lines = [head, ["---"] * len(head), *[row(label, runs) for label, runs in group.items()]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def on_and_off(found: dict[str, dict[str, Runs]]) -> str:
    """Returns what the penalty does where nothing else differs, seeds side by side and paired."""
    lines = []
    for label, (off, on) in PAIRS.items():
        pair = shared(found.get(off[0], {}).get(off[1], []), found.get(on[0], {}).get(on[1], []))
        if not pair:
            continue
        at = [[[100 * accuracy(run)[depth] for depth in (100, 1000)] for run in each] for each in pair]
        cells = []
        for place in (0, 1):
            without, with_it = ([values[place] for values in each] for each in at)
            low, high = over_seeds([b - a for a, b in zip(without, with_it, strict=True)])
            apart = "0" if low == high == 0 else f"{low:+.3g} to {high:+.3g}".replace("-", "−")
            cells += [side_by_side(without), side_by_side(with_it), apart]
        for value, form in ((change_at_100, ".0e"), (radius_at_100, ".2f")):
            cells += [" / ".join(format(value(run), form) for run in each) for each in pair]
        lines.append([label, ", ".join(str(run["seed"]) for run in pair[0]), *cells])
    head = ["setting, form of the penalty", "seeds"]
    head += [f"{depth}: {what}" for depth in (100, 1000) for what in ("off", "on", "on less off, 95 % over seeds")]
    return markdown(head + [f"{what}: {which}" for what in ("largest change at 100", "ρ at 100") for which in ("off", "on")], lines)


def shared(first: Runs, second: Runs) -> tuple[Runs, Runs] | None:
    """Returns the runs of the seeds that both have, in one order; None where there is none."""
    seeds = sorted({run["seed"] for run in first} & {run["seed"] for run in second})
    return ([_of_seed(first, seed) for seed in seeds], [_of_seed(second, seed) for seed in seeds]) if seeds else None


def _of_seed(runs: Runs, seed: int) -> dict[str, Any]:
    return next(run for run in runs if run["seed"] == seed)


def side_by_side(values: Iterable[float]) -> str:
    """Returns percentages, seeds side by side."""
    return " / ".join(f"{value:.4g}" for value in values)


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


def page(found: dict[str, dict[str, Runs]]) -> str:
    """Returns the whole page."""
    runs = [run for labels in found.values() for each in labels.values() for run in each]
    planned = [run for group in GROUPS.values() for run in group()]
    parts = [f"## {group}\n\n{table(labels)}" for group, labels in found.items()]
    return (
        "# The STARS study: exact match (%) by depth, seeds side by side\n\n"
        "5,000 held-out sums to depth 100; beyond it the first 1,000 of them (all 5,000 in `target`); "
        "in the `brief_` groups and `paths` 1,000 and 250. "
        "`python -m experiments.stars.tables` made this page.\n\n" + "\n".join(parts)
        + f"\n{ON_AND_OFF}\n\n{on_and_off(found)}\n\n" + "\n\n".join(missing_part(runs, planned)) + "\n"
    )  # fmt: skip


def main() -> None:
    """Writes table.md and the figures."""
    sources, folder = asked_tables(__doc__)
    found = read(sources)
    (folder / "table.md").write_text(page(found))
    save_all(draw_all(found), folder)


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


if __name__ == "__main__":
    main()
