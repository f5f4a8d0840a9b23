"""Tables that all studies share, and pages that are what their rows say."""

from __future__ import annotations

import math
from importlib import import_module

import pytest

from experiments.figures import PAGES
from experiments.tables import RESULTS, Page, arm_table, beside, loss_columns, named_pairs, of, pair_table, points_table, told
from tests.experiments.results import result

SLOW = "experiments.ouroboros.tables"  # half a minute: every row beside both ends of the gap
MADE_BY = [
    *PAGES.values(), *(f"experiments.ouroboros.{name}_tables" for name in ("rate", "again", "core")), "experiments.sft.wide_tables",
]  # fmt: skip
COMMANDS = {"experiments.sft.tables": "experiments.sft tables"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == SLOW)) for name in MADE_BY])
def test_the_committed_page_is_that_of_the_committed_rows(name: str) -> None:
    page: Page = import_module(name).PAGE
    committed = (RESULTS / page.files[0]).with_name(page.name).read_text()
    assert page.text(page.read(), COMMANDS.get(name, name)) == committed


def test_an_arm_has_its_seeds_in_order_and_what_is_the_same_once() -> None:
    runs = [{"seed": seed, "loss": loss, "size": 8000} for seed, loss in ((1, 2.25), (0, 3.0))]
    columns = {"size": of("size"), "loss": of("loss"), "absent": of("deep", 0)}
    assert arm_table({"a": runs, "none": []}, columns).splitlines()[2:] == ["| a | 0, 1 | 8,000 | 3 / 2.25 | – |"]
    assert beside([1.0, 1.0]) == "1" and [told(value) for value in (math.nan, -0.5, None, "x")] == ["–", "−0.5", "–", "x"]


def test_losses_stand_where_they_were_measured() -> None:
    run = result("a", {1: 0.5, 4: 0.0})
    columns = loss_columns(("test", "none"), (1, 2, None))
    assert [columns[name](run) for name in ("test, depth 2", "none", "none, depth 1")] == [None] * 3
    assert float(columns["test, depth 1"](run)) == pytest.approx(float(columns["test"](run)) + 0.5, abs=1e-3)


def test_a_pair_of_losses_is_told_at_each_depth_that_both_have_with_its_verdict() -> None:
    arms = {
        "a": [result("a", {1: 0.1, 4: 0.0}, seed) for seed in range(3)],
        "b": [result("b", {1: 0.0, 4: 0.2}, seed) for seed in (0, 1)],
    }
    first, second, best = (
        line.split(" | ")
        for line in pair_table(named_pairs(arms, [("a", "b"), ("a", "c")]), ["test"], (1, 4, None)).splitlines()[2:]
    )
    assert first[3:5] == ["1", "+0.1000 (+0.1000 to +0.1000)"] and first[-2:] == ["0 %", "higher |"] and second[-1] == "lower |"
    assert best[3] == "4, 1" and best[6] == "+0.0000 / +0.0000" and best[-1] == "not resolved |"
    alone = pair_table([("a", "b", arms["a"][:1], arms["b"])], ["test"], (4,)).splitlines()[-1]
    assert alone.endswith("| lower, one seed |") and "| – |" in alone
    assert pair_table([], ["test"]) == "No row of this table was run."


def test_points_may_be_of_two_numbers_of_one_run() -> None:
    runs = [{"seed": seed, "deep": 3.0 + 0.1 * seed, "flat": 1.0} for seed in range(3)]
    line = points_table([("a", "itself", runs, runs)], "exact", of("deep"), of("flat")).splitlines()[-1]
    assert line == "| a | itself | 2.00 / 2.10 / 2.20 | 2.10 (1.85 to 2.35) | decided |"
