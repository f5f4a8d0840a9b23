"""The page of the second set, from rows whose answer is known."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from experiments.ouroboros import again_tables
from experiments.ouroboros.plan import BLIND, CONTROLLER, LEAKING
from tests.experiments.ouroboros.test_rate_tables import DEPTHS, rows
from tests.experiments.ouroboros.test_rates import tried
from tests.experiments.results import result

pytestmark = pytest.mark.usefixtures("unlaid")
GRID = {1e-3: 5.0, 4e-3: 4.0, 1.6e-2: 6.0, 4e-2: 6.0}


def later(label: str, above: float, seed: int, rate: float, **more: object) -> dict:
    named = {"name": f"tuned/{label}, rate {rate:g}/{seed}", "group": "tuned", "rate": rate, "skipped": 0}
    return result(f"{label}, rate {rate:g}", dict.fromkeys(DEPTHS, above), seed, **named, **more)


def first_set() -> list[dict]:
    return [run for run in rows() if run["group"] != "references"] + tried(LEAKING, GRID)


def second_set() -> list[dict]:
    """Fresh seeds in which the controller is 0.03 below the blind one, a blind run that came apart, the leak that the first set
    lacks, and one row that it has."""
    found = [later(CONTROLLER, 0.37, seed, 0.04) for seed in (4, 5, 6)]
    found += [later(BLIND, 0.4, seed, 0.004) for seed in (4, 5)] + [later(BLIND, 5.0, 6, 0.004, losses=[2.0, 1.0, 3.0])]
    return [*found, *(later(LEAKING, 0.5 + 0.001 * seed, seed, 0.004) for seed in (1, 2, 3)), later(BLIND, 0.461, 1, 0.004)]


def test_the_page_keeps_the_sets_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"rates": first_set(), "again": second_set(), "twice": [run_again(where, [1.5] * len(DEPTHS)) for where in "ab"]}
    for name, runs in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    monkeypatch.setattr(sys, "argv", ["again_tables", *(str(tmp_path / f"{name}.jsonl") for name in files), str(tmp_path)])
    again_tables.PAGE.main("about", "experiments.ouroboros.again_tables")
    _, *parts = (tmp_path / "again.md").read_text().split("\n## ")
    both, twice, second, whole, without, across, by_depth, missing = parts
    assert both.count(f"| tuned/{BLIND}, rate 0.004/1, ") == 2 and twice.count(", run b | 1 | 1.500 | 1.500 |") == 1
    assert f"| {BLIND} | 1, 4, 5, 6 |" in second and "| no / no / no / yes |" in second
    assert f"| {CONTROLLER} | {BLIND} | test | 4 | −1.5633" in by_depth, "with the run that came apart"
    lines = {part: [line for line in part.splitlines() if f"| {CONTROLLER} | {BLIND} |" in line] for part in parts}
    assert all("not resolved" in line for line in lines[whole]) and all("| lower |" in line for line in lines[without])
    assert not lines[across] and across.count(f"| {LEAKING} | {CONTROLLER} |") == 2 and "seed" in missing


def run_again(where: str, losses: list[float | None]) -> dict:
    row = {"name": f"tuned/{BLIND}, rate 0.004/1/{where}", "run": where, "label": f"{BLIND}, rate 0.004", "seed": 1, "skipped": 2}
    return row | {"texts": {text: {"depth": list(DEPTHS), "loss": losses} for text in ("test", "ood")}}


def test_all_runs_of_a_row_that_was_run_twice_stand_side_by_side() -> None:
    rows = [run_again("a", [1.5] * len(DEPTHS)), run_again("b", [1.25] * (len(DEPTHS) - 1) + [None])]
    found = again_tables.alike(rows, first_set(), second_set())
    (runs,) = found.values()
    assert [*runs] == ["first set", "second set", "run a", "run b"]
    assert runs["second set"]["texts"]["test"]["loss"] == later(BLIND, 0.461, 1, 0.004)["texts"]["test"]["loss"]
    assert again_tables.loss_at(runs["run a"], "ood", DEPTHS[0]) == 1.5
    assert math.isnan(again_tables.loss_at(runs["run b"], "ood", DEPTHS[-1]))
    fresh = again_tables.alike([row | {"name": row["name"].replace("/1/", "/9/")} for row in rows], first_set(), second_set())
    assert [[*runs] for runs in fresh.values()] == [["run a", "run b"]]


def test_a_row_of_the_first_set_is_not_replaced() -> None:
    runs = again_tables.filled(first_set(), second_set())
    assert [run["seed"] for run in runs[BLIND]] == [1, 2, 3] and len(runs[LEAKING]) == 3
    (pair,) = again_tables.in_both(first_set(), second_set())
    assert again_tables.changed(*pair, "test")[4] == pytest.approx(0.06)
    assert runs[BLIND][0]["texts"]["test"]["loss"] == pair[0]["texts"]["test"]["loss"]
