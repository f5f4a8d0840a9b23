"""The multi-hop study: every run's model is what its arm says, a tiny run is measured at every number of hops or swaps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.hops.measure import DEPTHS, RULES
from experiments.hops.plan import ARMS, GROUPS, Run
from experiments.hops.reading import at_depth, at_own_depth
from experiments.hops.run import carry_out, recipe_of, shared
from loopwright.schema import build_kind
from loopwright.training.depth import RULES as DEPTH_RULES

SMALL = (
    "updates=2", "batch=4", "schedule.warmup=1", "schedule.decay=1", "compile=false", "graph=false", "precision=fp32",
    "model.changes.hidden_size=32", "model.changes.intermediate_size=32", "data.valid=8", "data.test=16", "validate.every=1",
)  # fmt: skip
TINY = (*SMALL, "data.hops=[1, 2]", "data.length=24")


def few(run: Run) -> tuple[str, ...]:
    """Fewer hops, which are checked sooner."""
    harder = ("data.harder=[3]",) if "data.harder=[24, 32]" in run.changes else ()
    return ("data.hops=[1, 2]", *harder) if run.task == "hops" else ()


def test_names_are_unique_and_every_change_is_known() -> None:
    runs = [run for group in GROUPS.values() for run in group()]
    assert len({run.name for run in runs}) == len(runs)
    for run in {run.changes: run for run in runs}.values():
        recipe_of(run, few(run))


def test_random_and_longer_runs_cost_the_flops_they_say() -> None:
    runs = {run.name: run for group in GROUPS.values() for run in group()}
    for name, mean in (("random/1⊗8/depth 4 to 12/0", 8), ("chain/1⊗16/window 2, depth 8 to 24/0", 16)):
        rule = build_kind(recipe_of(runs[name], few(runs[name])).depth, DEPTH_RULES)
        depths = [rule.depth_at((i + 0.5) / 1700, 0.5) for i in range(1700)]
        assert sum(depths) / len(depths) == mean == ARMS[runs[name].arm][1]
    for arm, times in (("plain 1", 8), ("plain 2", 4)):
        run = runs[f"longer/{arm}/{times} times the updates/0"]
        chosen = recipe_of(run, few(run))
        assert chosen.updates == 4000 * times and chosen.data["train"] == 512_000 * times and ARMS[arm][0] * times == 8


@pytest.mark.parametrize("arm", ["1⊗8", "plain 2"])
def test_a_tiny_run_is_measured(arm: str) -> None:
    result = json.loads(json.dumps(carry_out(Run("trial", arm, "tiny", ()), extra=TINY)))
    layers, steps = ARMS[arm]
    assert set(result["tests"]) == {"1", "2"} and set(at_own_depth(result)) == {1, 2}
    assert result["tests"]["1"]["depth"][-1] == (1 if steps == 1 else 32) and result["laid_over"] == list(TINY)
    assert result["parameters"] == 32 * 32 + layers * (4 * 32 * 32 + 2 * 32 * 32 + 2 * 32) + 32
    assert list(result["exits"]) == (["8", "32"] if steps > 1 else [])


def test_a_tiny_chain_is_measured_after_every_swap(tmp_path: Path) -> None:
    extra = (*SMALL, "data.lengths=[3]", "data.longer=[5]")
    result = carry_out(Run("chain", "1⊗8", "tiny", ()), extra=extra, tables=str(tmp_path))
    assert list(result["tests"]) == ["1", "2", "3", "4", "5"] and result["tests"]["5"]["depth"] == DEPTHS["chain"]
    assert all(0 <= at_depth(result, swaps, 80) <= 1 for swaps in range(1, 6))
    assert list(result["exits"]) == ["8", "80"] and list(result["exits"]["8"]) == list(RULES)
    assert all(1 <= steps <= 8 for each in result["exits"]["8"].values() for steps, _ in each.values())


def test_tables_are_made_once_and_are_what_the_recipe_says(tmp_path: Path) -> None:
    spec = {"kind": "chain", "lengths": [3], "answers": "every", "train": 8, "valid": 2, "test": 2}
    first = shared(spec, tmp_path)
    (place,) = (path for path in tmp_path.iterdir() if not path.suffix)
    made = place.stat().st_mtime_ns
    assert shared(spec, tmp_path).train.show(0) == first.train.show(0) and place.stat().st_mtime_ns == made
    assert shared(spec | {"seed": 1}, tmp_path).train.show(0) != first.train.show(0)
