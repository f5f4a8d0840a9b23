"""Each arm at its own rate: what is tried, what is chosen, and what is told of a run that diverged."""

from __future__ import annotations

import pytest

from experiments.ouroboros import rates
from experiments.ouroboros.plan import DIAGONAL, Row
from experiments.ouroboros.rates import ARMS, MORE, RATES, WIDER, best_rates, carry_out, grid, tuned, valid_loss
from experiments.ouroboros.run import recipe_of


def tried(arm: str, losses: dict[float, float | None], depth: int = 4) -> list[dict]:
    """Rows of the grid, with these losses on `valid` at one depth; None: diverged."""
    return [
        {
            "name": f"rates/{arm}, rate {rate:g}/0", "label": f"{arm}, rate {rate:g}", "group": "rates", "rate": rate, "seed": 0,
            "texts": {} if loss is None else {"valid": {"depth": [1, depth], "loss": [9.0, loss]}},
        }
        for rate, loss in losses.items()
    ]  # fmt: skip


def test_the_rate_is_that_of_the_least_loss_on_valid_at_its_best_depth() -> None:
    found = tried("a", {1e-3: 5.0, 4e-3: 4.0, 1.6e-2: 4.5, 4e-2: None}) + tried("b", {1e-3: 2.0})
    assert best_rates(found) == {"a": 4e-3}, "an arm whose grid is not whole has no rate yet"
    assert valid_loss(found[3]) == float("inf")


def test_a_rate_beyond_the_grid_counts_where_it_was_tried() -> None:
    found = tried(DIAGONAL, {rate: 5 - rate for rate in RATES})
    assert best_rates(found) == {DIAGONAL: 4e-2}
    assert best_rates(found + tried(DIAGONAL, {1e-1: 4.0})) == {DIAGONAL: 1e-1}


@pytest.mark.parametrize("arm", [*ARMS, *MORE])
def test_an_arm_is_the_row_of_the_plan_at_another_rate(arm: str) -> None:
    (row,) = tuned([arm], [3], {arm: 0.016})
    made = recipe_of(row, "base", "corpus", ("model.changes.core=7",))
    assert made.optim["lr"] == 0.016 and made.seed == 3 and made.model["changes"]["core"] == 7
    assert len({row.name for row in grid([arm])}) == len(RATES) + len(WIDER.get(arm, ()))


def test_a_run_that_diverged_is_told_in_the_grid_and_fails_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(row: Row, *_: object) -> None:
        raise ValueError("update 9: loss nan: not finite 11 times in a row" if row.label.endswith("0.1") else "no such folder")

    monkeypatch.setattr(rates, "made", diverges)
    *rest, last = grid(["gate only"])
    given = {"source": "", "corpus": "", "shards": "", "passages": 1, "choosing": 1, "extra": ()}
    assert "not finite" in carry_out(last, **given)["diverged"]
    for row in (rest[0], *tuned(["gate only"], [1], {"gate only": 0.1})):
        with pytest.raises(ValueError):
            carry_out(row, **given)
