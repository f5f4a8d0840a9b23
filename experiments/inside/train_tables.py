"""The training study's page and figures, from its results alone.

    IN=experiments/results/inside
    python -m experiments.inside.train_tables $IN/training.jsonl --out $IN/training --again $IN/again.jsonl \\
        --like $IN/like.jsonl --orbits $IN/orbits.jsonl --system $IN/system.jsonl --first $IN/first-token.jsonl --draw=-4

Writes claims.md and figures/*.svg: colsum-*.svg and loss-*.svg of all models side by side, stages-*.svg of each model, and what
happens beyond the trained depth of the models whose label holds a word of --draw. It takes whatever runs there are: what a claim or
a figure needs and is not there is left out, and rows of the plan that were not run are named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from experiments.inside import first_token, orbits, system_prompts
from experiments.inside.figures_models import stages_of_models
from experiments.inside.norms import norms_table
from experiments.inside.train_claims import CLAIMS, Case, Claim, Reading, readings
from experiments.inside.train_plan import AROUND, CONTROL, LIKE, STEPS, rows, written
from experiments.inside.train_run import BEYOND, RESTS
from experiments.pages import last_of_each, missing_part, save_all, signed, table
from experiments.pages import percent as share
from loopwright.analysis.figures import STAGES, by_layer, by_step, fading
from loopwright.analysis.report.findings import percent, safe
from loopwright.evaluation.paired import compare
from loopwright.evaluation.text import HeldOut
from loopwright.plot.drawing import Curve, Drawing
from loopwright.plot.figures import loss_by_depth

Run = Mapping[str, Any]


def read(paths: Iterable[str]) -> list[Run]:
    """Returns the runs of files, a later one of a name in the place of an earlier one: by seed, the control first, models of one
    kind together, small cores first."""
    found = last_of_each(*paths)
    kinds = [CONTROL, *AROUND, *LIKE]
    return sorted(
        found.values(),
        key=lambda run: (
            run["seed"],
            kinds.index(run["label"].split("-")[0]),
            run["injected"],
            run["layers"]["core_layers"],
            run["layers"]["prelude_layers"],
        ),
    )


def loss_table(runs: Sequence[Run]) -> str:
    """Returns every run: its size, and its held-out loss by depth."""
    depths = sorted({depth for run in runs for depth in run["held_out"]["depth"]})
    lines = []
    for run in runs:
        held = dict(zip(run["held_out"]["depth"], run["held_out"]["loss"], strict=True))
        cells = [f"{held[depth]:.3f}" if held.get(depth) is not None else "–" for depth in depths]
        lines.append([written(run["label"]), str(run["seed"]), f"{run['parameters'] / 1e6:.1f} M", *cells])
    return table(["model", "seed", "parameters", *(f"depth {depth}" for depth in depths)], lines)


def paired_table(runs: Sequence[Run]) -> str:
    """Returns the loss of models with injection at the trained depth beside that of the same without, on the same passages."""
    named = {run["name"]: run for run in runs if "losses" in run["held_out"]}
    lines = []
    for run in named.values():
        other = named.get(run["name"].replace("-injected", ""))
        if run["injected"] and other is not None:
            found = compare(HeldOut.of(run["held_out"]), HeldOut.of(other["held_out"]), depths=(STEPS, STEPS))
            difference = signed(found.difference, found.difference_low, found.difference_high)
            lines.append([written(run["label"]), str(run["seed"]), difference, share(found.won)])
    return table(["model", "seed", f"loss at depth {STEPS}, less that without injection", "passages better with it"], lines)


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
    lines = ([_named(case.label), str(case.seed), case.number, words[case.holds]] for case in claim.cases(found))
    return table(["model", "seed", "number", "holds"], lines)


def beyond_table(found: Sequence[Reading]) -> str:
    """Returns what is known of each model beyond the depth it was trained at."""
    lines = []
    for one in (one for one in found if "deep" in one.run):
        deep = one.run["deep"]
        rates = deep.get("limits", {}).get("tokens", [None] * 4)
        cells = ["–" if rate is None else percent(rate) for rate in rates]
        lines.append([written(one.label), str(one.run["seed"]), str(deep["places"]["steps"]), *cells, safe(deep).sentence])
    head = ["model", "seed", "steps", "tokens at a fixed point", "orbit", "slider", "unknown", "is more depth safe?"]
    return table(head, lines)


def draw(runs: Sequence[Run], words: Sequence[str] = ("",)) -> dict[str, Drawing]:
    """Returns what the first seed of each model shows, beyond the trained depth of those whose label holds one of the words."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run["label"], run)
    control = first.get(CONTROL)
    dense = None if control is None else control["near"]
    made: dict[str, Drawing] = {}
    for label, run in first.items():
        if label == CONTROL:
            continue
        made[f"stages-{label}"] = by_step(run["near"], STAGES, dense=dense)
        whole = all(name in run.get("deep", {}).get("by_place", {}) for name in RESTS)  # of the others claims read, figures do not
        if whole and any(word in label for word in words):
            made[f"beyond-by-step-{label}"] = by_step(run["deep"], BEYOND, dense=dense)
            made[f"beyond-by-layer-{label}"] = by_layer(run["deep"], BEYOND)
            made[f"rest-{label}"] = fading(run["deep"], RESTS)
    for family, injected in product(AROUND, (False, True)):  # of a sandwich without injection it is Figure 10
        group = [run for run in first.values() if run["label"].startswith(family) and run["injected"] == injected]
        if group:
            models = {written(run["label"]): run["near"] for run in group}
            made[f"colsum-{family}{'-injected' if injected else ''}"] = stages_of_models(models, dense=dense)
    for family in AROUND:
        curves = {written(label): _losses(run) for label, run in first.items() if label.startswith(family)}
        if curves and control is not None:  # it has one depth: a level line
            depths = next(iter(curves.values())).x
            curves[written(CONTROL)] = Curve(depths, control["held_out"]["loss"] * len(depths))
        if curves:
            made[f"loss-{family}"] = loss_by_depth(curves, trained=(STEPS, STEPS, STEPS))
    return made


def _losses(run: Run) -> Curve:
    held = run["held_out"]
    return Curve(held["depth"], held["loss"], held["loss_low"], held["loss_high"])


def _named(label: str) -> str:
    return written(label) if label.split("-")[0] in AROUND else label


def page(runs: Sequence[Run], more: Sequence[str] = ()) -> str:
    """Returns all tables as one page of Markdown, with more parts at its end."""
    found = readings(runs)
    first = runs[0]
    parts = [
        "# The training study",
        "`python -m experiments.inside.train_tables` made this page.",
        f"Width {first['width']}, {first['updates']:,} updates, {first['tokens']:,} tokens each; traced on {first['prompts']} "
        f"held-out prompts of {first['prompt_tokens']} tokens.",
        "## Held-out loss", loss_table(runs),
        "Differences with their 95 % intervals over documents; one seed says nothing of other seeds.",
        paired_table(runs),
    ]  # fmt: skip
    if not found:
        parts.append("No claim can be held to these runs: a looped model and a control are needed.")
        return "\n\n".join([*parts, *more, *missing_part(runs, rows())]) + "\n"
    parts += ["## Claims", claim_table(found)]
    for claim in CLAIMS:
        parts += [f"### {claim.said}", f"Figures {claim.figures}; rule: {claim.rule}.".replace("Figures Section", "Section"),
                  cases_table(claim, found)]  # fmt: skip
    parts += ["## Beyond the trained depth", beyond_table(found), *more, *missing_part(runs, rows())]
    return "\n\n".join(parts) + "\n"


def again_part(runs: Sequence[Run], again: Sequence[Run]) -> str:
    """Returns what models that were trained twice with one seed came to, the first time and the second."""
    first = {run["name"]: run for run in runs}
    lines = []
    for run in again:
        pair = (first[run["name"]], run)
        losses = (" / ".join(f"{one['held_out']['loss'][one['held_out']['depth'].index(depth)]:.3f}" for one in pair)
                  for depth in (STEPS, max(run["held_out"]["depth"])))  # fmt: skip
        limits = (" / ".join(percent(one["deep"]["limits"]["tokens"][place]) for one in pair) for place in range(3))
        lines.append([written(run["label"]), str(run["seed"]), *losses, *limits, "yes" if alike(*pair) else "no"])
    head = ["model", "seed", f"loss at depth {STEPS}", "at the largest", "tokens at a fixed point", "orbit", "slider", "the same"]
    about = (
        f"First training / second, by one recipe and seed. The same: training losses, losses of all passages at depth {STEPS}, "
        "mean losses at every depth and what tokens settle into agree in all digits kept."
    )
    return "\n\n".join(["## Trained again", about, table(head, lines)])


def alike(first: Run, second: Run) -> bool:
    """Returns whether two trainings cannot be told apart by training losses, losses of passages, mean losses by depth and what
    tokens settle into."""
    held = [one["held_out"] for one in (first, second)]
    same = all(held[0][key] == held[1][key] for key in ("depth", "loss", "losses")) and first["losses"] == second["losses"]
    return same and first["deep"]["limits"] == second["deep"]["limits"]


def like_part(runs: Sequence[Run], like: Sequence[Run]) -> str:
    """Returns the models with the norms of Ouro and of Huginn: they take part in no claim."""
    about = "No claim above is about them."
    paired = (
        "The loss of the first less that of the second, each at its trained depth, with 95 % intervals: over seeds by Student's t, "
        "over documents for losses averaged over seeds."
    )
    parts = ["## The norms of Ouro and of Huginn", about, loss_table(like), paired, norms_table([*runs, *like])]
    return "\n\n".join([*parts, beyond_table([Reading(run, {}) for run in like])])


def prompt_parts(system: str | None, first: str | None) -> list[str]:
    """Returns the parts of the page on what stands before a question, of the files there are."""
    parts = [] if system is None else [system_prompts.tables(list(last_of_each(system).values()))]
    return parts if first is None else [*parts, first_token.tables(list(last_of_each(first).values()))]


def more_parts(
    runs: Sequence[Run], *, again: str | None, like: str | None, pages: str | None, system: str | None, first: str | None
) -> list[str]:
    """Returns the parts of the page that are no claims, of the files there are."""
    parts = [] if again is None else [again_part(runs, read([again]))]
    parts += [] if like is None else [like_part(runs, read([like]))]
    parts += [] if pages is None else [orbits.tables(list(last_of_each(pages).values()))]
    return [*parts, *prompt_parts(system, first)]


def main() -> None:
    """Writes page and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="JSON lines of train_run")
    parser.add_argument("--out", required=True, help="a folder")
    parser.add_argument("--again", help="JSON lines of train_run, of models trained a second time; left out: no part on them")
    parser.add_argument("--like", help="JSON lines of train_run, of models with other norms; left out: no part on them")
    parser.add_argument("--orbits", help="JSON lines of orbits; left out: no part on them")
    parser.add_argument("--system", help="JSON lines of system_prompts; left out: no part on them")
    parser.add_argument("--first", help="JSON lines of first_token; left out: no part on them")
    parser.add_argument("--draw", default="", help="words, parted by |: left out, depths beyond the trained one of all models")
    options = parser.parse_args()
    runs, folder = read(options.results), Path(options.out)
    if not runs:
        sys.exit("train_tables: no run in these files; allowed: at least one line")
    made = save_all(draw(runs, options.draw.split("|")), folder / "figures")
    folder.mkdir(parents=True, exist_ok=True)
    more = more_parts(
        runs, again=options.again, like=options.like, pages=options.orbits, system=options.system, first=options.first
    )
    (folder / "claims.md").write_text(page(runs, more))
    print(f"{folder / 'claims.md'} and {len(made)} figures, {sum(path.stat().st_size for path in made):,} bytes")


if __name__ == "__main__":
    main()
