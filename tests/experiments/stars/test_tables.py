"""The STARS study's page: the penalty on and off is paired by seed, and every seed has its row in the grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.stars.plan import GROUPS, brief_changes, brief_distributions, brief_norms, brief_static, brief_weights, paths
from experiments.stars.tables import COMPARED, PAIRS, SHOWN, draw_forms, read, shared
from experiments.tables import points_table

ROWS = Path(__file__).parents[3] / "experiments/results/stars/runs.jsonl"


def made(seed: int, exact: float, change: float = 0.1) -> dict[str, Any]:
    return {
        "seed": seed, "far": {"depth": [1000], "exact": [exact]},
        "near": {"depth": SHOWN[:-1], "exact": [exact] * (len(SHOWN) - 1), "change_largest": [1.0, change]},
        "radius": {"100": {"radius_mean": 0.5}},
    }  # fmt: skip


def test_only_seeds_that_both_have_are_paired() -> None:
    pair = shared([made(2, 0.2), made(0, 0.0)], [made(0, 1.0), made(1, 1.0), made(2, 1.0)])
    assert pair is not None and [[run["seed"] for run in runs] for runs in pair] == [[0, 2], [0, 2]]
    assert shared([made(0, 1.0)], [made(1, 1.0)]) is None and shared([], [made(0, 1.0)]) is None


def test_a_difference_has_its_interval_over_seeds() -> None:
    off, on = [made(seed, 0.5) for seed in range(3)], [made(seed, 0.6 + 0.1 * seed, 1e-7) for seed in range(3)]
    line = points_table([("on", "off", on, off[1:])], "exact", COMPARED["exact (%) at depth 1000"]).splitlines()[-1]
    assert line.split(" | ")[2:] == ["20.00 / 30.00", "25.00 (−38.53 to 88.53)", "undecided |"], "of the seeds that both have"
    line = points_table([("on", "off", on, off)], "exact", COMPARED["exact (%) at depth 100"]).splitlines()[-1]
    assert line.split(" | ")[3] == "20.00 (−4.84 to 44.84)"  # 20 ± 4.303 · 10 / √3


def test_the_pairs_are_rows_of_the_study() -> None:
    found = read([str(ROWS)])
    for off, on in PAIRS.values():
        assert shared(found[off[0]][off[1]], found[on[0]][on[1]]) is not None


def test_every_seed_of_every_form_has_its_row() -> None:
    found = {"ablation": {"none": [made(0, 1.0), made(1, 0.97)]}, "alike": {"penalty, exact": [made(1, 0.25)]}}
    text = draw_forms(found)
    assert all(name in text for name in ("off, seed 0", "off, seed 1", "exact products, seed 1"))


def test_penalties_of_short_runs_stand_beside_the_same_run_without_one() -> None:
    without = {run.label: {*run.changes} for run in brief_distributions()}
    for run in [*brief_changes(), *brief_weights()]:
        place = "pre-sandwich" if run.label.startswith("pre-") else "post-sandwich"
        added, gone = {*run.changes} - without[f"{place} poisson(5)"], without[f"{place} poisson(5)"] - {*run.changes}
        assert {change.split("=")[0] for change in added} == {"penalties"}
        assert gone <= {"model.changes.norm_placement=[input, residual]"}, "the placement that the recipe has anyway"


def test_layouts_of_fixed_depth_stand_beside_the_same_run_without_them() -> None:
    without = {run.label: {*run.changes} for run in brief_norms()}
    for run in brief_static():
        added = {*run.changes} - without[run.label.split()[0]]
        named = {change.split("=")[0] for change in added}
        assert named == ({"penalties"} if "L2" in run.label else {"model.changes.prelude_layers", "model.changes.coda_layers"})
    assert len(without) == 12


def test_runs_made_for_their_paths_are_runs_of_other_groups() -> None:
    others = [run for name, group in GROUPS.items() if name != "paths" for run in group()]
    for run in paths():
        assert any(replace(run, group=other.group, label=other.label) == other for other in others), run.name
