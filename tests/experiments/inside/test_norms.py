"""Norms or loop: two models over the seeds they share, decided over seeds and documents, and not where documents are missing."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.inside.norms import DENSE, LOOP, PAIRS, Apart, apart, flops, norms_table
from experiments.inside.train_plan import CONTROL, STEPS, Row
from tests.experiments.results import hard, held_out


def run(row: Row, seed: int, above: float, *, passages: bool = True) -> dict[str, Any]:
    depths = {1: hard() + 9, STEPS: hard() + above} if row.layers["core_layers"] else {1: hard() + above}
    held = held_out("test", depths)
    if not passages:
        del held["losses"]
    return {"label": row.label, "seed": seed, "parameters": 10**6, "held_out": held}


@pytest.mark.parametrize(
    ("above", "verdict"),
    [((-0.1, -0.11, -0.12), "lower"), ((0.1, 0.11, 0.12), "higher"), ((-0.1, -0.2, 0.05), "not resolved")],
)
def test_a_difference_is_decided_over_seeds_and_documents(above: tuple[float, ...], verdict: str) -> None:
    dense = DENSE[8]
    runs = [run(LOOP, seed, each) for seed, each in enumerate(above)] + [run(dense, seed, 0.0) for seed in (2, 1, 0, 3)]
    found = apart(runs, LOOP, dense)
    assert found is not None and found.of_seeds == pytest.approx(above) and found.mean == pytest.approx(sum(above) / 3)
    assert found.verdict == verdict


def test_documents_that_disagree_decide_nothing() -> None:
    assert Apart((-0.1, -0.1, -0.1), (-0.3, 0.1)).verdict == "not resolved"
    assert Apart((-0.1, -0.1, -0.1), (-0.2, -0.05)).verdict == "lower"


def test_without_losses_of_passages_nothing_is_called_decided() -> None:
    dense, control = DENSE[12], Row(CONTROL)
    runs = [run(dense, seed, -0.2) for seed in range(3)] + [run(control, seed, 0.0, passages=False) for seed in range(3)]
    found = apart(runs, dense, control)
    assert found is not None and found.documents is None and found.verdict == "documents not compared"
    said = norms_table(runs)
    assert said.count("\n") == 2 and "| – | documents not compared |" in said
    assert apart(runs, LOOP, dense) is None


def test_each_pair_has_norms_or_layers_in_common_and_sizes_are_those_that_are_said() -> None:
    assert {(first.family, second.family) for first, second in PAIRS} == {
        ("huginn", "huginn"), ("huginn", "sandwich"), ("huginn", CONTROL),
    }  # fmt: skip
    assert [round(flops(row) / flops(LOOP), 2) for row in DENSE.values()] == [0.45, 0.63, 0.97]
