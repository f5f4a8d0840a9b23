"""The multi-hop study: every run's model is what its arm says, a tiny run is measured at every number of hops."""

from __future__ import annotations

import json

import pytest

from experiments.hops.plan import ARMS, GROUPS, Run
from experiments.hops.reading import at_own_depth
from experiments.hops.run import RECIPE, carry_out
from loopwright.recipes import recipe

TINY = (
    "updates=2", "batch=4", "schedule.warmup=1", "schedule.decay=1", "compile=false", "graph=false", "precision=fp32",
    "model.changes.hidden_size=32", "model.changes.intermediate_size=32", "data.hops=[1, 2]", "data.length=24", "data.valid=8",
    "data.test=16", "validate.every=1",
)  # fmt: skip


def test_names_are_unique_and_every_change_is_known() -> None:
    runs = [run for group in GROUPS.values() for run in group()]
    assert len({run.name for run in runs}) == len(runs)
    for changes in {run.changes for run in runs}:
        recipe(RECIPE, [*changes, "data.hops=[1, 2]", *(["data.harder=[3]"] if "data.harder=[24, 32]" in changes else [])])


@pytest.mark.parametrize("arm", ["1⊗8", "plain 2"])
def test_a_tiny_run_is_measured(arm: str) -> None:
    result = json.loads(json.dumps(carry_out(Run("trial", arm, "tiny", ()), extra=TINY)))
    layers, steps = ARMS[arm]
    assert set(result["tests"]) == {"1", "2"} and set(at_own_depth(result)) == {1, 2}
    assert result["tests"]["1"]["depth"][-1] == (1 if steps == 1 else 32) and result["laid_over"] == list(TINY)
    assert result["parameters"] == 32 * 32 + layers * (4 * 32 * 32 + 2 * 32 * 32 + 2 * 32) + 32
