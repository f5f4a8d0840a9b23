"""The retrofit study's tables, from its results alone.

    python -m experiments.ouroboros.tables experiments/results/ouroboros/runs.jsonl experiments/results/ouroboros

Every share of the gap is on the same passages, worse = the truncated model, better = the full one; intervals are over documents
(or passages), the seeds stand side by side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.ouroboros.run import TEXTS
from loopwright.evaluate.heldout import HeldOut, Honest
from loopwright.evaluate.paired import compare, recovered

FULL, TRUNCATED = "full model", "truncated"
# the question, and its control
PAIRS = (
    ("controller, prefix", "static, equal parameters"),
    ("controller, prefix", "static diagonal"),
    ("controller, prefix", "gate only"),
    ("controller, prefix", "healed LoRA, equal parameters"),
)

Runs = dict[str, list[dict[str, Any]]]


def read(paths: Iterable[str]) -> Runs:
    """Returns the results by label, in the order of the files, seeds in order."""
    found: Runs = {}
    for path in paths:
        for line in Path(path).read_text().splitlines():
            run = json.loads(line)
            found.setdefault(run["label"], []).append(run)
    for runs in found.values():
        runs.sort(key=lambda run: run["seed"])
    return found


def report(run: dict[str, Any], text: str) -> HeldOut:
    """Returns a run's report of one text."""
    held = {name: tuple(value) if isinstance(value, list) else value for name, value in run["texts"][text].items()}
    honest = held["honest"] and Honest(**held["honest"])
    return HeldOut(**{**held, "losses": tuple(map(tuple, held["losses"])), "honest": honest})


def best_depth(found: HeldOut) -> int:
    """Returns the depth with the least loss."""
    return found.depth[min(range(len(found.depth)), key=lambda place: found.loss[place] or float("inf"))]


def main_table(runs: Runs, text: str) -> str:
    """Returns every row on one text: loss by depth, and the share of the gap recovered at its best depth."""
    full, truncated = (report(runs[label][0], text) for label in (FULL, TRUNCATED))
    head = [
        "row",
        "seeds",
        "trained parameters",
        "of the kept",
        "loss at depth 1",
        "2",
        "4",
        "8",
        "16",
        "gap recovered (95 %)",
        "note",
    ]
    lines = [head, ["---"] * len(head)]
    for label, of_label in runs.items():
        reports = [report(run, text) for run in of_label]
        losses = [
            " / ".join(_number(dict(zip(found.depth, found.loss, strict=True)).get(depth)) for found in reports)
            for depth in (1, 2, 4, 8, 16)
        ]
        shares = []
        for found in reports:
            share = recovered(found, worse=truncated, better=full, depth=best_depth(found), worse_depth=1)
            shares.append(f"{100 * share.share:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f}) at {best_depth(found)}")
        first = of_label[0]
        lines.append([
            label, ", ".join(str(run["seed"]) for run in of_label), f"{first['trainable']:,}",
            f"{100 * first['trainable'] / first['kept']:.2f} %", *losses, "; ".join(shares), reports[0].note,
        ])  # fmt: skip
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pair_table(runs: Runs, text: str) -> str:
    """Returns the comparisons that the study asks for, seed by seed, each model at its best depth."""
    head = ["first", "second", "difference of losses (95 %), seed by seed", "passages won by the first"]
    lines = [head, ["---"] * len(head)]
    for first, second in PAIRS:
        if first not in runs or second not in runs:
            continue
        both = [(report(a, text), report(b, text)) for a, b in zip(runs[first], runs[second], strict=False)]
        found = [compare(a, b, depths=(best_depth(a), best_depth(b))) for a, b in both]
        lines.append([
            first, second,
            "; ".join(f"{f.difference:+.4f} ({f.difference_low:+.4f} to {f.difference_high:+.4f})" for f in found),
            "; ".join(f"{100 * f.won:.0f} %" for f in found),
        ])  # fmt: skip
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def honest_table(runs: Runs, text: str) -> str:
    """Returns the rows that see the future: in one pass, and from prefixes alone, on the same tokens."""
    head = ["row", "seed", "depth", "one pass", "prefix by prefix", "gain from seeing the future (95 %)"]
    lines = [head, ["---"] * len(head)]
    for label, of_label in runs.items():
        for run in of_label:
            found = report(run, text)
            if found.honest is None:
                continue
            place, h = found.depth.index(best_depth(found)), found.honest
            gain = f"{_number(h.gain[place])} ({_number(h.gain_low[place])} to {_number(h.gain_high[place])})"
            lines.append([label, str(run["seed"]), str(found.depth[place]), _number(h.forced[place]), _number(h.loss[place]), gain])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def main() -> None:
    """Writes table.md beside the results."""
    *paths, folder = sys.argv[1:]
    runs = read(paths)
    page = ["# The retrofit study", "`python -m experiments.ouroboros.tables` made this page."]
    for text in TEXTS:
        first = report(runs[FULL][0], text)
        page += [
            f"## {text}: {first.targets:,} tokens of {first.documents} documents, context {first.context}",
            main_table(runs, text), "### Does the input matter?", pair_table(runs, text),
            "### Seeing the future", honest_table(runs, text),
        ]  # fmt: skip
    path = Path(folder) / "table.md"
    path.write_text("\n\n".join(page) + "\n")
    print(path)


if __name__ == "__main__":
    main()
