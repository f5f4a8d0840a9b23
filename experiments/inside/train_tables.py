"""The training study's page and figures, from its results alone.

    python -m experiments.inside.train_tables experiments/results/inside/training.jsonl --out experiments/results/inside/training

Writes claims.md and figures/*.svg: colsum-*.svg and loss-*.svg of all models side by side, the others of the models whose label
holds a word of --draw. It takes whatever runs there are: what a claim or a figure needs and is not there is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from experiments.inside.train_claims import CLAIMS, Case, Claim, Reading, readings
from experiments.inside.train_plan import AROUND, CONTROL, STEPS, written
from experiments.pages import table
from loopwright.analysis.drawing import Curve
from loopwright.analysis.figures import loss_by_depth
from loopwright.analysis.figures_models import stages_of_models
from loopwright.analysis.figures_stages import STAGES, by_layer, by_step, fading
from loopwright.analysis.verdict import safe

Run = Mapping[str, Any]
BEYOND = ("colsum", "mixing", "sink_rate", "norm")  # of the deep trace; no entropy is taken there
RESTS = ("fixed_cosine", "far_cosine", "fixed_norm", "step_norm")


def read(paths: Iterable[str]) -> list[Run]:
    """Returns the runs of files, a later one of a name in the place of an earlier one, first seeds first."""
    found = {run["name"]: run for path in paths for run in map(json.loads, Path(path).read_text().splitlines())}
    return sorted(found.values(), key=lambda run: run["seed"])


def loss_table(runs: Sequence[Run]) -> str:
    """Returns every run: its size, and its held-out loss by depth."""
    depths = sorted({depth for run in runs for depth in run["held_out"]["depth"]})
    lines = []
    for run in runs:
        held = dict(zip(run["held_out"]["depth"], run["held_out"]["loss"], strict=True))
        cells = [f"{held[depth]:.3f}" if held.get(depth) is not None else "–" for depth in depths]
        lines.append([written(run["label"]), str(run["seed"]), f"{run['parameters'] / 1e6:.1f} M", *cells])
    return table(["model", "seed", "parameters", *(f"depth {depth}" for depth in depths)], lines)


def claim_table(found: Sequence[Reading]) -> str:
    """Returns every claim with its rule and in how many models it holds."""
    lines = []
    for claim in CLAIMS:
        cases = list(claim.cases(found))
        lines.append([claim.said, claim.figures, claim.rule, in_words(cases)])
    return table(["claim", "figures", "rule here", "holds"], lines)


def in_words(cases: Sequence[Case]) -> str:
    """Returns how many cases hold, of those of which it can be said."""
    known = [case.holds for case in cases if case.holds is not None]
    if not known:
        return "not measured"
    said = "yes" if all(known) else "no" if not any(known) else "in part"
    return f"{said}: {sum(known)} of {len(known)}"


def cases_table(claim: Claim, found: Sequence[Reading]) -> str:
    """Returns the numbers of one claim, model by model."""
    words = {True: "yes", False: "no", None: "–"}
    return table(
        ["model", "number", "holds"], ([_named(case.label), case.number, words[case.holds]] for case in claim.cases(found))
    )


def beyond_table(found: Sequence[Reading]) -> str:
    """Returns what is known of each model beyond the depth it was trained at."""
    lines = []
    for one in (one for one in found if "deep" in one.run):
        deep = one.run["deep"]
        rates = deep.get("limits", {}).get("tokens", [None] * 4)
        cells = ["–" if rate is None else f"{100 * rate:.1f} %" for rate in rates]
        lines.append([written(one.label), str(one.run["seed"]), str(deep["places"]["steps"]), *cells, safe(deep).sentence])
    head = ["model", "seed", "steps", "tokens at a fixed point", "orbit", "slider", "unknown", "is more depth safe?"]
    return table(head, lines)


def draw(runs: Sequence[Run], folder: Path, words: Sequence[str] = ("",)) -> list[Path]:
    """Draws what the first seed of each model shows whose label holds one of the words, and returns the files."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run["label"], run)
    control = first.get(CONTROL)
    dense = None if control is None else control["near"]
    made = []

    def keep(name: str) -> Path:
        made.append(folder / f"{name}.svg")
        return made[-1]

    for label, run in first.items():
        if label == CONTROL or not any(word in label for word in words):
            continue
        by_step(run["near"], STAGES, dense=dense, path=keep(f"stages-{label}"))
        if "deep" in run:
            by_step(run["deep"], BEYOND, dense=dense, path=keep(f"beyond-by-step-{label}"))
            by_layer(run["deep"], BEYOND, path=keep(f"beyond-by-layer-{label}"))
            fading(run["deep"], RESTS, path=keep(f"rest-{label}"))
    for family, injected in product(AROUND, (False, True)):  # of a sandwich without injection it is Figure 10
        group = [run for run in first.values() if run["label"].startswith(family) and run["injected"] == injected]
        group.sort(key=lambda run: run["layers"]["core_layers"])
        if group:
            models = {written(run["label"]): run["near"] for run in group}
            stages_of_models(models, dense=dense, path=keep(f"colsum-{family}{'-injected' if injected else ''}"))
    for family in AROUND:
        curves = {written(label): _losses(run) for label, run in first.items() if label.startswith(family)}
        if curves:
            loss_by_depth(curves, trained=(STEPS, STEPS, STEPS), path=keep(f"loss-{family}"))
    return made


def _losses(run: Run) -> Curve:
    held = run["held_out"]
    return Curve(held["depth"], held["loss"], held["loss_low"], held["loss_high"])


def _named(label: str) -> str:
    return written(label) if label.split("-")[0] in AROUND else label


def page(runs: Sequence[Run]) -> str:
    """Returns all tables as one page of Markdown."""
    found = readings(runs)
    first = runs[0]
    parts = [
        "# The training study",
        "`python -m experiments.inside.train_tables` made this page.",
        f"Width {first['width']}, {first['updates']:,} updates, {first['tokens']:,} tokens each; traced on {first['prompts']} "
        f"held-out prompts of {first['prompt_tokens']} tokens.",
        "## Held-out loss", loss_table(runs),
    ]  # fmt: skip
    if not found:
        return "\n\n".join([*parts, "No claim can be held to these runs: a looped model and a control are needed."]) + "\n"
    parts += ["## Claims", claim_table(found)]
    for claim in CLAIMS:
        parts += [f"### {claim.said}", f"Figures {claim.figures}; rule: {claim.rule}.".replace("Figures Section", "Section"),
                  cases_table(claim, found)]  # fmt: skip
    return "\n\n".join([*parts, "## Beyond the trained depth", beyond_table(found)]) + "\n"


def main() -> None:
    """Writes page and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="JSON lines of train_run")
    parser.add_argument("--out", required=True, help="a folder")
    parser.add_argument("--draw", default="", help="words, parted by |: left out, figures of all models")
    options = parser.parse_args()
    runs, folder = read(options.results), Path(options.out)
    if not runs:
        sys.exit("train_tables: no run in these files; allowed: at least one line")
    made = draw(runs, folder / "figures", options.draw.split("|"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.md").write_text(page(runs))
    print(f"{folder / 'claims.md'} and {len(made)} figures, {sum(path.stat().st_size for path in made):,} bytes")


if __name__ == "__main__":
    main()
