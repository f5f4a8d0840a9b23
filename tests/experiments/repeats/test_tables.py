"""What reading again costs is paired by seed, and the page is that of the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.pages import results
from experiments.repeats.plan import rates
from experiments.repeats.tables import chosen, page, prices

ROWS = Path(__file__).parents[3] / "experiments/results/repeats/runs.jsonl"


def test_the_price_of_reading_again_is_paired_by_seed() -> None:
    def run(seed: int, test: float) -> dict[str, object]:
        return {"seed": seed, "loss": {"test": test}}

    kept = {("ASURA", 1): [run(0, 4.0), run(1, 5.0)], ("ASURA", 16): [run(1, 5.5), run(2, 9.0)]}
    assert prices(kept, "ASURA", 16) == {1: pytest.approx(0.5)} and prices(kept, "ASURA", 4) == {}


def test_the_committed_page_is_that_of_the_committed_rows() -> None:
    found = results([str(ROWS)], rates())
    assert page(found) == ROWS.with_name("table.md").read_text()
    assert {run["rate"] for runs in chosen(found).values() for run in runs} <= {run["rate"] for run in found}
