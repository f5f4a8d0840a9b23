"""Ways of looking: the layer whose MLP is zeroed, pairs in numbers, and rows that do not depend on the batch."""

from pathlib import Path

import pytest
import torch

from experiments.inside.stages.measure import LOOKS, SETS, Sizes, Subject, massive_layer, near, same_and_other
from loopwright.analysis.trace.places import Places
from loopwright.analysis.trace.trace import trace
from tests.cases import noisy

ROWS = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11, 12]]


def test_the_layer_that_makes_the_largest_entry_is_of_prelude_or_core() -> None:
    places = {"prelude": 1, "core": 2, "coda": 1, "steps": 2}  # in the order they run: prelude, core, core, coda
    summary = {"places": places, "by_place": {"largest": {"mean": [2.0, 3.0, 90.0, 95.0, 800.0, 9000.0]}}}
    assert massive_layer(summary) == 2
    summary["by_place"]["largest"]["mean"][0] = 100.0
    assert massive_layer(summary) == 0


def test_steps_of_a_layer_are_told_from_layers() -> None:
    places = Places(1, 2, 1, 3)
    layer = torch.tensor([7, 0, 1, 0, 1, 0, 1, 8])
    same, itself = (layer[:, None] == layer).double(), torch.eye(len(layer), dtype=torch.float64)
    pairs = {"attention": (4 - 3 * same - itself).tolist(), "residual": (same / 2 + itself / 2).tolist()}
    assert same_and_other(pairs, places) == {"attention": {"same": 1.0, "other": 4.0}, "residual": {"same": 0.5, "other": 0.0}}


def test_stages_are_those_of_traces_one_by_one() -> None:
    model = noisy("retrofit-llama-1b-tiny", std=0.3)
    found = near(model, ROWS, batch=2)
    alone = [trace(model, torch.tensor([row]), model.config.depth, collect=("attention", "residual")) for row in ROWS]
    wanted = torch.stack([each.values["colsum"][0].mean(-1) for each in alone]).mean(0)
    torch.testing.assert_close(torch.tensor(found["by_place"]["colsum"]["mean"]), wanted.float(), rtol=2e-3, atol=1e-4)
    assert found["examples"] == len(ROWS) and found["tokens"] == sum(map(len, ROWS))


@pytest.mark.slow
def test_every_look_gives_rows_of_its_own(tmp_path: Path) -> None:
    model = noisy("retrofit-llama-1b-tiny", std=0.3)
    subject = Subject("tiny", model, dict.fromkeys(SETS, ROWS), ROWS[:2], Sizes(3, 2, deep=18, pairs=3, batch=2), tmp_path)
    rows = {look: list(rows(subject)) for look, rows in LOOKS.items()}
    assert [row["set"] for row in rows["near"]] == list(SETS) and all(len(rows[look]) == 1 for look in LOOKS if look != "near")
    (ablated,) = rows["ablated"]
    assert ablated["by_place"]["norm"] != rows["near"][0]["by_place"]["norm"]
    assert rows["deep"][0]["places"]["steps"] == 18 and sum(rows["deep"][0]["limits"]["tokens"]) == pytest.approx(1)
    assert (tmp_path / "pairs-tiny.svg").is_file() and rows["pairs"][0]["steps"] == 3
