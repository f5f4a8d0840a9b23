"""Depth at test time: what other depths cost on easy and on hard documents, and what exit rules give, from rows made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.leaving.reading import FIXED, MEANS, SIMPLE
from experiments.repeats.deep_tables import (
    NAMES,
    RANDOM,
    TEXTS,
    TIMES,
    TRAINED,
    behind,
    deep_runs,
    drawn,
    hard_less_easy,
)
from experiments.repeats.plan import DOCUMENTS, PARAMETERS, TESTED
from experiments.seeds import mean_loss, reports
from experiments.side_by_side import compared, folded
from experiments.tables import exit_table
from loopwright.evaluation.text import HeldOut
from tests.experiments.results import hard, held_out

ENTROPY = 0.5  # what this rule loses a token; the others lose nothing


def looped(seed: int, steep: float = 0.01) -> dict[str, Any]:
    """A run that loses a share `steep` of what is hard about a passage for each step that it lacks, and a little with each seed."""
    losses = {depth: hard() * (1 + steep * max(TRAINED - depth, 0)) + 0.001 * seed for depth in TESTED[RANDOM]}
    texts, left = {}, {}
    for text in TEXTS:
        whole = folded(HeldOut.of(held_out(text, losses)), digits=12)
        fixed = [whole["losses"][whole["depth"].index(mean)] for mean in MEANS]
        above = [[loss + ENTROPY * targets for loss, targets in zip(each, whole["targets_of"], strict=True)] for each in fixed]
        rules = {rule: {"own": [3.5, 4.0], "losses": above if rule == "entropy" else fixed} for rule in SIMPLE}
        texts[text], left[text] = compared(whole, DOCUMENTS), {FIXED: {"losses": fixed}, **rules}
    return {"name": f"deep/{seed}", "seed": seed, "deep": {"texts": texts, "exits": left}}


@pytest.fixture
def kept() -> dict[tuple[str, int], list[dict[str, Any]]]:
    texts = {"test": folded(HeldOut.of(held_out("test", {1: hard()})), digits=12)}
    plain = [{"name": f"plain/{seed}", "seed": seed, "texts": texts} for seed in range(3)]
    return {(NAMES[PARAMETERS], TIMES): plain, (NAMES[RANDOM], TIMES): [looped(seed) for seed in range(3)]}


def test_what_a_step_less_costs_is_told_by_seed_and_by_how_hard_documents_are(kept: Any) -> None:
    runs = deep_runs(kept, RANDOM)
    mean = mean_loss(reports(kept[NAMES[PARAMETERS], TIMES], "test"), 1)
    for depth in DOCUMENTS:
        missing = max(TRAINED - depth, 0)
        assert behind(runs, "test", depth) == pytest.approx([0.01 * missing * mean] * 3, abs=1e-6)
    assert all(each > 0.01 for each in hard_less_easy(kept, runs, 2)), "a share of the loss is more where the loss is"


def test_rules_stand_beside_fixed_depths(kept: Any) -> None:
    runs = deep_runs(kept, RANDOM)
    for text in TEXTS:
        told = exit_table(runs, text)
        assert told.count("| +0.5000 / +0.5000 / +0.5000 | 0 % | higher |") == len(MEANS)
        assert "| entropy | 3.5 | 4 |" in told
    assert {*drawn(kept)} == {"test-time"} and "No row" in exit_table([], "test")
    assert deep_runs({(NAMES[RANDOM], TIMES): [{"name": "earlier", "seed": 0}]}, RANDOM) == [], "rows of an earlier plan"
