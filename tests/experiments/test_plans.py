"""The plans of the studies stand: each run has the name and the recipe that its committed rows were made by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

import pytest

from experiments.asura import run as asura
from experiments.asura.plan import rows as asura_rows
from experiments.corpus import texts
from experiments.halting import plan as halting
from experiments.hops import plan as hops
from experiments.hops.run import recipe_of as hops_recipe
from experiments.inside import train_plan
from experiments.inside.random_init import plan as random_init
from experiments.longer import run as longer
from experiments.ouroboros import cores, rates
from experiments.ouroboros import plan as ouroboros
from experiments.ouroboros.run import recipe_of as retrofit_recipe
from experiments.repeats import plan as repeats
from experiments.repeats.run import LAID
from experiments.sft import plan as sft
from experiments.sft import wide
from experiments.stars import plan as stars
from loopwright.recipes import recipe
from loopwright.training.recipe import make_recipe

Planned = Iterator[tuple[Any, Any]]  # runs with their recipes
C, T = "/c", "/t"


def of_asura() -> Planned:
    for row in asura_rows():
        yield row, recipe("asura-every-step", [*asura.SETTINGS, *texts(C, T), *asura.laid_over(row, ())])


def of_repeats() -> Planned:
    best = {(label, times): 2e-3 for label in (*repeats.TUNED, *repeats.DEPTHS) for times in repeats.TEXTS}
    later = (repeats.compared, repeats.longer, repeats.depths, lambda _: repeats.calm(), repeats.whole_text)
    for row in (*repeats.rates(), *(row for stage in later for row in stage(best))):
        yield row, recipe("asura-every-step", [*asura.SETTINGS, *texts(C, T), *LAID, *row.changes])


def of_hops() -> Planned:
    for group in hops.GROUPS.values():
        yield from ((run, hops_recipe(run)) for run in group())


def of_stars() -> Planned:
    for group in stars.GROUPS.values():
        yield from ((run, recipe(run.recipe, [*run.changes, f"seed={run.seed}"])) for run in group())


def of_halting(gate: bool = False) -> Planned:
    for run in (run for group in halting.GROUPS.values() for run in group() if not gate or run.arm in halting.GATED):
        yield run, recipe(halting.TASKS[run.task].recipe, run.gate_changes("/d") if gate else run.changes("/d"))


def of_ouroboros() -> Planned:
    for row in (row for group in ouroboros.GROUPS.values() for row in group()):
        yield row, {"row": asdict(row)} if row.objective is None else retrofit_recipe(row, "/s", C)


def of_rates() -> Planned:
    best = dict.fromkeys((*rates.ARMS, *rates.MORE), 4e-3)
    first = (*rates.grid(rates.ARMS), *rates.tuned(rates.ARMS, rates.SEEDS, best), *rates.grid(rates.MORE))
    later = (*rates.tuned(rates.CLOSE, rates.FURTHER, best), *rates.tuned(rates.MORE, rates.SEEDS, best))
    yield from ((row, retrofit_recipe(row, "/s", C, rates.LAID)) for row in (*first, *later))


def of_cores() -> Planned:
    found = rates.tuned(cores.ARMS, rates.SEEDS, dict.fromkeys(cores.ARMS, 6e-3))
    yield from ((row, retrofit_recipe(row, "/s", C, rates.LAID)) for row in (*rates.grid(cores.ARMS, cores.RATES), *found))


def of_inside() -> Planned:
    for row in (*train_plan.rows(), *train_plan.likenesses()):
        yield row, make_recipe(row.recipe(C, T, 256))


def of_random_init() -> Planned:
    yield from ((row, {**asdict(row), "changes": random_init.changes(row)}) for row in random_init.rows())


def of_longer() -> Planned:
    for seed in range(3):
        for arm, changes in longer.ARMS.items():
            yield longer.planned(arm)[seed], recipe("addition-longer", [*changes, f"seed={seed}", f"data.test={longer.ROWS * 5}"])


def of_sft() -> Planned:
    for run in (*sft.text_runs(), *sft.later_runs([0, 1, 2])):
        yield run, run.recipe(sft.Places("/data", "/runs"))


def of_wide() -> Planned:
    for row in (*wide.grid(), *wide.tuned(dict.fromkeys(wide.ARMS, 1e-3))):
        yield row, row.recipe(sft.Places("/data", "/runs"))


# study: how many runs, and the digest of their names, kinds, seeds and recipes
PLANS = {
    "asura": (of_asura, 90, "c35d4d6810706fcd"),
    "repeats": (of_repeats, 131, "746790b805efaec4"),
    "hops": (of_hops, 84, "ea4e4abad2b3dc99"),
    "stars": (of_stars, 302, "241c9e981d198961"),
    "halting": (of_halting, 24, "40c2c826b7b5a593"),
    "halting, the gate": (lambda: of_halting(gate=True), 12, "e978842d2a4b6a99"),
    "ouroboros": (of_ouroboros, 64, "b869e78a7eec4fe7"),
    "ouroboros, rates": (of_rates, 82, "f5c79a80e1471f34"),
    "ouroboros, cores": (of_cores, 48, "7f2d627bba5dc3ab"),
    "inside": (of_inside, 53, "c156120166f23018"),
    "random-init": (of_random_init, 66, "800569078e1a15ea"),
    "longer": (of_longer, 6, "7c4e538f33c79cba"),
    "sft": (of_sft, 20, "8216b8365f571f7a"),
    "sft, wide": (of_wide, 21, "32ad05a6ae109122"),
}


def plain(made: Any) -> dict[str, Any]:
    """Returns a recipe as plain data, without what it says of itself."""
    data: dict[str, Any] = made.data_of() if is_dataclass(made) else made
    return {name: value for name, value in data.items() if name != "about"}


def digest(found: object) -> str:
    """Returns what tells plain data from all others."""
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:16]


@pytest.mark.parametrize("study", PLANS)
def test_a_plan_has_the_runs_and_recipes_that_it_had(study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sft, "text_flops", lambda chosen: 600 if chosen.depth == {"kind": "fixed", "depth": 1} else 1000)
    plan, count, known = PLANS[study]
    found = [[run.name, run.kind, str(run.seed), digest(plain(made))] for run, made in plan()]
    assert (len(found), digest(found)) == (count, known)
